"""The configuration that `configs new` writes for rows and a model of the user's own.

The tables are read whole, so that their faults are found before the file is written. Only the
configuration of a model is read, from which the number of its weights is counted. Learning rates,
epochs and settings come from `unlearnbench.config.starting_values`.

The template `packages/own_rows.yaml.txt` has a place for each section of the file. The functions
of this module yield the lines of the sections, with comments that explain them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any

from unlearnbench.base.errors import DataError
from unlearnbench.cli.own_data import ALL, OwnTables, RowOptions
from unlearnbench.config.starting_values import (
    FIRST_METHODS,
    RELEARNING,
    ModelSize,
    Origin,
    StartingValue,
    preparation_value,
    starting_values,
)
from unlearnbench.evaluation.start_check import FEWEST_ROWS

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Split
    from unlearnbench.benchmarks.row_filter import Filter, Scalar

LARGEST_BATCH = 32
"""Rows to forget of an optimiser step."""
STEPS_OF_EPOCH = 4
"""Optimiser steps that an epoch should have at least, so that its beginning and end differ."""
FEWEST_STEPS = 20
"""Optimiser steps of a run: as many as TOFU forget01 has with open-unlearning's settings."""
MOST_STEPS = 500
"""Optimiser steps of a run whose rows are so many that it has fewer epochs than the source."""
STEPS_OF_PREPARATION = 125
"""Optimiser steps in which a model learns rows, as in the quickstart and in our study."""
STEPS_OF_SMALL_PREPARATION = 50
"""The same for a small model. After 50 steps of eight rows at its starting rate, SmolLM2-135M knows
forty rows word for word (docs/tutorials/forget-your-own-rows.md)."""
MANY_ROWS = 400
"""Rows of an evaluation set that are evaluated. Of a larger set, the first ones are."""
TINY = "{vocabulary: 1024, hidden_size: 128, layers: 2, heads: 4, intermediate_size: 384}"
"""Architecture of the quickstart's model."""
WEIGHTS_OF_TINY = 557_696
_WORDS_OF_YAML = ("null", "true", "false", "yes", "no", "on", "off", "y", "n")


@dataclass(frozen=True)
class NamedModel:
    """A model that the user has named, or the tiny one."""

    base: str | None
    """Folder or hub id of a model that has not learned the rows."""
    fine_tuned: str | None
    """Folder or hub id of a model that has learned them."""
    weights: int | None
    """Number of weights of the model that forgets; None if the model cannot be reached now."""

    @classmethod
    def of(cls, base: str | None, fine_tuned: str | None) -> NamedModel:
        """Count the weights of the model that forgets.

        Raises:
            ModelError: If a folder holds no model.
        """
        forgetting = fine_tuned or base
        if forgetting is None:
            return cls(None, None, WEIGHTS_OF_TINY)
        from unlearnbench.config.schema import ModelSettings
        from unlearnbench.models.source import Source, UnreachableError
        from unlearnbench.results.model_shape import config_of, number_of_weights

        for location in (base, fine_tuned):
            if location is not None:
                Source.parse(location).check()
        settings = ModelSettings(name="new", base=forgetting)
        try:
            config = config_of(settings, Source.parse(forgetting))
        except UnreachableError:
            return cls(base, fine_tuned, weights=None)
        return cls(base, fine_tuned, number_of_weights(config, settings))

    @property
    def name(self) -> str:
        """Name in tables and figures: the last part of the folder or hub id."""
        location = (self.fine_tuned or self.base or "tiny").partition("@")[0]
        return Path(location).resolve().name or location

    @property
    def is_tiny(self) -> bool:
        """Whether the user has named no model, so that a tiny one is built and trained here."""
        return self.base is None and self.fine_tuned is None

    @property
    def size(self) -> ModelSize:
        """Class of sizes; that of published recipes if the number of weights is not known."""
        return ModelSize.ABOUT_1B if self.weights is None else ModelSize.of(self.weights)

    @property
    def weights_text(self) -> str:
        """The number of weights in words."""
        if self.weights is None:
            return "an unknown number of weights (the hub cannot be reached now)"
        if self.weights >= 1e9:
            return f"{self.weights / 1e9:.3g} billion weights"
        if self.weights >= 1e6:
            return f"{self.weights / 1e6:.3g} million weights"
        return f"{self.weights:,} weights"


