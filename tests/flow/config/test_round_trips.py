"""Whatever settings admit survives its ways: to a worker, into a record and a plan, and back.

A run travels to a worker as JSON text, and stands in its record and in `plan.json`, from which
`run`, `export`, `track` and `report` read it. The test walks over all keys of all settings and of
all plug-ins that are installed, and puts values of each declared type there: no list is written
here, so that a new key or plug-in is tested without a further line.
"""

from __future__ import annotations

import itertools
import json
import types
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from unlearnbench.api import registry
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.hashing import decode_floats, sealed_json
from unlearnbench.config.entries import attack_from_spec, attack_spec, benchmark_of
from unlearnbench.config.loader import load_config
from unlearnbench.config.method_specs import method_from_spec, method_spec, modifiers_from_spec
from unlearnbench.config.metric_plan import benchmark_plan
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, RetainSpec, SweepConfig
from unlearnbench.config.search import Range
from unlearnbench.config.section import Settings
from unlearnbench.report.sweep_tracker import sweep_config
from unlearnbench.results.records import Record, run_record
from unlearnbench.runs.remade_model import spec_of
from unlearnbench.sweep.trial_messages import parameters, run_of

TEXTS = ('naïve 数 😀 \u2028 "q" \\ \'', "", "inf", "nan", "null", "true", "1", "1e5", "[1]")
INTEGERS = (0, 1, 2, -7, 300, 512, 2**31, 2**53 + 1, 2**70)
FLOATS = (0.0, -0.0, 1.0, 0.1, 1 / 3, 5e-324, 1e-6, 1e22, 1.7e308, float("inf"), float("-inf"))
UNION = (Union, types.UnionType)
BY_NAME = ("data", "metrics", "attacks", "attack_training", "hyperparameters", "modifiers")
"""Keys with the settings of plug-ins, which have tests of their own."""


