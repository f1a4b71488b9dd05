"""The table that every page, plot and CSV is drawn from: one row per model and evaluation.

The start model (kind `fine-tuned`) and the retain model are rows like any other. `finalize` makes
the table from records.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from unlearnbench.api.benchmark import Headline, SplitKey, split_order
from unlearnbench.base.hashing import json_ready
from unlearnbench.evaluation.benchmark_schema import (
    BenchmarkSchema,
    default_schema,
    filled_columns,
)

FIRST = ("method", "model", "forget_fraction", "learning_rate", "seed", "epoch")
LAST = ("kind", "status", "run_id", "hyperparameters")
"""The columns of `results.csv` around those of the metrics."""
VARIANT = "variant"
"""The column of `attacks.csv` after those of `FIRST`."""
ATTACKS = "attacks.csv"
"""The table of evaluations under attacks, beside `results.csv`."""
KINDS = ("fine-tuned", "retain", "run")


class Numbers(dict[str, float | None]):
    """Numbers by column, None where undefined; a column that is not there is undefined, too."""

    def __missing__(self, name: str) -> None:
        return None

    @classmethod
    def finite(cls, metrics: Mapping[str, float | None]) -> Numbers:
        """Return the numbers, with None for those that are not finite."""
        return cls(
            {
                name: None if value is None or not math.isfinite(value) else value
                for name, value in metrics.items()
            }
        )


@dataclass(frozen=True)
class TableRow:
    """One run, start model or retain model after one epoch."""

    run_id: str
    kind: str
    """`run`, `fine-tuned` or `retain`."""
    model: str
    forget_fraction: SplitKey
    """The fraction of the rows to forget, or the name of the split."""
    method: str
    """Label; names the hyperparameters in which the sweep's settings of the method differ."""
    family: str
    """Label without hyper-parameters: what settings of one method have in common."""
    hyperparameters: Mapping[str, Any]
    """Hyperparameters, retain term, and other settings in which runs differ; see `RunSettings`."""
    learning_rate: float | None
    seed: int
    epoch: int
    status: str
    metrics: Mapping[str, float | None]
    """The table's columns, see `filled_columns`; None where undefined or not finite."""
    schema: BenchmarkSchema = field(default_factory=default_schema, compare=False, repr=False)
    """Schema of the benchmark."""
    variant: str = ""
    """Attack and point (`relearning@13`) in the table of evaluations under attacks."""
    setting_id: str = ""
    """Hash of all that the numbers of a run depend on, except its seed; see `RunSettings.id`."""
    uncounted: Mapping[str, float] = field(
        default_factory=dict[str, float], compare=False, repr=False
    )
    """Share of true answers by set whose words the profile does not count, see `word_check`."""
    at_inference: bool = False
    """Whether the method leaves the weights as they are, and acts when the model is used."""
    key: str = field(default="", compare=False, repr=False)
    """Hash of everything that the numbers depend on; empty if they are as recorded."""

    @property
    def headline(self) -> Headline:
        """The two numbers that the benchmark is ranked by."""
        return self.schema.headline

    @property
    def panel(self) -> tuple[str, SplitKey]:
        """Model and split."""
        return self.model, self.forget_fraction

    @property
    def setting(self) -> tuple[Any, ...]:
        """Values that all seeds and epochs of a setting share, in sorting order."""
        rate = -math.inf if self.learning_rate is None else self.learning_rate
        kind = KINDS.index(self.kind)
        split = split_order(self.forget_fraction)
        return self.model, split, kind, self.family, self.method, rate, self.setting_id

    @property
    def kept(self) -> float | None:
        """The number of what is kept, by the headline."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """The number of what is forgotten, by the headline."""
        return self.metrics.get(self.headline.forgotten.column)


@dataclass(frozen=True)
class Table:
    """All numbers of a sweep, as `finalize` computes them."""

    rows: tuple[TableRow, ...] = ()
    """Plain evaluations, in an order that only their content decides."""
    attacked: tuple[TableRow, ...] = ()
    """Evaluations under attacks, in the same order. They are apart from `rows`, so that nothing
    ranks a model by them. Metrics that are relative to the retain or start model are relative to
    that model under the same attack."""
    before: tuple[TableRow, ...] = ()
    """Plain numbers on the rows that an attack asked: one row for each model, epoch and variant
    that left rows out, or may have, see `asked_rows.before_rows`. They are in no CSV."""
    schema: BenchmarkSchema = field(default_factory=default_schema, compare=False, repr=False)
    """Schema of the benchmark."""
    notes: tuple[str, ...] = ()
    """Sentences on numbers that could not be computed, or that have moved."""


def in_order(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Sort rows by what they are of; the order of the records does not matter."""
    return tuple(sorted(rows, key=_place))


