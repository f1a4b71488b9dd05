"""The table that every page, plot and CSV is drawn from: one row per model and evaluation.

The start model (kind `fine-tuned`) and the retain model are rows like any other. `finalize` makes
the table from records.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from unlearnbench.api.benchmark import Headline, SplitKey, split_order
from unlearnbench.base.hashing import json_ready
from unlearnbench.config.metric_plan import MetricChoices
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import (
    BenchmarkSchema,
    default_schema,
    filled_columns,
)
from unlearnbench.evaluation.start_check import StartCheck
from unlearnbench.results.moved_numbers import MovedNumbers
from unlearnbench.results.setting_value import NO_SETTING, SettingValue

EPOCH = "epoch"
FIRST = ("method", "model", "forget_fraction", "learning_rate", "seed", EPOCH)
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
    """One run, start model or retain model after one epoch, or after some steps."""

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
    setting: SettingValue = NO_SETTING
    """Everything that a run depends on, except its seed. Empty for start and retain models."""
    uncounted: Mapping[str, float] = field(
        default_factory=dict[str, float], compare=False, repr=False
    )
    """Share of true answers by set whose words the profile does not count, see `word_check`."""
    start_check: StartCheck | None = field(default=None, compare=False, repr=False)
    """What a start model knew before any unlearning; None of other models, and of records of
    versions that did not measure it."""
    at_inference: bool = False
    """Whether the method leaves the weights as they are, and acts when the model is used."""
    key: str = field(default="", compare=False, repr=False)
    """Hash of everything that the numbers depend on; empty if they are as recorded."""

    @property
    def headline(self) -> Headline:
        """The two numbers that the benchmark is ranked by."""
        return self.schema.headline

    @property
    def unit(self) -> Unit:
        """What `epoch` counts: epochs, or steps in a sweep by steps."""
        return self.schema.unit

    @property
    def when(self) -> str:
        """`epoch 3`; in a sweep by steps `step 75`."""
        return self.unit.at(self.epoch)

    @property
    def panel(self) -> tuple[str, SplitKey]:
        """Model and split."""
        return self.model, self.forget_fraction

    @property
    def setting_id(self) -> str:
        """Hash of everything that the numbers depend on, except the seed."""
        return self.setting.id

    @property
    def place_of_setting(self) -> tuple[Any, ...]:
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
    moved: MovedNumbers = field(default_factory=MovedNumbers, compare=False, repr=False)
    """Numbers that have moved, which `notes` tells in words."""
    metrics: MetricChoices | None = field(default=None, compare=False, repr=False)
    """Metrics that the configuration names; None if those that it named for each record count."""
    rules_key: str = field(default="", compare=False, repr=False)
    """Hash of the rules that the numbers were computed by."""


def with_shown_columns(rows: Sequence[TableRow], schema: BenchmarkSchema) -> tuple[TableRow, ...]:
    """Return the rows with the columns that are worth showing, see `filled_columns`."""
    if not rows:
        return ()
    own = dict.fromkeys(schema.plan.own)
    columns = filled_columns((own, *(row.metrics for row in rows)), schema.plan)
    shown: list[TableRow] = []
    for row in rows:
        # Rows of a stored table have these columns already, and there may be many of them.
        if tuple(row.metrics) != columns:
            metrics = Numbers({name: row.metrics.get(name) for name in columns})
            row = replace(row, metrics=metrics)
        shown.append(row)
    return tuple(shown)


def in_order(rows: Iterable[TableRow]) -> tuple[TableRow, ...]:
    """Sort rows by what they are of; the order of the records does not matter."""
    return tuple(sorted(rows, key=_place))


def _place(row: TableRow) -> tuple[Any, ...]:
    return (*row.place_of_setting, row.seed, row.epoch, row.run_id, _order_of(row.variant))


def _order_of(variant: str) -> tuple[str, bool, float, str]:
    """Sort key of variants: points that are numbers by size."""
    name, _, point = variant.partition("@")
    try:
        return name, False, float(point), point
    except ValueError:
        return name, True, 0.0, point


def to_csv(rows: Iterable[TableRow]) -> str:
    """The table as CSV: equal rows give equal bytes, every float reads back exactly.

    Rows under attacks have their variant after the epoch. The epoch's column is called `step` in a
    sweep by steps.
    """
    rows = tuple(rows)
    unit = rows[0].unit if rows else Unit.EPOCH
    first = [unit.value if name == EPOCH else name for name in FIRST]
    plan = rows[0].schema.plan if rows else None
    columns = filled_columns((row.metrics for row in rows), plan)
    attacked = any(row.variant for row in rows)
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((*first, *((VARIANT,) if attacked else ()), *columns, *LAST))
    for row in rows:
        values = row.setting.flat
        settings = json.dumps(json_ready(values), sort_keys=True) if values else ""
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
                settings,
            )
        )
    return text.getvalue()
