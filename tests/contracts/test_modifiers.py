"""Modifiers written as an outsider would, by what they do to a training."""

import copy
import json
import math
import pickle
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Method, Part
from unlearnbench.api.modifier import (
    ByRole,
    Combine,
    Evaluate,
    Filter,
    Gradients,
    Memory,
    Modifier,
    OptimizerKind,
    Perturb,
    Role,
    RunStep,
    WeightEdit,
)
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.errors import PluginError
from unlearnbench.config.schema import RetainSpec
from unlearnbench.losses.predictions import mean_over_union
from unlearnbench.models.epoch_order import Item
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.objective import Objective
from unlearnbench.training.step_passes import StepPasses
from unlearnbench.training.step_result import TOKENS
from unlearnbench.training.trainer import NonFiniteError, Trainer

from ..factories.marks import diagonals_in_make_test, some_in_make_test
from ..factories.trainers import TRAINED_METHODS, Extras, training_rows
from ..factories.trainers import trainer_of as shared_trainer_of
from ..forked import launch

HERE = Path(__file__).parent


def plugin(name: str, **settings: Any) -> Any:
    """The modifier of a file in this folder."""
    return registry.load("modifiers", registry.register_file(HERE / f"{name}.py"))(**settings)


class Same(Perturb):
    """The gradients as they are."""

    def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
        """Those at the weights."""
        return at({"retain", "forget"})


class Sum(Combine):
    """The sum of both gradients."""

    def combine(self, gradients: ByRole, memory: Memory, step: RunStep) -> Gradients:
        """f + r."""
        return gradients["forget"].add_(gradients["retain"])


class Average(WeightEdit):
    """Evaluates the mean of the weights after all steps."""

    def memory(self, weights: Gradients) -> Memory:
        """The mean, so far."""
        return {"mean": weights.map(torch.zeros_like)}

    def after(self, weights: Gradients, memory: Memory, step: RunStep) -> None:
        """Take the weights into account."""
        memory["mean"].scale_(1 - 1 / step.number).add_(weights, 1 / step.number)

    def evaluated(self, weights: Gradients, memory: Memory) -> Gradients:
        """The mean."""
        return memory["mean"]


class ByRoleAdam(OptimizerKind):
    """An Adam for each role."""

    two_roles = True

    def make(self, weights: Any, rate: float, decay: float) -> torch.optim.Optimizer:
        """The optimiser of one role."""
        return torch.optim.AdamW(weights.values(), rate, weight_decay=decay)


@pytest.fixture
def make(model: Any, tokenizer: Any, questions: Sequence[Question], tmp_path: Path) -> Any:
    """A trainer of a method with modifiers, in float64."""
    return partial(trainer_of, model.double(), tokenizer, questions, tmp_path)


def trainer_of(
    model: Any,
    tokenizer: Any,
    questions: Sequence[Question],
    folder: Path,
    method: str | Method,
    *modifiers: Modifier,
    retain: Literal["nll"] | None = "nll",
    **how: Any,
) -> Trainer:
    """A trainer of a method, with the retain term only if it has no retain rows of its own.

    The trained model is moved away from the start model, at which references equal its own
    predictions.
    """
    of_method: Method = registry.load("methods", method)() if isinstance(method, str) else method
    has_own_retain = "retain" in of_method.needed().parts
    objective = Objective(
        of_method, None if has_own_retain or not retain else RetainSpec(term=retain)
    )
    rows = training_rows(tokenizer, questions, of_method.ignore_first_answer_tokens)
    extras = Extras(modifiers)
    trainer = shared_trainer_of(model, tokenizer, rows, objective, folder, extras, **how)
    with torch.no_grad():
        for i, weight in enumerate(trainer.model.parameters()):
            weight.mul_(1 + 0.1 * torch.sin(torch.arange(weight.numel()) + i).view_as(weight))
    return trainer


