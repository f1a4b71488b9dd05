"""The loop's invariants: how a batch is cut up, interrupted or referenced changes no number."""

import copy
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import LossBatch, Part
from unlearnbench.base.errors import TrainingError
from unlearnbench.config.schema import RetainSpec
from unlearnbench.config.step_schedule import make_schedule
from unlearnbench.evaluation.predictor import Predictor
from unlearnbench.evaluation.prefix_tree import build_tree
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Reference
from unlearnbench.models.batching import collate
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.token_row import Row
from unlearnbench.training.micro_batches import Budget
from unlearnbench.training.objective import Objective
from unlearnbench.training.reference_model import (
    LiveReference,
    ReferenceRows,
    reference_rows,
)
from unlearnbench.training.step_result import not_finite
from unlearnbench.training.trainer import FineTuning, NonFiniteError

from ...conftest import QUESTIONS
from ...factories.trainers import (
    TRAINED_METHODS,
    assert_resumes,
    losses,
    objective_of,
    trainer_of,
    training_rows,
    weights,
)


def test_a_model_trained_in_bf16_is_evaluated_like_any_other(
    model: Any, tokenizer: Any, tmp_path: Path
) -> None:
    """An autocast left around `forward` hides the output layer, and changes every number."""
    rows = training_rows(tokenizer, QUESTIONS)
    trainer = trainer_of(
        model, tokenizer, rows, Objective(FineTuning()), tmp_path, precision="bf16", batch_size=2
    )
    [*_] = trainer.epoch(1)
    tree = build_tree(rows.retain[:1], tuple(rows.retain[0].ids[: rows.retain[0].start]))
    with trainer.evaluation_model() as trained:
        fresh = copy.deepcopy(model).eval()
        fresh.load_state_dict(trained.state_dict())
        states: list[Tensor] = []
        for one in (trained, fresh):
            predictor = Predictor(one, tree, pad=pad_id(tokenizer), longest=100)
            assert predictor.layer is not None
            assert predictor.packed
            with torch.inference_mode(), predictor.ready():
                states.append(predictor.tree_states([tree]))
    assert torch.equal(*states)


