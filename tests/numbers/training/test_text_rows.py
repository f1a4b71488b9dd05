"""Training on rows of text: with every method that needs no question, and none that does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Dataset, Question, Split
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows, training_rows, with_needed
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.training.objective import Objective

from ...conftest import QUESTIONS
from ...factories.trainers import TRAINED_METHODS, trainer_of

TEXTS = tuple(
    Question("" if i % 2 else "The author, ", q.answer, format="text")
    for i, q in enumerate(QUESTIONS)
)


def reads_no_question(name: str) -> bool:
    needs = registry.load("methods", name)().needed()
    reads = needs.scores or needs.questions
    return not reads and (needs.parts | needs.statistics) <= {"forget", "retain"}


@pytest.mark.parametrize("name", [*filter(reads_no_question, TRAINED_METHODS)])
def test_methods_that_read_no_question_train_on_text(
    name: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    method = registry.load("methods", name)()
    encoder = Encoder(tokenizer, TEMPLATES["phi"], 40)
    skipped = method.ignore_first_answer_tokens
    rows = [encoder.row(text) for text in TEXTS]
    assert {row.start for row in rows[1::2]} == {1}, "every token but BOS"
    forget = [row.without_first(skipped) for row in rows[:6]]
    given = with_needed(TrainingRows(forget, rows[6:]), TEXTS[:6], method.needed(), encoder)
    trainer = trainer_of(model, tokenizer, given, Objective(method), tmp_path, epochs=1)
    steps = [*trainer.epoch(1)]
    assert all(math.isfinite(step.loss) for step in steps)
    pairs = zip(trainer.model.parameters(), model.parameters(), strict=True)
    assert any(not torch.equal(trained, start) for trained, start in pairs)


def test_a_refusal_follows_text_after_a_space(tokenizer: Any) -> None:
    forget = (replace(TEXTS[0], question="The author"), TEXTS[2], QUESTIONS[0])
    split = Split(0.5, forget, (), {})
    rows = training_rows(
        Dataset("tales", forget, {0.5: split}, refusals=("No idea.",)),
        0.5,
        Encoder(tokenizer, TEMPLATES["llama-2"], 200),
        0,
    )
    assert rows.refusal is not None
    found = [str(tokenizer.decode(list(rows.refusal(i, 0).ids))) for i in range(3)]
    assert found[:2] == ["<s>The author No idea.</s>", "<s>The author, No idea.</s>"]
    assert found[2].endswith("[/INST]No idea.</s>")
