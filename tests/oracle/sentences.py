"""The numbers that the sentences of a conclusion must contain.

Only the numbers are known here, not the words around them. A sentence rounds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tests.oracle.numbers import ks_p_value
from tests.oracle.places import LEVEL

if TYPE_CHECKING:
    from tests.oracle.benchmarks import Headline
    from tests.oracle.claims import PanelClaim
    from tests.oracle.places import Judge


def numbers_in_sentences(
    panel: PanelClaim, headline: Headline, judge: Judge
) -> Mapping[str, tuple[float, ...]]:
    """Return the numbers by sentence: `found`, `sure` and `lasts`.

    found: what the first method has forgotten (of a test, the p-value), per cent of the start
    model's number that it keeps, both numbers of what is kept, and smallest and largest number of
    what is forgotten over its seeds, if the test does not distinguish it from the retain model.
    sure: its seeds if there are several; of a test, the questions and the least D that is
    significant. lasts: per cent that comes back under the worst attack with the ends of its
    interval, all cut at 0 and 100, the number before and under it, the retain model's, and the
    start model's before it. If the attack searches, also the number of attackers, the steps of the
    one that was chosen, per cent of its utility that the attacked model keeps, and the retain
    model's number under the attacker that is chosen for it.
    """
    leader = next((entry for entry in panel.entries if entry.is_ranked), None)
    if panel.fault == "knows nothing":
        return {"found": () if judge.start_kept is None else (judge.start_kept,)}
    if leader is None or leader.shown is None or not judge.start_kept:
        return {}
    kept = leader.shown.means[panel.kept].mean
    forgotten = leader.shown.means[panel.forgotten].mean
    if kept is None or forgotten is None or _is_unmoved(forgotten, headline, judge):
        return {}

    def shown(value: float) -> float:
        return 10**value if headline.has_test else value

    found = [shown(forgotten), 100 * kept / judge.start_kept, kept, judge.start_kept]
    over_seeds = leader.shown.by_seed[panel.forgotten]
    passes = not headline.has_test or forgotten > math.log10(LEVEL)
    if len(over_seeds) > 1 and passes:
        found += [shown(min(over_seeds)), shown(max(over_seeds))]
    lasts: list[float] = []
    lasting = leader.lasting
    variant = None if lasting is None or lasting.bypassed_by else lasting.variant
    if lasting is not None and variant is not None:
        assert lasting.score is not None
        shares = [1 - lasting.score]
        if lasting.interval is not None:
            shares += [1 - end for end in reversed(lasting.interval)]
        lasts += [100 * min(max(share, 0.0), 1.0) for share in shares]
        numbers = (
            lasting.before[variant],
            lasting.after[variant],
            *lasting.retain[variant],
            lasting.start[variant][0],
        )
        lasts += [number for number in numbers if number is not None]
        chosen = lasting.attackers.get(variant)
        if chosen is not None and chosen.variant is not None:
            lasts += [chosen.trials, int(chosen.variant.rpartition(".")[2])]
            _, own = lasting.own_retain.get(variant, (None, None))
            lasts += [] if own is None else [own]
            lasts += [] if chosen.kept is None else [100 * chosen.kept]
    sure: list[float] = []
    if len(leader.shown.seeds) > 1:
        sure.append(len(leader.shown.seeds))
    questions = panel.retain.get("ks_n")
    if headline.has_test and questions is not None:
        n = round(questions)
        significant = [count for count in range(n + 1) if ks_p_value(n, count) <= LEVEL]
        sure += [n, min(significant) / n] if significant else [n]
    return {
        "found": tuple(found),
        "sure": tuple(sure),
        "lasts": tuple(lasts),
    }


def _is_unmoved(forgotten: float, headline: Headline, judge: Judge) -> bool:
    """Whether no more is forgotten than by the start model, so that no method has forgotten."""
    if judge.start_forgotten is None:
        return False
    return headline.sign * forgotten <= headline.sign * judge.start_forgotten