def samples(kind: Any) -> Iterator[Any]:
    """Values of a declared type, as YAML gives them: sequences are tuples, sections mappings."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        yield from samples(arguments[0])
    elif origin in UNION:
        for member in arguments:
            yield from samples(member)
    elif origin is Literal:
        yield from arguments
    elif origin is tuple:
        yield from tuples(arguments)
    elif origin in (dict, Mapping) or kind in (dict, Mapping):
        yield from mappings(arguments)
    elif kind in (None, type(None)):
        yield None
    elif kind is bool:
        yield from (True, False)
    elif kind is int:
        yield from INTEGERS
    elif kind is float:
        yield from (*FLOATS, 3)
    elif kind is str:
        yield from TEXTS
    elif kind is Any:
        yield from (*TEXTS[:3], 2**70, 0.5, None, True, (1, (2.5, ("a",))), {"a": {"b": (1, None)}})
    elif isinstance(kind, type) and issubclass(kind, BaseModel):
        yield from sections(kind)


def tuples(kinds: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    if kinds[-1:] == (...,):
        yield ()
        members = [*samples(kinds[0])]
        yield from ((member,) for member in members)
        yield from itertools.pairwise(members)
    else:
        columns = [[*samples(kind)] for kind in kinds]
        for i in range(max(map(len, columns), default=0)):
            yield tuple(column[i % len(column)] for column in columns)


def mappings(kinds: tuple[Any, ...]) -> Iterator[dict[Any, Any]]:
    yield {}
    keys, values = ([*samples(kind)] for kind in kinds or (str, Any))
    for i, value in enumerate(values):
        yield {keys[i % len(keys)]: value, keys[(i + 1) % len(keys)]: value}


def sections(kind: type[BaseModel]) -> Iterator[dict[str, Any]]:
    """Sections of some settings: the fewest keys, then one more key at a time."""
    required = least(kind)
    yield required
    for key, info in kind.model_fields.items():
        for value in samples(info.annotation) if key not in BY_NAME else ():
            yield required | {key: value}


def least(kind: type[BaseModel]) -> dict[str, Any]:
    """The first section that settings admit: values of all keys without a default."""
    if kind is Range:
        return {"low": 0.5, "high": 300.0}  # also of what must be above 0
    if kind is ModelSettings:
        return {"name": TEXTS[0], "base": TEXTS[0]}  # neither base nor fine_tuned is required
    keys = {key: info for key, info in kind.model_fields.items() if info.is_required()}
    others = [key for key in kind.model_fields if key not in keys]
    # Of some keys with a default one is needed: a patience has epochs or steps.
    for more in ((), *((key,) for key in others)):
        named = [*keys, *more]
        columns = [[*samples(kind.model_fields[key].annotation)] for key in named]
        for values in itertools.product(*columns):
            section = dict(zip(named, values, strict=True))
            with suppress(ValidationError, UnlearnbenchError):
                kind.model_validate(section)
                return section
    raise AssertionError(f"{kind.__name__}: no section is admitted")


def paths(kind: type[BaseModel], above: tuple[str, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """All keys of settings, with those of the settings in them: (`model`, `lora`, `rank`)."""
    for key, info in kind.model_fields.items():
        yield (*above, key), info.annotation
        for below in settings_in(info.annotation):
            yield from paths(below, (*above, key))


def settings_in(annotation: Any) -> Iterator[type[Settings]]:
    if isinstance(annotation, type) and issubclass(annotation, Settings):
        yield annotation
    elif get_origin(annotation) in (*UNION, Annotated):
        for argument in get_args(annotation):
            yield from settings_in(argument)


def changed(values: Any, path: tuple[str, ...], value: Any, kind: type[BaseModel]) -> Any:
    """Sections with another value at a path, through sections that are not there by default."""
    key, *rest = path
    if not rest:
        return {**values, key: value}
    (below,) = (
        k for k in settings_in(kind.model_fields[key].annotation) if rest[0] in k.model_fields
    )
    section = values.get(key)
    if not isinstance(section, Mapping):
        section = least(below)
    return {**values, key: changed(section, tuple(rest), value, below)}


@cache
def base_config() -> SweepConfig:
    return load_config("quickstart", ["forget_fractions=[0.1]"])


def config_of(**changes: Any) -> SweepConfig:
    return base_config().model_copy(update=changes)


@cache
def run() -> RunSpec:
    return make_plan(base_config(), "0" * 16).runs[0]


def recorded(spec: RunSpec) -> RunSpec:
    """The run that its record describes."""
    written = run_record(spec, status="failed")
    text = sealed_json({"spec": written.spec})
    stored = json.loads(text, object_hook=decode_floats)["spec"]
    record = Record(
        written.id, "run", "m", 0.1, spec.method.label, None, 0, stored, "finished", "tofu"
    )
    return spec_of(record)


def of_worker(spec: RunSpec) -> RunSpec:
    """The run that a worker trains."""
    return run_of(parameters(spec))


def planned(config: SweepConfig, folder: Path) -> SweepConfig:
    """The configuration that `export` and `track` read."""
    text = json.dumps(Plan(config, {}, ()).to_json(), ensure_ascii=False, allow_nan=False)
    (folder / "plan.json").write_text(text, encoding="utf-8")
    return sweep_config(folder)


def check_run(spec: RunSpec, where: str) -> None:
    text = repr(spec)
    id_ = spec.id
    for way in (of_worker, recorded):
        back = way(spec)
        assert repr(back) == text, f"{where}: another run by way of {way.__name__}"
        assert back.id == id_, f"{where}: another id by way of {way.__name__}"


def check_config(config: SweepConfig, folder: Path, where: str) -> None:
    if not config.split_keys:  # which no file can say, see `written.py`
        return
    back = planned(config, folder)
    assert repr(back.model_dump()) == repr(config.model_dump()), f"{where}: another configuration"


def plain(settings: Settings) -> dict[str, Any]:
    """Sections of settings, but for entries that name plug-ins."""
    values = {key: getattr(settings, key) for key in type(settings).model_fields}
    for key, value in values.items():
        if isinstance(value, Settings):
            values[key] = value.model_dump()
    if "models" in values:
        values["models"] = tuple(model.model_dump() for model in values["models"])
    return values


RUN_PATHS = [(path, kind) for path, kind in paths(RunSpec) if path[-1] not in BY_NAME]
SWEEP_PATHS = [(path, kind) for path, kind in paths(SweepConfig) if path[-1] not in BY_NAME]


def dotted(paths: list[tuple[tuple[str, ...], Any]]) -> list[str]:
    return [".".join(path) for path, _ in paths]


def admitted(
    kind: type[Settings], base: Settings, path: tuple[str, ...], annotation: Any
) -> Iterator[tuple[Any, str]]:
    """The settings with each value at a path that the schema admits, with a text for a failure."""
    is_any_admitted = False
    for value in samples(annotation):
        with suppress(ValidationError, UnlearnbenchError):
            settings = kind.model_validate(changed(plain(base), path, value, kind))
            is_any_admitted = True
            yield settings, f"{'.'.join(path)}: {value!r}"
    assert is_any_admitted, "no value is admitted"


@pytest.mark.parametrize(("path", "annotation"), RUN_PATHS, ids=dotted(RUN_PATHS))
def test_every_key_of_a_run_survives_worker_and_record(
    path: tuple[str, ...], annotation: Any
) -> None:
    for spec, where in admitted(RunSpec, run(), path, annotation):
        check_run(spec, where)


@pytest.mark.parametrize(("path", "annotation"), SWEEP_PATHS, ids=dotted(SWEEP_PATHS))
def test_every_key_of_a_sweep_survives_its_plan(
    path: tuple[str, ...], annotation: Any, tmp_path: Path
) -> None:
    for config, where in admitted(SweepConfig, config_of(), path, annotation):
        check_config(config, tmp_path, where)


FIELDS = """
    texts: tuple[str, ...] = Field(default=("a",), description="texts")
    pairs: tuple[tuple[int, str], ...] = Field(default=(), description="pairs")
    table: dict[str, tuple[float, ...]] = Field(default={}, description="numbers by name")
    maybe: float | None = Field(default=None, description="a number, or none")
    limits: tuple[Annotated[float, Field(allow_inf_nan=True)], ...] = Field(
        default=(float("-inf"), 1.0), description="numbers, perhaps infinite"
    )
    score: float = Field(default=float("inf"), allow_inf_nan=True, description="a number")
    text: str = Field(default="inf", description="a text")
    either: Literal["none", 2, True] = Field(default=2, description="one of three")

    @model_validator(mode="before")
    @classmethod
    def _as_given(cls, values: Any) -> Any:
        return values
