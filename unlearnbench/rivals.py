"""Which methods the leading one of a panel is not told apart from, by the tests of `compare`.

Pure but for the evaluations of the settings that are compared, which are read from disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from unlearnbench.comparison import PanelComparison, compare_match
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.matching import DISTANCE, TOLERANCE, Contender, match
from unlearnbench.paired import holm
from unlearnbench.power import SIGNIFICANCE, critical_count
from unlearnbench.ranking import UTILITY_SHARE, Best, best_per_method, merit_of
from unlearnbench.records import Record
from unlearnbench.table import Row

SWAPS = 999
"""Of a test; more where so many tests are adjusted for that the least p must be smaller."""


@dataclass(frozen=True)
class Rivals:
    """The leading method of a panel, and how it stands to the others; all by label of family."""

    leader: str
    """Of the best setting with the highest log10 Forget Quality."""
    same: tuple[str, ...]
    """Methods that it is not told apart from; by Forget Quality, as are the others."""
    apart: tuple[str, ...]
    """Methods that forget less, beyond chance: Holm-adjusted over all that were tested."""
    untested: tuple[str, ...]
    """Methods without a test: their utilities do not meet, or answers cannot be read."""
    near_retain: tuple[str, ...]
    """Methods whose best setting's D is below `resolution`; the leader, too."""
    questions: int | None
    """Forget questions."""
    resolution: float | None
    """Least D that Forget Quality's test tells from the retain model."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """The comparison in sentences."""
        return tuple(self._sentences())

    def _sentences(self) -> Iterator[str]:
        tests = len(self.same) + len(self.apart)
        how = (
            f"paired test{'s' * (tests > 1)} over {self.questions} questions at equal utility, p "
            "adjusted after Holm and for the number of settings tried"
        )
        if self.same:
            yield (
                f"{self.leader} leads, but is not told apart from {_count(self.same)}: "
                f"{', '.join(self.same)} ({how})."
            )
        elif tests:
            yield f"{self.leader} forgets more than {_count(self.apart)} tested ({how})."
        if self.untested:
            yield (
                f"Not tested against {self.leader}: {', '.join(self.untested)}. "
                f"`unlearnbench compare {self.leader} {self.untested[0]}` states why."
            )
        leading = (self.leader, *self.same)
        near = [one for one in leading if one in self.near_retain]
        if near and self.resolution is not None:
            what = (
                f"{leading[0]} lies"
                if len(leading) == 1
                else f"All {len(leading)} of them lie"
                if len(near) == len(leading)
                else f"Of them, {', '.join(near)} lie{'s' * (len(near) == 1)}"
            )
            yield (
                f"{what} below D = {self.resolution:.3g}, the least that {self.questions} "
                "questions tell from the retain model: as far as Forget Quality can see, "
                f"{'it' if len(near) == 1 else 'each of them'} may have forgotten all."
            )


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} method{'s' * (len(names) != 1)}"


class _Kept(Mapping[int, Evaluation]):
    """Evaluations that are read once."""

    def __init__(self, stored: Mapping[int, Evaluation]) -> None:
        self._stored = stored
        self._read: dict[int, Evaluation] = {}

    def __getitem__(self, epoch: int) -> Evaluation:
        if epoch not in self._read:
            self._read[epoch] = self._stored[epoch]
        return self._read[epoch]

    def __iter__(self) -> Iterator[int]:
        return iter(self._stored)

    def __contains__(self, epoch: object) -> bool:
        return epoch in self._stored

    def __len__(self) -> int:
        return len(self._stored)


def rivals(
    rows: Sequence[Row],
    records: Iterable[Record],
    model: str,
    fraction: float,
    utility_share: float = UTILITY_SHARE,
) -> Rivals | None:
    """The leading method of a panel and its rivals; None where no setting keeps its utility.

    The leader is tested against each other method as `compare` does: at equal utility, and with
    the choice among its own settings allowed for.
    """
    place = model, fraction
    here = tuple(row for row in rows if (row.model, row.forget_fraction) == place)
    best = sorted(
        (one for one in best_per_method(here, utility_share) if one.setting is not None),
        key=_merit,
        reverse=True,
    )
    if not best:
        return None
    kept = {
        one.id: replace(one, evaluations=_Kept(one.evaluations))
        for one in records
        if (one.model, one.forget_fraction) == place
    }
    sides = [
        Contender(
            one.family,
            tuple(row for row in here if row.kind == "run" and row.family == one.family),
            here,
            kept,
        )
        for one in best
    ]
    swaps = max(SWAPS, round(2 * len(best) / SIGNIFICANCE))
    found = {one.name: _tested(sides[0], one, place, swaps) for one in sides[1:]}
    tested = [(name, panel) for name, panel in found.items() if panel is not None and panel.test]
    adjusted = holm([panel.test.p_value for _, panel in tested if panel.test])
    apart = {
        name
        for (name, panel), p_value in zip(tested, adjusted, strict=True)
        if replace(panel, p_adjusted=p_value).better is panel.a
    }
    names = [name for name, _ in tested]
    counts = {int(n) for row in here if (n := row.metrics["ks_n"]) is not None}
    questions = counts.pop() if len(counts) == 1 else None
    critical = critical_count(questions) if questions else None
    resolution = critical / questions if critical and questions else None
    return Rivals(
        leader=sides[0].name,
        same=tuple(name for name in names if name not in apart),
        apart=tuple(name for name in names if name in apart),
        untested=tuple(name for name in found if name not in names),
        near_retain=tuple(one.family for one in best if _is_below(one, resolution)),
        questions=questions,
        resolution=resolution,
    )


def _merit(one: Best) -> tuple[float, ...]:
    merit = None if one.setting is None else merit_of(one.setting)
    return () if merit is None else merit


def _is_below(one: Best, resolution: float | None) -> bool:
    distance = None if one.setting is None else one.setting.metrics[DISTANCE]
    return distance is not None and resolution is not None and distance < resolution


def _tested(
    leader: Contender, other: Contender, place: tuple[str, float], swaps: int
) -> PanelComparison | None:
    """The comparison; None where the answers that it needs cannot be read or do not compare."""
    try:
        found = match(leader, other, place, TOLERANCE)
        return compare_match(leader, other, place, found, only_a=True, swaps=swaps)
    except (EvaluationError, RecordError):
        return None
