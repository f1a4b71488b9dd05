"""All numbers of a folder: one row for each record, epoch and variant.

A number that is relative to the retain model or to the start model is relative to that model under
the same attack and point. The metrics are those that the configuration names now, whatever it named
when a run was made. A record without observations keeps the numbers that are stated in it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from tests.oracle.benchmarks import Benchmark, benchmark_of
from tests.oracle.numbers import Model, Values
from tests.oracle.read import PLAIN, Folder, Record, Split


@dataclass(frozen=True)
class Row:
    """A model after an epoch, with or without an attack."""

    record: Record
    epoch: int
    variant: str
    values: Values

    def get(self, column: str) -> float | None:
        """Return a number; None if it is undefined, or if there is no such column."""
        return self.values.get(column)


@dataclass(frozen=True)
class Rows:
    """The rows of a folder."""

    folder: Folder

    @cached_property
    def benchmark(self) -> Benchmark:
        """The benchmark of the records."""
        evaluated = [record for record in self.folder.records if record.stated]
        profile = evaluated[0].profile if evaluated else "tofu@"
        sections = [record.spec.get("data", {}) for record in evaluated]
        named = [section for section in sections if section.get("source")]
        models = [record.spec.get("model") for record in evaluated]
        named_models = [model for model in models if isinstance(model, Mapping)]
        model = named_models[0] if named_models else None
        return benchmark_of(named[0] if named else {}, profile, model)

    @cached_property
    def all(self) -> tuple[Row, ...]:
        """Every row, plain ones and those under attacks."""
        models: dict[tuple[str, int, str], Model] = {}
        chosen = self.folder.chosen_metrics

        def model_of(record: Record | None, epoch: int, variant: str) -> Model | None:
            if record is None:
                return None
            key = record.id, epoch, variant
            if key not in models:
                sets = record.observations(epoch, variant)
                if sets is None:
                    return None
                models[key] = Model(sets, self.benchmark.own_values(sets, chosen))
            return models[key]

        rows: list[Row] = []
        for record in self.folder.records:
            for epoch, variant in record.evaluations:
                model = model_of(record, epoch, variant)
                if model is None:
                    values = self._stated(record, epoch, variant)
                else:
                    of_retain = self.folder.reference("retain", record.panel, variant)
                    of_start = self.folder.reference("fine-tuned", record.panel, variant)
                    retain = model_of(of_retain, 0, variant)
                    start = model_of(of_start, 0, variant)
                    values = self.benchmark.values(model, retain, start, chosen)
                rows.append(Row(record, epoch, variant, values))
        return tuple(rows)

    def _stated(self, record: Record, epoch: int, variant: str) -> Values:
        """Return the numbers in a record, without those of metrics that have other settings now."""
        section = record.spec.get("evaluation", {}) if record.kind == "run" else record.spec
        before = section.get("metrics") or {}
        now = self.folder.chosen_metrics
        changed = self.benchmark.changed_columns(before, now)
        stated = record.stated[epoch, variant]
        return _finite({name: value for name, value in stated.items() if name not in changed})

    @cached_property
    def plain(self) -> tuple[Row, ...]:
        """Rows without an attack."""
        return tuple(row for row in self.all if row.variant == PLAIN)

    @cached_property
    def by_place(self) -> Mapping[tuple[str, int, str], Row]:
        """Rows by record, epoch and variant."""
        return {(row.record.id, row.epoch, row.variant): row for row in self.all}

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Columns of `results.csv`: the benchmark's own, and others that have a number."""
        columns = {column for use in self.benchmark.own for column in use.columns.values()}
        columns |= {
            column for row in self.plain for column, v in row.values.items() if v is not None
        }
        return tuple(sorted(columns))

    @property
    def panels(self) -> Sequence[tuple[str, Split]]:
        """Models and splits with a row, in any order."""
        return list(dict.fromkeys(row.record.panel for row in self.plain))

    def of_kind(self, kind: str, panel: tuple[str, Split], variant: str = PLAIN) -> Row | None:
        """The start or retain model's row with a variant; the first one of several."""
        for row in self.all:
            is_model = row.record.kind == kind and row.record.panel == panel
            if is_model and row.variant == variant:
                return row
        return None

    def start(self, panel: tuple[str, Split], column: str) -> Row | None:
        """The start model's row with a number in a column.

        Without an evaluation of the start model, epoch 0 of a run tells what it was.
        """
        of_panel = [row for row in self.plain if row.record.panel == panel]
        rows = [row for row in of_panel if row.record.kind == "fine-tuned"]
        if not rows:
            rows = [row for row in of_panel if row.record.kind == "run" and row.epoch == 0]
        return next((row for row in rows if row.get(column) is not None), None)


def _finite(values: Mapping[str, float | None]) -> Values:
    return {
        name: value if value is not None and math.isfinite(value) else None
        for name, value in values.items()
    }
