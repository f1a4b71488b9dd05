"""Entries that name plug-ins and give their settings, for every kind of plug-in but methods.

`metrics: [rouge, fluency]` is short for plug-ins with their own settings; `metrics: {mia-min-k:
{share: 0.2}}`, or a list with such sections in it, changes them. The `data:` section has the
settings of the benchmark that its `source` names. Settings are checked by the plug-in's own fields,
so that one from outside gets the messages of a built-in one.
"""

import json
import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    BaseModel,
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticKnownError

from unlearnbench.api.attack import Attack
from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.identity import ALWAYS, RUNS, Id, Place, Rule, identity_of
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import Kind, file_digest, load
from unlearnbench.base.errors import PluginError, UnlearnbenchError
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.messages import (
    describe_error,
    describe_errors,
    describe_value,
    errors_below,
    fault,
)
from unlearnbench.config.section import Settings

_T = TypeVar("_T")
_P = TypeVar("_P", bound=HyperParameters)
Read = Callable[[str, type[Any], Mapping[str, Any]], _T]
"""Makes something of an entry's name, plug-in and settings."""


def read_entries(value: Any, kind: Kind, read: Read[_T]) -> list[_T]:
    """The results of `read` for all entries, each name of which may be there once.

    Raises: ValidationError with the errors of all entries.
    """
    if isinstance(value, Mapping):
        value = tuple({name: settings} for name, settings in value.items())
    if not isinstance(value, tuple):
        raise ValueError(
            f"expected a list of {kind}, or a section of settings by their names, "
            f"got {describe_value(value)}"
        )
    seen: set[str] = set()

    def entry(item: Any) -> _T:
        is_section = isinstance(item, Mapping) and len(item) == 1
        ((name, settings),) = item.items() if is_section else ((item, {}),)
        if not isinstance(name, str):
            raise ValueError(f"expected a name, got {describe_value(name)}")
        try:
            plugin = load(kind, name)
            if not isinstance(settings, Mapping):
                text = f"expected its settings, {{}} for none, got {describe_value(settings)}"
                raise PluginError(text)
            if name in seen:
                raise PluginError(f"{name} is there already; keep one")
            seen.add(name)
            return read(name, plugin, settings)
        except ValidationError as error:
            raise errors_below(error, (name,)) from None
        except UnlearnbenchError as error:
            raise fault(str(error), name) from None

    return TypeAdapter(list[Annotated[Any, PlainValidator(entry)]]).validate_python([*value])


def made(kind: type[_P], settings: Mapping[str, Any], name: str, *, if_missing: str = "") -> _P:
    """Make a plug-in from its settings.

    if_missing  advice where a value is missing

    Raises: PluginError where a value is missing or refused.
    """
    try:
        return kind.model_validate({**settings})
    except ValidationError as error:
        missing = any(details["type"] == "missing" for details in error.errors(include_url=False))
        text = describe_errors(error) + (if_missing if missing else "")
        raise PluginError(f"{name} cannot be made: {text}") from None


def example(kind: type[_P], settings: Mapping[str, Any], name: str) -> _P:
    """Make a plug-in with its defaults; required values come from a field's `examples`."""
    fields = kind.model_fields.items()
    known = {k: info.examples[0] for k, info in fields if info.is_required() and info.examples}
    hint = ". Give a value: --set KEY=VALUE, or `examples=[…]` in its Field"
    return made(kind, {**known, **settings}, name, if_missing=hint)


def with_tuples(value: Any) -> Any:
    """A value with tuples in place of lists, which settings have as JSON."""
    if isinstance(value, Mapping):
        return {key: with_tuples(below) for key, below in value.items()}
    return tuple(map(with_tuples, value)) if isinstance(value, list | tuple) else value


INFINITE = {"inf": math.inf, "-inf": -math.inf}
"""Floats by the text that `json_ready` writes for them."""


def restored(kind: type[BaseModel], settings: Mapping[str, Any]) -> dict[str, Any]:
    """A plug-in's settings as they were before they were stored as JSON.

    JSON has lists for tuples, and text for infinite floats. Text stays where the plug-in's field
    takes text.
    """
    values: dict[str, Any] = {}
    for key, stored in settings.items():
        value = with_tuples(stored)
        info = kind.model_fields.get(key)
        if info is not None and _has_infinite_text(value) and not _admits(info, value):
            value = _with_infinite_floats(value)
        values[key] = value
    return values


