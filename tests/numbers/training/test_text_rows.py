"""Training on rows of text: with every method that needs no question, and none that does."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Dataset, Question, Split
from unlearnbench.cli.main import main
from unlearnbench.models.encoding import TEMPLATES, Encoder
from unlearnbench.models.epoch_order import TrainingRows, training_rows
from unlearnbench.training.objective import Objective

from ...conftest import QUESTIONS
from .test_trainer import METHODS, trainer_of

TEXTS = tuple(
    Question("" if i % 2 else "The author, ", q.answer, format="text")
    for i, q in enumerate(QUESTIONS)
)


def reads_no_question(name: str) -> bool:
    needs = registry.load("methods", name)().needed()
    return not needs.scores and (needs.parts | needs.statistics) <= {"forget", "retain"}


@pytest.mark.parametrize("name", [*filter(reads_no_question, METHODS)])
def test_methods_that_read_no_question_train_on_text(
    name: str, model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    method = registry.load("methods", name)()
    encoder = Encoder(tokenizer, TEMPLATES["phi"], 40)
    skipped = method.ignore_first_answer_tokens
    rows = [encoder.row(text) for text in TEXTS]
    assert {row.start for row in rows[1::2]} == {1}, "every token but BOS"
    forget = [row.without_first(skipped) for row in rows[:6]]
    trainer = trainer_of(
        model, tokenizer, TrainingRows(forget, rows[6:]), Objective(method), tmp_path, epochs=1
    )
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


TALES = '''
"""Tales, without questions."""

from unlearnbench.api import (
    Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, Question, Split
)


class Tales(Benchmark):
    """Lines of text."""

    roles = {"retain": "retain", "forget": "forget"}
    references = frozenset({"start"})
    headline = Headline(
        kept=HeadlineMetric("probability_retain", "Known tales", "known"),
        forgotten=HeadlineMetric("probability_forget", "Known", "known", better="lower"),
    )

    def metrics(self, profile):
        return (MetricUse("probability", ("retain", "forget")),)

    def load(self, fractions):
        rows = tuple(Question("", f"Tale {i}.", format="text") for i in range(8))
        split = Split(0.5, rows[:4], rows[4:], {"retain": rows[4:], "forget": rows[:4]})
        return Dataset("tales", rows, {0.5: split})
'''
CONFIG = """
name: own
data: {source: tales}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.5]
methods: [gradient-difference, idk, altpo, grpo, eco]
learning_rates: [1.0e-3]
epochs: 1
training: {batch_size: 2}
tracking: {enabled: false}
"""


def test_methods_that_need_questions_are_refused_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.chdir(tmp_path)
    Path("tales.py").write_text(TALES)
    Path("own.yaml").write_text(CONFIG)
    assert main(["plan", "own.yaml", "--plugin", "tales.py"]) == 2
    lines = [line for line in capsys.readouterr().err.splitlines() if "tales" in line]
    assert [line.split("methods", 1)[1].split()[0] for line in lines] == [
        "idk", "altpo", "grpo", "eco"
    ]  # fmt: skip
    assert lines[0].endswith(
        "idk answers forget rows with refusals, but benchmark tales has plain text in forget50 "
        "(row 1), which has no question; leave idk out"
    )
    assert not Path("runs").exists()
