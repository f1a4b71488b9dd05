"""The conclusion about each panel in three sentences: what was found, how sure it is, does it last.

The last lines of a sweep and the head of its page both come from `conclusions`. Pure, except that
`conclusion.json` of a sweep's folder, which stores them, is read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Panel,
    Setting,
    Start,
    average_seeds,
    on_panel,
    p_value,
    panel_label,
    panel_order,
    quality_text,
    start_of,
)
from unlearnbench.analysis.lasting import AttackedPanel, lasting_sentence, setting_name
from unlearnbench.analysis.order_confidence import OrderConfidence, PanelOrder, RankedMethod, Rivals
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.errors import RecordError
from unlearnbench.results.table import TableRow
from unlearnbench.stats.t_interval import ENOUGH_SEEDS

CONCLUSION_FILE = "conclusion.json"
SCHEMA = 1
NAMED = 4
"""Most methods that a sentence names."""


@dataclass(frozen=True)
class Conclusion:
    """Three sentences about a panel; one that does not apply is empty."""

    model: str
    split: SplitKey
    found: str
    """The best method, its setting, what it has forgotten and kept; or why there is none."""
    sure: str = ""
    """The methods than which it does not forget significantly more, the seeds, the questions and
    the smallest difference that they show."""
    lasts: str = ""
    """What attacks give back, with its interval; or that there was none."""
    has_best: bool = False
    """True if a method has forgotten, and has kept its utility."""

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(self.model, self.split)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that apply, in their order."""
        return tuple(filter(None, (self.found, self.sure, self.lasts)))


def conclusions(
    rows: Sequence[TableRow], claims: OrderConfidence, attacked: Iterable[AttackedPanel] = ()
) -> tuple[Conclusion, ...]:
    """Draw the conclusion about every panel that has runs.

    rows      the table of plain evaluations, start and retain models included
    claims    `assess_order` of those of them whose start model is valid
    attacked  `attacked_panels` of the same, empty if no attack was run
    """
    orders = {one.panel: one for one in claims.panels}
    under = {one.panel: one for one in attacked}
    places = {(row.model, row.forget_fraction) for row in rows if row.kind == "run"}
    return tuple(
        _conclude(place, on_panel(rows, place), orders.get(place), under.get(place))
        for place in sorted(places, key=panel_order)
    )


def _conclude(
    place: Panel,
    rows: Sequence[TableRow],
    order: PanelOrder | None,
    attacked: AttackedPanel | None,
) -> Conclusion:
    start = start_of(rows, *place)
    if reason := _no_result(start, rows):
        return Conclusion(*place, reason)
    methods = () if order is None else order.methods
    leader = next((one for one in methods if one.best is not None), None)
    if order is None or leader is None or leader.best is None:
        return Conclusion(*place, _nobody(start, rows), lasts=lasting_sentence(attacked, None))
    forgotten = leader.forgotten
    found = conclusion(start, leader.best) + _over_seeds(leader.best, leader.seeds)
    test = start.headline.forgotten.test
    has_best = forgotten is not None and not start.unmoved(forgotten)
    if test and has_best and forgotten is not None:
        has_best = forgotten > math.log10(test.level)
    return Conclusion(
        *place,
        found,
        " ".join((*_rivalry(order), _seeds(leader), *_resolution(order, leader))),
        lasting_sentence(attacked, leader.best),
        has_best=has_best,
    )


def _no_result(start: Start, rows: Sequence[TableRow]) -> str:
    """The reason why a panel has nothing to compare; empty if there is none."""
    forgotten = start.headline.forgotten
    evaluated = [row for row in rows if row.kind == "run" and row.epoch > 0]
    if start.fault or (start.utility is None and evaluated):
        return conclusion(start, None)
    if not evaluated:
        return "No run has been evaluated yet."
    if all(row.metrics.get(forgotten.column) is None for row in evaluated):
        lacking = "" if start.quality is not None else ", which needs an evaluated retain model"
        return f"No best setting: no run has a {forgotten.name}{lacking}."
    return ""


def _nobody(start: Start, rows: Sequence[TableRow]) -> str:
    """No setting keeps its utility; name the one that keeps most."""
    kept = start.headline.kept
    settings = [(u, s) for s in average_seeds(rows) if s.epoch and (u := s.kept) is not None]
    text = conclusion(start, None)
    if not settings or not start.utility:
        return text
    most, setting = max(settings, key=lambda pair: pair[0])
    return f"{text} Most is kept by {setting_name(setting)}: {kept.plain_short} {most:.2f}."


def _over_seeds(best: Setting, seeds: int) -> str:
    """The smallest and largest value over the seeds; empty for one seed."""
    forgotten = best.headline.forgotten
    ends = best.spread(forgotten.column)
    if ends is None:
        return ""
    low, high = (p_value(end) if forgotten.test else f"{end:.{forgotten.digits}f}" for end in ends)
    what = "p" if forgotten.test else forgotten.name
    return f" Over its {seeds} seeds {what} is between {low} and {high}."


