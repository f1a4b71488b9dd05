"""Relearning: the rows it trains on and those it measures, and its points."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.attacks.relearning import Relearning

from .conftest import PlainTools

Made = Callable[..., PlainTools]


def taught(model: Any, tools: PlainTools, attack: Relearning) -> dict[str, torch.Tensor]:
    """The loss of each row to forget at each point."""
    found: dict[str, torch.Tensor] = {}
    encoded = [tools.tuner.encoder.row(row) for row in tools.rows.forget]
    for point in attack.change(model, tools):
        losses: list[torch.Tensor] = []
        for row in encoded:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([row.ids])).logits[0, row.start - 1 : -1]
            labels = torch.tensor(row.ids[row.start :])
            losses.append(torch.nn.functional.cross_entropy(logits, labels))
        found[point] = torch.stack(losses)
    return found


@pytest.mark.parametrize(
    ("rows", "trained", "measured"),
    [
        ("forget", range(8), range(8)),
        ("half", (0, 1, 4, 5), (0, 1, 4, 5)),
        ("other-half", (0, 1, 4, 5), (2, 3, 6, 7)),
        ("retain", (8, 9), range(8)),
    ],
)
def test_rows_by_subject(
    rows: Any,
    trained: range,
    measured: range,
    model: Any,
    tools: Made,
    questions: tuple[Question, ...],
) -> None:
    """Rows of evaluation sets are recognised by question and answer; others are all measured."""
    attack, made = Relearning(rows=rows, steps=(1,)), tools()
    [*_] = attack.change(model, made)
    assert made.trained[0][0] == tuple(questions[i] for i in trained)
    evaluated = [replace(q, paraphrased_answer="other", place="x") for q in questions[:8]]
    swapped = [replace(q, question="Other?", paraphrased_question=q.question) for q in evaluated]
    for wording in (evaluated, swapped):  # `evaluation.question_key`
        chosen = [i for i, row in enumerate(wording) if attack.selects(row, made.rows)]
        assert chosen == [*measured]
    assert attack.selects(Question("Of no half?", "Yes."), made.rows)


def test_the_points_are_the_steps_of_the_whole_training(model: Any, tools: Made) -> None:
    """Point 0 is the model itself; a trained half is learned first; other points change nothing."""
    made, before = tools(), copy.deepcopy(model)
    attack = Relearning(
        rows="half", steps=(2, 5), learning_rate=3e-3, batch_size=2, schedule="linear"
    )
    losses = taught(model, made, attack)
    assert [*losses] == ["0", "2", "5"] == [*attack.points()]
    assert torch.equal(losses["0"], taught(before, made, attack)["0"])
    half = [0, 1, 4, 5]
    assert (losses["5"][half] < losses["0"][half] - 0.2).all()
    alone = taught(copy.deepcopy(before), made, attack.model_copy(update={"steps": (5,)}))
    assert made.trained[0][1] == {
        **{"steps": 5, "learning_rate": 3e-3, "batch_size": 2, "schedule": "linear"},
        **{"optimizer": "adamw", "lora_rank": None, "seed": 0},
    }
    assert [*alone] == ["0", "5"]