"""
"""Keys of every type that YAML can express, behind a validator that sees them first."""
HEAD = """
from typing import Annotated, Any, Literal
from pydantic import Field, model_validator
from unlearnbench.api.attack import PromptAttack
from unlearnbench.api.metric import Metric
from unlearnbench.benchmarks.synthetic import Synthetic
"""
MADE_UP = {
    "attacks": (
        "class Mine(PromptAttack):",
        "    label = 'Mine'",
        "    def asked(self, row, point, rows): return row",
    ),
    "metrics": (
        "class Mine(Metric):",
        "    label = 'Mine'",
        "    roles = frozenset({'forget'})",
        "    def per_example(self, seen): return seen.answer_loss",
    ),
    "benchmarks": (
        "class Mine(Synthetic):",
        "    source: str = 'mine'",
    ),
}
METHOD = """
from typing import Literal
from pydantic import Field
from unlearnbench.api.method import Method, Needs

class Mine(Method):
    family = "own"
    needs = Needs(parts=frozenset({"forget"}))
    score: float = Field(default=float("inf"), allow_inf_nan=True, description="a number")
    text: str = Field(default="inf", description="a text")
    count: int = Field(default=1, description="a count")
    flag: bool = Field(default=False, description="a flag")
    either: Literal["none", "inf"] | float = Field(default="none", description="a word or number")
    def loss(self, batch): return batch.forget.token_logprobs.sum()
