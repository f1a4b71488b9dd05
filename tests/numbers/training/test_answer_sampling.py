"""Sampled answers: the right distribution, and the same ones in every batch."""

from typing import Any

import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Sampling
from unlearnbench.base.errors import ModelError
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_sampling import Distribution, choose
from unlearnbench.training.answer_sampling import Sampler, SeededPrompt, sample


def asked_of(
    encoder: Encoder, questions: tuple[Question, ...], count: int = 3
) -> list[SeededPrompt]:
    return [
        SeededPrompt(encoder.prompt(question), (7, index, number))
        for index, question in enumerate(questions)
        for number in range(count)
    ]


def test_neither_batch_nor_order_changes_an_answer(
    model: Any, encoder: Encoder, questions: tuple[Question, ...]
) -> None:
    model, pad = model.double(), pad_id(encoder.tokenizer)
    asked, how = asked_of(encoder, questions), Sampling(3, 1.5, 12)
    together = sample(model, asked, how, encoder, pad)
    assert len(set(together)) > len(questions), "answers to one question differ"
    assert sample(model, asked, how, encoder, pad, batch_tokens=1) == together
    assert sample(model, asked[::-1], how, encoder, pad, batch_tokens=150) == together[::-1]
    assert sample(model, asked[4:5], how, encoder, pad) == together[4:5]


def test_answers_are_those_of_the_plain_way(
    model: Any, encoder: Encoder, questions: tuple[Question, ...]
) -> None:
    """Without cache and padding, a whole forward pass for each token."""
    import numpy as np

    model = model.double()
    asked, how = asked_of(encoder, questions, 2), Sampling(2, 1.5, 6)
    said = sample(model, asked, how, encoder, pad_id(encoder.tokenizer))
    for one, answer in zip(asked, said, strict=True):
        numbers, known = np.random.default_rng(one.seed).random(6), one.prompt
        for number in numbers[: len(answer)]:
            with torch.no_grad():
                logits = model(torch.tensor([known])).logits[:, -1]
            known = (*known, int(choose(logits, Distribution(1.5), torch.tensor([number]))))
        assert known == one.prompt + answer
        assert (answer[-1] == encoder.eos) or len(answer) == 6


def test_answers_end_at_eos_or_where_the_row_is_full(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    short = Encoder(tokenizer, TEMPLATES["plain"], 60)
    asked = asked_of(short, questions)
    said = sample(model, asked, Sampling(3, 3.0, 64), short, pad_id(tokenizer))
    for one, answer in zip(asked, said, strict=True):
        assert short.eos not in answer[:-1]
        assert 1 <= len(answer) <= 60 - len(one.prompt)
        assert answer[-1] == short.eos or len(one.prompt) + len(answer) == 60
    tight = Encoder(tokenizer, TEMPLATES["plain"], len(asked[0].prompt))
    with pytest.raises(ModelError, match=r"no answer token fits .* raise max_length"):
        sample(model, asked[:1], Sampling(1), tight, pad_id(tokenizer))


def test_the_policy_is_asked_anew_in_every_step(
    model: Any, encoder: Encoder, questions: tuple[Question, ...]
) -> None:
    judged: list[tuple[str, str]] = []

    def reward(answer: str, truth: str) -> float:
        judged.append((answer, truth))
        return float(len(answer))

    pad = pad_id(encoder.tokenizer)
    sampler = Sampler(questions, encoder, Sampling(3, 1.0, 5), reward, 5, pad, skipped=1)
    model.train()
    found = sampler(model, [4, 2], step=0)
    assert model.training, "left as it was"
    assert [*found] == [4, 2]
    assert judged[0] == (found[4].texts[0], questions[4].answer)
    assert found[2].rewards == tuple(float(len(text)) for text in found[2].texts)
    prompt = encoder.prompt(questions[4])
    for row in found[4].rows:
        assert row.ids[: len(prompt)] == prompt
        assert row.start == len(prompt) + 1, "the first answer token is not seen"
    assert sampler(model, [2, 4], step=0) == found
    assert sampler(model, [2, 4], step=1) != found
