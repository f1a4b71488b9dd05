"""A sweep under one attack, in the form of a plain one: what `compare --under` compares. Pure.

What a run keeps is that of its plain evaluation, because methods are compared as they would be
published; what it has forgotten, and its evaluation, are those under the attack.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from unlearnbench.api.observations import Evaluation
from unlearnbench.errors import RecordError, did_you_mean
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow


def find_variant(name: str, attacked: Sequence[TableRow], place: str) -> str:
    """The variant of a name; an attack's name stands for its variant, if it has only one.

    place  of the rows, in messages
    Raises: RecordError that lists the variants there are.
    """
    variants = tuple(dict.fromkeys(row.variant for row in attacked))
    if name in variants:
        return name
    if not variants:
        raise RecordError(
            f"{place}: no run was attacked; name attacks in its configuration (`attacks:`), and "
            "start the sweep again"
        )
    points = [variant for variant in variants if variant.partition("@")[0] == name]
    if len(points) == 1:
        return points[0]
    if points:
        raise RecordError(
            f"{place}: attack {name!r} has several points: {', '.join(points)}; name one"
        )
    raise RecordError(
        f"{place}: no run under {name!r}{did_you_mean(name, variants) or ';'} there are: "
        f"{', '.join(variants)}"
    )


def rows_under(
    rows: Sequence[TableRow], attacked: Sequence[TableRow], variant: str
) -> tuple[TableRow, ...]:
    """The rows of runs under a variant, and the plain ones of the start and retain models."""
    plain = {(row.run_id, row.epoch): row for row in rows if row.kind == "run"}
    found = [row for row in rows if row.kind != "run"]
    for row in attacked:
        own = plain.get((row.run_id, row.epoch))
        if row.variant == variant and own is not None:
            kept = {row.headline.kept.column: own.kept}
            found.append(replace(own, metrics={**row.metrics, **kept}))
    return tuple(found)


def records_under(records: Sequence[Record], variant: str) -> tuple[Record, ...]:
    """The records with their evaluations under a variant, which are read when they are used."""
    return tuple(
        replace(one, evaluations=_VariantEvaluations(one.attacked_evaluations, variant))
        for one in records
    )


@dataclass(frozen=True)
class _VariantEvaluations(Mapping[int, Evaluation]):
    """Evaluations of a record under one variant, by epoch."""

    every: Mapping[tuple[int, str], Evaluation]
    variant: str

    def __getitem__(self, epoch: int) -> Evaluation:
        return self.every[epoch, self.variant]

    def __iter__(self) -> Iterator[int]:
        return (epoch for epoch, variant in self.every if variant == self.variant)

    def __contains__(self, epoch: object) -> bool:
        return (epoch, self.variant) in self.every  # the inherited one would read the file

    def __len__(self) -> int:
        return sum(1 for _ in self)
