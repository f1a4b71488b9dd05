"""Shifted prompts: the same numbers as from a plain model that is given embeddings, row by row."""

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api.benchmark import Question
from unlearnbench.api.inference_method import Prompt
from unlearnbench.api.observations import SetName
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.packed_attention import can_pack
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states, prompt_places
from unlearnbench.models.templates import TEMPLATES

from .test_evaluator import assert_equal, plain_set, sets_of


def shift(prompts: Sequence[Prompt]) -> list[Tensor | None]:
    """Every other prompt, by its sum, is moved in its first five dimensions."""

    def noise(prompt: Prompt) -> Tensor:
        return torch.randn(len(prompt), 5, generator=torch.Generator().manual_seed(sum(prompt)))

    return [noise(prompt) if sum(prompt) % 2 else None for prompt in prompts]


def never(*_: object) -> bool:
    return False


class Plain:
    """A model that is given embeddings, one row at a time."""

    def __init__(self, model: Any, prompts: Sequence[Prompt]) -> None:
        self.model = model
        self.shifts = dict(zip(prompts, shift(prompts), strict=True))

    def __call__(self, ids: Tensor) -> Any:
        row = ids[0].tolist()

        def shared(prompt: Prompt) -> int:
            count = 0
            while count < min(len(prompt), len(row)) and prompt[count] == row[count]:
                count += 1
            return count

        prompt = max(self.shifts, key=shared)
        embedded = self.model.get_input_embeddings()(ids).clone()
        values = self.shifts[prompt]
        if values is not None:
            count = shared(prompt)
            embedded[0, :count, : values.shape[1]] += values[:count].to(embedded.dtype)
        return self.model(inputs_embeds=embedded)


@pytest.mark.parametrize("template", ["plain", "llama-2"])
def test_shifted_equals_the_plain_way(
    sharp: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    template: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In packed rows, then in padded ones."""
    model, profile = sharp.double(), get_profile("tofu", max_length=60)
    sets, pad = sets_of(questions), pad_id(tokenizer)
    evaluator = Evaluator(sets, tokenizer, TEMPLATES[template], profile, pad, 300)
    encoder = Encoder(tokenizer, TEMPLATES[template], profile.max_length, profile.eos_after_cut)
    prompts = [encoder.prompt(q) for q in questions]
    moved = [values is not None for values in shift(prompts)]
    assert any(moved)
    assert not all(moved)
    plain = Plain(model, prompts)
    wanted: dict[SetName, Any] = {
        name: plain_set(plain, encoder, rows, profile) for name, rows in sets.items()
    }
    for packable in (can_pack, never):
        monkeypatch.setattr("unlearnbench.evaluation.predictor.can_pack", packable)
        before = evaluator(model)
        found = evaluator(ShiftedModel(model, shift), before)
        for name, (rows, answers) in wanted.items():
            assert_equal(found.sets[name], rows, 1e-9)
            assert found.answers is not None
            assert found.answers[name] == answers
        changed = found.sets["forget"].answer_loss != before.sets["forget"].answer_loss
        assert changed.tolist() == moved[:5]
        assert_equal(evaluator(model).sets["forget"], before.sets["forget"], 0)


@pytest.mark.parametrize(
    ("prompt", "text", "count"),
    [((1, 2), (1, 2, 3), 2), ((1, 2), (1, 9, 3), 1), ((1, 2), (1,), 1), ((1, 2), (5,), 0)],
)
def test_a_token_that_merges_prompt_and_answer_is_the_answers(
    prompt: Prompt, text: Prompt, count: int
) -> None:
    assert prompt_places(prompt, text) == [*range(count)]


def test_mean_states_are_those_of_each_prompt_alone(model: Any) -> None:
    model, prompts = model.double(), [(1, 5, 9, 30), (1, 7), (1, 8, 8, 8, 8, 40)]
    found = mean_states(model, prompts, 0, batch_tokens=12)
    for state, prompt in zip(found, prompts, strict=True):
        with torch.no_grad():
            alone = model.model(torch.tensor([prompt])).last_hidden_state[0].mean(0)
        torch.testing.assert_close(state, alone, rtol=1e-9, atol=1e-9)
