"""The configuration that `configs new` writes for rows and a model of the user's own.

The tables are read whole, so that their faults are found before the file is written. Of a model
only the configuration is read, from which the number of its weights is counted. Rates, epochs and
settings come from `unlearnbench.config.starting_values`.
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
    from unlearnbench.api.benchmark import Dataset, Split
    from unlearnbench.benchmarks.row_filter import Filter, Scalar

LARGEST_BATCH = 32
STEPS_OF_EPOCH = 4
"""Optimiser steps that an epoch should have at least, so that its beginning and end differ."""
FEWEST_STEPS = 20
"""Optimiser steps of a run: those of TOFU forget01 in open-unlearning's settings."""
MOST_STEPS = 500
"""Optimiser steps of a run with so many rows that it has fewer epochs than the source."""
STEPS_OF_PREPARATION = 125
"""Optimiser steps in which a model learns rows, as in the quickstart and in our study."""
STEPS_OF_SMALL_PREPARATION = 50
"""The same for a small model: after so many of eight rows at its starting rate, SmolLM2-135M knows
forty rows word for word (docs/tutorials/forget-your-own-rows.md)."""
MANY_ROWS = 400
"""Rows of an evaluation set above which only so many are evaluated."""
TINY = "{vocabulary: 1024, hidden_size: 128, layers: 2, heads: 4, intermediate_size: 384}"
"""Architecture of the quickstart's model."""
WEIGHTS_OF_TINY = 557_696