@dataclass(frozen=True)
class Budget:
    """Batches and epochs of a run."""

    batch_size: int
    steps: int
    """Optimiser steps of an epoch."""
    epochs: int

    @classmethod
    def of(cls, rows: int, value: StartingValue) -> Budget:
        """Choose batches, and about as many optimiser steps as the source of a method would make.

        With few rows, the batches are smaller than those of the source, so that an epoch has
        several steps. Then there are fewer epochs, so that the number of steps is about the same.

        Args:
            rows: Number of rows to forget.
            value: Starting value of the method, with the source's epochs and batch size.
        """
        epochs_of_source = value.epochs or 1
        batch_size = batch_size_of(rows)
        steps = math.ceil(rows / batch_size)
        steps_of_source = epochs_of_source * math.ceil(rows / (value.batch_size or LARGEST_BATCH))
        wanted_epochs = math.ceil(max(FEWEST_STEPS, steps_of_source) / steps)

        # More epochs than the source has are only for runs that would be very short.
        most_for_source = max(epochs_of_source, math.ceil(FEWEST_STEPS / steps))
        most_for_time = max(1, MOST_STEPS // steps)
        return cls(batch_size, steps, min(wanted_epochs, most_for_source, most_for_time))


def batch_size_of(rows: int) -> int:
    """Return the largest power of two up to 32 that divides rows into four batches or more."""
    size = LARGEST_BATCH
    while size > 1 and rows / size <= STEPS_OF_EPOCH - 1:
        size //= 2
    return size


@dataclass(frozen=True)
class OwnConfig:
    """A configuration for tables and a model of the user's own, ready to be written."""

    text: str
    read: tuple[str, ...]
    """Lines for the terminal: the tables with their columns, and the model with its size."""


def own_config(
    options: RowOptions, base: str | None, fine_tuned: str | None, *, name: str, file: Path
) -> OwnConfig:
    """Read rows and model, and write the configuration.

    Args:
        options: The tables.
        base: Folder or hub id of a model that has not learned the rows.
        fine_tuned: Folder or hub id of a model that has learned them.
        name: Name of the sweep.
        file: Where the configuration will be written.

    Raises:
        DataError: If a table, a column or a row is wrong.
        ModelError: If a folder holds no model.
    """
    tables = OwnTables.of(options)
    rows = _load_rows(tables)
    split = rows.split
    model = NamedModel.of(base, fine_tuned)
    values = [_starting_value(method, retain, model.size) for method, retain in FIRST_METHODS]
    # All methods of a sweep have the same batches and epochs, so those of the first one count.
    budget = Budget.of(len(split.forget), values[0])

    forgotten = f"the rows of {options.forget_rows}"
    if options.marked_rows is not None:
        forgotten = f"the marked rows of {options.marked_rows}"
    title = f"{name}: three methods forget {forgotten}, each with three seeds."
    sections = {
        "title": _comment(title),
        "file": file,
        "name": _scalar(name),
        "data": "\n".join([*_few_rows(split, model), *_data(tables, rows)]),
        "models": "\n".join(_models(model, split)),
        "rates": "\n# ".join(_rates_comment(model)),
        "methods": "\n".join(_method(value) for value in values),
        "training": "\n".join(_training(budget)),
        "evaluation": "\n".join(_evaluation(split, budget)),
        "attacks": "\n".join(_attacks(split, model.size)),
        "resources": "\n".join(_resources(model)),
    }
    template = (files("unlearnbench.cli") / "packages" / "own_rows.yaml.txt").read_text("utf-8")
    read = (*rows.notes, f"model: {model.name}, {model.weights_text}")
    return OwnConfig(Template(template).substitute(sections), read)


@dataclass(frozen=True)
class LoadedRows:
    """Rows that could be loaded, and how."""

    section: Mapping[str, Any]
    """Section `data` of the configuration that loads them."""
    split: Split
    notes: Sequence[str]
    """Lines about what was read."""
    unused: Mapping[str, str]
    """Reasons why optional columns are not used, by setting."""


def _load_rows(tables: OwnTables) -> LoadedRows:
    """Load the rows, with all optional columns if these can be used.

    Raises:
        DataError: If the rows cannot be loaded without optional columns, either.
    """
    section: dict[str, Any] = {**tables.section(), **tables.columns}
    optional = dict(tables.optional)
    if not optional:
        return _rows_of(section, {})
    try:
        rows = _rows_of({**section, **optional}, {})
    except DataError as error:
        return _rows_of(section, dict.fromkeys(optional, str(error)))

    subjects = {row.subject for row in rows.split.forget}
    # An attack that trains on half of the subjects needs two of them.
    if "subject" not in optional or len(subjects) > 1:
        return rows
    del optional["subject"]
    unused = {"subject": "all rows to forget have the same"}
    return _rows_of({**section, **optional}, unused)


def _rows_of(section: dict[str, Any], unused: Mapping[str, str]) -> LoadedRows:
    """Load the rows of a section `data`; `unused` says why it has fewer columns than possible."""
    from unlearnbench.config.entries import benchmark_of
    from unlearnbench.models.rows_loading import load_benchmark

    dataset = load_benchmark(benchmark_of(section), (ALL,))
    return LoadedRows(section, dataset.splits[ALL], dataset.notes, unused)


def _starting_value(method: str, retain: str | None, size: ModelSize) -> StartingValue:
    """Return the first value of a method for rows that are not only texts.

    Args:
        method: Name of the method.
        retain: Name of its retain term; None without one.
        size: Of the model.
    """
    return next(
        value
        for value in starting_values(method, size)
        if value.retain == retain and not value.texts
    )


def _data(tables: OwnTables, rows: LoadedRows) -> Iterator[str]:
    """Yield the section `data`, with the purpose of each key, and keys that could be added."""
    split = rows.split
    counts = f"{len(split.forget)} to forget and {len(split.retain)} to retain"
    if "holdout" in tables.tables:
        counts += f", {len(split.sets['holdout'])} held out"
    yield f"# Rows: {counts}. A table may be JSON lines, JSON, CSV, TSV,"
    yield "# Parquet, Arrow, a text file, a folder of save_to_disk, or a hub id: org/name,"
    if tables.forget_if:
        yield "# org/name[train[:2000]]."
    else:
        yield "# org/name[train[:2000]]. If all rows are in one table, write in place of forget and"
        yield '# retain: rows: all.csv and forget_if: {author: "J. Doe"}'
    yield "data:"
    purposes = {
        "source": "questions with answers; texts without questions: source: texts"
        if tables.source == "questions"
        else "texts; questions with answers: source: questions",
        "forget": "what is to be forgotten",
        "retain": "what is to be kept",
        "rows": "all rows",
        "forget_if": "which of them are to be forgotten; all others are kept",
        "holdout": "like the rows to forget, but no model has seen them: is what is left private?",
        "paraphrase": "another wording of the answer: truth ratio and Forget Quality",
        "wrong_answers": "list of wrong answers: truth ratio and Forget Quality",
        "subject": "what a row is about: the attack relearns every second subject",
        "score": "of general-ce-u",
    }
    for key, value in rows.section.items():
        written = _filter(value) if key == "forget_if" else _scalar(value)
        purpose = purposes.get(key, "column" if key in tables.columns else "")
        comment = f"  # {purpose}" if purpose else ""
        yield f"  {key}: {written}{comment}"
    if not tables.columns:
        yield "  # The tables have columns of different names, which are found in each."
    for setting, column in tables.optional.items():
        if setting not in rows.section:
            yield _comment(f"  # {setting}: {column}   not used: {rows.unused[setting]}")
    if "holdout" not in rows.section:
        yield "  # holdout: FILE   rows like those to forget that no model has seen, for Private"


def _few_rows(split: Split, model: NamedModel) -> Iterator[str]:
    """Yield a comment if the check of the start model cannot be sure with so few rows."""
    has_retain_model = model.base is not None or model.is_tiny
    if has_retain_model and len(split.forget) < FEWEST_ROWS:
        yield f"# With fewer than {FEWEST_ROWS} rows to forget, a sweep cannot be sure that the"
        yield "# start model has learned them. It goes on, and says so: add rows if there are more."


def _models(model: NamedModel, split: Split) -> Iterator[str]:
    """Yield the section `models`. Only models that are trained here have a `preparation`."""
    yield "models:"
    yield f"  - name: {_scalar(model.name)}  # in tables and figures"
    if model.is_tiny:
        yield "    # `tiny` is a Llama that is trained here on your rows, so that this file runs at"
        yield "    # once. It says nothing about real models. Yours: `base`, which has not learned"
        yield "    # the rows, `fine_tuned`, which has, or both; folders or hub ids (id@revision)."
        yield "    base: tiny"
        yield f"    architecture: {TINY}"
    if model.fine_tuned is not None:
        yield f"    fine_tuned: {_scalar(model.fine_tuned)}  # has learned the rows; forgets them"
    if model.base is not None:
        trained = "the retain model is" if model.fine_tuned else "start and retain models are"
        yield f"    # Has not learned the rows; {trained} trained from it."
        yield f"    base: {_scalar(model.base)}"
    if model.base is None and model.fine_tuned is not None:
        yield "    # Without a model that has not learned the rows nobody can say how little is"
        yield "    # enough: over-forgetting cannot be seen. If you have one, name it, and a retain"
        yield "    # model is trained from it by `preparation`:"
        yield "    # base: ./my-base"
        return
    yield from _preparation(model, split)


def _preparation(model: NamedModel, split: Split) -> Iterator[str]:
    """Yield the key `preparation`: how start and retain models learn the rows."""
    value = preparation_value(model.size)
    row_count = len(split.forget) + len(split.retain)
    usual_batch = value.settings.get("batch_size", LARGEST_BATCH)
    batch_size = min(batch_size_of(row_count), usual_batch)
    steps = math.ceil(row_count / batch_size)
    is_small = model.size is ModelSize.SMALL
    wanted_steps = STEPS_OF_SMALL_PREPARATION if is_small else STEPS_OF_PREPARATION
    epochs = max(value.settings["epochs"], math.ceil(wanted_steps / steps))
    # The tiny model has the other settings by default.
    other_settings = {} if model.is_tiny else value.settings
    settings = {**other_settings, "batch_size": batch_size, "epochs": epochs}
    yield f"    # How the rows are learned ({value.origin.value}: {value.source})."
    yield f"    # An epoch has {_count(steps, 'step')}. If the start model does not know the"
    yield "    # rows: more epochs, or a higher rate."
    yield f"    preparation: {_flow(settings)}"


def _rates_comment(model: NamedModel) -> Iterator[str]:
    """Yield the comment above the methods: for which size of model their values are."""
    if model.weights is None:
        yield "Starting values for about 1 billion weights. The hub cannot be reached now, so that"
        yield "the model's size is not known; the page Starting values has those of other sizes."
        return
    size = model.size.label.partition(":")[0]
    yield f"Starting values for {model.weights_text} ({size}). The page Starting values of the"
    yield "documentation has them for all methods."


def _method(value: StartingValue) -> str:
    """Return a method's entry, and a comment that says where its values come from."""
    fields: dict[str, Any] = {"method": value.method, **value.settings}
    if value.retain is not None:
        fields["retain"] = {"term": value.retain}
    fields["learning_rates"] = [value.learning_rate]
    reason = f"{value.origin.value}, {value.model}"
    if value.origin is Origin.CARRIED_OVER:
        reason = f"carried over: {value.source}"
    return f"  # {reason}\n  - {_flow(fields)}"


def _training(budget: Budget) -> Iterator[str]:
    """Yield the sections `training` and `epochs`."""
    steps_of_run = budget.steps * budget.epochs
    yield f"training: {{batch_size: {budget.batch_size}}}  # rows to forget of an optimiser step"
    yield f"# An epoch has {_count(budget.steps, 'step')}, a run {steps_of_run}."
    yield f"epochs: {budget.epochs}"


def _evaluation(split: Split, budget: Budget) -> Iterator[str]:
    """Yield the section `evaluation`, which keeps the time of evaluations down."""
    largest_set = max(len(rows) for rows in split.sets.values())
    # A run is evaluated about five times.
    every = max(1, budget.epochs // 5)
    settings: dict[str, int] = {}
    notes: list[str] = []
    if largest_set > MANY_ROWS:
        settings["rows"] = MANY_ROWS
        notes.append("first rows of each set (more: slower, and narrower intervals)")
    if every > 1:
        settings["every"] = every
        notes.append(f"evaluated every {every} epochs, and at the end")
    if settings:
        yield f"evaluation: {_flow(settings)}  # {'; '.join(notes)}"
    else:
        yield "# evaluation: {rows: 100}  # first rows of each set; all of them without this"


def _attacks(split: Split, size: ModelSize) -> Iterator[str]:
    """Yield the section `attacks`."""
    value = RELEARNING[size]
    settings = f"{{learning_rate: {_number(value.learning_rate)}, steps: {list(value.steps)}}}"
    yield "# Does the model give back what it forgot? The attack trains on half of the rows to"
    yield "# forget again, and asks for the others. `unlearnbench attacks list` has more of them."
    prefix = "" if len(split.forget) > 1 else "# one row has no halves: "
    yield f"{prefix}attacks: {{relearning: {settings}}}"


def _resources(model: NamedModel) -> Iterator[str]:
    """Yield the section of resources, or for a large model comments on them."""
    if model.size in (ModelSize.TINY, ModelSize.SMALL):
        yield "ray: {concurrent: 2}  # runs at a time"
        yield "# resources: {gpu: 1}  # of a run; plan --memory says what a run needs"
        return
    yield "# A model of this size wants a GPU for each run; plan --memory says what a run needs."
    yield "# resources: {gpu: 1}"
    yield "# With it, faster, and in less memory: training: {precision: bf16}, and of the model"
    yield "# gradient_checkpointing: true, or adapters, lora: {rank: 16}; their published rates are"
    yield "# ten times as high."


def _flow(settings: Mapping[str, Any]) -> str:
    """Return settings as YAML in one line."""
    pairs = [f"{key}: {_flow_value(value)}" for key, value in settings.items()]
    return "{" + ", ".join(pairs) + "}"


def _flow_value(value: Any) -> str:
    if isinstance(value, Mapping):
        return _flow(value)
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(map(_flow_value, value)) + "]"
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, float):
        return _number(value)
    return str(value)


def _number(value: float) -> str:
    """Return a number in the form that YAML reads as a float: `1.0e-5`, `0.125`."""
    if 1e-3 < abs(value) < 1e6 or value == 0:
        return repr(value)
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa)!r}e{int(exponent)}"