@pytest.mark.parametrize("name", ["kl-minimization", "npo"])
def test_the_reference_is_computed_in_the_precision_of_the_run(
    name: str, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """At the start the policy is the reference, also under autocast; all rows in one batch."""
    rows = training_rows(tokenizer, questions[:8])
    trainer = trainer_of(
        model, tokenizer, rows, objective_of(name), tmp_path, precision="bf16", batch_size=4
    )
    draws = rows.items(trainer.objective.needs, 5, 1)
    step = trainer.step_context(draws, draws)
    with trainer.accelerator.autocast():
        batch = trainer.batches.batch(trainer.model, draws, step)
        for part in sorted(trainer.objective.needs.reference):
            policy, reference = getattr(batch, part), getattr(batch.reference, part)
            assert torch.equal(policy.token_logprob, reference.token_logprob)
            if part in trainer.objective.needs.distributions:
                assert not policy.kl_from(reference).any()


@pytest.mark.parametrize(("name", "most"), [("gradient-difference", 230), ("grpo", 500)])
def test_a_budget_of_tokens_changes_nothing(
    name: str,
    most: int,
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of(name)
    whole = trainer_of(model.double(), tokenizer, rows, objective, tmp_path)
    parts = trainer_of(model, tokenizer, rows, objective, tmp_path)
    parts.passes.budget = Budget(rows=2, tokens=most)
    seen, made = list[list[int]](), parts.batches.batch

    def batch(model: Any, items: Any, context: Any, only: Any = None, **how: Any) -> LossBatch:
        if only is None:
            needed = parts.objective.needs.parts
            seen.append([parts.batches.tokens([item], context, needed) for item in items])
        return made(model, items, context, only, **how)

    parts.batches.batch = batch  # type: ignore[method-assign,assignment]
    assert losses(whole, 2) == pytest.approx(losses(parts, 2), rel=1e-9)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-7, atol=1e-9)
    assert len(seen) > whole.step, "no step was divided"
    assert all(sum(chunk) <= most for chunk in seen)
    assert any(len(chunk) > 1 for chunk in seen)


def test_rows_limit_a_micro_batch_as_well_as_tokens(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    trainer = trainer_of(
        model, tokenizer, training_rows(tokenizer, questions), objective_of("ce-u"), tmp_path
    )
    (draws,) = [trainer.rows.items(trainer.objective.needs, 5, 1)[:4]]
    step = trainer.step_context(draws, draws)

    def sizes() -> list[int]:
        parts = trainer.passes.divided(draws, step)
        return [len(part) for part in parts]

    assert sizes() == [4]
    trainer.passes.budget = Budget(rows=3)  # padded rows
    assert sizes() == [3, 1]
    trainer.passes.budget = Budget(rows=1, tokens=10_000)
    assert sizes() == [4], "tokens count, not rows"
    trainer.passes.oom_retry.rows = 2  # what was too much for the memory before
    assert sizes() == [2, 2]


def test_a_loss_that_averages_micro_batches_would_be_caught(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    class Averaging(FineTuning):
        def loss(self, batch: Any) -> Tensor:
            mean: Tensor = batch.retain.cross_entropy().mean()
            return mean

    rows = TrainingRows(retain=training_rows(tokenizer, questions).retain)
    whole = trainer_of(model, tokenizer, rows, Objective(Averaging()), tmp_path)
    parts = trainer_of(model, tokenizer, rows, Objective(Averaging()), tmp_path, micro_batch_size=1)
    assert losses(whole, 1) != pytest.approx(losses(parts, 1), rel=1e-3)


@pytest.mark.parametrize("name", TRAINED_METHODS)
def test_one_forward_equals_the_dense_truth_row_by_row(
    name: str, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """Padding, batching, shift and reference against one row at a time in float64."""
    model = model.double()
    rows, objective = training_rows(tokenizer, questions, skipped_tokens=1), objective_of(name)
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path)
    draws = rows.items(objective.needs, 5, 1)[:4]
    step = trainer.step_context(draws, draws)
    got = trainer.batches.batch(trainer.model, draws, step)
    for part, predictions in got.parts.items():
        begin = 0
        for place, row in enumerate(trainer.batches.rows_of(part, draws, step)):
            logits = model(torch.tensor([row.ids])).logits[0]
            scored = range(row.start, len(row.ids))
            truth = torch.stack([logits[i - 1].log_softmax(0)[row.ids[i]] for i in scored])
            end = begin + len(scored)
            torch.testing.assert_close(
                predictions.token_logprob[begin:end], truth, rtol=1e-9, atol=1e-9
            )
            assert predictions.rows[begin:end].tolist() == [place] * len(scored)
            assert predictions.labels[begin:end].tolist() == [row.ids[i] for i in scored]
            if part in objective.needs.reference:
                live = got.reference.parts[part].token_logprob[begin:end]
                torch.testing.assert_close(live, truth, rtol=1e-9, atol=1e-9)
            begin = end
        assert step.counts[part] == (begin, predictions.row_count)


@pytest.mark.parametrize("name", ["npo", "dpo", "kl-minimization"])
def test_the_precomputed_reference_equals_a_live_one(
    name: str, model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    class Live(LiveReference):
        """A second model that runs at every step: what the cache is there to avoid."""

        def batch(self, rows: Sequence[Row], device: torch.device) -> Reference:
            tokens = collate(rows, pad_id(tokenizer), device)
            with torch.no_grad():
                logits = model(tokens.ids, attention_mask=tokens.attention).logits[tokens.predicts]
            chosen = logits.log_softmax(1).gather(1, tokens.labels.unsqueeze(1)).squeeze(1)
            return Reference(chosen, tokens.rows, len(rows), logits, Projection(None))

    rows, objective = training_rows(tokenizer, questions), objective_of(name)
    cached = trainer_of(model, tokenizer, rows, objective, tmp_path)
    live = trainer_of(model, tokenizer, rows, objective, tmp_path)
    second: dict[Part | int, ReferenceRows | LiveReference] = {}
    own: dict[Part | int, ReferenceRows | LiveReference] = {}
    for part in objective.needs.reference:
        second[part] = Live(model, pad_id(tokenizer))
        own[part] = LiveReference(model, pad_id(tokenizer), bool(objective.needs.distributions))
    live.batches.references = second
    known = losses(cached, 3)
    assert known == pytest.approx(losses(live, 3), rel=1e-4)
    ours = trainer_of(model, tokenizer, rows, objective, tmp_path)
    ours.batches.references = own
    assert losses(ours, 3) == pytest.approx(known, rel=1e-4)


SAMPLING = [
    Objective(registry.load("methods", "grpo")(samples=3, beta=0.3, max_new_tokens=16)),
    Objective(
        registry.load("methods", "grpo-ceu")(samples=3, max_new_tokens=16),
        RetainSpec(term="nll", weight=1.0),
    ),
]


@pytest.mark.parametrize("objective", SAMPLING)
def test_samples_do_not_depend_on_how_a_step_is_cut_up(
    objective: Objective,
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    rows = training_rows(tokenizer, questions)
    whole = trainer_of(model.double(), tokenizer, rows, objective, tmp_path)
    parts = trainer_of(model, tokenizer, rows, objective, tmp_path, micro_batch_size=3)
    wanted = [step for epoch in (1, 2) for step in whole.epoch(epoch)]
    got = [step for epoch in (1, 2) for step in parts.epoch(epoch)]
    for one, other in zip(wanted, got, strict=True):
        assert one.terms == pytest.approx(dict(other.terms), rel=1e-9, abs=1e-12)
        assert 0 < one.reported["reward"] <= 1
        assert one.reported == pytest.approx(dict(other.reported), rel=1e-12)
    torch.testing.assert_close(weights(whole), weights(parts), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("objective", SAMPLING)
def test_samples_are_the_same_after_an_interruption(
    objective: Objective,
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    rows = training_rows(tokenizer, questions)
    assert_resumes(lambda: trainer_of(model, tokenizer, rows, objective, tmp_path), tmp_path)


def test_samples_need_something_to_sample_with(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, questions)
    trainer = trainer_of(model, tokenizer, rows, SAMPLING[1], tmp_path)
    trainer.sampler = None
    with pytest.raises(TrainingError, match="nothing to sample with"):
        next(iter(trainer.epoch(1)))


def test_a_reference_comes_from_disk_the_second_time(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return model

    rows = list(training_rows(tokenizer, questions).forget)

    def known(weights_hash: str = "a") -> Tensor:
        return reference_rows(
            load, weights_hash, rows, distributions=False, pad=0, folder=tmp_path
        ).logprobs

    first = known()
    torch.testing.assert_close(known(), first, rtol=0, atol=0)
    assert len(loads) == 1
    known("b")
    assert len(loads) == 2, "other weights are another reference"
    for path in tmp_path.glob("*.safetensors"):
        path.write_bytes(path.read_bytes()[:-20])
    torch.testing.assert_close(known(), first, rtol=0, atol=0)
    assert len(loads) == 3, "a damaged file is computed again"


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_resumed_equals_uninterrupted(
    optimizer: Literal["adamw", "muon"],
    model: Any,
    tokenizer: Any,
    questions: tuple[Question, ...],
    tmp_path: Path,
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("npo")
    how = {"optimizer": optimizer, "schedule": "linear"}
    assert_resumes(lambda: trainer_of(model, tokenizer, rows, objective, tmp_path, **how), tmp_path)


def test_a_retain_term_brings_its_rows(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows = training_rows(tokenizer, questions)
    objective = Objective(registry.load("methods", "npo")(), RetainSpec(term="kl", weight=2.0))
    (step, *_) = trainer_of(model, tokenizer, rows, objective, tmp_path).epoch(1)
    assert set(step.terms) == {"loss", "added_kl"}
    assert step.loss == pytest.approx(sum(step.terms.values()))
    assert abs(step.terms["added_kl"]) < 1e-5, "policy and reference still agree"


def test_the_first_step_learns(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    rows, objective = training_rows(tokenizer, questions), objective_of("ce-u")
    trainer = trainer_of(
        model, tokenizer, rows, objective, tmp_path, schedule="linear", warmup_steps=3
    )
    before = weights(trainer)
    step = next(iter(trainer.epoch(1)))
    assert step.learning_rate > 0
    assert not torch.equal(before, weights(trainer))


@pytest.mark.parametrize(
    ("kind", "steps", "warmup", "wanted"),
    [
        ("constant", 3, 0, [1, 1, 1]),
        ("linear", 4, 0, [1, 0.75, 0.5, 0.25]),
        ("linear", 4, 2, [1 / 3, 2 / 3, 1, 0.5]),
        ("cosine", 2, 0, [1, 0.51]),
    ],
)
def test_schedules(kind: Any, steps: int, warmup: int, wanted: list[float]) -> None:
    made = make_schedule(kind, steps, 1, epochs=1, warmup_steps=warmup)
    assert [made.factor(i) for i in range(made.steps)] == pytest.approx(wanted)


def test_a_loss_that_is_not_finite_stops_the_run(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    trainer = trainer_of(
        model, tokenizer, training_rows(tokenizer, questions), objective_of("ce-u"), tmp_path
    )
    with pytest.raises(NonFiniteError, match=r"^NaN loss at step 1 \(epoch 1\)") as stopped:
        next(iter(trainer.epoch(1)))
    assert "lower learning rate" not in str(stopped.value), "nothing was learned yet"


@pytest.mark.parametrize(
    ("step", "loss", "norm", "has_moved", "fact", "advice"),
    [
        (1, math.nan, math.nan, False, "NaN loss at step 1 (epoch 1)", "methods check"),
        (1, math.inf, 2.0, False, "infinite loss at step 1 (epoch 1)", "methods check"),
        (2, math.nan, 2.0, False, "NaN loss at step 2 (epoch 1)", "methods check"),
        (7, math.nan, math.nan, True, "NaN loss at step 7 (epoch 1)", "A lower learning rate"),
        (7, 0.5, math.inf, True, "infinite gradient at step 7 (epoch 1)", "A lower learning rate"),
    ],
)
def test_a_loss_that_is_not_finite_is_named_with_the_advice_that_helps(
    step: int, loss: float, norm: float, has_moved: bool, fact: str, advice: str
) -> None:
    first, _, second = not_finite(step, 1, loss, norm, has_moved=has_moved).partition("\n")
    assert first.startswith(fact)
    assert advice in second
    assert ("lower learning rate" in second) is has_moved
    assert not not_finite(step, 1, 0.5, 2.0, has_moved=has_moved)


def test_the_learning_rate_is_not_blamed_before_a_step_had_one(
    model: Any, tokenizer: Any, questions: tuple[Question, ...], tmp_path: Path
) -> None:
    """The first step of TOFU's warm-up has a rate of 0: no weight has moved in the second."""
    rows, objective = training_rows(tokenizer, questions), objective_of("ce-u")
    how = {"schedule": "tofu", "batch_size": 2}
    trainer = trainer_of(model, tokenizer, rows, objective, tmp_path, **how)
    steps = trainer.epoch(1)
    next(steps)
    with torch.no_grad():
        trainer.model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(NonFiniteError, match=r"at step 2 .*") as stopped:
        next(steps)
    assert "No optimiser step had changed a weight" in str(stopped.value)


def test_an_empty_set_of_rows_is_refused(model: Any, tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="set of rows is empty"):
        trainer_of(model, tokenizer, TrainingRows(), objective_of("ce-u"), tmp_path)


def test_every_method_sees_the_same_rows(tokenizer: Any, questions: tuple[Question, ...]) -> None:
    rows = training_rows(tokenizer, questions)
    orders = {
        tuple(d.index for d in rows.items(objective_of(name).needs, 7, 2))
        for name in TRAINED_METHODS
    }
    assert len(orders) == 1
    draws = rows.items(objective_of("idk").needs, 7, 2)
    assert sorted(d.index for d in draws) == list(range(len(rows.forget)))
    assert len({d.retain for d in draws}) == len(draws), "retain rows come without replacement"
    assert rows.items(objective_of("idk").needs, 8, 2) != draws
