"""A metric that brings an observation: its column is made in the pass, stored and read back."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES

FILE = Path(__file__).with_name("rank.py")


def test_it_equals_the_definition_after_a_way_through_a_file(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    registry.register_file(FILE)
    metrics = plan_of(TOFU, None, {})
    assert [observation.name for observation in metrics.observations] == ["rank"]
    evaluator = Evaluator(
        {"forget": questions[:4], "retain": questions[4:]},
        tokenizer,
        TEMPLATES["plain"],
        TOFU,
        pad_id(tokenizer),
        observations=metrics.observations,
    )
    write_observations(evaluator(model.eval()), tmp_path / "e.safetensors")
    seen = read_observations(tmp_path / "e.safetensors").sets["forget"]

    encoder, ranks = Encoder(tokenizer, TEMPLATES["plain"], TOFU.max_length), list[int]()
    for question in questions[:4]:
        row = encoder.row(question)
        logits = model(torch.tensor([row.ids])).logits[0]
        ranks += [
            int((logits[t - 1] > logits[t - 1, row.ids[t]]).sum())
            for t in range(row.start, len(row.ids))
        ]
    np.testing.assert_array_equal(seen.tokens.observed["rank"], ranks)

    measure = next(m for m in metrics.measures if m.name == "rank")
    assert measure.value(seen) == pytest.approx(
        np.mean([np.mean(1 / (1 + r)) for r in seen.tokens.by_answer(np.array(ranks), eos=False)])
    )


def test_without_it_the_metric_is_undefined(
    questions: tuple[Question, ...], model: Any, tokenizer: Any
) -> None:
    registry.register_file(FILE)
    plain = Evaluator(
        {"forget": questions[:2]}, tokenizer, TEMPLATES["plain"], TOFU, pad_id(tokenizer)
    )
    measure = next(m for m in plan_of(TOFU, None, {}).measures if m.name == "rank")
    seen = plain(model.eval()).sets["forget"]
    assert (measure.value(seen), measure.lacks(seen)) == (None, ("rank",))


def test_the_suite_passes_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["metrics", "check", "rank", "--plugin", str(FILE)]) == 0, capsys.readouterr().out
