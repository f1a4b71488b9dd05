"""Order the methods on each panel, and test the leading one against the others.

The values that this module computes, and their sentences, are in `method_order`. The evaluations of
the compared settings are read from disk; everything else is computed from values in memory.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from unlearnbench.analysis.across import standings
from unlearnbench.analysis.best_settings import Best, Panel
from unlearnbench.analysis.compare import (
    TOLERANCE,
    Match,
    NoMatch,
    PanelComparison,
    compare_match,
    match,
    training_differences,
)
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.method_order import (
    OrderConfidence,
    PanelOrder,
    RankedMethod,
    Rivals,
    Untested,
)
from unlearnbench.analysis.over_questions import sensitivity_of_test
from unlearnbench.analysis.setting_order import merit_of
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.base.errors import EvaluationError, RecordError
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.stats.ks_test import SIGNIFICANCE, Sensitivity, ks_power
from unlearnbench.stats.paired_test import holm
from unlearnbench.stats.pareto_front import hypervolume
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

SWAPS = 999
"""Swaps drawn per test; more if the adjustment for many tests needs a smaller least p.

A swap exchanges the answers of two models to some questions at random (`stats/paired_test.py`)."""


def assess_order(panels: Sequence[Panel], records: Iterable[Record]) -> OrderConfidence:
    """Order the methods on each panel, with tests of the leading one.

    Reads from disk the evaluations of the retain models, of each method's best setting, and of the
    leading method's other settings that were about as good.
    """
    record_of_id = {record.id: record for record in records}
    with_runs = [panel for panel in panels if panel.best]
    orders = tuple(_order(panel, record_of_id) for panel in with_runs)
    return OrderConfidence(orders, standings({panel.place: panel.best for panel in with_runs}))


def _order(panel: Panel, record_of_id: Mapping[str, Record]) -> PanelOrder:
    """Order the methods of one panel, and test the leading one.

    Args:
        panel: A panel with runs.
        record_of_id: All records of the sweep.
    """
    methods = tuple(
        _ranked_method(panel, best, place)
        for best, place in zip(panel.best, panel.places, strict=True)
    )
    # All runs of a setting are trained alike, so one of them stands for it.
    run_of_method = {
        method.method: record_of_id[method.best.rows[0].run_id]
        for method in methods
        if method.best is not None
    }
    records = record_of_id.values()
    return PanelOrder(
        *panel.panel,
        methods=methods,
        sensitivity=_sensitivity(panel, records),
        rivals=rivals(panel, records),
        unequal=training_differences(run_of_method),
    )


def _ranked_method(panel: Panel, best: Best, place: int | None) -> RankedMethod:
    """Describe one method in the order of a panel.

    Args:
        panel: The panel.
        best: The method's best setting, or why it has none.
        place: Place of the setting, see `RankedMethod.place`.
    """
    corner = panel.start.corner
    return RankedMethod(
        best.name,
        best.ranked,
        place,
        hypervolume=None if corner is None else hypervolume(_points(panel, best), corner),
        why_not=best.why_not,
        lost=best.lost,
        chosen_on=() if best.choice is None else best.choice.chosen_on,
    )


def _points(panel: Panel, best: Best) -> list[tuple[float, float]]:
    """Return (kept, forgotten) of all settings and epochs of a method, larger is better in both."""
    choice = best.choice
    if choice is None:
        settings = [setting for setting in panel.judged if setting.family == best.family]
    else:
        rows = (row for row in panel.rows if row.run_id in choice.runs)
        ends = (end for end in panel.ends if end.run_id in choice.runs)
        settings = list(average_seeds(rows, ends))
    merits = [merit_of(setting) for setting in settings]
    return [(merit.kept, merit.forgotten) for merit in merits if merit is not None]


def _sensitivity(panel: Panel, records: Iterable[Record]) -> Sensitivity | None:
    """Return which differences from the retain model the test of Forget Quality could find.

    Without it, "not significant" would read as "equal", even if there are too few questions to find
    anything. It is computed from the retain model's truth ratios if they are stored, or else only
    from the number of questions. None if the benchmark has no such test, or neither is known.
    """
    if panel.headline.forgotten.test is None:
        return None
    # A retain model that was evaluated only under an attack has no plain evaluation.
    retains = [record for record in records if record.kind == "retain" and record.evaluations]
    retain = next((record for record in retains if record.panel == panel.panel), None)
    if retain is not None:
        evaluation = retain.evaluations[min(retain.evaluations)]  # it has one, at epoch 0
        sensitivity = sensitivity_of_test(panel.headline, evaluation)
        if sensitivity is not None:
            return sensitivity
    return None if panel.questions is None else ks_power(panel.questions)


def contenders_of(panel: Panel, records: Iterable[Record]) -> list[Contender]:
    """List the methods of a panel that keep their utility as sides of comparisons, best first."""
    record_of_id = {record.id: record for record in records if record.panel == panel.panel}
    # All methods are made from one contender and share its cache of evaluations, so that each
    # evaluation is read once.
    whole = Contender("", panel.rows, panel.rows, record_of_id, ends=panel.ends)
    return [
        replace(
            whole,
            name=best.name,
            rows=_rows_of(panel, best),
            chosen={} if best.choice is None else {panel.panel: (best,)},
        )
        for best in panel.best
        if best.ranked is not None
    ]


def _rows_of(panel: Panel, best: Best) -> tuple[TableRow, ...]:
    """List the rows of a method; without a choice, no runs of sweeps that choose."""
    rows = [row for row in panel.rows if row.family == best.family]
    if best.choice is None:
        rows = [row for row in rows if row.run_id not in panel.choosing_runs]
    return tuple(rows)


def swaps_for(method_count: int) -> int:
    """Return a number of swaps with which p-values of so many methods can be significant.

    The least p of a test by swaps is about 1 / swaps, and the adjustment for many tests multiplies
    it by their number.
    """
    return max(SWAPS, round(2 * method_count / SIGNIFICANCE))


def rivals(panel: Panel, records: Iterable[Record]) -> Rivals | None:
    """Test the leading method of a panel against each other method.

    The tests are those of `compare`: at equal utility, and adjusted for the number of the leading
    method's own settings; if the headline has no test, over seeds.

    Returns:
        None if no setting keeps its utility.
    """
    contenders = contenders_of(panel, records)
    if not contenders:
        return None
    leader, *others = contenders
    swaps = swaps_for(len(contenders))
    tested: dict[str, PanelComparison] = {}
    reasons: dict[str, str] = {}
    kinds: dict[str, Untested] = {}
    for other in others:
        try:
            matched = match(leader, other, panel.panel, TOLERANCE)
            compared = compare_match(
                leader, other, panel.panel, matched, TOLERANCE, only_a=True, swaps=swaps
            )
        except (EvaluationError, RecordError) as error:
            reasons[other.name] = str(error)
            kinds[other.name] = Untested.UNREADABLE
            continue
        if _was_tested(compared):
            tested[other.name] = compared
        else:
            reasons[other.name] = compared.why_not or "they have fewer than three seeds in common"
            kinds[other.name] = _kind_of(matched, compared)
    apart = _significantly_behind(tested)
    return Rivals(
        leader=leader.name,
        same=tuple(name for name in tested if name not in apart),
        apart=tuple(apart),
        untested=reasons,
        runner_up=others[0].name if others else "",
        kinds=kinds,
        few_seeds=frozenset(name for name in tested if _has_few_seeds(tested[name])),
    )


def _was_tested(compared: PanelComparison) -> bool:
    """Whether a comparison has a test over questions, or an interval over enough seeds."""
    if compared.test is not None:
        return True
    return compared.over_seeds is not None and not compared.over_seeds.is_range


def _significantly_behind(tested: Mapping[str, PanelComparison]) -> list[str]:
    """List the methods that forget significantly less than the leading one.

    Args:
        tested: Comparisons of the leading method, which is side A, by the other method.
    """
    # An interval over seeds has no p-value to adjust. It takes part with 0, the smallest one.
    p_values = [compared.test.p_value if compared.test else 0.0 for compared in tested.values()]
    behind: list[str] = []
    for (name, compared), p_value in zip(tested.items(), holm(p_values), strict=True):
        if replace(compared, p_adjusted=p_value).better is compared.a:
            behind.append(name)
    return behind


def _has_few_seeds(compared: PanelComparison) -> bool:
    """Whether one of two compared settings has fewer than three seeds."""
    sides = [side for side in (compared.a, compared.b) if side is not None]
    return any(len(side.seeds) < ENOUGH_SEEDS for side in sides)


def _kind_of(matched: Match | NoMatch, compared: PanelComparison) -> Untested:
    """Return why two methods without a test were not tested."""
    if isinstance(matched, NoMatch) and matched.lacks_equal_utility:
        return Untested.NO_EQUAL_UTILITY
    return Untested.UNREADABLE if compared.why_not else Untested.FEW_SEEDS
