"""The conclusion about each panel, and a typical answer of the model that it names."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from unlearnbench.analysis.conclusion import Conclusion
from unlearnbench.analysis.start_models import winner
from unlearnbench.api.observations import SetEvaluation

from ...figures.tradeoff_data import Panel
from ...formatting import rate_text
from ...metric_columns import set_title
from ...report_section import PageContext

LONGEST = 240
"""Characters of a text beyond which it is cut."""


@dataclass(frozen=True)
class SampleAnswer:
    """One forget question with the answers of the best model and of the retain model."""

    question: str
    answer: str
    retain: str | None
    """None where the retain model was not evaluated on the same questions."""
    of: str
    """The run that answers: `npo, rate 1e-4, seed 0, epoch 3`."""
    chosen: str
    """Rule by which the question was chosen."""
    run_id: str
    epoch: int


@dataclass(frozen=True)
class PanelResult:
    """The conclusion about a panel, and an answer of its best model."""

    index: int
    """Number of the panel on the page."""
    conclusion: Conclusion
    fault: bool
    """True if the start model is faulty, and so no method is ranked."""
    sample: SampleAnswer | None


def results(context: PageContext) -> tuple[PanelResult, ...]:
    """List the conclusions in the order of the panels."""
    found = {(one.model, one.split): one for one in context.report.conclusions}
    return tuple(
        PanelResult(i, found[place], bool(panel.begins.fault), sample_answer(context, panel))
        for i, panel in enumerate(context.panels)
        if (place := (panel.model, panel.forget_fraction)) in found
    )


def sample_answer(context: PageContext, panel: Panel) -> SampleAnswer | None:
    """Take the answer of middle ROUGE-L recall, of the best setting's first seed.

    None without a best setting, and where its record has no texts of the forget set.
    """
    best = winner(panel.best)
    if best is None or best.setting is None:
        return None
    row, epoch = best.setting.rows[0], best.setting.epoch
    name = next(iter(context.columns.schema.sets("forget")), "")
    own = _answers(context, row.run_id, epoch, name)
    if own is None:
        return None
    recall = own.rouge_l_recall
    order = np.argsort(recall, kind="stable")[: int(np.isfinite(recall).sum())]
    at = int(order[len(order) // 2]) if len(order) else 0
    retain = panel.retain and _answers(context, panel.retain.run_id, panel.retain.epoch, name)
    shared = retain and retain.questions == own.questions
    rule = f"the middle one by ROUGE-L of {len(order)}" if len(order) else "the first of the"
    return SampleAnswer(
        question=_cut(own.questions[at]) or "Plain text",
        answer=_cut(own.generated[at]),
        retain=_cut(retain.generated[at]) if retain and shared else None,
        of=f"{row.method}, rate {rate_text(row.learning_rate)}, seed {row.seed}, epoch {epoch}",
        chosen=f"{rule} questions of the {set_title(name)}",
        run_id=row.run_id,
        epoch=epoch,
    )


def _answers(context: PageContext, run: str, epoch: int, name: str) -> SetEvaluation | None:
    """Look up the generated answers of an evaluation to a set; read those that are not embedded."""
    evaluation = context.evaluations.evaluations.get((run, epoch))
    if evaluation is None:
        record = next(one for one in context.report.records if one.id == run)
        evaluation = record.evaluations.get(epoch)
    found = None if evaluation is None else evaluation.sets.get(name)
    return found if found is not None and found.generated else None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"