def _admits(info: FieldInfo, value: Any) -> bool:
    """Whether a value is of a field's type."""
    declared: Any = Annotated[info.annotation, *info.metadata] if info.metadata else info.annotation
    try:
        TypeAdapter(declared).validate_python(value, strict=True)
    except ValidationError:
        return False
    return True


def _has_infinite_text(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_infinite_text, value.values()))
    if isinstance(value, tuple):
        return any(map(_has_infinite_text, value))
    return isinstance(value, str) and value in INFINITE


def _with_infinite_floats(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _with_infinite_floats(below) for key, below in value.items()}
    if isinstance(value, tuple):
        return tuple(map(_with_infinite_floats, value))
    return INFINITE.get(value, value) if isinstance(value, str) else value


def _read_metrics(value: Any, info: ValidationInfo) -> Mapping[str, Mapping[str, Any]]:
    if info.mode == "json":  # stored ones may be of a metric that is not installed here
        return {name: _restored_metric(name, settings) for name, settings in value.items()}
    return dict(read_entries(value, "metrics", _metric))


def _restored_metric(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    if not _has_infinite_text(with_tuples(settings)):
        return dict(with_tuples(settings))
    with suppress(PluginError):  # it may not be installed here
        return restored(load("metrics", name), settings)
    return dict(with_tuples(settings))


def _metric(
    name: str, plugin: type[HyperParameters], settings: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    try:
        plugin.model_validate(settings)
    except ValidationError as error:
        if any(details["type"] != "missing" for details in error.errors(include_url=False)):
            raise  # what is missing the benchmark may give
    return name, dict(settings)


MetricEntries = Annotated[Mapping[str, Mapping[str, Any]], PlainValidator(_read_metrics)]
"""Settings by metric, see `metric_plan.MetricChoices`."""


def _without_epochs(place: Place) -> Any:
    return {name: value for name, value in place.value.items() if name != "at"}


WITHOUT_EPOCHS: Final = Rule("without the epochs at which runs are attacked", _without_epochs)
"""Start and retain models are attacked as they are."""


class AttackSpec(Settings):
    """One attack with every setting resolved; part of the identity of a run under it."""

    name: Annotated[str, ALWAYS]
    settings: Annotated[dict[str, Any], ALWAYS.of(*RUNS), WITHOUT_EPOCHS.of(Id.ATTACK)]
    """As JSON, the fields of the attack that `HyperParameters.resolved` names."""
    version: Annotated[int, ALWAYS] = 1
    source: Annotated[str | None, ALWAYS] = None
    """Content hash of the plug-in file; None for an installed attack."""
    content: Annotated[str, ALWAYS] = ""
    """Hash of files that the settings name."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values that the numbers of a start or retain model under the attack depend on."""
        return identity_of(self, Id.ATTACK)


def attack_spec(name: str, attack: Attack) -> AttackSpec:
    """The spec of an attack. Raises: PluginError where its `content` fails."""
    with plugin_code(f"`content` of attack {name!r}", passing=UnlearnbenchError):
        content = attack.content()
    values: dict[str, Any] = json_ready(attack.model_dump(mode="json"))
    return AttackSpec(
        name=name,
        # Fields that were added after runs had been published are left out if they are not set.
        settings={field: values[field] for field in attack.resolved()},
        version=attack.version,
        source=file_digest(name) or None,
        content=content,
    )


def attack_from_spec(spec: AttackSpec) -> Attack:
    """Make the attack of a spec. Raises: PluginError where another one is installed here."""
    kind: type[Attack] = load("attacks", spec.name)
    if (kind.version, file_digest(spec.name) or None) != (spec.version, spec.source):
        raise PluginError(
            f"attack {spec.name!r} differs from the one that was planned: its version or its "
            "plugin file changed; start again with the same --plugin"
        )
    return made(kind, restored(kind, spec.settings), f"attack {spec.name!r}")


def _read_attacks(value: Any, info: ValidationInfo) -> tuple[AttackSpec, ...]:
    if value is None:  # takes away those of the file that is extended, as `holdout: null` does
        return ()
    if info.mode == "json" or isinstance(value, list):  # as stored; YAML gives tuples
        return tuple(AttackSpec.model_validate(spec) for spec in value)
    if isinstance(value, tuple) and value and all(isinstance(s, AttackSpec) for s in value):
        return value
    return tuple(sorted(read_entries(value, "attacks", _attack), key=lambda spec: spec.name))


def _attack(name: str, kind: type[Attack], settings: Mapping[str, Any]) -> AttackSpec:
    return attack_spec(name, kind.model_validate(with_tuples(settings)))


def _stored(specs: tuple[AttackSpec, ...]) -> list[dict[str, Any]]:
    return [spec.model_dump(mode="json") for spec in specs]


AttackEntries = Annotated[
    tuple[AttackSpec, ...], PlainValidator(_read_attacks), PlainSerializer(_stored)
]
"""Specs by name, each name once."""


def attack_specs(settings: Mapping[str, Mapping[str, Any]]) -> tuple[AttackSpec, ...]:
    """The specs of attacks, sorted by name, from their settings by name.

    Raises: PluginError for unknown attacks and wrong settings.
    """
    try:
        return TypeAdapter[tuple[AttackSpec, ...]](AttackEntries).validate_python(dict(settings))
    except ValidationError as error:
        lines = [
            f"attack {'.'.join(step for step in details['loc'] if isinstance(step, str))}: "
            f"{describe_error(details)}"
            for details in error.errors(include_url=False)
        ]
        raise PluginError("\n".join(lines)) from None


DEFAULT = "synthetic"
"""The benchmark of a configuration that names none."""
_EARLIER = {
    "source": DEFAULT,
    "path": None,
    "hub_id": "locuslab/TOFU",
    "revision": None,
    "authors": 40,
    "questions_per_author": 20,
    "pretraining_authors": 20,
    "seed": 0,
    "refusals": None,
}
"""The section of versions in which these two benchmarks shared one, with its defaults."""
_SHARED = ("synthetic", "tofu")
_HUB = ("hub_id", "revision")
_LATER = {
    "muse": _HUB,
    "muse-scalability": _HUB,
    "muse-sustainability": _HUB,
    "rwku": _HUB,
    "knowundo": _HUB,
    "lume": (*_HUB, "part"),
    "wmdp": (*_HUB, "bio_forget_corpus", "texts"),
}
"""Fields that published benchmarks got later, by benchmark. They count where they are set."""


def benchmark_of(section: Mapping[str, Any], *, stored: bool = False) -> Benchmark:
    """The benchmark that a section describes. Raises: ValidationError where it is wrong.

    stored  read from JSON, perhaps of an earlier version
    """
    values = {"source": DEFAULT, **section}
    try:
        kind: type[Benchmark] = load("benchmarks", str(values["source"]))
    except PluginError as error:
        raise fault(str(error), "source") from None
    if values["source"] in _SHARED:  # null leaves a key out, where another file has it
        other = _EARLIER.keys() - kind.model_fields.keys()
        values = {k: v for k, v in values.items() if k not in other or not (stored or v is None)}
    if not stored:
        return kind.model_validate(values)
    try:
        return kind.model_validate(restored(kind, values))
    except ValidationError:
        # A benchmark made in Python may have fields that YAML cannot state, such as a set.
        return kind.model_validate_json(json.dumps(values))


def benchmark_named(source: str) -> Benchmark:
    """A benchmark with its default settings."""
    return benchmark_of({"source": source})


def earlier_section(benchmark: Benchmark) -> dict[str, Any]:
    """The section as versions wrote it in which benchmarks shared one; what ids were made from."""
    fields = benchmark.model_dump(mode="json")
    if benchmark.source in _SHARED:
        return {**_EARLIER, **fields}
    defaults = {name: info.default for name, info in type(benchmark).model_fields.items()}
    later = _LATER.get(benchmark.source, ())
    left_out = {name for name in later if fields[name] == defaults[name]}
    return {name: value for name, value in fields.items() if name not in left_out}


def _read_benchmark(value: Any, info: ValidationInfo) -> Benchmark:
    if isinstance(value, Benchmark):
        return value
    if not isinstance(value, Mapping):
        raise PydanticKnownError("dict_type")
    return benchmark_of(value, stored=info.mode == "json")


BenchmarkSection = Annotated[SerializeAsAny[Benchmark], PlainValidator(_read_benchmark)]
"""A field of settings that has the benchmark."""