@dataclass(frozen=True)
class NamedModel:
    """A model that the user has named, or the tiny one."""

    base: str | None
    fine_tuned: str | None
    weights: int | None
    """None if the model cannot be reached now."""

    @classmethod
    def of(cls, base: str | None, fine_tuned: str | None) -> NamedModel:
        """Count the weights of the model that forgets.

        Raises:
            ModelError: If a folder holds no model.
        """
        location = fine_tuned or base
        if location is None:
            return cls(None, None, WEIGHTS_OF_TINY)
        from unlearnbench.config.schema import ModelSettings
        from unlearnbench.models.source import Source, UnreachableError
        from unlearnbench.results.model_shape import config_of, number_of_weights

        for other in (base, fine_tuned):
            if other is not None:
                Source.parse(other).check()
        settings = ModelSettings(name="new", base=location)
        try:
            config = config_of(settings, Source.parse(location))
        except UnreachableError:
            return cls(base, fine_tuned, None)
        return cls(base, fine_tuned, number_of_weights(config, settings))

    @property
    def name(self) -> str:
        """The last part of the folder or hub id."""
        location = (self.fine_tuned or self.base or "tiny").partition("@")[0]
        return Path(location).resolve().name or location

    @property
    def is_tiny(self) -> bool:
        """Whether it is built and trained here."""
        return self.base is None and self.fine_tuned is None

    @property
    def size(self) -> ModelSize:
        """Its class; that of published recipes if the number of weights is not known."""
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
        """Choose the batch for these rows to forget, and about as many steps as the source has.

        A source trains so many epochs in batches of its own. With few rows the batches here are
        smaller, so that an epoch has several steps, and there are fewer epochs.
        """
        usual_epochs = value.epochs or 1
        batch_size = batch_size_of(rows)
        steps = math.ceil(rows / batch_size)
        steps_of_source = usual_epochs * math.ceil(rows / (value.batch_size or LARGEST_BATCH))
        wanted = math.ceil(max(FEWEST_STEPS, steps_of_source) / steps)
        most = max(usual_epochs, math.ceil(FEWEST_STEPS / steps))
        epochs = min(wanted, most, max(1, MOST_STEPS // steps))
        return cls(batch_size, steps, epochs)


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
        name: Of the sweep.
        file: Where the configuration will be.

    Raises:
        DataError: If a table, a column or a row is wrong.
        ModelError: If a folder holds no model.
    """
    tables = OwnTables.of(options)
    section, dataset, reasons = _loaded(tables)
    split = dataset.splits[ALL]
    model = NamedModel.of(base, fine_tuned)
    values = [_value(method, retain, model.size) for method, retain in FIRST_METHODS]
    budget = Budget.of(len(split.forget), values[0])
    counts = f"{len(split.forget)} to forget and {len(split.retain)} to retain"
    if "holdout" in tables.tables:
        counts += f", {len(split.sets['holdout'])} held out"
    which = f"the rows of {options.forget_rows}"
    if options.marked_rows is not None:
        which = f"the marked rows of {options.marked_rows}"
    title = f"{name}: three methods forget {which}, each with three seeds."
    blocks = {
        "title": _comment(title),
        "file": file,
        "name": _scalar(name),
        "data": "\n".join([*_few_rows(split, model), *_data(tables, section, counts, reasons)]),
        "models": "\n".join(_models(model, split)),
        "rates": "\n# ".join(_rates_comment(model)),
        "methods": "\n".join(map(_method, values)),
        "training": "\n".join(_training(budget)),
        "evaluation": "\n".join(_evaluation(split, budget)),
        "attacks": "\n".join(_attacks(split, model.size)),
        "resources": "\n".join(_resources(model)),
    }
    template = (files("unlearnbench.cli") / "packages" / "own_rows.yaml.txt").read_text("utf-8")
    return OwnConfig(
        Template(template).substitute(blocks),
        (*dataset.notes, f"model: {model.name}, {model.weights_text}"),
    )


def _loaded(tables: OwnTables) -> tuple[dict[str, Any], Dataset, dict[str, str]]:
    """Load the rows, with optional columns if these can be used.

    Returns:
        The section `data`, the rows, and why optional columns are left out, by setting.
    """
    from unlearnbench.config.entries import benchmark_of
    from unlearnbench.models.rows_loading import load_benchmark

    section: dict[str, Any] = {**tables.section(), **tables.columns}
    optional = dict(tables.optional)
    reasons: dict[str, str] = {}
    if optional:
        try:
            dataset = load_benchmark(benchmark_of({**section, **optional}), (ALL,))
        except DataError as error:
            reasons = dict.fromkeys(optional, str(error))
            optional = {}
        else:
            subjects = {row.subject for row in dataset.splits[ALL].forget}
            # An attack that trains on half of the subjects needs two of them.
            if "subject" not in optional or len(subjects) > 1:
                return {**section, **optional}, dataset, {}
            del optional["subject"]
            reasons["subject"] = "all rows to forget have the same"
    section |= optional
    return section, load_benchmark(benchmark_of(section), (ALL,)), reasons


def _value(method: str, retain: str | None, size: ModelSize) -> StartingValue:
    """Return the first value of a method for rows that are not only texts."""
    return next(
        value
        for value in starting_values(method, size)
        if value.retain == retain and not value.texts
    )


def _data(
    tables: OwnTables, section: Mapping[str, Any], counts: str, reasons: Mapping[str, str]
) -> Iterator[str]:
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
    for key, value in section.items():
        purpose = purposes.get(key, "column" if key in tables.columns else "")
        written = _filter(value) if key == "forget_if" else _scalar(value)
        yield f"  {key}: {written}" + (f"  # {purpose}" if purpose else "")
    if not tables.columns:
        yield "  # The tables have columns of different names, which are found in each."
    for setting, column in tables.optional.items():
        if setting not in section:
            yield _comment(f"  # {setting}: {column}   not used: {reasons[setting]}")
    if "holdout" not in section:
        yield "  # holdout: FILE   rows like those to forget that no model has seen, for Private"


def _few_rows(split: Split, model: NamedModel) -> Iterator[str]:
    has_retain_model = model.base is not None or model.is_tiny
    if has_retain_model and len(split.forget) < FEWEST_ROWS:
        yield f"# With fewer than {FEWEST_ROWS} rows to forget, a sweep cannot be sure that the"
        yield "# start model has learned them. It goes on, and says so: add rows if there are more."


def _models(model: NamedModel, split: Split) -> Iterator[str]:
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
    """How start and retain models learn the rows."""
    value = preparation_value(model.size)
    rows = len(split.forget) + len(split.retain)
    batch_size = min(batch_size_of(rows), value.settings.get("batch_size", LARGEST_BATCH))
    steps = math.ceil(rows / batch_size)
    is_small = model.size is ModelSize.SMALL
    wanted_steps = STEPS_OF_SMALL_PREPARATION if is_small else STEPS_OF_PREPARATION
    epochs = max(value.settings["epochs"], math.ceil(wanted_steps / steps))
    # The tiny model has the other settings by default.
    usual = {} if model.is_tiny else value.settings
    settings = {**usual, "batch_size": batch_size, "epochs": epochs}
    yield f"    # How the rows are learned ({value.origin.value}: {value.source})."
    yield f"    # An epoch has {_count(steps, 'step')}. If the start model does not know the"
    yield "    # rows: more epochs, or a higher rate."
    yield f"    preparation: {_flow(settings)}"


def _rates_comment(model: NamedModel) -> Iterator[str]:
    if model.weights is None:
        yield "Starting values for about 1 billion weights. The hub cannot be reached now, so that"
        yield "the model's size is not known; the page Starting values has those of other sizes."
        return
    size = model.size.label.partition(":")[0]
    yield f"Starting values for {model.weights_text} ({size}). The page Starting values of the"
    yield "documentation has them for all methods."


def _method(value: StartingValue) -> str:
    fields: dict[str, Any] = {"method": value.method, **value.settings}
    if value.retain is not None:
        fields["retain"] = {"term": value.retain}
    fields["learning_rates"] = [value.learning_rate]
    reason = f"{value.origin.value}, {value.model}"
    if value.origin is Origin.CARRIED_OVER:
        reason = f"carried over: {value.source}"
    return f"  # {reason}\n  - {_flow(fields)}"


def _training(budget: Budget) -> Iterator[str]:
    total = budget.steps * budget.epochs
    yield f"training: {{batch_size: {budget.batch_size}}}  # rows to forget of an optimiser step"
    yield f"# An epoch has {_count(budget.steps, 'step')}, a run {total}."
    yield f"epochs: {budget.epochs}"


def _evaluation(split: Split, budget: Budget) -> Iterator[str]:
    largest = max(map(len, split.sets.values()))
    every = max(1, budget.epochs // 5)
    settings: dict[str, int] = {}
    notes: list[str] = []
    if largest > MANY_ROWS:
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
    value = RELEARNING[size]
    settings = f"{{learning_rate: {_number(value.learning_rate)}, steps: {list(value.steps)}}}"
    yield "# Does the model give back what it forgot? The attack trains on half of the rows to"
    yield "# forget again, and asks for the others. `unlearnbench attacks list` has more of them."
    prefix = "" if len(split.forget) > 1 else "# one row has no halves: "
    yield f"{prefix}attacks: {{relearning: {settings}}}"


def _resources(model: NamedModel) -> Iterator[str]:
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
    """Settings as YAML in one line."""
    return "{" + ", ".join(f"{key}: {_flow_value(value)}" for key, value in settings.items()) + "}"


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
    """A float as YAML reads it: `1.0e-5`, `0.125`."""
    if 1e-3 < abs(value) < 1e6 or value == 0:
        return repr(value)
    mantissa, exponent = f"{value:e}".split("e")
    return f"{float(mantissa)!r}e{int(exponent)}"


def _scalar(value: Any) -> str:
    """A text as YAML: as it is if it is a plain word or path, otherwise in quotes."""
    text = str(value)
    is_plain = text.replace("/", "").replace("_", "").replace("-", "").replace(".", "").isalnum()
    begins_well = text[:1].isalpha() or text.startswith(("./", "../", "/"))
    words = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
    if is_plain and begins_well and text.lower() not in words:
        return text
    return json.dumps(text, ensure_ascii=False)


def _filter(section: Filter) -> str:
    """The section `forget_if` as YAML in one line: `{author: [Ada, "7"], year: 1972}`."""
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
    """A text that stays in one line."""
    return " ".join(text.split("\n"))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")
