"""Runs before and after an attack, with their retain models: what robustness is computed from.

Pure, except that evaluations are read from disk: an attack may be evaluated on some of the rows
(relearning: on those it does not train on), and the number before it has to be of the same ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from unlearnbench.analysis.best_settings import at_start
from unlearnbench.analysis.meta_evaluation import AttackedRun, Values
from unlearnbench.api.metric import number
from unlearnbench.api.observations import Evaluation
from unlearnbench.errors import RecordError, did_you_mean
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow, attack_table

_PREFERRED = "nf4"
"""The point that a robustness is computed from, where it is there; else from the last one."""


def chosen_variant(chosen: str | None, attack: str, variants: Sequence[str]) -> str:
    """The variant of an attack from which its robustness is computed; its name if there is none.

    chosen    by the user; default: NF4, or else the last point
    variants  that there are, in the table's order

    Raises: RecordError for a chosen one that no run was evaluated under.
    """
    if chosen is not None:
        if chosen not in variants:
            known = ", ".join(variants) or "none"
            near = did_you_mean(chosen, variants) or ";"
            raise RecordError(
                f"no run was evaluated under {chosen!r}{near} there are evaluations under {known}"
            )
        return chosen
    own = [one for one in variants if one.partition("@")[0] == attack]
    preferred = [one for one in own if one.partition("@")[2] == _PREFERRED]
    return (preferred or own or [attack])[-1]


def attacked_runs(records: Sequence[Record], rows: Sequence[TableRow]) -> tuple[AttackedRun, ...]:
    """The runs of one sweep under each attack, after the last epoch at which they were attacked.

    rows  the table of the records

    Raises: DamagedError where an evaluation cannot be read.
    """
    under = attack_table(records)
    by_id = {record.id: record for record in records}
    plain = {(row.run_id, row.epoch): row for row in rows}
    references = {(row.model, row.forget_fraction): row for row in rows if row.kind == "retain"}
    goals = {(r.model, r.forget_fraction, r.variant): r for r in under if r.kind == "retain"}
    last = {
        (row.run_id, row.variant): row
        for row in sorted(under, key=lambda row: row.epoch)
        if row.kind == "run" and (row.run_id, row.epoch) in plain
    }

    def pair(before: TableRow | None, after: TableRow | None) -> tuple[Values, Values]:
        if before is None or after is None:
            return {}, {}
        found = by_id[before.run_id].evaluations.get(before.epoch)
        attacked = by_id[after.run_id].attacked_evaluations.get((after.epoch, after.variant))
        if found is None or attacked is None:
            return before.metrics, after.metrics
        return _on_rows_of(found, attacked, before.schema), after.metrics

    attacked: list[AttackedRun] = []
    for row in last.values():
        place = row.model, row.forget_fraction
        own = plain[row.run_id, row.epoch]
        start = at_start(rows, *place, own.headline.kept.column)
        retain = pair(references.get(place), goals.get((*place, row.variant)))
        attacked.append(AttackedRun(own, start, row.variant, *pair(own, row), *retain))
    return tuple(attacked)


def _on_rows_of(plain: Evaluation, under: Evaluation, schema: BenchmarkSchema) -> Values:
    """The metrics of the sets of `under` in the plain evaluation, over the questions in `under`."""
    found: dict[str, float | None] = {}
    for measure in schema.plan.measures:
        for name in measure.sets:
            if name not in under.sets or name not in plain.sets:
                continue
            values = measure.per_example(plain.sets[name])
            if values is None:
                continue
            places = {question: i for i, question in enumerate(plain.sets[name].questions)}
            chosen = [places[one] for one in under.sets[name].questions if one in places]
            value = measure.metric.value(values[np.array(chosen, np.int64)])
            found[f"{measure.name}_{name}"] = number(value, f"`value` of metric {measure.name}")
    return found