def weights(trainer: Trainer) -> Tensor:
    return torch.cat([p.detach().flatten() for p in trainer.trained().values()]).clone()


def trained(trainer: Trainer, *epochs: int) -> Trainer:
    trainer.steps = [s for e in epochs or (1, 2) for s in trainer.epoch(e)]  # type: ignore[attr-defined]
    return trainer


def flat(gradient: Gradients) -> Tensor:
    return torch.cat([value.flatten() for value in gradient.tensors.values()])


@pytest.mark.parametrize("name", some_in_make_test(TRAINED_METHODS, 2))
def test_the_gradients_of_the_roles_add_up(name: str, make: Any) -> None:
    """In passes by groups of parts, exactly as in the joint pass; also where one term has all."""
    plain = make(name)
    draws = plain.rows.items(plain.objective.needs, 5, 1)[:4]
    rows = plain.step_rows(draws)
    terms, reported = plain.passes.backward(rows)
    whole = torch.cat([p.grad.flatten() for p in plain.trained().values()])
    for modifier in (Same(), Sum()):
        trainer = make(name, modifier, micro_batch_size=3)
        at = trainer.modifiers.evaluation(
            trainer.passes, replace(rows, context=trainer.step_context(draws, draws))
        )
        (found,) = trainer.modifiers.gradients(at, RunStep(1, 1))
        assert (flat(found) - whole).norm() <= 1e-12 * whole.norm()
        sums = [sum(v.get(key, 0.0) for v, _ in at.values.values()) for key in terms]
        if not trainer.modifiers.by_role:  # which divides a term in two
            assert sums == pytest.approx([*terms.values()], rel=1e-12)
        seen = [sum(r.get(key, 0.0) for _, r in at.values.values()) for key in reported]
        assert seen == pytest.approx([*reported.values()], rel=1e-12)


@pytest.mark.parametrize("name", ["idk", "general-ce-u"])
def test_a_mean_over_several_parts_is_taken_apart_by_role(name: str, make: Any) -> None:
    """A retain term beside it is then of the retain role, under `sam` as under `pcgrad`."""
    for modifier in (Same(), Sum()):
        trainer = make(name, modifier)
        draws = trainer.rows.items(trainer.objective.needs, 5, 1)[:4]
        groups = trainer.modifiers.evaluation(trainer.passes, trainer.step_rows(draws)).groups
        assert groups["retain"] == [frozenset({"retain"})]


@pytest.mark.parametrize("name", ["npo", "flat", "general-ce-u"])
def test_modifiers_that_do_nothing_are_equal_bit_for_bit(name: str, make: Any) -> None:
    plain = weights(trained(make(name, Same())))
    for modifier in (plugin("sharpness", rho=0), plugin("mask", times=0)):
        kept = (plain == weights(trained(make(name, modifier)))).double().mean()
        assert kept == 1 or (isinstance(modifier, Filter) and kept > 0.8)  # gradients of 0


def manual(trainer: Trainer, draws: Sequence[Item], model: nn.Module, part: str) -> Tensor:
    """The gradient of the mean cross entropy of the rows of a part, written plainly."""
    rows = trainer.rows.of(part, draws, trainer.objective.needs)  # type: ignore[arg-type]
    model.zero_grad()
    for row in rows:
        ids = torch.tensor([row.ids])
        logits = model(input_ids=ids).logits[0, row.start - 1 : -1]
        tokens = sum(one.scored for one in rows)
        (cross_entropy(logits, ids[0, row.start :], reduction="sum") / tokens).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([one.flatten() for one in gradients])


