"""Out of memory: the same numbers in smaller portions, in this process and in the next."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.base.errors import EvaluationError, TrainingError
from unlearnbench.config.profiles import TOFU
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES

from ...factories.trainers import objective_of, trainer_of, training_rows, weights
from ...numbers.training.test_trainer import SAMPLING


@contextmanager
def room_for(model: Any, tokens: int, *, after: int = 0) -> Generator[list[int], None, None]:
    """A device on which a forward pass of more than `tokens` does not fit, after so many passes."""
    passes: list[int] = []

    def refuse(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
        passes.append(ids.numel())
        if len(passes) > after and ids.numel() > tokens:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")

    handle = model.register_forward_pre_hook(refuse, with_kwargs=True)
    try:
        yield passes
    finally:
        handle.remove()


@pytest.mark.parametrize("name", ["gradient-difference", "kto", "pdu", "rmu"])
def test_a_step_that_does_not_fit_is_repeated_in_halves(
    name: str, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of(name)
    undisturbed = trainer_of(model.double(), tokenizer, rows, objective, tmp_path)
    wanted = [step for epoch in (1, 2) for step in undisturbed.epoch(epoch)]
    short = trainer_of(model, tokenizer, rows, objective, tmp_path)
    first = next(steps := short.epoch(1))
    with room_for(short.model, 130, after=1) as passes:  # in the middle of the second step
        got = [first, *steps, *short.epoch(2)]
    assert max(passes[-4:]) <= 130, "the smaller micro-batch stays"
    assert short.passes.oom_retry.seen[0]["from"] in (1, 4, 2)
    assert short.passes.oom_retry.rows in (1, 2)
    for one, other in zip(wanted, got, strict=True):
        assert one.terms == pytest.approx(dict(other.terms), rel=1e-9, abs=1e-12)
        assert one.grad_norm == pytest.approx(other.grad_norm, rel=1e-9)
        assert one.reported == pytest.approx(dict(other.reported), rel=1e-9)
    torch.testing.assert_close(weights(undisturbed), weights(short), rtol=1e-7, atol=1e-9)


def test_a_step_that_fails_on_its_way_back_leaves_nothing_behind(
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("gradient-difference")
    whole = trainer_of(model.double(), tokenizer, rows, objective, tmp_path, micro_batch_size=2)
    short = trainer_of(model, tokenizer, rows, objective, tmp_path, micro_batch_size=2)
    backward, calls = short.accelerator.backward, 0

    def fails_once(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling cublasCreate")
        backward(*args)

    # After the first micro-batch has left its gradient.
    monkeypatch.setattr(short.accelerator, "backward", fails_once)
    wanted, got = [*whole.epoch(1)], [*short.epoch(1)]
    assert short.passes.oom_retry.seen == [{"step": 1, "from": 2, "to": 1}]
    assert got[0].grad_norm == pytest.approx(wanted[0].grad_norm, rel=1e-9)
    torch.testing.assert_close(weights(whole), weights(short), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("objective", SAMPLING[:1])
def test_samples_are_the_same_when_a_step_is_repeated(
    objective: Any, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, questions)
    whole = trainer_of(model.double(), tokenizer, rows, objective, tmp_path)
    short = trainer_of(model, tokenizer, rows, objective, tmp_path)
    wanted = [*whole.epoch(1)]
    with room_for(short.model, 200):
        got = [*short.epoch(1)]
    assert short.passes.oom_retry.seen
    for one, other in zip(wanted, got, strict=True):
        assert one.reported == pytest.approx(dict(other.reported), rel=1e-12)
    torch.testing.assert_close(weights(whole), weights(short), rtol=1e-7, atol=1e-9)


def test_one_row_that_does_not_fit_is_the_end(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("ce-u")
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path)
    before = weights(trainer)
    with (
        room_for(trainer.model, 3),
        pytest.raises(TrainingError, match=r"step 1: out of memory with one row.*checkpointing"),
    ):
        next(trainer.epoch(1))
    assert [(s["from"], s["to"]) for s in trainer.passes.oom_retry.seen] == [(4, 2), (2, 1)]
    assert torch.equal(before, weights(trainer))


def evaluator_of(tokenizer: Any, questions: tuple[Question, ...], tokens: int) -> Evaluator:
    sets: Any = dict.fromkeys(("retain", "forget", "real_authors", "world_facts"), questions)
    profile = replace(TOFU, max_new_tokens=8)
    return Evaluator(sets, tokenizer, TEMPLATES["plain"], profile, pad_id(tokenizer), tokens)


def test_an_evaluation_that_does_not_fit_goes_on_with_smaller_batches(
    model: Any, tokenizer: Any, questions: tuple[Question, ...]
) -> None:
    whole = evaluator_of(tokenizer, questions, 2048)
    wanted = whole(model)
    short = evaluator_of(tokenizer, questions, 2048)
    with room_for(model, 700):
        got = short(model)
        assert short.batch_tokens in (512, 256)
        short(model)
    assert whole.batch_tokens == 2048
    for name, found in got.sets.items():
        assert found.generated == wanted.sets[name].generated
        assert found.answer_loss == pytest.approx(wanted.sets[name].answer_loss, rel=1e-4)
    with room_for(model, 3), pytest.raises(EvaluationError, match=r"out of memory with batches"):
        short(model)
