"""Entries that name plug-ins and give their settings, for every kind of plug-in except methods.

    metrics: [rouge, fluency]                      plug-ins with their default settings
    metrics: {mia-min-k: {share: 0.2}}             settings by name
    metrics: [rouge, {mia-min-k: {share: 0.2}}]    both
    data: {source: tofu, …}                        the benchmark that `source` names, with settings

Settings are checked by the plug-in's own fields, so a plug-in from outside has the same messages as
a built-in one. Entries are also read from stored JSON (`info.mode == "json"`), perhaps from an
earlier version, or with a plug-in that is not installed here.
"""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Annotated, Any, Final, TypeVar

from pydantic import (
    PlainSerializer,
    PlainValidator,
    SerializeAsAny,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
)
from pydantic_core import PydanticKnownError

from unlearnbench.api.attack import Attack
from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.identity import ALWAYS, RUNS, Id, Place, Rule, identity_of
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.api.registry import Kind, file_digest, load
from unlearnbench.base.errors import PluginError, UnlearnbenchError, shortened
from unlearnbench.base.hashing import json_ready
from unlearnbench.base.messages import (
    describe_error,
    describe_errors,
    describe_value,
    errors_below,
    fault,
)
from unlearnbench.config.section import Settings
from unlearnbench.config.stored_values import has_infinite_text, restored, with_tuples

_T = TypeVar("_T")
_P = TypeVar("_P", bound=HyperParameters)
Read = Callable[[str, type[Any], Mapping[str, Any]], _T]
"""Makes something from the name of an entry, its plug-in's class, and its stated settings."""


def read_entries(value: Any, kind: Kind, read: Read[_T]) -> list[_T]:
    """Read all entries of a key.

    Args:
        value: A tuple of names and of sections with one name each, or a section of settings by
            name. Each name may be there once.
        kind: Kind of the plug-ins.
        read: Reads one entry.

    Returns:
        The results of `read`.

    Raises:
        ValidationError: With the errors of all entries.
    """
    if isinstance(value, Mapping):
        value = tuple({name: settings} for name, settings in value.items())
    if not isinstance(value, tuple):
        raise ValueError(
            f"expected a list of {kind}, or a section of settings by their names, "
            f"got {describe_value(value)}"
        )
    names: set[str] = set()

    def read_entry(entry: Any) -> _T:
        name, settings = _name_and_settings(entry)
        if not isinstance(name, str):
            raise ValueError(f"expected a name, got {describe_value(name)}")
        try:
            plugin = load(kind, name)
            if not isinstance(settings, Mapping):
                text = f"expected its settings, {{}} for none, got {describe_value(settings)}"
                raise PluginError(text)
            if name in names:
                raise PluginError(f"{name} is there already; keep one")
            names.add(name)
            return read(name, plugin, settings)
        except ValidationError as error:
            raise errors_below(error, (name,)) from None
        except UnlearnbenchError as error:
            raise fault(str(error), name) from None

    # pydantic collects the errors of all entries, each with its index.
    entries = TypeAdapter(list[Annotated[Any, PlainValidator(read_entry)]])
    return entries.validate_python(list(value))


def _name_and_settings(entry: Any) -> tuple[Any, Any]:
    """Split an entry into a name and settings.

    `rouge` has no settings, and `{mia-min-k: {share: 0.2}}` has one. Anything else is returned as
    a name, and the caller refuses it.
    """
    if isinstance(entry, Mapping) and len(entry) == 1:
        ((name, settings),) = entry.items()
        return name, settings
    return entry, {}


def made(kind: type[_P], settings: Mapping[str, Any], name: str, *, if_missing: str = "") -> _P:
    """Make a plug-in from its settings.

    Args:
        kind: Its class.
        settings: Its settings.
        name: Words for the plug-in in a message, such as `attack 'relearning'`.
        if_missing: Advice for the message if a value is missing.

    Raises:
        PluginError: A value is missing or refused.
    """
    try:
        return kind.model_validate({**settings})
    except ValidationError as error:
        text = describe_errors(error)
        if any(details["type"] == "missing" for details in error.errors(include_url=False)):
            text += if_missing
        raise PluginError(f"{name} cannot be made: {text}") from None


