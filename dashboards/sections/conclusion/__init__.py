"""Examples: answers of the best model beside the truth and what it answered before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import panel_label, winner
from unlearnbench.api.observations import SetEvaluation
from unlearnbench.results.table import TableRow

from ...figures.tradeoff_data import Panel
from ...formatting import rate_text
from ...report_section import PageContext, ReportSection

LONGEST = 240
"""Characters of a text beyond which it is cut."""


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
    found = (_example(context, i, panel) for i, panel in enumerate(context.panels))
    return tuple(one for one in found if one is not None)


def _example(context: PageContext, index: int, panel: Panel) -> Example | None:
    """None without a best setting, and where its record has no texts of the forget set."""
    best = winner(panel.best)
    if best is None or best.setting is None:
        return None
    row, name = best.setting.rows[0], next(iter(context.columns.schema.sets("forget")), "")
    own = _answers(context, row, name)
    if own is None:
        return None
    others = [
        None if one is None else _answers(context, one, name)
        for one in (panel.fine_tuned, panel.retain)
    ]
    before, retain = (
        one if one is not None and one.questions == own.questions else None for one in others
    )

    def sample(chosen: str, at: int) -> SampleAnswer:
        models = (("before", before), ("after", own), ("retain model", retain))
        truth = [("true answer", own.references[at])] if own.references else []
        answers = [(who, one.generated[at]) for who, one in models if one is not None]
        return SampleAnswer(
            chosen,
            _cut(own.questions[at]) or "Plain text",
            tuple((who, _cut(text)) for who, text in (*truth, *answers)),
        )

    order = np.argsort(own.rouge_l_recall, kind="stable")
    order = order[: int(np.isfinite(own.rouge_l_recall).sum())]
    worst = max(range(len(own.generated)), key=lambda i: _repetition(own.generated[i]))
    found = [(f"Most repetitive answer of {len(own.generated)}", worst)]
    if len(order):
        found.insert(0, (f"Median ROUGE-L answer of {len(order)}", int(order[len(order) // 2])))
    return Example(
        index,
        panel_label(panel.model, panel.forget_fraction),
        f"{row.method}, learning rate {rate_text(row.learning_rate)}, seed {row.seed}, "
        f"epoch {row.epoch}",
        row.run_id,
        row.epoch,
        tuple(sample(chosen, at) for chosen, at in found),
    )


def _repetition(text: str) -> tuple[float, float]:
    """Share of words that equal the one before, then share of words said before."""
    words = text.split()
    if not words:  # a model that answers nothing is the most degenerate
        return 2.0, 0.0
    twice = sum(a == b for a, b in pairwise(words))
    return twice / len(words), 1 - len(set(words)) / len(words)


def _answers(context: PageContext, row: TableRow, name: str) -> SetEvaluation | None:
    """Look up the generated answers of an evaluation to a set; read those that are not embedded."""
    evaluation = context.evaluations.evaluations.get((row.run_id, row.epoch))
    if evaluation is None:
        record = next(one for one in context.report.records if one.id == row.run_id)
        evaluation = record.evaluations.get(row.epoch)
    found = None if evaluation is None else evaluation.sets.get(name)
    return found if found is not None and found.generated else None


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[:LONGEST].rstrip()} …"


def _values(context: PageContext) -> Mapping[str, Any] | None:
    found = examples(context)
    return {"examples": found} if found else None


SECTION = ReportSection("conclusion", "examples", "Examples", _values)
