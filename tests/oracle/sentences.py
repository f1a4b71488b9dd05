"""The numbers that the sentences of a conclusion must contain.

Only the numbers are known here, not the words around them. A sentence rounds them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.oracle.benchmarks import Headline
    from tests.oracle.claims import PanelClaim
    from tests.oracle.places import Judge


def numbers_in_sentences(
    panel: PanelClaim, headline: Headline, judge: Judge
) -> Mapping[str, tuple[float, ...]]:
    """Return the numbers by sentence: `found`, `sure` and `lasts`.

    found: what the first method has forgotten (of a test, the p-value), per cent of the start
    model's number that it keeps, both numbers of what is kept, and the ends over its seeds.
    sure: its seeds. lasts: per cent that comes back under the worst attack with the ends of its
    interval, the number before and under it, the retain model's, and the start model's before it.
    """
    leader = next((entry for entry in panel.entries if entry.place is not None), None)
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
    lasts: list[float] = []
    if leader.lasting is not None and leader.lasting.variant is not None:
        lasting, variant = leader.lasting, leader.lasting.variant
        assert lasting.score is not None
        lasts.append(100 * (1 - lasting.score))
        if lasting.interval is not None:
            lasts += [100 * (1 - end) for end in reversed(lasting.interval)]
        numbers = (
            lasting.before[variant],
            lasting.after[variant],
            *lasting.retain[variant],
            lasting.start[variant][0],
        )
        lasts += [number for number in numbers if number is not None]
    return {
        "found": tuple(found),
        "sure": (float(len(leader.shown.seeds)),),
        "lasts": tuple(lasts),
    }


def _is_unmoved(forgotten: float, headline: Headline, judge: Judge) -> bool:
    """Whether no more is forgotten than by the start model, so that no method has forgotten."""
    if judge.start_forgotten is None:
        return False
    return headline.sign * forgotten <= headline.sign * judge.start_forgotten