@pytest.mark.parametrize("name", ["sharpness", "projection", "mask"])
def test_each_is_its_formula(name: str, make: Any) -> None:
    """Gradient ascent, with a retain term that it conflicts with."""
    settings = {"rho": 0.3} if name == "sharpness" else {}
    trainer = make("gradient-ascent", plugin(name, **settings))
    model = copy.deepcopy(trainer.model).eval()
    needs, start = trainer.objective.needs, weights(trainer)
    every = trainer.rows.items(needs, 5, 1)
    draws = every[:4]
    forget, retain = (manual(trainer, draws, model, part) for part in ("forget", "retain"))
    forget = -forget
    if name == "sharpness":
        offset, model_at = 0.3 * forget / forget.norm(), copy.deepcopy(model)
        nn.utils.vector_to_parameters(start + offset, model_at.parameters())
        expected = -manual(trainer, draws, model_at, "forget") + retain
        assert (expected - forget - retain).norm() > 0.1 * expected.norm(), "θ + ε is what computes"
    elif name == "projection":
        assert forget @ retain < 0
        expected = forget - (forget @ retain) / (retain @ retain) * retain + retain
    else:
        sizes = manual(trainer, every, model, "forget").abs()
        expected = (forget + retain) * (sizes > sizes.mean())
    next(steps := trainer.epoch(1))
    del steps
    (optimizer,) = trainer.optimizers
    clipped = expected * min(1.0, 1 / float(expected.norm()))
    first = torch.cat([optimizer.state[p]["exp_avg"].flatten() for p in trainer.parameters])
    torch.testing.assert_close(first, 0.1 * clipped, rtol=1e-5, atol=1e-9)
    moved = weights(trainer) != start
    assert torch.equal(moved, expected != 0)


def unlearned(trainer: Trainer, draws: Sequence[Item], model: nn.Module, part: str) -> Tensor:
    """The gradient of the mean CE-U loss of the rows of a part, written plainly."""
    rows = trainer.rows.of(part, draws, trainer.objective.needs)  # type: ignore[arg-type]
    tokens = sum(row.scored for row in rows)
    model.zero_grad()
    for row in rows:
        ids = torch.tensor([row.ids])
        labels = ids[0, row.start :, None]
        logits = model(input_ids=ids).logits[0, row.start - 1 : -1]
        others = logits.scatter(1, labels, -torch.inf).softmax(dim=1).detach()
        (-(others * logits.log_softmax(dim=1)).sum() / tokens).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return torch.cat([one.flatten() for one in gradients])


OTHERS = [
    (),
    *[
        (name,)
        for name in registry.names("modifiers")
        if name not in ("salun", "sure", "shrink")  # shrink moves the weights before the mask
    ],
]
JOINT: dict[str, tuple[Part, Any]] = {
    "idk": ("refusal", manual),
    "general-ce-u": ("forget", unlearned),
}
"""Methods with one mean over forget and retain rows: part and plain gradient of the forget rows."""


def gradients_by_role(name: str, trainer: Trainer, draws: Sequence[Item]) -> dict[Role, Tensor]:
    """The gradient of each role in one mean over the tokens of both, written plainly."""
    part, of_forget = JOINT[name]
    model, needs = copy.deepcopy(trainer.model).eval(), trainer.objective.needs
    parts: dict[Role, Part] = {"forget": part, "retain": "retain"}
    tokens = {
        role: sum(row.scored for row in trainer.rows.of(rows, draws, needs))
        for role, rows in parts.items()
    }
    total = sum(tokens.values())
    return {
        "forget": of_forget(trainer, draws, model, part) * tokens["forget"] / total,
        "retain": manual(trainer, draws, model, "retain") * tokens["retain"] / total,
    }


