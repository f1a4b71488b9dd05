"""Fixtures that all pages share: small models and their cache, and a finished sweep."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from unlearnbench.cli.main import main
from unlearnbench.config import loader

from .small_models import LEARNED, Load, shrinking, shrinking_several

_ROOT = Path(__file__).parents[3]
METHODS = "[ce-u, gradient-difference, {method: npo, retain: {term: nll}}]"
"""Some of the quickstart, with two seeds."""


@pytest.fixture(scope="module")
def small_models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Load]:
    """Replace models and data of configurations by small ones, their seeds by one.

    Yields a loader that leaves two seeds, and whose start model has learned its rows.
    """
    cache, load = tmp_path_factory.mktemp("cache"), loader.load_config
    with pytest.MonkeyPatch.context() as patch:
        several = shrinking_several(load, cache, seeds=1)
        patch.setattr(loader, "load_config", shrinking(load, cache, seeds=1))
        patch.setattr(loader, "load_configs", several)
        yield shrinking(load, cache, seeds=2, changes=LEARNED)


@pytest.fixture(scope="module")
def quickstart(small_models: Load, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep of the shipped quickstart, small: three of its entries at their first rates.

    Without Ray: a run after the other, in this process.
    """
    from unlearnbench.results.sweep_folder import claim_folder
    from unlearnbench.runs.plan_sweep import plan_sweep
    from unlearnbench.runs.run import run_single

    place = tmp_path_factory.mktemp("quickstart")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        planned, _ = plan_sweep(small_models("quickstart", [f"methods={METHODS}"]))
        folder = claim_folder(planned)
        first: dict[str, float | None] = {}
        for spec in planned.runs:
            rate = first.setdefault(spec.method.model_dump_json(), spec.learning_rate)
            if spec.learning_rate == rate:
                run_single(spec, planned.config, folder, lambda _: None)
        assert main(["report", os.path.relpath(folder)]) == 0
    return folder


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The site, built in strict mode: a warning is an error."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        patch.chdir(_ROOT)
        from mkdocs.commands.build import build
        from mkdocs.config import load_config

        place = tmp_path_factory.mktemp("site")
        config = load_config(str(_ROOT / "mkdocs.yml"), site_dir=str(place))
        assert config.strict
        config.plugins.on_startup(command="build", dirty=False)
        build(config)
        yield place
