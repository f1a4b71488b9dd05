"""What `compare` says of two methods on a panel (docs/concepts/statistics.md, "Two methods").

Methods are compared at equal utility, or where one both keeps more and forgets at least as much,
otherwise not at all. The method whose best setting keeps more sets the level. The other one takes
part with the setting that forgets most among those that keep this level within a tolerance. After
`select` or `tune`, a method has one setting: its choice, on the seeds that report it.

Under an attack, what is forgotten is that of the attacked evaluation, and what is kept stays that
of the plain one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tests.oracle.choices import choices_of_panel
from tests.oracle.means import Bounds, Setting, SettingsOfRuns, interval_of, mean_of
from tests.oracle.numbers import log_false_over_true
from tests.oracle.places import Judge, judge_of
from tests.oracle.read import Array, Split
from tests.oracle.rows import Row, Rows

TOLERANCE = 0.02
"""Most that two settings of equal utility differ in what is kept."""
ROUNDING = 1e-9
"""0.82 − 0.80 is within 0.02, although not in binary floating point."""
MOST_EXACT = 13
"""Most questions for which `compare` enumerates all swaps; for more, it draws some of them."""
DISTANCE = "ks_statistic"
"""Column of the distance behind a test."""


@dataclass(frozen=True)
class Side:
    """One method as it takes part."""

    runs: tuple[str, ...]
    """Ids of the compared runs, paired with the other side's by their seeds if possible."""
    epoch: int
    kept: float
    forgotten: float
    """Means over the compared runs."""
    tried: int
    """Settings with a result that it was chosen from."""
    distance: float | None
    """D to the retain model, mean over the compared runs; None without a test."""


@dataclass(frozen=True)
class Comparison:
    """Two methods on one panel."""

    first: Side
    second: Side
    has_equal_utility: bool
    p_value: float | None
    """Of the paired permutation test, before any adjustment over panels; None without a test, and
    for more questions than `MOST_EXACT`."""
    difference: float | None
    """Without a test: mean difference of what is forgotten, over the pairs of runs."""
    interval: Bounds | None
    """Its interval over the pairs; the range of two."""


@dataclass(frozen=True)
class _Contender:
    """A method with the settings that may take part."""

    method: str
    settings: tuple[Setting, ...]
    tried: int
    is_chosen: bool
    """Whether `select` or `tune` has chosen its setting, on other seeds."""