def example(kind: type[_P], settings: Mapping[str, Any], name: str) -> _P:
    """Make a plug-in with example settings, for commands that try a plug-in out.

    Args:
        kind: Its class.
        settings: Its settings. Required ones that are not among them have the first of their
            field's `examples`.
        name: Words for the plug-in in a message.

    Raises:
        PluginError: A value is missing or refused.
    """
    known: dict[str, Any] = {}
    for key, info in kind.model_fields.items():
        if info.is_required() and info.examples:
            known[key] = info.examples[0]
    hint = ". Give a value: --set KEY=VALUE, or `examples=[…]` in its Field"
    return made(kind, {**known, **settings}, name, if_missing=hint)


def _read_metrics(value: Any, info: ValidationInfo) -> Mapping[str, Mapping[str, Any]]:
    """Read the settings of metrics, from YAML or as they were stored."""
    if info.mode == "json":
        return {name: _restored_metric(name, settings) for name, settings in value.items()}
    return dict(read_entries(value, "metrics", _metric))


def _restored_metric(name: str, settings: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a metric's stored settings. The metric itself may not be installed here."""
    values = with_tuples(settings)
    if has_infinite_text(values):
        # Only the metric's fields can tell an infinite float from a text.
        with suppress(PluginError):
            return restored(load("metrics", name), settings)
    return dict(values)


def _metric(
    name: str, plugin: type[HyperParameters], settings: Mapping[str, Any]
) -> tuple[str, Mapping[str, Any]]:
    """Check the settings of one metric, and return its name and settings."""
    try:
        plugin.model_validate(settings)
    except ValidationError as error:
        # A required setting may be missing, because the benchmark may give it.
        if any(details["type"] != "missing" for details in error.errors(include_url=False)):
            raise
    return name, dict(settings)


MetricEntries = Annotated[Mapping[str, Mapping[str, Any]], PlainValidator(_read_metrics)]
"""Settings by metric, see `metric_plan.MetricChoices`."""


def metric_choices(settings: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Mapping[str, Any]]:
    """Check metrics that are named outside of a configuration.

    Args:
        settings: Stated settings by metric.

    Returns:
        The same, see `metric_plan.MetricChoices`.

    Raises:
        PluginError: With a line for each unknown metric and each wrong setting.
    """
    # A caller of the Python API may pass anything.
    if not isinstance(settings, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise PluginError(
            f"metrics: expected the settings of each metric by its name, got "
            f"{shortened(settings)}; write {{name: {{}}}} for a metric without settings"
        )
    kind = TypeAdapter[Mapping[str, Mapping[str, Any]]](MetricEntries)
    try:
        return kind.validate_python(dict(settings))
    except ValidationError as error:
        raise _plugin_error("metric", error) from None


def _plugin_error(kind: str, error: ValidationError) -> PluginError:
    """Return a line for each mistake: `attack relearning.steps: …`."""
    lines: list[str] = []
    for details in error.errors(include_url=False):
        # The path also has the place of the plug-in in a list, which nobody has written.
        path = ".".join(step for step in details["loc"] if isinstance(step, str))
        lines.append(f"{kind} {path}: {describe_error(details)}")
    return PluginError("\n".join(lines))


def _without_epochs(place: Place) -> Any:
    """Return an attack's settings without `at`, the epochs at which runs are attacked."""
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
    """Return the spec of an attack.

    Raises:
        PluginError: Its `content` fails.
    """
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
    """Make the attack of a spec.

    Raises:
        PluginError: The attack that is installed here is another one, or refuses the settings.
    """
    kind: type[Attack] = load("attacks", spec.name)
    source = file_digest(spec.name) or None
    if kind.version != spec.version or source != spec.source:
        raise PluginError(
            f"attack {spec.name!r} differs from the one that was planned: its version or its "
            "plugin file changed; start again with the same --plugin"
        )
    return made(kind, restored(kind, spec.settings), f"attack {spec.name!r}")


def _read_attacks(value: Any, info: ValidationInfo) -> tuple[AttackSpec, ...]:
    """Read the specs of attacks, from YAML, as they were stored, or as they are."""
    if value is None:
        # Null takes away the attacks of the file that is extended, as `holdout: null` does.
        return ()
    is_stored = info.mode == "json" or isinstance(value, list)  # YAML gives tuples
    if is_stored:
        return tuple(AttackSpec.model_validate(spec) for spec in value)
    if isinstance(value, tuple) and value and all(isinstance(spec, AttackSpec) for spec in value):
        return value
    return tuple(sorted(read_entries(value, "attacks", _attack), key=lambda spec: spec.name))


def _attack(name: str, kind: type[Attack], settings: Mapping[str, Any]) -> AttackSpec:
    """Check the settings of one attack, and return its spec."""
    return attack_spec(name, kind.model_validate(with_tuples(settings)))


def _stored(specs: tuple[AttackSpec, ...]) -> list[dict[str, Any]]:
    """Return specs as they are stored in plans and records."""
    return [spec.model_dump(mode="json") for spec in specs]


AttackEntries = Annotated[
    tuple[AttackSpec, ...], PlainValidator(_read_attacks), PlainSerializer(_stored)
]
"""Specs by name, each name once."""


def attack_specs(settings: Mapping[str, Mapping[str, Any]]) -> tuple[AttackSpec, ...]:
    """Return the specs of attacks, sorted by name.

    Args:
        settings: Stated settings by attack.

    Raises:
        PluginError: With a line for each unknown attack and each wrong setting.
    """
    try:
        return TypeAdapter[tuple[AttackSpec, ...]](AttackEntries).validate_python(dict(settings))
    except ValidationError as error:
        raise _plugin_error("attack", error) from None


DEFAULT = "synthetic"
"""The benchmark of a configuration that names none."""
_SHARING = ("synthetic", "tofu")
"""Two benchmarks that shared one section in earlier versions, whatever the benchmark was."""
_SHARED_SECTION = {
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
"""That section with its defaults: the fields of both benchmarks."""
_HUB = ("hub_id", "revision")
"""Fields that say from which repository of the hub the rows are read."""
_LATER = {
    "muse": _HUB,
    "muse-scalability": _HUB,
    "muse-sustainability": _HUB,
    "rwku": _HUB,
    "knowundo": _HUB,
    "lume": (*_HUB, "part"),
    "wmdp": (*_HUB, "bio_forget_corpus", "texts"),
}
"""Fields that published benchmarks got later, by benchmark. Only set ones count in ids."""


def benchmark_of(section: Mapping[str, Any], *, stored: bool = False) -> Benchmark:
    """Return the benchmark that a section describes.

    Args:
        section: The `data:` section.
        stored: Whether it was read from stored JSON, which an earlier version may have written.

    Raises:
        ValidationError: The section is wrong.
    """
    values = {"source": DEFAULT, **section}
    try:
        kind: type[Benchmark] = load("benchmarks", str(values["source"]))
    except PluginError as error:
        raise fault(str(error), "source") from None
    if values["source"] in _SHARING:
        of_the_other = _SHARED_SECTION.keys() - kind.model_fields.keys()
        for key in of_the_other & values.keys():
            # A stored section may be a shared one. In YAML, null takes away a key of the file that
            # is extended.
            if stored or values[key] is None:
                del values[key]
    if not stored:
        return kind.model_validate(values)
    try:
        return kind.model_validate(restored(kind, values))
    except ValidationError:
        # A benchmark made in Python may have fields that YAML cannot state, such as a set.
        return kind.model_validate_json(json.dumps(values))


def benchmark_named(source: str) -> Benchmark:
    """Return a benchmark with its default settings."""
    return benchmark_of({"source": source})


def earlier_section(benchmark: Benchmark) -> dict[str, Any]:
    """Return the `data:` section as earlier versions wrote it. Ids are made from it."""
    fields = benchmark.model_dump(mode="json")
    if benchmark.source in _SHARING:
        return {**_SHARED_SECTION, **fields}
    declared = type(benchmark).model_fields
    added_later = _LATER.get(benchmark.source, ())
    left_out = {name for name in added_later if fields[name] == declared[name].default}
    return {name: value for name, value in fields.items() if name not in left_out}


def _read_benchmark(value: Any, info: ValidationInfo) -> Benchmark:
    """Read a benchmark from a section, from YAML or as it was stored."""
    if isinstance(value, Benchmark):
        return value
    if not isinstance(value, Mapping):
        raise PydanticKnownError("dict_type")
    return benchmark_of(value, stored=info.mode == "json")


BenchmarkSection = Annotated[SerializeAsAny[Benchmark], PlainValidator(_read_benchmark)]
"""A field of settings that has the benchmark."""
