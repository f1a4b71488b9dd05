"""Evaluation of a model under an attack: at each of its points, on the sets that it is about."""

from collections.abc import Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unlearnbench.api.attack import (
    Attack,
    AttackRows,
    AttackTools,
    SamplingAttack,
    WeightAttack,
    variant,
)
from unlearnbench.api.benchmark import Dataset, Question, SplitKey
from unlearnbench.api.observations import Evaluation, IntArray
from unlearnbench.api.plugin_code import plugin_code, source_file
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import all_gather, world_size
from unlearnbench.base.errors import EvaluationError, PluginError
from unlearnbench.base.fsdp import local_part
from unlearnbench.base.out_of_memory import ShortMemoryError
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.training.trainer import NonFiniteError

Sets = Mapping[str, tuple[Question, ...]]


def attack_rows(benchmark: Dataset, split: SplitKey) -> AttackRows:
    """The rows of a split that attacks may use."""
    rows = benchmark.splits[split]
    return AttackRows(rows.forget, rows.retain, benchmark.subject_rows)


def own_answers(plain: Evaluation) -> dict[str, str]:
    """The greedy answers of an evaluation, by question."""
    return {
        question: answer
        for result in plain.sets.values()
        for question, answer in zip(result.questions, result.generated, strict=False)
    }


def evaluations_under(
    name: str,
    attack: Attack,
    model: Any,
    evaluator: Evaluator,
    tools: AttackTools,
    plain: Evaluation | None = None,
) -> Iterator[tuple[str, Evaluation]]:
    """Attack `model`, and yield its evaluation at each point, with the name of the variant.

    name   of the attack
    model  in evaluation mode; it may be a `ShiftedModel`, which an attack on weights with
           `white_box` bypasses
    plain  the model's evaluation without the attack, whose answers serve as drafts, and which an
           attack with `reads_answers` needs

    The questions of the evaluations are the original ones. Weights are restored before the
    iterator ends, and when it is closed. An attack whose training meets a loss that is not finite,
    or runs out of memory, ends there.
    Raises: PluginError where the attack fails, EvaluationError where no row is left to evaluate.
    """
    rows = tools.rows
    if attack.reads_answers:
        if plain is None:
            raise EvaluationError(f"attack {name!r} reads the model's own answers: evaluate first")
        rows = replace(rows, answers=own_answers(plain))
    asked = _asked_rows(name, attack, evaluator, rows)
    sets = {key: of_set.questions for key, of_set in asked.items()}
    inner = model.model if isinstance(model, ShiftedModel) else model
    shown = inner if attack.white_box else model
    changes = isinstance(attack, WeightAttack)
    with (
        restored(inner) if changes else nullcontext(),
        closing(_reached(name, attack, inner, tools)) as points,
    ):
        for point in points:
            part = _asking(name, attack, point, evaluator, sets, rows)
            result = part(shown, plain)
            if isinstance(attack, SamplingAttack):
                result = part.with_samples(result, shown, attack)
            evaluator.batch_tokens = part.batch_tokens  # halved for good where memory was short
            yield variant(name, point), _with_original_rows(result, asked)


@dataclass(frozen=True)
class _AskedRows:
    """The rows of one set that are evaluated under an attack."""

    questions: tuple[Question, ...]
    """As they are asked without the attack."""
    places: IntArray | None
    """Their places in the set; None for all of its rows."""


def _asked_rows(
    name: str, attack: Attack, evaluator: Evaluator, rows: AttackRows
) -> dict[str, _AskedRows]:
    """Select the rows that are evaluated, of each set with one of the attack's roles."""
    asked: dict[str, _AskedRows] = {}
    for key, items in evaluator.sets.items():
        if evaluator.roles.get(key) not in attack.roles:
            continue
        with _guarded(name, attack, "selects"):
            places = [i for i, item in enumerate(items) if attack.selects(item.question, rows)]
        if places:
            questions = tuple(items[place].question for place in places)
            is_whole = len(places) == len(items)
            asked[key] = _AskedRows(questions, None if is_whole else np.array(places, np.int64))
    if not asked:
        roles = ", ".join(sorted(attack.roles))
        raise EvaluationError(
            f"attack {name!r}: there is no row to evaluate in sets of role {roles}; leave it out"
        )
    return asked