@dataclass(frozen=True)
class PanelComparer:
    """Compares methods on one panel."""

    rows: Rows
    settings: SettingsOfRuns
    panel: tuple[str, Split]
    variant: str = ""

    @property
    def judge(self) -> Judge:
        """Judge of the panel. Its start model is the one without an attack."""
        return judge_of(self.rows, self.panel)

    def compare(self, first: str, second: str) -> Comparison | None:
        """Compare two methods; None if they are not compared."""
        judge = self.judge
        sides = [self._contender(name, judge) for name in (first, second)]
        if judge.fault or judge.least_kept is None or None in sides:
            return None
        contenders = [side for side in sides if side is not None]
        matched = _match(contenders, judge)
        if matched is None:
            return None
        return self._compared(contenders, matched, judge)

    def _rows(self, method: str) -> list[Row]:
        """Rows of a method's runs, under the attack if there is one."""
        rows: list[Row] = []
        for row in self.settings.rows:
            if row.record.panel != self.panel or row.record.method != method:
                continue
            if not self.variant:
                rows.append(row)
                continue
            attacked = self.rows.by_place.get((row.record.id, row.epoch, self.variant))
            if attacked is not None:
                kept = self.rows.benchmark.headline.kept
                rows.append(replace(attacked, values={**attacked.values, kept: row.get(kept)}))
        return rows

    def _contender(self, method: str, judge: Judge) -> _Contender | None:
        rows = self._rows(method)
        if not rows:
            return None
        if not self.rows.folder.config.get("select"):
            settings = self._settings(rows)
            tried = sum(judge.merit(setting) is not None for setting in settings)
            return _Contender(method, settings, tried, is_chosen=False)
        # The choice is made on plain numbers, whatever attack is looked at.
        plain = [row for row in self.settings.rows if row.record.panel == self.panel]
        choices = [
            choice
            for choice in choices_of_panel(plain, self.settings, self.rows.folder.plan, judge)
            if choice.method == method
        ]
        with_setting = [choice for choice in choices if choice.chosen is not None]
        if not with_setting:
            return None
        best = max(with_setting, key=lambda choice: choice.worth)
        if best.reported is None:
            return None
        places = {(row.record.id, row.epoch) for row in best.reported.rows}
        reported = [row for row in rows if (row.record.id, row.epoch) in places]
        # The settings of an entry of which none was good enough were tried as well.
        tried = sum(choice.candidates for choice in choices)
        # Also the seeds that ended before the chosen epoch, which have no row there.
        plan = self.rows.folder.config
        seeds = {*plan["seeds"]} - {*plan["select"]["seeds"]}
        settings = self._settings(reported, seeds)
        return _Contender(method, settings, tried, is_chosen=True)

    def _settings(
        self, rows: Sequence[Row], seeds: Collection[int] | None = None
    ) -> tuple[Setting, ...]:
        """Return settings. A seed that the attack did not reach must not disappear in a mean."""
        found: list[Setting] = []
        for setting in self.settings.of(rows, seeds):
            missing = dict(setting.missing)
            for row in self.settings.rows:
                place = self.settings.texts[row.record.id], row.epoch
                seed = row.record.seed
                is_due = place == (setting.text, setting.epoch) and (seeds is None or seed in seeds)
                has_failed = row.record.status == "failed"
                if is_due and seed not in setting.seeds and not has_failed:
                    missing[seed] = "not attacked"
            found.append(replace(setting, missing=missing))
        return tuple(found)

    def _compared(
        self, contenders: Sequence[_Contender], matched: tuple[Setting, Setting], judge: Judge
    ) -> Comparison | None:
        pairs = _paired(*matched)
        if [first.record.id for first, _ in pairs] == [other.record.id for _, other in pairs]:
            same_epoch = matched[0].epoch == matched[1].epoch
            if same_epoch:
                return None  # one setting, under two names
        of_sides = [[pair[i] for pair in pairs] for i in (0, 1)]
        ratios = self._ratios_of_sides(of_sides) if judge.headline.has_test else None
        sides: list[Side] = []
        for i, contender in enumerate(contenders):
            kept = mean_of(row.get(judge.headline.kept) for row in of_sides[i])
            forgotten = mean_of(row.get(judge.headline.forgotten) for row in of_sides[i])
            assert kept is not None
            assert forgotten is not None
            distance = None
            if ratios is not None:
                retain = ratios[2][0]
                distance = float(np.mean([_distance(run, retain) for run in ratios[i]]))
            runs = tuple(row.record.id for row in of_sides[i])
            epoch = matched[i].epoch
            sides.append(Side(runs, epoch, kept, forgotten, contender.tried, distance))
        equal = abs(sides[0].kept - sides[1].kept) <= TOLERANCE + ROUNDING
        if not judge.headline.has_test:
            differences = [
                (first.get(judge.headline.forgotten) or 0.0)
                - (other.get(judge.headline.forgotten) or 0.0)
                for first, other in pairs
            ]
            return Comparison(
                sides[0],
                sides[1],
                equal,
                p_value=None,
                difference=mean_of(differences),
                interval=interval_of(differences),
            )
        if ratios is None:
            return None
        p_value = self._p_value(contenders, matched, of_sides, ratios, judge)
        return Comparison(sides[0], sides[1], equal, p_value, None, None)

    def _ratios_of_sides(
        self, of_sides: Sequence[Sequence[Row]]
    ) -> tuple[Array, Array, Array] | None:
        """[s, n] truth ratios of both sides and [1, n] of the retain model; None with a NaN."""
        retain = self.rows.of_kind("retain", self.panel, self.variant)
        if retain is None:
            return None
        found: list[Array] = []
        for rows in (*of_sides, [retain]):
            of_side = [self._ratios(row) for row in rows]
            known = [ratios for ratios in of_side if ratios is not None]
            if len(known) < len(of_side) or any(np.isnan(ratios).any() for ratios in known):
                return None
            found.append(np.stack(known))
        first, second, of_retain = found
        return first, second, of_retain

    def _ratios(self, row: Row) -> Array | None:
        sets = row.record.observations(row.epoch, row.variant)
        if sets is None or "forget" not in sets:
            return None
        (settings,) = (
            use.settings for use in self.rows.benchmark.own if use.metric == "forget-quality"
        )
        logs = log_false_over_true(sets["forget"], settings)
        return None if logs is None else np.exp(-logs)

    def _p_value(
        self,
        contenders: Sequence[_Contender],
        matched: tuple[Setting, Setting],
        of_sides: Sequence[Sequence[Row]],
        ratios: tuple[Array, Array, Array],
        judge: Judge,
    ) -> float | None:
        """Return the share of swaps whose largest difference of D reaches the observed one.

        At each question the answers of both sides are swapped or not, all seeds together. The side
        with the smaller D was chosen from several settings, so that each swap exchanges the other
        side with every setting that might be the best of its side (max-T).
        """
        first, second, retain = ratios
        if retain.size > MOST_EXACT:
            return None
        reach = [sum(_reach(run, retain[0]) for run in side) for side in (first, second)]
        winner = 1 if reach[0] > reach[1] else 0
        loser_ratios = ratios[1 - winner]
        settings = [ratios[winner]]
        for rival in self._rivals(contenders[winner], matched[winner], retain.size, judge):
            rows = _like(rival, of_sides[winner])
            of_rival = [self._ratios(row) for row in rows]
            if all(run is not None and not np.isnan(run).any() for run in of_rival):
                settings.append(np.stack([run for run in of_rival if run is not None]))
        observed = abs(reach[0] - reach[1])
        largest = np.zeros(2**retain.size)
        for of_setting in settings:
            largest = np.maximum(largest, _swapped(loser_ratios, of_setting, retain[0]))
        return float(np.mean(largest >= observed))

    def _rivals(
        self, contender: _Contender, chosen: Setting, n: int, judge: Judge
    ) -> list[Setting]:
        """Return the other settings of a side that might be its best over other questions.

        They keep enough, and their D is at most √(ln n / 2n) above the chosen one's.
        """
        if contender.is_chosen:
            return []
        margin = math.sqrt(math.log(n) / (2 * n)) if n > 1 else 1.0
        rivals: list[Setting] = []
        for setting in contender.settings:
            merit = judge.merit(setting)
            is_other = (setting.text, setting.epoch) != (chosen.text, chosen.epoch)
            if merit is None or not is_other or merit[1] < (judge.least_kept or 0.0):
                continue
            distance, least = setting.mean(DISTANCE), chosen.mean(DISTANCE)
            if distance is None or least is None or distance - least <= margin:
                rivals.append(setting)
        return rivals