def _rivalry(order: PanelOrder) -> Iterator[str]:
    """The runner-up, and the other methods that may be as good, as tested at equal utility."""
    if (found := order.rivals) is not None:
        if reason := found.untested.get(found.runner_up):
            yield f"Undecided against {found.runner_up}, the runner-up: {reason}."
        yield from _indistinguishable(found)
        if more := [one for one in found.untested if one != found.runner_up]:
            yield f"Not tested, for want of equal utility: {_named(more)}."
    if without := [one.method for one in order.methods if one.best is None]:
        yield f"Too little utility is kept by {_named(without)}."


def _seeds(leader: RankedMethod) -> str:
    if leader.seeds == 1:
        return "It rests on one seed: another one may change the order."
    few = " (fewer than three: another one may change the order)"
    return f"It rests on {leader.seeds} seeds{few if leader.seeds < ENOUGH_SEEDS else ''}."


def _resolution(order: PanelOrder, leader: RankedMethod) -> Iterator[str]:
    """The smallest difference that the headline's test shows with so many questions."""
    found = order.sensitivity
    if found is None or leader.best is None:
        return
    if found.distance is None:
        yield found.summary
        return
    shift = ""
    if found.shift is not None:
        factor = f"{10**found.shift:.2g}"
        shift = f" (truth ratios that all differ by a factor of {factor} reach it 4 times in 5)"
    near = order.rivals is not None and leader.method in order.rivals.near_retain
    own = ", and its own D is smaller" if near else ""
    yield (
        f"With {found.n} forget questions the test distinguishes a model from the retain model "
        f"only from D = {found.distance:.3g} on{shift}{own}."
    )


def conclusion(start: Start, leading: Setting | None) -> str:
    """The conclusion about a panel: a fault of its start, no method forgot, or the leader.

    leading  the setting that forgets most among those that keep their utility
    """
    if start.fault:
        return f"No result: {start.fault}."
    kept, forgotten = start.headline.kept.plain_short, start.headline.forgotten
    share = f"at least {100 * UTILITY_SHARE:g} % of the start's {kept}"
    if start.utility is None:
        return f"No best setting: the fine-tuned model, the reference of {kept}, was not evaluated."
    if leading is None:
        return f"No setting keeps {share} ({start.utility:.2f})."
    utility, quality = leading.kept or 0.0, leading.forgotten or 0.0  # it has both
    if start.quality is not None and start.unmoved(quality):
        return (
            f"No method forgot: no setting that keeps {share} has a {forgotten.better} "
            f"{forgotten.name} than the start ({quality_text(forgotten, start.quality)})."
        )
    own = ""
    if start.utility:
        shown = f"{utility:.3f} of {start.utility:.3f}"
        own = f" (it keeps {100 * utility / start.utility:.0f} %, {shown})"
    lead = (
        f"{setting_name(leading)}, has the {forgotten.best_word} {forgotten.name} "
        f"({quality_text(forgotten, quality)}) among settings that keep {share}{own}."
    )
    test = forgotten.test
    if test and quality <= math.log10(test.level):
        lead = (
            f"No method forgot enough: {lead} Up to p = {test.level:g} the test still "
            "distinguishes a model from one that never saw the forget set."
        )
    return lead


def _indistinguishable(rivals: Rivals) -> Iterator[str]:
    """A sentence on the methods that may be as good; nothing if none was tested."""
    tested = len(rivals.same) + len(rivals.apart)
    if tested and not rivals.same:
        others = f"each of the {tested} other methods" if tested > 1 else "the other method"
        names = f"{'were' if tested > 1 else 'was'} tested: {_named(rivals.apart)}"
        yield f"It forgets more than {others} that {names}."
    elif tested:
        count = f" ({len(rivals.same)} of {tested} tested)" if tested > len(rivals.same) else ""
        lead = "Undecided: at" if rivals.runner_up in rivals.same else "At"
        same = f"{_named(rivals.same)}{count}"
        yield f"{lead} equal utility it does not forget significantly more than {same}."


def _named(methods: Sequence[str]) -> str:
    more = len(methods) - NAMED
    return ", ".join(methods[:NAMED]) + (f" and {more} more" if more > 0 else "")


def conclusions_json(found: Iterable[Conclusion]) -> str:
    """Content of `conclusion.json`."""
    document = {"schema": SCHEMA, "panels": [asdict(one) for one in found]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def read_conclusions(folder: Path) -> tuple[Conclusion, ...]:
    """Read `conclusion.json` of a sweep's folder; empty without it.

    Raises: RecordError if it is damaged.
    """
    path = folder / CONCLUSION_FILE
    try:
        panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
        return tuple(Conclusion(**one) for one in panels)
    except FileNotFoundError:
        return ()
    except (ValueError, KeyError, TypeError) as error:
        raise RecordError(
            f"{path}: damaged ({type(error).__name__}); `unlearnbench report` rewrites it"
        ) from None