def _reached(
    name: str, attack: Attack, model: Any, tools: AttackTools
) -> Generator[str, None, None]:
    """The points that the attack reaches, in the declared order.

    Not those from a loss or weights on that are not finite, or a step that does not fit into
    memory: the attack has failed, which is no fault of the run. A notice names them.
    """
    if not isinstance(attack, WeightAttack):
        yield from attack.points()
        return
    expected, reached = attack.points(), 0
    steps: Iterator[str] = iter(())
    try:
        with _guarded(name, attack, "change"):
            steps = attack.change(model, tools)
            for point in steps:
                if (point,) != expected[reached : reached + 1]:
                    raise PluginError(
                        f"`change` of attack {name!r} yields {point!r} where `points` declares "
                        f"{', '.join(expected[reached:]) or None!r}; yield each of `points` once, "
                        "in their order"
                    )
                if not _is_finite(model):
                    raise NonFiniteError(f"it made weights that are not finite at {point!r}")
                reached += 1
                yield point
            if reached < len(expected):
                raise PluginError(
                    f"`change` of attack {name!r} ends before its point {expected[reached]!r}"
                )
    except (NonFiniteError, ShortMemoryError) as error:
        if isinstance(error, ShortMemoryError) and world_size() > 1:
            raise  # the other processes may have had room, and wait for this one
        left = ", ".join(variant(name, point) for point in expected[reached:])
        warn_later(f"no results for {left}: {str(error).partition(chr(10))[0]}")
    finally:  # what a plug-in's generator changed is put back at once
        if isinstance(steps, Generator):
            steps.close()


def _is_finite(model: Any) -> bool:
    """Return whether all weights are finite. Collective."""
    parts = map(local_part, model.parameters())
    return all(all_gather(all(bool(part.isfinite().all()) for part in parts)))


def _asking(
    name: str, attack: Attack, point: str, evaluator: Evaluator, sets: Sets, rows: AttackRows
) -> Evaluator:
    """The evaluator of the rows as they are asked at a point; kept for the next model."""
    key = name, attack.model_dump_json(), point
    part = evaluator.derived.get(key)
    if part is None:
        with _guarded(name, attack, "asked"):
            asked = {
                of: tuple(attack.asked(question, point, rows) for question in result)
                for of, result in sets.items()
            }
        part = evaluator.with_sets(asked, sets)
        if not attack.reads_answers:
            evaluator.derived[key] = part
    part.batch_tokens = evaluator.batch_tokens
    return part


def _with_original_rows(evaluation: Evaluation, asked: Mapping[str, _AskedRows]) -> Evaluation:
    """Return the evaluation with the original questions, and the places of its rows.

    Two rows may have the same question, so questions alone do not tell which rows were asked.
    """
    sets = {
        key: replace(
            seen,
            questions=tuple(question.question for question in asked[key].questions),
            places=asked[key].places,
        )
        for key, seen in evaluation.sets.items()
    }
    return replace(evaluation, sets=sets)


def _guarded(name: str, attack: Attack, function: str) -> AbstractContextManager[None]:
    return plugin_code(f"`{function}` of attack {name!r}", source_file(type(attack)))


@contextmanager
def restored(model: Any) -> Generator[None, None, None]:
    """Restore weights and buffers bit for bit, what is trained, and the mode, on leaving.

    Copies are held in host memory, so that an attack has the device's. Modules that were put in
    place of others are not put back. Of a sharded model each process restores its own part.
    """
    named = (*model.named_parameters(), *model.named_buffers())
    tensors = {name: local_part(value.detach()) for name, value in named}
    copies = {name: tensor.to("cpu", copy=True) for name, tensor in tensors.items()}
    trained = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        with torch.no_grad():
            for name, tensor in tensors.items():
                tensor.copy_(copies[name])
        for name, parameter in model.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(trained.get(name, parameter.requires_grad))
        for module, training in modes.items():
            module.training = training
