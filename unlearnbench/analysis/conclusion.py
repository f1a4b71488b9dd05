"""The conclusion about a panel: which setting leads, and which methods may be as good."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.start_models import Start, quality_text

if TYPE_CHECKING:
    from unlearnbench.analysis.rivals import Rivals

NAMED = 4
"""Most methods that a sentence names."""


LeadingSetting = tuple[str, float, float]
"""Name (method, rate and epoch, as printed) and the headline's numbers, kept and forgotten, of the
setting that forgets most among those that keep their utility."""


def conclusion(start: Start, leading: LeadingSetting | None, rivals: Rivals | None = None) -> str:
    """The conclusion about a panel: a fault of its start, no method forgot, or the leader.

    rivals  of the leading method, if they were tested
    """
    if start.fault:
        return f"No result: {start.fault}."
    kept, forgotten = start.headline.kept.plain_short, start.headline.forgotten
    share = f"at least {100 * UTILITY_SHARE:g} % of the start's {kept}"
    if start.utility is None:
        return f"No best setting: the fine-tuned model, the reference of {kept}, was not evaluated."
    if leading is None:
        return f"No setting keeps {share} ({start.utility:.2f})."
    name, utility, quality = leading
    if start.quality is not None and start.unmoved(quality):
        return (
            f"No method forgot: no setting that keeps {share} has a {forgotten.better} "
            f"{forgotten.name} than the start ({quality_text(forgotten, start.quality)})."
        )
    own = f" (it keeps {100 * utility / start.utility:.0f} %)" if start.utility else ""
    lead = (
        f"{name}, has the {forgotten.best_word} {forgotten.name} "
        f"({quality_text(forgotten, quality)}) among settings that keep {share}{own}."
    )
    test = forgotten.test
    if test and quality <= math.log10(test.level):
        lead = (
            f"No method forgot enough: {lead} Up to p = {test.level:g} the test still "
            "distinguishes a model from one that never saw the forget set."
        )
    return lead + _indistinguishable(rivals)


def _indistinguishable(rivals: Rivals | None) -> str:
    """A sentence on the methods that may be as good; empty if none was tested."""
    if rivals is None or not (rivals.same or rivals.apart):
        return ""
    tested = len(rivals.same) + len(rivals.apart)
    if not rivals.same:
        return f" It forgets more than each of the {tested} other methods that were tested."
    named = ", ".join(rivals.same[:NAMED])
    more = len(rivals.same) - NAMED
    return (
        f" {len(rivals.same)} of the {tested} other methods that were tested cannot be "
        f"distinguished from it: {named}{f' and {more} more' if more > 0 else ''}."
    )
