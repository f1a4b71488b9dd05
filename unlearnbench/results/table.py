"""The table behind every page, plot and CSV, with a row for each evaluation of a model.

Start models (kind `fine-tuned`) and retain models have rows like runs. `finalize` makes the table
from records.
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
    """Numbers by column. An undefined number is None, and so is the number of a missing column."""

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
    """Label with the hyperparameters in which the sweep's settings of the method differ."""
    family: str
    """Label without hyperparameters, equal for all settings of a method."""
    learning_rate: float | None
    seed: int
    epoch: int
    status: str
    metrics: Mapping[str, float | None]
    """Numbers by column, see `filled_columns`. None if undefined or not finite."""
    schema: BenchmarkSchema = field(default_factory=default_schema, compare=False, repr=False)
    """Schema of the benchmark."""
    variant: str = ""
    """Attack and point, for example `relearning@13`. Empty for a plain evaluation."""
    setting: SettingValue = NO_SETTING
    """Everything that a run depends on, except its seed. Empty for start and retain models."""
    uncounted: Mapping[str, float] = field(
        default_factory=dict[str, float], compare=False, repr=False
    )
    """Share of true answers by set whose words the profile does not count, see `word_check`."""
    start_check: StartCheck | None = field(default=None, compare=False, repr=False)
    """What a start model knew before any unlearning. None for other models, and for records of
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
        """The headline's measure of what is kept, such as model utility."""
        return self.metrics.get(self.headline.kept.column)

    @property
    def forgotten(self) -> float | None:
        """The headline's measure of what is forgotten, such as forget quality."""
        return self.metrics.get(self.headline.forgotten.column)


@dataclass(frozen=True)
class Table:
    """All numbers of a sweep, as `finalize` computes them."""

    rows: tuple[TableRow, ...] = ()
    """Plain evaluations, in an order that does not depend on the order of the records."""
    attacked: tuple[TableRow, ...] = ()
    """Evaluations under attacks, in the same order. They are separate from `rows`, so that no model
    is ranked by them. Metrics that compare with the retain or start model compare with that model
    under the same attack."""
    before: tuple[TableRow, ...] = ()
    """Plain numbers on the rows that an attack asked: one row for each model, epoch and variant
    that left rows out, or may have, see `asked_rows.before_rows`. They are in no CSV."""
    schema: BenchmarkSchema = field(default_factory=default_schema, compare=False, repr=False)
    """Schema of the benchmark."""
    notes: tuple[str, ...] = ()
    """Sentences on numbers that could not be computed, or that have moved."""
    moved: MovedNumbers = field(default_factory=MovedNumbers, compare=False, repr=False)
    """Numbers that have moved. `notes` describes them in words."""
    metrics: MetricChoices | None = field(default=None, compare=False, repr=False)
    """Metrics that the configuration names. If None, each record has the metrics that its
    configuration named when it was made."""
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
    """Sort rows by model, setting, seed, epoch and variant, in whatever order they come."""
    return tuple(sorted(rows, key=_place))


def _place(row: TableRow) -> tuple[Any, ...]:
    return (*row.place_of_setting, row.seed, row.epoch, row.run_id, _order_of(row.variant))


def _order_of(variant: str) -> tuple[str, bool, float, str]:
    """Return the sort key of a variant. Points that are numbers are sorted by size."""
    name, _, point = variant.partition("@")
    try:
        return name, False, float(point), point
    except ValueError:
        return name, True, 0.0, point


def to_csv(rows: Iterable[TableRow]) -> str:
    """Return rows as CSV. Equal rows give equal bytes, and floats can be read back exactly.

    Rows under attacks have their variant in a column after the epoch. In a sweep by steps, the
    epoch's column is called `step`.
    """
    rows = tuple(rows)
    unit = rows[0].unit if rows else Unit.EPOCH
    first = [unit.value if name == EPOCH else name for name in FIRST]
    plan = rows[0].schema.plan if rows else None
    columns = filled_columns((row.metrics for row in rows), plan)
    has_variants = any(row.variant for row in rows)
    variant_header = [VARIANT] if has_variants else []
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*first, *variant_header, *columns, *LAST])
    for row in rows:
        values = row.setting.flat
        settings = json.dumps(json_ready(values), sort_keys=True) if values else ""
        # In the order of `FIRST`.
        place = [
            row.method,
            row.model,
            row.forget_fraction,
            row.learning_rate,
            row.seed,
            row.epoch,
        ]
        if has_variants:
            place.append(row.variant)
        numbers = [row.metrics.get(name) for name in columns]
        # In the order of `LAST`.
        end = [row.kind, row.status, row.run_id, settings]
        writer.writerow([*place, *numbers, *end])
    return text.getvalue()