def _scalar(value: Any) -> str:
    """Return a text as YAML: as it is if it is a plain word or path, and in quotes if not."""
    text = str(value)
    has_plain_letters = text.translate(str.maketrans("", "", "/_-.")).isalnum()
    begins_like_path = text[:1].isalpha() or text.startswith(("./", "../", "/"))
    # YAML reads these words as null or as truth values.
    has_other_meaning = text.lower() in _WORDS_OF_YAML
    if has_plain_letters and begins_like_path and not has_other_meaning:
        return text
    return json.dumps(text, ensure_ascii=False)


def _filter(section: Filter) -> str:
    """Return the section `forget_if` as YAML in one line: `{author: [Ada, "7"], year: 1972}`."""
    pairs: list[str] = []
    for column, values in section.items():
        if isinstance(values, tuple):
            written = "[" + ", ".join(map(_filter_value, values)) + "]"
        else:
            written = _filter_value(values)
        pairs.append(f"{_scalar(column)}: {written}")
    return "{" + ", ".join(pairs) + "}"


def _filter_value(value: Scalar) -> str:
    return _scalar(value) if isinstance(value, str) else _flow_value(value)


def _comment(text: str) -> str:
    """Return a text without line breaks, behind which YAML would not see a comment."""
    return text.replace("\n", " ")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