def _match(contenders: Sequence[_Contender], judge: Judge) -> tuple[Setting, Setting] | None:
    """Return the settings of both sides that are compared; None if there are none."""
    least = judge.least_kept
    assert least is not None
    bests = [judge.best(contender.settings, least) for contender in contenders]
    first, second = bests
    if first is None or second is None:
        return None
    numbers = [_forgotten_and_kept(best, judge) for best in (first, second)]
    keeper = 0 if numbers[0][1] >= numbers[1][1] else 1
    forgotten_by_keeper, level = numbers[keeper]
    best = (first, second)[keeper]
    able = [s for s in contenders[1 - keeper].settings if judge.keeps_enough(s)]
    challenger = judge.best(able, level - TOLERANCE - ROUNDING)
    is_fair = False
    if challenger is not None:
        forgotten, kept = _forgotten_and_kept(challenger, judge)
        is_equal = kept <= level + TOLERANCE + ROUNDING
        is_fair = is_equal or forgotten >= forgotten_by_keeper
    if not is_fair:
        # The keeper keeps more, and has to forget at least as much.
        if forgotten_by_keeper < numbers[1 - keeper][0]:
            return None
        challenger = (first, second)[1 - keeper]
    assert challenger is not None
    return (best, challenger) if keeper == 0 else (challenger, best)


def _forgotten_and_kept(setting: Setting, judge: Judge) -> tuple[float, float]:
    """Return both numbers of the headline, larger is better in both."""
    merit = judge.merit(setting)
    assert merit is not None
    return merit[0], merit[1]


def _paired(first: Setting, second: Setting) -> list[tuple[Row, Row]]:
    """Pair runs by their common seeds; without one, in the order of their seeds."""
    of_first = {row.record.seed: row for row in first.rows}
    of_second = {row.record.seed: row for row in second.rows}
    common = sorted(of_first.keys() & of_second.keys())
    if common:
        return [(of_first[seed], of_second[seed]) for seed in common]
    return list(zip(first.rows, second.rows, strict=False))


def _like(setting: Setting, rows: Sequence[Row]) -> list[Row]:
    """Return as many runs of a setting as there are rows, of the same seeds if it has any."""
    of_seed = {row.record.seed: row for row in setting.rows}
    same = [of_seed[row.record.seed] for row in rows if row.record.seed in of_seed]
    return list(itertools.islice(itertools.cycle(same or list(setting.rows)), len(rows)))


def _reach(values: Array, others: Array) -> int:
    """Return n · D of two samples of n values."""
    points = [*values, *others]
    return max(abs(int((values <= x).sum() - (others <= x).sum())) for x in points)


def _distance(values: Array, others: Array) -> float:
    return _reach(values, others) / len(others)


def _swapped(loser: Array, winner: Array, retain: Array) -> Array:
    """[2ⁿ] |n · D| of the one side less the other's, summed over seeds, for all swaps."""
    n = len(retain)
    swaps = np.array(list(itertools.product((0, 1), repeat=n)))  # [2ⁿ, n]
    total = np.zeros(len(swaps))
    for of_loser, of_winner in zip(loser, winner, strict=True):
        points = np.concatenate([of_loser, of_winner, retain])
        below_loser = (of_loser[:, None] <= points).astype(int)  # [n, 3n]
        below_winner = (of_winner[:, None] <= points).astype(int)
        below_retain = (retain[:, None] <= points).sum(axis=0)
        change = swaps @ (below_winner - below_loser)  # [2ⁿ, 3n]
        one = np.abs(below_loser.sum(axis=0) + change - below_retain).max(axis=1)
        other = np.abs(below_winner.sum(axis=0) - change - below_retain).max(axis=1)
        total += one - other
    return np.abs(total)
