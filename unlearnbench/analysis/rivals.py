"""Tests of the leading method of a panel against each other method, as in `compare`.

Pure, except that the evaluations of the compared settings are read from disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from unlearnbench.analysis.best_settings import (
    best_per_method,
    headline_of_rows,
    merit_of,
    on_panel,
)
from unlearnbench.analysis.compare import PanelComparison, compare_match
from unlearnbench.analysis.equal_utility import TOLERANCE, Contender, match
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.errors import EvaluationError, RecordError
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, critical_count
from unlearnbench.stats.paired_test import holm

SWAPS = 999
"""Swaps drawn per test; more if the adjustment for many tests needs a smaller least p."""


@dataclass(frozen=True)
class Rivals:
    """The leading method of a panel and its tests against the others; methods by their family."""

    leader: str
    """Method whose best setting has forgotten most, by the headline."""
    same: tuple[str, ...]
    """Methods than which it does not forget significantly more; ordered by the headline, as all."""
    apart: tuple[str, ...]
    """Methods that forget significantly less, Holm-adjusted over all tests."""
    untested: tuple[str, ...]
    """Methods without a test: no equal utility, or unreadable evaluations."""
    near_retain: tuple[str, ...]
    """Methods whose best setting's D is below `resolution`, the leader included."""
    questions: int | None
    """Number of forget questions."""
    resolution: float | None
    """Least D at which the headline's test distinguishes a model from the retain model."""
    measure: str
    """Name of the test's p-value: `Forget Quality`."""

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
                f"{self.leader} leads, but does not forget significantly more than "
                f"{_count(self.same)}: {', '.join(self.same)} ({how})."
            )
        elif tests:
            yield f"{self.leader} forgets more than {_count(self.apart)} tested ({how})."
        if self.untested:
            yield (
                f"Not tested against {self.leader}: {', '.join(self.untested)}. "
                f"`unlearnbench compare {self.leader} {self.untested[0]}` prints the reason."
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
                f"{what} below D = {self.resolution:.3g}, the least distance from the retain model "
                f"that {self.questions} questions can detect: by {self.measure}, "
                f"{'it' if len(near) == 1 else 'each of them'} may have forgotten everything."
            )


def _count(names: Sequence[str]) -> str:
    return f"{len(names)} method{'s' * (len(names) != 1)}"


class _CachedEvaluations(dict[int, Any]):
    """Evaluations that are read from disk at most once."""

    def __init__(self, stored: Mapping[int, Evaluation]) -> None:
        super().__init__(dict.fromkeys(stored))
        self._stored = stored

    def __getitem__(self, epoch: int) -> Evaluation:
        if self.get(epoch) is None:
            self[epoch] = self._stored[epoch]
        found: Evaluation = super().__getitem__(epoch)
        return found


def rivals(
    rows: Sequence[TableRow], records: Iterable[Record], model: str, split: SplitKey
) -> Rivals | None:
    """The leading method of a panel and its rivals; None if no setting keeps its utility.

    None, too, where the headline has no test: then intervals over seeds are all there is.

    The leader is tested against each other method as in `compare`: at equal utility, and adjusted
    for the number of its own settings.
    """
    place = model, split
    here = on_panel(rows, place)
    best = [one.setting for one in best_per_method(here) if one.setting is not None]
    test = headline_of_rows(here).forgotten.test
    if not best or test is None:
        return None
    best.sort(key=lambda one: merit_of(one) or (), reverse=True)
    cached = {
        one.id: replace(one, evaluations=_CachedEvaluations(one.evaluations))
        for one in records
        if (one.model, one.forget_fraction) == place
    }
    own = [tuple(r for r in here if r.kind == "run" and r.family == one.family) for one in best]
    leader, *others = (Contender(runs[0].family, runs, here, cached) for runs in own)
    swaps = max(SWAPS, round(2 * len(best) / SIGNIFICANCE))
    tested: dict[str, PanelComparison] = {}
    p_values: list[float] = []
    for other in others:
        # Without a test: evaluations cannot be read, or do not compare.
        with suppress(EvaluationError, RecordError):
            found = match(leader, other, place, TOLERANCE)
            panel = compare_match(leader, other, place, found, only_a=True, swaps=swaps)
            if panel.test is not None:
                tested[other.name] = panel
                p_values.append(panel.test.p_value)
    adjusted = zip(tested.items(), holm(p_values), strict=True)
    apart = [name for (name, one), p in adjusted if replace(one, p_adjusted=p).better is one.a]
    counts = {int(n) for row in here if (n := row.metrics.get(test.questions)) is not None}
    questions = counts.pop() if len(counts) == 1 else None
    critical = critical_count(questions) if questions else None
    resolution = critical / questions if critical and questions else None
    near = [
        one.family
        for one in best
        if resolution and (d := one.metrics.get(test.distance)) is not None and d < resolution
    ]
    return Rivals(
        leader=leader.name,
        same=tuple(name for name in tested if name not in apart),
        apart=tuple(apart),
        untested=tuple(one.name for one in others if one.name not in tested),
        near_retain=tuple(near),
        measure=test.label,
        questions=questions,
        resolution=resolution,
    )
