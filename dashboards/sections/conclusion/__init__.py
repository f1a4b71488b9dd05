"""Examples: answers of the best model beside the truth and what it answered before."""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unlearnbench.analysis.settings import panel_label
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.results.table import TableRow

from ...figures.tradeoff_data import TradeOffPanel
from ...formatting import rate_text
from ...report_section import PageContext, Section

LONGEST = 240
"""Characters of a text beyond which it is cut."""
AFTER = "after unlearning"
"""Who gives the answers of the best model."""


class Examples(Section):
    """Two answers of each panel's best model; absent where no record has answers."""

    name, title, order, folder = "examples", "Examples", 20, "conclusion"

    def values(self, context: PageContext) -> Mapping[str, Any] | None:
        """Collect the examples."""
        result = examples(context)
        return {"examples": result, "after": AFTER} if result else None


@dataclass(frozen=True)
class SampleAnswer:
    """One forget question with its true answer and those of the models."""

    chosen: str
    """Rule by which the question was chosen."""
    question: str
    answers: tuple[tuple[str, str], ...]
    """Who answers, and the answer: the data, the start model, the best and the retain model."""


@dataclass(frozen=True)
class Example:
    """Two answers of a panel's best model."""

    index: int
    """Number of the panel on the page."""
    place: str
    of: str
    """The run that answers: `npo, learning rate 1e-4, seed 0, epoch 3`."""
    run_id: str
    epoch: int
    samples: tuple[SampleAnswer, ...]


def examples(context: PageContext) -> tuple[Example, ...]:
    """Collect the examples of the panels, in their order."""
    result = (_example(context, i, panel) for i, panel in enumerate(context.panels))
    return tuple(item for item in result if item is not None)


def _example(context: PageContext, index: int, panel: TradeOffPanel) -> Example | None:
    """None without a best setting, and where its record has no texts of the forget set."""
    best = next((item.ranked for item in panel.best if item.ranked), None)
    row = None if best is None else best.rows[0]
    part = _answers(context, row)
    if row is None or part is None:
        return None
    models = {
        "start model": _answers(context, panel.fine_tuned),
        AFTER: part,
    }
    models["retain model"] = _answers(context, panel.retain)

    def sample(chosen: str, at: int) -> SampleAnswer:
        answers = [("true answer", part.references[at])] if part.references else []
        answers += [
            (who, model.generated[at])
            for who, model in models.items()
            if model is not None and model.questions == part.questions
        ]
        question = _cut(part.questions[at]) or "Plain text"
        return SampleAnswer(chosen, question, tuple((who, _cut(text)) for who, text in answers))

    worst = max(range(len(part.generated)), key=lambda i: _repetition(part.generated[i]))
    result = [sample(f"Most repetitive answer of {len(part.generated)}", worst)]
    order = np.argsort(part.rouge_l_recall, kind="stable")
    if count := int(np.isfinite(part.rouge_l_recall).sum()):  # NaN is sorted last
        result.insert(0, sample(f"Median ROUGE-L answer of {count}", int(order[count // 2])))
    return Example(
        index,
        panel_label(panel.model, panel.forget_fraction),
        f"{row.method}, learning rate {rate_text(row.learning_rate)}, seed {row.seed}, {row.when}",
        row.run_id,
        row.epoch,
        tuple(result),
    )


def _repetition(text: str) -> tuple[float, float]:
    """Share of words that equal the one before, then share of words said before."""
    words = text.split()
    if not words:  # a model that answers nothing is the most degenerate
        return 2.0, 0.0
    twice = sum(a == b for a, b in pairwise(words))
    return twice / len(words), 1 - len(set(words)) / len(words)


def _answers(context: PageContext, row: TableRow | None) -> SetEvaluation | None:
    """Read the answers that a model generated to the forget questions."""
    evaluation = None if row is None else context.evaluation(row.run_id, row.epoch)
    name = next(iter(context.columns.schema.sets("forget")), "")
    result = None if evaluation is None else evaluation.sets.get(name)
    return result if result is not None and result.generated else None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"
