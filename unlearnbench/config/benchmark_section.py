"""The `data:` section of a configuration: the fields of the benchmark that `source` names."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainValidator, SerializeAsAny, ValidationError, ValidationInfo
from pydantic_core import PydanticKnownError

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.registry import IN_A_FILE, load, names
from unlearnbench.config.messages import Fault, describe_value, raise_faults
from unlearnbench.errors import did_you_mean

DEFAULT = "synthetic"
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


def benchmark_class(source: object) -> type[Benchmark]:
    """The benchmark with a name. Raises: ValidationError for a name that none has."""
    known = names("benchmarks")
    if source not in known:
        near = did_you_mean(source, known) if isinstance(source, str) else ""
        near = near or f"; {IN_A_FILE}"
        text = f"expected one of {', '.join(known)}, got {describe_value(source)}{near}"
        raise_faults([Fault(("source",), text)])
    found: type[Benchmark] = load("benchmarks", str(source))
    return found


def benchmark_named(source: str) -> Benchmark:
    """A benchmark with its default settings."""
    return benchmark_of({"source": source})


def benchmark_of(section: Mapping[str, Any], *, stored: bool = False) -> Benchmark:
    """The benchmark that a section describes. Raises: ValidationError where it is wrong.

    stored  read from JSON, perhaps of an earlier version
    """
    values = {"source": DEFAULT, **section}
    kind = benchmark_class(values["source"])
    if values["source"] in _SHARED:  # null leaves a key out, where another file has it
        other = _EARLIER.keys() - kind.model_fields.keys()
        values = {k: v for k, v in values.items() if k not in other or not (stored or v is None)}
    return kind.model_validate_json(json.dumps(values)) if stored else kind.model_validate(values)


def earlier_section(benchmark: Benchmark) -> dict[str, Any]:
    """The section as versions wrote it in which benchmarks shared one; what ids were made from."""
    fields = benchmark.model_dump(mode="json")
    return {**_EARLIER, **fields} if benchmark.source in _SHARED else fields


def whole_benchmark(section: Any) -> Benchmark | None:
    """The benchmark of a section, whose unknown keys are passed over; None where others are wrong.

    For checks of what depends on it: the section's own mistakes are reported elsewhere.
    """
    try:
        return benchmark_of(section) if isinstance(section, Mapping) else None
    except ValidationError as error:
        found = error.errors(include_url=False)
    unknown = {one["loc"][0] for one in found if one["type"] == "extra_forbidden"}
    if len(unknown) < len(found):
        return None
    return whole_benchmark({key: value for key, value in section.items() if key not in unknown})


def _read(value: Any, info: ValidationInfo) -> Benchmark:
    if isinstance(value, Benchmark):
        return value
    if not isinstance(value, Mapping):
        raise PydanticKnownError("dict_type")
    return benchmark_of(value, stored=info.mode == "json")


BenchmarkSection = Annotated[SerializeAsAny[Benchmark], PlainValidator(_read)]
"""A field of settings that has the benchmark."""