def _place(row: TableRow) -> tuple[Any, ...]:
    return (*row.setting, row.seed, row.epoch, row.run_id, _order_of(row.variant))


def _order_of(variant: str) -> tuple[str, bool, float, str]:
    """Sort key of variants: points that are numbers by size."""
    name, _, point = variant.partition("@")
    try:
        return name, False, float(point), point
    except ValueError:
        return name, True, 0.0, point


class Labels:
    """Labels of methods, with the hyperparameters in which their settings differ.

    Settings with different hyperparameters have different labels.
    """

    def __init__(self) -> None:
        self._settings: dict[str, dict[str, Mapping[str, Any]]] = defaultdict(dict)
        self._labels: dict[str, dict[str, str]] = {}
        """By family and the hyperparameters as JSON; made when a label of the family is needed."""

    def add_values(self, family: str, hyperparameters: Mapping[str, Any]) -> None:
        """Take the values of one setting into account; `family` as in `label`."""
        self._settings[family].setdefault(_as_json(hyperparameters), hyperparameters)
        self._labels.pop(family, None)

    def label(self, family: str, hyperparameters: Mapping[str, Any]) -> str:
        """Label of a method, from its label without hyperparameters."""
        if family not in self._labels:
            self._labels[family] = _labels_of(family, self._settings[family])
        return self._labels[family].get(_as_json(hyperparameters), family)


def _labels_of(family: str, settings: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the label of each setting of a family; keys as in `settings`."""
    names = sorted({name for setting in settings.values() for name in setting})
    # A hyperparameter that was added later is stored only if it differs from its default.
    differing = [
        name
        for name in names
        if len({_as_json(setting.get(name, _ABSENT)) for setting in settings.values()}) > 1
    ]

    def label(setting: Mapping[str, Any], text: Callable[[Any], str]) -> str:
        values = [f"{name}={text(setting[name])}" for name in differing if name in setting]
        return f"{family} ({', '.join(values)})" if values else family

    labels = {key: label(setting, _short) for key, setting in settings.items()}
    if len({*labels.values()}) < len(labels):
        # Values may look alike: 0.12345671 and 0.12345672, or the number 1 and the text "1".
        labels = {key: label(setting, _as_json) for key, setting in settings.items()}
    return labels


_ABSENT: list[Any] = []
"""Equals no hyperparameter, since these are numbers, texts, true or false."""


def _short(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def to_csv(rows: Iterable[TableRow]) -> str:
    """The table as CSV: equal rows give equal bytes, every float reads back exactly.

    Rows under attacks have their variant after the epoch.
    """
    rows = tuple(rows)
    plan = rows[0].schema.plan if rows else None
    columns = filled_columns((row.metrics for row in rows), plan)
    attacked = any(row.variant for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*FIRST, *((VARIANT,) if attacked else ()), *columns, *LAST))
    for row in rows:
        settings = json.dumps(json_ready(row.hyperparameters), sort_keys=True)
        writer.writerow(
            (
                row.method,
                row.model,
                *(row.forget_fraction, row.learning_rate, row.seed, row.epoch),
                *((row.variant,) if attacked else ()),
                *map(row.metrics.get, columns),
                row.kind,
                row.status,
                row.run_id,
                settings if row.hyperparameters else "",
            )
        )
    return text.getvalue()
