"""One Ray for the sweeps of this folder that do not end it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep import driver
from unlearnbench.sweep.placement import alive
from unlearnbench.sweep.ray_cluster import ray_session, run_slots

from ..warm_ray import warm_workers

_session = ExitStack()
"""Ray with two CPUs, from the first test that shares it to the last test of this folder."""


@pytest.fixture
def shared_ray(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `run_sweep` in this process use the Ray of the folder."""
    import ray

    if not ray.is_initialized():
        config = load_config("quickstart", ["ray.concurrent=2"])
        _session.enter_context(warm_workers())
        _session.enter_context(ray_session(config, pytest.fail))

    @contextmanager
    def session(config: SweepConfig, _warn: Callable[[str], None]) -> Generator[int, None, None]:
        yield run_slots(config, [node["Resources"] for node in alive()])

    monkeypatch.setattr(driver, "ray_session", session)
    return ray


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """End Ray before tests of other folders, which start their own."""
    # No fixture has this scope: a folder without `__init__.py` is no package to pytest.
    if nextitem is None or nextitem.path.parent != item.path.parent:
        _session.close()
