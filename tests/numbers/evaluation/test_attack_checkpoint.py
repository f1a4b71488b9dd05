"""A model in memory under attacks: restored, with the tools of an attack on weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench import get_profile
from unlearnbench.api import registry
from unlearnbench.base.errors import EvaluationError
from unlearnbench.benchmarks.synthetic import Synthetic
from unlearnbench.config.entries import attack_specs
from unlearnbench.runs.evaluate_model import EvaluationSetup, set_up

TRAINS = """\
from unlearnbench.api import WeightAttack

class Trains(WeightAttack):
    label = "Training"
    white_box = True

    def points(self):
        return "1", "2"

    def change(self, model, tools):
        rows = tools.rows.forget
        for step in tools.fine_tune(model, rows, steps=2, learning_rate=0.05, batch_size=2):
            yield str(step)
"""
READS = """\
from unlearnbench.api import WeightAttack

class Reads(WeightAttack):
    label = "Reads the start model"
    white_box = True

    def change(self, model, tools):
        start = tools.start_model()
        assert start is tools.start_model() and start is not model
        model.load_state_dict(start.state_dict())
        yield ""
"""


@pytest.fixture(scope="module")
def setup(make_model: Callable[[], Any], tokenizer: Any) -> EvaluationSetup:
    return set_up(
        make_model(),
        data=Synthetic(authors=4, questions_per_author=2, pretraining_authors=0),
        forget=0.25,
        profile=get_profile("tofu", rows=2, max_length=120),
        tokenizer=tokenizer,
    )


def test_a_model_is_fine_tuned_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any, setup: EvaluationSetup
) -> None:
    monkeypatch.setattr(registry, "_files", {})
    (tmp_path / "trains.py").write_text(TRAINS)
    registry.register_file(tmp_path / "trains.py")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    evaluations = dict(setup.evaluations(model, attack_specs({"trains": {}, "paraphrase": {}})))
    assert [*evaluations] == ["", "paraphrase", "trains@1", "trains@2"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    losses = [item.sets["forget"].answer_loss.mean() for item in evaluations.values()]
    assert losses[1] != losses[0]
    assert losses[3] < losses[2] < losses[0]


def test_the_start_model_is_loaded_once_where_an_attack_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model: Any, setup: EvaluationSetup
) -> None:
    monkeypatch.setattr(registry, "_files", {})
    (tmp_path / "reads.py").write_text(READS)
    attacks = attack_specs({registry.register_file(tmp_path / "reads.py"): {}})
    with pytest.raises(EvaluationError, match="give it with --start"):
        dict(setup.evaluations(model, attacks))
    model.save_pretrained(tmp_path / "start")
    with torch.no_grad():
        model.lm_head.weight.mul_(0.5)
    evaluations = dict(setup.evaluations(model, attacks, start=tmp_path / "start"))
    attacked, plain = (evaluations[name].sets["forget"] for name in ("reads", ""))
    assert attacked.answer_loss.tolist() != plain.answer_loss.tolist()