def joined(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else "+".join(value) or "alone"


@pytest.mark.parametrize(
    ("name", "mask", "others"),
    diagonals_in_make_test(3, JOINT, ("salun", "sure"), OTHERS),
    ids=joined,
)
def test_a_mask_is_of_the_forget_rows_whatever_other_modifiers_there_are(
    name: str, mask: str, others: tuple[str, ...], make: Any
) -> None:
    chosen = [registry.load("modifiers", one) for one in (mask, *others)]
    trainer = make(
        name,
        *(
            kind(**{**kind.tried, "keep": 0.3} if kind is chosen[0] else kind.tried)
            for kind in chosen
        ),
    )
    every = trainer.rows.items(trainer.objective.needs, 5, 1)
    forget = gradients_by_role(name, trainer, every)["forget"]
    scores: list[Tensor] = []
    for gradient, weight in zip(
        forget.split([p.numel() for p in trainer.parameters]), trainer.parameters, strict=True
    ):
        if mask == "sure" and weight.ndim == 2:
            norms = gradient.view_as(weight).norm(dim=1, keepdim=True)
            scores.append(norms.expand_as(weight).flatten())
        else:
            scores.append(gradient.abs())
    score = torch.cat(scores)
    limit = score.sort(descending=True).values[math.ceil(0.3 * len(score)) - 1]
    trainer.begin(trainer.modifiers)
    found = flat(trainer.modifiers.all[0][1]["selection"])
    clear = (score - limit).abs() > 1e-4 * limit  # rounding decides elsewhere
    assert clear.double().mean() > 0.9
    assert torch.equal(found[clear].bool(), (score > limit)[clear])


@pytest.mark.parametrize("names", OTHERS[1:], ids="+".join)
@pytest.mark.parametrize("name", JOINT)
def test_gradients_of_one_mean_are_those_of_each_role(
    name: str, names: tuple[str, ...], make: Any
) -> None:
    kinds = [registry.load("modifiers", one) for one in names]
    trainer = make(name, *(kind(**kind.tried) for kind in kinds))
    draws = trainer.rows.items(trainer.objective.needs, 5, 1)[:4]
    expected = gradients_by_role(name, trainer, draws)
    at = trainer.modifiers.evaluation(trainer.passes, trainer.step_rows(draws, by_role=True))
    found = at({"forget", "retain"})
    for role, gradient in expected.items():
        # The model's norms compute in fp32, and round differently in another batch.
        assert (flat(found[role]) - gradient).norm() <= 1e-5 * gradient.norm()
    if trainer.modifiers.by_role:
        step = trainer.modifiers.step(trainer.passes, trainer.step_rows(draws))
        of_step = flat(step({"forget"})["forget"])
        assert (of_step - expected["forget"]).norm() <= 1e-5 * expected["forget"].norm()


@pytest.mark.parametrize("decay", [0.1, 0.0])
@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_what_is_masked_stays_bit_for_bit(optimizer: str, decay: float, make: Any) -> None:
    how = {"optimizer": optimizer, "weight_decay": decay}
    trainer = make("npo", plugin("mask"), plugin("sharpness"), **how)
    start = weights(trainer)
    trained(trainer)
    still = flat(trainer.modifiers.all[0][1]["selection"]) == 0
    assert 0.2 < still.double().mean() < 0.95
    assert torch.equal(weights(trainer)[still], start[still])
    assert (weights(trainer)[~still] != start[~still]).double().mean() > 0.9


def test_weights_are_restored_whatever_happens(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make("npo", plugin("sharpness", rho=0.1))
    start, backward, calls = weights(trainer), StepPasses.backward, list[Tensor]()

    def failing(self: StepPasses, *given: Any, **how: Any) -> Any:
        found = backward(self, *given, **how)
        calls.append(weights(trainer))
        if len(calls) == 3:
            raise RuntimeError("the loss fails")
        return found

    monkeypatch.setattr(StepPasses, "backward", failing)
    with pytest.raises(PluginError, match="the loss fails"):
        next(trainer.epoch(1))
    assert torch.equal(weights(trainer), start)
    assert not torch.equal(calls[-1], start), "the last one was at an offset"


@pytest.mark.parametrize(("rho", "lost"), [(1e-4, True), (30.0, False)])
def test_an_offset_that_rounding_changes_is_measured(rho: float, lost: bool, make: Any) -> None:
    drain()
    trainer = make("npo", plugin("sharpness", rho=rho), precision="bf16")
    cosine = next(trainer.epoch(1)).reported["offset_cosine"]
    assert (cosine < 0.9) is lost
    assert [f"the two is {cosine:.2f}" in line for line in drain()] == [True] * lost


def test_how_two_gradients_conflict_is_reported(make: Any) -> None:
    trainer = make("gradient-ascent", Sum())
    draws = trainer.rows.items(trainer.objective.needs, 5, 1)[:4]
    model = copy.deepcopy(trainer.model).eval()
    f, r = (manual(trainer, draws, model, part) for part in ("forget", "retain"))
    f, (step, *_) = -f, trainer.epoch(1)
    products = f * r
    reported = {key: v for key, v in step.reported.items() if key not in TOKENS}
    assert reported == pytest.approx(
        {
            "forget_norm": float(f.norm()),
            "retain_norm": float(r.norm()),
            "cosine": float(f @ r / f.norm() / r.norm()),
            "opposed": int((products < 0).sum()) / int((products != 0).sum()),
        },
        rel=1e-4,
    )


def test_tokens_are_counted_in_every_evaluation(make: Any) -> None:
    made = (make("npo"), make("npo", plugin("sharpness", rho=0.1)))
    steps = [next(trainer.epoch(1)) for trainer in made]
    plain, perturbed = ([step.reported[name] for name in TOKENS] for step in steps)
    trainer = make("npo")
    draws = trainer.rows.items(trainer.objective.needs, trainer.settings.seed, 1)
    rows = trainer.step_rows(draws[: trainer.settings.batch_size])
    forget, retain = (
        trainer.batches.tokens(rows.items, rows.context, [part]) for part in ("forget", "retain")
    )
    assert plain == [forget + retain] * 2
    assert perturbed == [2 * forget + retain] * 2


class WithState(registry.load("methods", "npo")):  # type: ignore[misc]
    """NPO with a state that changes nothing."""

    def start(self) -> dict[str, float]:
        """A number that no one reads."""
        return {"unread": 1.0}


def test_tokens_of_the_selection_are_counted_for_methods_with_a_state_too(make: Any) -> None:
    counts: list[list[float]] = []
    for method in ("npo", WithState()):
        first = next(make(method, plugin("mask"), Same()).epoch(1))
        counts.append([first.reported[name] for name in TOKENS])
    assert counts[1] == counts[0]


def test_memory_that_runs_out_at_an_offset_changes_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = trained(make("pdu", plugin("sharpness"), Average(), micro_batch_size=2))
    trainer, calls = make("pdu", plugin("sharpness"), Average()), [0]
    backward = StepPasses.backward

    def crowded(self: StepPasses, *given: Any, **how: Any) -> Any:
        calls[0] += 1
        if calls[0] == 3:  # forget, retain, and forget at the offset
            raise torch.OutOfMemoryError("CUDA out of memory")
        return backward(self, *given, **how)

    monkeypatch.setattr(StepPasses, "backward", crowded)
    trained(trainer)
    assert trainer.passes.oom_retry.seen == [{"step": 1, "from": 4, "to": 2}]
    assert trainer.state == pytest.approx(expected.state)
    torch.testing.assert_close(weights(trainer), weights(expected), rtol=1e-6, atol=1e-8)


def test_state_and_samples_move_once_a_step(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, sampled = list[int](), Sampler.__call__

    def counted(self: Sampler, model: Any, indices: Any, step: int) -> Any:
        drawn.append(step)
        return sampled(self, model, indices, step)

    monkeypatch.setattr(Sampler, "__call__", counted)
    trainer = trained(make("grpo", plugin("sharpness")), 1)
    assert drawn == [*range(trainer.step)]
    plain, modified = (trained(make("pdu", *m), 1, 2, 3) for m in ((), (Same(),)))
    assert modified.state == pytest.approx(plain.state, rel=1e-6)
    assert modified.state != make("pdu").state


@pytest.mark.parametrize(
    "modifiers",
    [("sharpness", "mask"), ("projection",), (Average(),), (ByRoleAdam(), "mask")],
    ids=["sharpness+mask", "projection", "average", "optimizer-by-role"],
)
def test_a_resumed_training_is_the_same(modifiers: Any, make: Any, tmp_path: Path) -> None:
    chosen = [plugin(one) if isinstance(one, str) else one for one in modifiers]
    part, again, whole = (make("simnpo", *chosen) for _ in range(3))
    trained(whole, 1, 2, 3)
    trained(part, 1)
    part.save(tmp_path / "checkpoint")
    again.load(tmp_path / "checkpoint")
    trained(again, 2, 3)
    assert torch.equal(weights(again), weights(whole))
    kept = [[flat(g) for _, m in t.modifiers.all for g in m.values()] for t in (again, whole)]
    assert len(kept[0]) == sum(one == "mask" or one == Average() for one in modifiers)
    assert all(map(torch.equal, *kept))
    if modifiers != (Average(),):  # which leaves the training as it is
        assert not torch.equal(weights(whole), weights(trained(make("simnpo", Same()), 1, 2, 3)))


def test_micro_batches_change_nothing(make: Any) -> None:
    found = [
        weights(trained(make("dpo", plugin("sharpness"), plugin("mask"), micro_batch_size=rows)))
        for rows in (1, 2, 4)
    ]
    for one in found[1:]:
        torch.testing.assert_close(one, found[0], rtol=1e-6, atol=1e-8)


def test_other_weights_are_evaluated(make: Any) -> None:
    trainer = make("npo", Average())
    seen = torch.zeros_like(weights(trainer))
    steps = list[Any]()
    for step in trainer.epoch(1):
        steps.append(step)
        seen += weights(trainer)
    after = weights(trainer)
    with trainer.evaluation_model() as model:
        shown = torch.cat([p.flatten() for p in model.parameters()])
        torch.testing.assert_close(shown, seen / len(steps))
    assert torch.equal(weights(trainer), after)


class Union(Method):
    """One mean over all rows, which cannot be divided."""

    needs = registry.load("methods", "gradient-difference").needs

    def loss(self, batch: Any) -> Tensor:
        """Scalar."""
        sides = (batch.forget, batch.retain)
        return mean_over_union(*((side, side.cross_entropy()) for side in sides))


def test_what_cannot_be_taken_apart_is_refused(make: Any) -> None:
    with pytest.raises(PluginError, match="Union has no term of retain rows alone"):
        next(make(Union(), Sum()).epoch(1))
    with pytest.raises(PluginError, match="Union joins forget and retain rows in one term"):
        next(make(Union(), plugin("mask")).epoch(1))
    (only,) = make(Union(), Same()).modifiers.all
    assert not only[1]
    next(make(Union(), plugin("sharpness")).epoch(1))


class OneSided(Method):
    """Reports the samples' number of each side in its own pass."""

    needs = registry.load("methods", "gradient-difference").needs

    def loss(self, batch: Any) -> Any:
        """Two terms."""
        if len(batch.retain.labels):
            batch.report("kept", batch.retain.cross_entropy().sum())
        return {
            "forget": -batch.forget.mean_tokens(batch.forget.cross_entropy()),
            "retain": batch.retain.mean_tokens(batch.retain.cross_entropy()),
        }


def test_a_value_that_only_the_second_role_reports_is_kept(make: Any) -> None:
    plain, modified = (next(make(OneSided(), *m).epoch(1)).reported for m in ((), (Sum(),)))
    assert modified["kept"] == pytest.approx(plain["kept"], rel=1e-9)


def test_no_weight_moves_if_the_gradient_of_one_role_is_not_finite(make: Any) -> None:
    """Also with an optimiser for each role, of which the first could already have stepped."""

    class Infinite(Perturb):
        def gradients(self, at: Evaluate, memory: Memory, step: RunStep) -> ByRole:
            found = at({"forget", "retain"})
            return {**found, "retain": found["retain"].scale_(math.inf)}

    trainer = make("npo", Infinite(), ByRoleAdam())
    before = weights(trainer)
    with pytest.raises(NonFiniteError, match="No optimiser step had changed a weight by then"):
        next(trainer.epoch(1))
    assert torch.equal(weights(trainer), before)


PROGRAM = """
import copy, json, pickle, sys
from dataclasses import replace
from pathlib import Path

import torch

from unlearnbench.api import registry
from unlearnbench.base import distributed as group
from unlearnbench.base.fsdp import full_tensor, is_sharded
from unlearnbench.training.trainer import Trainer

torch.set_num_threads(1)
group.join_group()
folder, (start, cases) = Path(sys.argv[1]), pickle.loads(Path(sys.argv[2]).read_bytes())
found = {}
for way in ("ddp", "fsdp") if group.world_size() > 1 else ("ddp",):
    for name, (names, objective, rows, how, pad, references) in cases.items():
        chosen = [kind(**kind.tried) for kind in (registry.load("modifiers", n) for n in names)]

        def make():
            given = objective, rows, replace(how, parallel=way), pad, references, None, chosen
            return Trainer(copy.deepcopy(start), *given)

        def end(trainer):
            steps = [step for step in trainer.epoch(2)]
            whole = [full_tensor(p.detach()).flatten() for p in trainer.trained().values()]
            return steps, torch.cat(whole)

        trainer, again = make(), make()
        assert is_sharded(trainer.model) == (way == "fsdp")
        first = [*trainer.epoch(1)]
        trainer.save(folder / f"{group.world_size()}-{way}-{name}")
        steps, weights = end(trainer)
        again.load(folder / f"{group.world_size()}-{way}-{name}")
        assert torch.equal(end(again)[1], weights)
        other = make()
        other.load(folder / f"1-ddp-{name}")  # of another number of processes
        found.setdefault(way, {})[name] = {
            "losses": [step.loss for step in first + steps],
            "norms": [step.grad_norm for step in first + steps],
            "weights": weights.tolist(),
            "moved": float((end(other)[1] - weights).abs().max()),
        }
Path(sys.argv[3]).write_text(json.dumps(found))
group.leave_group()
"""


@pytest.mark.long
def test_two_processes_train_as_one(make: Any, tmp_path: Path) -> None:
    """With copies of the weights and with shards of them, also resumed from one another."""
    chosen: dict[str, tuple[str, ...]]
    chosen = {"npo": ("smoothing", "sure"), "gradient-difference": ("gru", "salun")}
    chosen["kl-minimization"] = ("spectral", "shrink", "zeroth-order")
    cases = dict[str, Any]()
    for method, names in chosen.items():
        trainer = make(method, batch_size=3)
        rows = replace(trainer.rows, refusals=0, refusal=None, retain_refusal=None)
        parts = (trainer.objective, rows, trainer.settings, trainer.batches.reader.pad)
        cases[method] = (names, *parts, trainer.batches.references)
    file = tmp_path / "cases"
    file.write_bytes(pickle.dumps((make("npo").model, cases)))
    given = [str(tmp_path), str(file)]
    (alone,) = launch(PROGRAM, given, tmp_path, 1)
    expected = json.loads(alone.read_text())["ddp"]
    first, second = (json.loads(one.read_text()) for one in launch(PROGRAM, given, tmp_path, 2))
    assert first == second, "processes stay equal bit for bit"
    for way in ("ddp", "fsdp"):
        for name, values in first[way].items():
            assert values["losses"] == pytest.approx(expected[name]["losses"], rel=1e-9)
            assert values["norms"] == pytest.approx(expected[name]["norms"], rel=1e-7)
            assert values["weights"] == pytest.approx(expected[name]["weights"], rel=1e-5, abs=1e-8)
            assert values["moved"] < 1e-7
