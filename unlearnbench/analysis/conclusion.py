"""The conclusion about each panel in three sentences: the best, how sure that is, does it last.

The last lines of a sweep and the head of its page both come from these. Pure, except that
`conclusion.json` of a sweep's folder, which stores them, is read.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from unlearnbench.analysis import text
from unlearnbench.analysis.best_settings import Panel, is_evidence, panel_label
from unlearnbench.analysis.lasting import AttackedPanel
from unlearnbench.analysis.order_confidence import PanelOrder
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.results.outcomes import RunOutcome

CONCLUSION_FILE = "conclusion.json"
SCHEMA = 1


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
    """Sentence on what attacks give back, with its interval; or that there was none."""
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


def conclude(
    panel: Panel,
    order: PanelOrder | None,
    attacked: AttackedPanel | None = None,
    lost: Sequence[RunOutcome] = (),
) -> Conclusion:
    """Draw the conclusion about a panel that has runs.

    order     of its methods; None if its start model is not valid
    attacked  None if no attack was run
    lost      its runs that failed or collapsed
    """
    leader = None if order is None else order.leader
    best = None if leader is None else leader.best
    result = text.best_found(panel, leader, lost)
    start = panel.start
    runs = [row for row in panel.rows if is_evidence(row) and row.epoch]
    unknown = start.utility is None or all(row.forgotten is None for row in runs)
    if start.fault or unknown or (best is not None and start.unmoved(best.forgotten)):
        return Conclusion(*panel.panel, result)
    test, quality = panel.headline.forgotten.test, None if best is None else best.forgotten
    passes = test is None or (quality is not None and quality > math.log10(test.level))
    return Conclusion(
        *panel.panel,
        result,
        "" if order is None else " ".join(text.doubts(order)),
        text.lasting(attacked, best),
        has_best=quality is not None and passes,
    )


def conclusions_json(conclusions: Iterable[Conclusion]) -> str:
    """Content of `conclusion.json`."""
    document = {"schema": SCHEMA, "panels": [asdict(item) for item in conclusions]}
    return json.dumps(document, indent=1, ensure_ascii=False)


def read_conclusions(folder: Path) -> tuple[Conclusion, ...]:
    """Read `conclusion.json` of a sweep's folder; empty without it."""
    path = folder / CONCLUSION_FILE
    if not path.is_file():
        return ()
    panels = json.loads(path.read_text(encoding="utf-8"))["panels"]
    return tuple(Conclusion(**panel) for panel in panels)
