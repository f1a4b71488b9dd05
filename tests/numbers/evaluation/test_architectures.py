"""Attention, positions and last layers unlike Llama's: the numbers of one row at a time."""

from typing import Any

import numpy as np
import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.models.packed_attention import can_pack
from unlearnbench.models.templates import TEMPLATES


def test_equals_one_row_at_a_time(
    architecture: tuple[Any, bool], tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    model, packed = architecture
    profile = get_profile("tofu", max_length=60)
    sets: Any = {"forget": questions[:3]}
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 200)
    item = evaluator.sets["forget"][0]
    assert Predictor(model, item.tree, pad=0, longest=60).packed is packed
    own = model.config._attn_implementation
    found = evaluator(model)
    assert model.config._attn_implementation == own
    assert found.answers is not None
    for i, item in enumerate(evaluator.sets["forget"]):
        mine = [found.sets["forget"].answer_loss[i], found.sets["forget"].base_loss[i]]
        mine += found.sets["forget"].perturbed_loss[i].tolist()
        for row, loss in zip(item.rows, mine, strict=True):
            with torch.no_grad():
                logits = model(torch.tensor([row.ids])).logits[0].double()
            wanted = torch.nn.functional.cross_entropy(
                logits[row.start - 1 : -1], torch.tensor(row.ids[row.start :])
            )
            assert loss == pytest.approx(float(wanted), abs=1e-5)
        ids = list(item.prompt)
        while len(ids) < 60:
            with torch.no_grad():
                token = int(model(torch.tensor([ids])).logits[0, -1].argmax())
            if token == 2:
                break
            ids.append(token)
        assert found.answers["forget"][i] == tuple(ids[len(item.prompt) :])


def test_a_model_that_sees_more_than_its_attention_is_not_packed(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """Nothing in its configuration says so; the trial does."""
    evaluator = Evaluator(
        {"forget": questions[:1]}, tokenizer, TEMPLATES["plain"], get_profile("tofu"), 0
    )
    tree = evaluator.sets["forget"][0].tree
    assert Predictor(model, tree, pad=0, longest=200).packed

    def mix(_: Any, inputs: tuple[torch.Tensor], output: torch.Tensor) -> torch.Tensor:
        return output + 0.1 * inputs[0].cumsum(1)

    model.model.layers[0].mlp.register_forward_hook(mix)
    assert can_pack(model, 200)
    assert not Predictor(model, tree, pad=0, longest=200).packed


def test_a_window_that_only_later_rows_outgrow_is_not_packed(
    build: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    model = build("mistral", {"sliding_window": 70})
    evaluator = Evaluator(
        {"forget": questions[:1]}, tokenizer, TEMPLATES["plain"], get_profile("tofu"), 0
    )
    tree = evaluator.sets["forget"][0].tree
    assert max(len(row.ids) for row in tree.rows) < 70
    assert Predictor(model, tree, pad=0, longest=70).packed
    assert not Predictor(model, tree, pad=0, longest=71).packed


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_near_single(
    dtype: torch.dtype, sharp: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    """Scores are accumulated in float32: what differs is the model's own rounding."""
    sets: Any = {"forget": questions}
    profile = get_profile("tofu", max_length=80)
    evaluator = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0)
    alone = Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, 0, 1)
    single = evaluator(sharp).sets["forget"]
    half, one = (each(sharp.to(dtype)).sets["forget"] for each in (evaluator, alone))
    np.testing.assert_allclose(half.answer_loss, single.answer_loss, atol=0.1)
    np.testing.assert_allclose(half.answer_loss, one.answer_loss, atol=0.05)
    assert half.answer_loss.dtype == np.float64
