"""Which metrics can be trusted, from models that are trained here with and without the forget rows.

Four models of different seeds have learned all rows, four others all but those of two authors.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.schema import Architecture
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.summary import summarize
from unlearnbench.models.encoding import TEMPLATES, Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.loading import pad_id
from unlearnbench.models.tiny import build_model
from unlearnbench.results.records import EpochResult, Record, write_record
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

SEEDS, EPOCHS = 4, 16
LENGTH = '''\
"""Number of tokens of the answer, which is the same for all models."""
from unlearnbench.api.metric import Metric


class AnswerLength(Metric):
    """The number of tokens."""

    label = "Answer length"
    roles = frozenset({"forget"})
    bounds = (0.0, 1000.0)

    def per_example(self, seen):
        return seen.answer_tokens.astype(float)
'''


@pytest.fixture(scope="module")
def folder(
    tmp_path_factory: pytest.TempPathFactory, tokenizer: Any, questions: tuple[Question, ...]
) -> Path:
    """Start and retain models of several seeds, as a sweep's records."""
    place = tmp_path_factory.mktemp("seeds")
    forget, retain = questions[:4], questions[4:]
    sets = {
        "retain": retain,
        "forget": forget,
        "real_authors": retain[:1],
        "world_facts": retain[:1],
    }
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer))
    for seed in range(SEEDS):
        for kind, rows in (("fine-tuned", questions), ("retain", retain)):
            evaluation = evaluator(trained(rows, tokenizer, seed))
            write_record(
                Record(
                    id=f"{kind}-{seed}",
                    kind="retain" if kind == "retain" else "fine-tuned",
                    model=f"seed-{seed}",
                    forget_fraction=0.4,
                    method=kind,
                    learning_rate=None,
                    seed=0,
                    spec={},
                    status="finished",
                    profile=TOFU.id,
                    epochs=(EpochResult(0, summarize(evaluation, None, TOFU), 1.0, 1.0),),
                    evaluations={0: evaluation},
                ),
                place,
            )
    return place


def trained(questions: Sequence[Question], tokenizer: Any, seed: int) -> Any:
    """A model that has learned the answers, from weights of this seed."""
    shape = Architecture(
        vocabulary=330, hidden_size=32, layers=2, heads=2, intermediate_size=48, context=256
    )
    model = build_model(shape, tokenizer, seed=seed)
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = TrainingRows(retain=[encoder.row(question) for question in questions])
    how = TrainerSettings(epochs=EPOCHS, batch_size=4, learning_rate=1e-2, seed=seed)
    trainer = Trainer(model, Objective(FineTuning()), rows, how, pad_id(tokenizer))
    for epoch in range(1, EPOCHS + 1):
        list(trainer.epoch(epoch))
    return model.eval()


@pytest.fixture
def analysed(folder: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs the command, with further options; returns what it prints as JSON."""

    def run(*more: str) -> Any:
        assert main(["analysis", "meta", str(folder), "--json", *more]) == 0
        (split,) = json.loads(capsys.readouterr().out)["splits"]
        return split

    return run


def test_metrics_of_memorization_separate_and_one_that_knows_nothing_does_not(
    analysed: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registry, "_files", {})
    plugin = tmp_path / "answer_length.py"
    plugin.write_text(LENGTH)
    found = analysed("--plugin", str(plugin))
    assert (len(found["known"]), len(found["unknown"])) == (SEEDS, SEEDS)
    metrics = {one["metric"]: one for one in found["metrics"]}
    for name in ("exact_memorization", "extraction_strength", "probability"):
        one = metrics[f"{name}_forget"]
        assert (one["faithfulness"], one["accuracy"], one["separates"]) == (1.0, 1.0, True)
        assert max(one["values_unknown"]) < one["threshold"] < min(one["values_known"])
        assert 0.5 < one["low"] < one["high"] == 1.0
    length = metrics["answer_length_forget"]
    assert (length["faithfulness"], length["separates"]) == (0.5, False)
    controls = {one["metric"]: one["separates"] for one in found["controls"]}
    assert not controls["exact_memorization_retain"], "all of them know these rows"
    assert "Forgotten" in found["left_out"], "it is relative to models that are judged here"