"""


def offered(kind: Any, folder: Path) -> list[tuple[str, type[HyperParameters]]]:
    """All installed plug-ins of a kind, and one with keys of every type."""
    text = METHOD
    if kind in MADE_UP:
        head, *body = MADE_UP[kind]
        text = f"{HEAD}\n{head}\n{FIELDS}\n" + "\n".join(body) + "\n"
    if kind != "modifiers":
        (folder / "mine.py").write_text(text, encoding="utf-8")
        registry.register_file(folder / "mine.py")
    return [(name, registry.load(kind, name)) for name in registry.names(kind)]


def settings_of(kind: type[HyperParameters]) -> Iterator[dict[str, Any]]:
    """Settings of a plug-in: the fewest keys, then values of each key that it admits."""
    for section in sections(kind):
        with suppress(ValidationError, UnlearnbenchError):
            kind.model_validate(section)
            yield section


def changed_run(**changes: Any) -> RunSpec:
    base = run()
    if "metrics" in changes:
        evaluation = plain(base.evaluation) | {"metrics": changes.pop("metrics")}
        changes["evaluation"] = evaluation
    return RunSpec.model_validate(plain(base) | changes)


def test_settings_of_attacks_survive(tmp_path: Path) -> None:
    for name, kind in offered("attacks", tmp_path):
        for settings in settings_of(kind):
            attack: Any = kind.model_validate(settings)
            with suppress(UnlearnbenchError):  # a file that is not there
                specs = (attack_spec(name, attack),)
                spec = changed_run(attacks=specs)
                check_run(spec, f"{name}: {settings}")
                check_config(config_of(attacks=specs), tmp_path, f"{name}: {settings}")
                for way in (of_worker, recorded):
                    made = attack_from_spec(way(spec).attacks[0])
                    assert repr(made) == repr(attack), f"{name}: {settings} by {way.__name__}"


@pytest.mark.long
def test_settings_of_benchmarks_survive(tmp_path: Path) -> None:
    for name, kind in offered("benchmarks", tmp_path):
        for settings in settings_of(kind):
            benchmark = benchmark_of({**settings, "source": name})
            check_run(changed_run(data=benchmark), f"{name}: {settings}")
            if benchmark.splits == () or "splits" not in settings:
                changes = {"data": benchmark}
                check_config(config_of(**changes), tmp_path, f"{name}: {settings}")


def test_settings_of_metrics_survive(tmp_path: Path) -> None:
    for name, kind in offered("metrics", tmp_path):
        for settings in settings_of(kind):
            spec = changed_run(metrics={name: settings})
            check_run(spec, f"{name}: {settings}")
            check_config(config_of(evaluation=spec.evaluation), tmp_path, f"{name}: {settings}")
            if name == "mine":
                back = recorded(spec).evaluation
                measures = benchmark_plan(profile_of(back), spec.data, back.metrics).measures
                (made,) = (item.metric for item in measures if item.name == "mine")
                assert repr(made) == repr(kind.model_validate(settings))


def test_hyperparameters_of_methods_survive(tmp_path: Path) -> None:
    for name, kind in offered("methods", tmp_path):
        for settings in settings_of(kind):
            method = method_spec(name, settings)
            spec = changed_run(method=method.model_dump())
            check_run(spec, f"{name}: {settings}")
            if name == "mine":  # the others have no further types
                grid = MethodGrid(specs=(method,))
                check_config(config_of(methods=(grid,)), tmp_path, f"{name}: {settings}")
            made = method_from_spec(recorded(spec).method)
            assert repr(made) == repr(kind.model_validate(settings))


def test_settings_of_modifiers_survive(tmp_path: Path) -> None:
    retain = RetainSpec(term="nll")
    for name, kind in offered("modifiers", tmp_path):
        for settings in settings_of(kind):
            values = {f"{name}.{key}": value for key, value in settings.items()}
            method = method_spec("npo", values, retain, (name,))
            spec = changed_run(method=method.model_dump())
            check_run(spec, f"{name}: {settings}")
            check_config(config_of(methods=(MethodGrid(specs=(method,)),)), tmp_path, name)
            (made,) = modifiers_from_spec(recorded(spec).method)
            assert repr(made) == repr(kind.model_validate(settings))


def test_a_list_of_target_modules_in_a_file_reaches_every_reader(tmp_path: Path) -> None:
    text = "extends: quickstart\nmodels: [{name: tiny, base: tiny, lora: {target_modules: [%s]}}]\n"
    path = tmp_path / "mine.yaml"
    path.write_text(text % "q_proj, embed_tokens", encoding="utf-8")
    config = load_config(str(path))
    lora = config.models[0].lora
    assert lora is not None
    assert lora.target_modules == ("q_proj", "embed_tokens")
    check_config(config, tmp_path, "lora")
    for spec in make_plan(config, "0" * 16).runs:
        check_run(spec, "lora")
