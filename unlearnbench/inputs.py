"""A configuration and what it points to, the rows and the models, made into a plan.

Here ends what can be found wrong before anything is written or spent; all of it is reported at
once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from pydantic import ValidationError

from unlearnbench.data.benchmark import Benchmark
from unlearnbench.data.loading import fingerprint, load_benchmark, read_refusals
from unlearnbench.data.tofu import FRACTIONS
from unlearnbench.document import Entry, Loc, dotted
from unlearnbench.errors import ConfigError, DataError, Problem, UnlearnbenchError
from unlearnbench.frozen import Settings
from unlearnbench.models.loading import source_errors, template_digest
from unlearnbench.plan import Plan, make_plan
from unlearnbench.settings import DataSettings, ModelSettings, SweepConfig

_Section = TypeVar("_Section", bound=Settings)


def plan_sweep(config: SweepConfig) -> tuple[Plan, Benchmark]:
    """The plan of `config` on its data as they are now.

    Raises: DataError or ModelError where rows, a model's folder or a log are missing or damaged;
    ConfigError with all of these where there are several.
    """
    errors = [
        (("models", index, *loc), error)
        for index, model in enumerate(config.models)
        for loc, error in source_errors(model)
    ]
    benchmark = None
    if not errors or _is_local(config.data):
        benchmark, wrong = _load(config.data, config.forget_fractions)
        errors += wrong
    if benchmark is None or errors:
        raise _together(errors, config.name)
    fingerprints = {fraction: fingerprint(benchmark, fraction) for fraction in benchmark.splits}
    rows = {fraction: benchmark.sizes(fraction) for fraction in benchmark.splits}
    templates = {m.name: digest for m in config.models if (digest := template_digest(m))}
    return replace(make_plan(config, fingerprints, templates), rows=rows), benchmark


def input_problems(root: Entry) -> list[Problem]:
    """The problems of the data and models that a configuration names, itself right or wrong.

    Looks only at what lies on this machine.
    """
    errors: list[tuple[Loc, UnlearnbenchError]] = []
    models = root.below("models")
    for index, entry in enumerate(models.items if models is not None else ()):
        settings = _settings(ModelSettings, entry)
        found = source_errors(settings) if settings is not None else ()
        errors += [(("models", index, *loc), error) for loc, error in found]
    data = _settings(DataSettings, root.below("data") or Entry({}, root.place))
    fractions = root.below("forget_fractions")
    given = [item.value for item in fractions.items] if fractions is not None else []
    published = [one for one in given if one in FRACTIONS]
    if data is not None and _is_local(data):
        errors += _load(data, published)[1] if published else _refusals(data)
    return [Problem(root.at(loc)[0].place, dotted(loc), str(error)) for loc, error in errors]


def _is_local(data: DataSettings) -> bool:
    return data.source == "synthetic" or data.path is not None


def _load(
    data: DataSettings, fractions: Sequence[float]
) -> tuple[Benchmark | None, list[tuple[Loc, UnlearnbenchError]]]:
    errors = _refusals(data)
    if errors:
        data = data.model_copy(update={"refusals": None})
    try:
        return load_benchmark(data, fractions), errors
    except DataError as error:
        return None, [*errors, (("data",) if data.path is None else ("data", "path"), error)]


def _refusals(data: DataSettings) -> list[tuple[Loc, UnlearnbenchError]]:
    try:
        read_refusals(data.refusals)
    except DataError as error:
        return [(("data", "refusals"), error)]
    return []


def _settings(kind: type[_Section], entry: Entry) -> _Section | None:
    """A section of the configuration; None where it is wrong, which is reported elsewhere."""
    try:
        return kind.model_validate(entry.plain())
    except ValidationError:
        return None


def _together(errors: Sequence[tuple[Loc, UnlearnbenchError]], name: str) -> UnlearnbenchError:
    """One error as it is, several as the problems of the configuration called `name`."""
    if len(errors) == 1:
        return errors[0][1]
    return ConfigError([Problem(name, dotted(loc), str(error)) for loc, error in errors])
