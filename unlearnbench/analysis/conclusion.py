"""The conclusion about each panel: facts, and three sentences made of the same values.

The last lines of a sweep print the sentences: the best setting, how sure that is, and whether it
lasts. The first screen of its page draws the facts (`recommendation.py`). `conclusion.json` in the
sweep's folder stores both.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unlearnbench.analysis import attack_text
from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.best_text import best_found
from unlearnbench.analysis.lasting import AttackedPanel
from unlearnbench.analysis.method_order import PanelOrder, doubts
from unlearnbench.analysis.pairs import PairTable
from unlearnbench.analysis.recommend import recommend
from unlearnbench.analysis.recommendation import Outcome, Recommendation, Verdict
from unlearnbench.analysis.scorecard import Scorer
from unlearnbench.analysis.settings import panel_label
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.results.outcomes import RunOutcome

CONCLUSION_FILE = "conclusion.json"
SCHEMA = 1
"""Version of the file's layout."""


@dataclass(frozen=True)
class Conclusion:
    """The conclusion about a panel; a sentence that does not apply is empty."""

    model: str
    split: SplitKey
    found: str
    """The best method, its setting, what it has forgotten and its utility; or why there is none."""
    sure: str = ""
    """The methods that it beats, those against which nothing is decided, the seeds, the questions
    and the smallest difference that they show."""
    lasts: str = ""
    """Sentence on what attacks give back, with its interval; or that there was none."""
    has_best: bool = False
    """Whether a method has forgotten, and has kept its utility."""
    facts: Recommendation | None = None
    """The values behind the sentences; None in a file of an earlier version."""

    @property
    def place(self) -> str:
        """`tiny, forget 10 %`."""
        return panel_label(self.model, self.split)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The sentences that apply, in their order."""
        return tuple(filter(None, (self.found, self.sure, self.lasts)))


def conclude(
    panel: Panel,
    order: PanelOrder | None,
    attacked: AttackedPanel | None = None,
    lost: Sequence[RunOutcome] = (),
    scorer: Scorer | None = None,
    pairs: PairTable | None = None,
) -> Conclusion:
    """Draw the conclusion about a panel that has runs.

    Args:
        panel: The panel.
        order: Order of its methods; None if its start model is not valid.
        attacked: Its settings under attacks; None if no attack was run.
        lost: Its runs that failed or collapsed.
        scorer: Scores its settings; None leaves the scores out of the facts.
        pairs: Its methods, compared pair by pair; None leaves them out of the facts.
    """
    leader = None if order is None else order.leader
    best = None if leader is None else leader.best
    facts = recommend(panel, order, attacked, scorer, pairs, lost)
    ahead = [method.name for method in facts.with_verdict(Verdict.WORSE)]
    found = best_found(panel, leader, lost)
    if facts.outcome in (Outcome.NO_RESULT, Outcome.NOTHING):
        return Conclusion(*panel.panel, found, facts=facts)
    return Conclusion(
        *panel.panel,
        found,
        "" if order is None else " ".join(doubts(order, ahead)),
        attack_text.lasting(attacked, best),
        has_best=facts.outcome is Outcome.RECOMMENDED,
        facts=facts,
    )


def conclusions_json(conclusions: Iterable[Conclusion]) -> str:
    """Return the content of `conclusion.json`."""
    panels = [asdict(conclusion) for conclusion in conclusions]
    document = {"schema": SCHEMA, "panels": panels}
    return json.dumps(document, indent=1, ensure_ascii=False)


def read_conclusions(folder: Path) -> tuple[Conclusion, ...]:
    """Read `conclusion.json` of a sweep's folder; empty without it."""
    path = folder / CONCLUSION_FILE
    if not path.is_file():
        return ()
    conclusions: list[Conclusion] = []
    for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]:
        facts = Recommendation.from_json(panel.pop("facts", None))
        conclusions.append(Conclusion(**panel, facts=facts))
    return tuple(conclusions)
