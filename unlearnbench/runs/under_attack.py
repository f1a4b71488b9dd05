"""Evaluation of a model under an attack, at each of the attack's points.

An attack changes the weights (`WeightAttack`), asks other questions (`PromptAttack`) or samples
several answers to each question (`SamplingAttack`). A *point* is one evaluation under the attack,
such as a number of optimiser steps or a kind of prompt. At each point, the rows that the attack
selects are evaluated. At the end, the weights are restored.
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from unlearnbench.api.attack import (
    CHOICE,
    FIRST_POINT,
    Attack,
    AttackRows,
    AttackTools,
    SamplingAttack,
    WeightAttack,
    searches,
    trial_point,
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
from unlearnbench.models.prompted_model import bare_model
from unlearnbench.training.trainer import NonFiniteError


def attack_rows(benchmark: Dataset, split: SplitKey) -> AttackRows:
    """Return the rows of a split that attacks may use."""
    rows = benchmark.splits[split]
    return AttackRows(rows.forget, rows.retain, benchmark.subject_rows)


def own_answers(plain: Evaluation) -> dict[str, str]:
    """Return the greedy answers of an evaluation, by question."""
    answer_of_question: dict[str, str] = {}
    for observed in plain.sets.values():
        # A set without generated answers has no entry for its questions.
        answer_of_question |= dict(zip(observed.questions, observed.generated, strict=False))
    return answer_of_question


def evaluations_under(
    name: str,
    attack: Attack,
    model: Any,
    evaluator: Evaluator,
    tools: AttackTools,
    plain: Evaluation | None = None,
) -> Iterator[tuple[str, Evaluation]]:
    """Attack a model, and yield its evaluation at each point. Collective.

    Weights are restored before the iterator ends, and when it is closed. The attack ends early if
    its training meets a loss that is not finite, or runs out of memory. A warning says so.

    Args:
        name: Name of the attack in the configuration.
        attack: The attack.
        model: The model, in evaluation mode. It may be a `ShiftedModel` or a `PromptedModel`, whose
            method is bypassed by an attack on weights with `white_box`.
        evaluator: The evaluator of the plain rows.
        tools: What attacks on weights may use.
        plain: The model's evaluation without the attack. Its answers serve as drafts, and an attack
            with `reads_answers` needs them.

    Yields:
        The variant, such as `relearning@13`, and the evaluation. Its questions are those that are
        asked without the attack.

    Raises:
        PluginError: The attack fails.
        EvaluationError: No row is left to evaluate.
    """
    named = _NamedAttack(name, attack)
    rows = tools.rows
    if attack.reads_answers:
        if plain is None:
            raise EvaluationError(f"attack {name!r} reads the model's own answers: evaluate first")
        rows = replace(rows, answers=own_answers(plain))
    asked = _asked_rows(named, evaluator, rows)
    parts = {"": asked}
    if searches(attack):
        parts = _parts(named, evaluator, asked)

    inner = bare_model(model)
    evaluated = inner if attack.white_box else model
    is_begun = False
    for trial, attacker in attack.attackers().items():
        of_trial = replace(named, plugin=attacker, trial=trial)
        restores = restored(inner) if isinstance(attack, WeightAttack) else nullcontext()
        with restores, closing(_points(of_trial, inner, tools)) as points:
            for point in points:
                if trial and point == FIRST_POINT:
                    # Before its first step, each attacker has the same model.
                    if is_begun:
                        continue
                    is_begun = True
                for part, of_part in parts.items():
                    attacked = _attacked_evaluator(named, point, part, evaluator, of_part, rows)
                    evaluation = attacked(evaluated, plain)
                    if isinstance(attack, SamplingAttack):
                        evaluation = attacked.with_samples(evaluation, evaluated, attack)
                    # If memory was short, batches stay smaller for all later evaluations.
                    evaluator.batch_tokens = attacked.batch_tokens
                    complete = _with_original_rows(evaluation, of_part)
                    yield of_trial.variant(point) + part, complete


def check_asked_rows(name: str, attack: Attack, evaluator: Evaluator, rows: AttackRows) -> None:
    """Check that an attack leaves rows to evaluate, before a model is loaded for it.

    Args:
        name: Name of the attack.
        attack: The attack.
        evaluator: The evaluator of the plain rows.
        rows: What the attack may use. A model need not have answered yet.

    Raises:
        EvaluationError: The attack leaves no row. With a search, it leaves only one row of a set.
        PluginError: `selects` of the attack fails.
    """
    named = _NamedAttack(name, attack)
    questions = [item.question for items in evaluator.sets.values() for item in items]
    asked = _asked_rows(named, evaluator, with_made_up_answers(rows, questions))
    if searches(attack):
        _parts(named, evaluator, asked)


def with_made_up_answers(rows: AttackRows, questions: Iterable[Question]) -> AttackRows:
    """Return rows in which each question has an answer.

    An attack may read the model's own answers. Before a model has answered, a check whether the
    attack fits the rows needs some answers in their place.
    """
    return replace(rows, answers={question.question: "An answer." for question in questions})


@dataclass(frozen=True)
class _NamedAttack:
    """An attack and its name in the configuration."""

    name: str
    plugin: Attack
    trial: str = ""
    """Number of the attacker, if the attack searches for the strongest one."""

    def variant(self, point: str) -> str:
        """Return the name of the evaluation at a point of this attacker."""
        return variant(self.name, trial_point(self.trial, point) if self.trial else point)

    def calls(self, function: str) -> AbstractContextManager[None]:
        """Turn an exception in a function of the attack into a PluginError that names both."""
        file = source_file(type(self.plugin))
        return plugin_code(f"`{function}` of attack {self.name!r}", file)


@dataclass(frozen=True)
class _AskedRows:
    """The rows of one set that are evaluated under an attack."""

    questions: tuple[Question, ...]
    """The rows as they are asked without the attack."""
    places: IntArray | None
    """Their indices in the set. None: all rows of the set."""

    def every_second(self, first: int) -> "_AskedRows":
        """Return every second row, beginning with row 0 or row 1."""
        places = np.arange(len(self.questions)) if self.places is None else self.places
        return _AskedRows(self.questions[first::2], places[first::2])


def _asked_rows(
    attack: _NamedAttack, evaluator: Evaluator, rows: AttackRows
) -> dict[str, _AskedRows]:
    """Select the rows that are evaluated, by set, among the sets with a role of the attack's.

    Raises:
        EvaluationError: The attack selects no row.
    """
    asked: dict[str, _AskedRows] = {}
    for set_name, items in evaluator.sets.items():
        if evaluator.roles.get(set_name) not in attack.plugin.evaluated_roles:
            continue
        questions = [item.question for item in items]
        with attack.calls("selects"):
            places = [
                i for i, question in enumerate(questions) if attack.plugin.selects(question, rows)
            ]
        if not places:
            continue
        are_all = len(places) == len(questions)
        asked[set_name] = _AskedRows(
            tuple(questions[place] for place in places),
            None if are_all else np.array(places, np.int64),
        )
    # A search also evaluates sets that show what is left of the utility, but does not attack them.
    if not any(evaluator.roles.get(name) in attack.plugin.roles for name in asked):
        roles = ", ".join(sorted(attack.plugin.roles))
        raise EvaluationError(
            f"attack {attack.name!r}: it leaves no row to evaluate in sets of role {roles} "
            f"(`unlearnbench attacks show {attack.name}` describes which rows it takes); evaluate "
            "more rows, or leave it out"
        )
    return asked


def _parts(
    attack: _NamedAttack, evaluator: Evaluator, asked: Mapping[str, _AskedRows]
) -> dict[str, dict[str, _AskedRows]]:
    """Divide the rows of a search: those that are reported, and those on which it chooses.

    The part `CHOICE` has every second row of each set with a role of the attack's. The other part
    has the remaining rows, and all rows of the sets that show what is left of the model's utility.

    Raises:
        EvaluationError: A set has only one row.
    """
    reported: dict[str, _AskedRows] = {}
    choosing: dict[str, _AskedRows] = {}
    for set_name, of_set in asked.items():
        if evaluator.roles.get(set_name) not in attack.plugin.roles:
            reported[set_name] = of_set
            continue
        if len(of_set.questions) < 2:
            raise EvaluationError(
                f"attack {attack.name!r}: search needs two rows of {set_name} or more, one to "
                "choose an attacker and one to report it, and there is one; evaluate more rows, or "
                "leave `search` out"
            )
        reported[set_name] = of_set.every_second(0)
        choosing[set_name] = of_set.every_second(1)
    return {"": reported, CHOICE: choosing}


def _points(attack: _NamedAttack, model: Any, tools: AttackTools) -> Generator[str, None, None]:
    """Carry out an attack, and yield each of its points once it is reached. Collective.

    If a loss or the weights are not finite, or if a step does not fit into memory, the attack has
    failed, which is no fault of the run. Then a warning names the points that were not reached.
    """
    plugin = attack.plugin
    points = plugin.points()
    if not isinstance(plugin, WeightAttack):
        yield from points
        return
    reached = 0
    try:
        with closing(_changes(attack, plugin, model, tools)) as changes:
            for point in changes:
                yield point
                reached += 1
    except (NonFiniteError, ShortMemoryError) as error:
        # If several processes share the model, the others may have had room for the step. They wait
        # for this one, so all have to end.
        if isinstance(error, ShortMemoryError) and world_size() > 1:
            raise
        missing = ", ".join(attack.variant(point) for point in points[reached:])
        first_line, _, _ = str(error).partition("\n")
        warn_later(f"no results for {missing}: {first_line}")


def _changes(
    attack: _NamedAttack, plugin: WeightAttack, model: Any, tools: AttackTools
) -> Generator[str, None, None]:
    """Change the weights of a model up to each point, and yield the point. Collective.

    Raises:
        NonFiniteError: The attack has made weights that are not finite.
        PluginError: The attack raises something else, or does not yield its points in order.
    """
    remaining = [*plugin.points()]
    changes: Iterator[str] = iter(())
    try:
        with attack.calls("change"):
            changes = plugin.change(model, tools)
            for point in changes:
                if not remaining or point != remaining[0]:
                    raise PluginError(
                        f"`change` of attack {attack.name!r} yields {point!r} where `points` "
                        f"declares {', '.join(remaining) or None!r}; yield each of `points` once, "
                        "in their order"
                    )
                if not _is_finite(model):
                    raise NonFiniteError(f"it made weights that are not finite at {point!r}")
                remaining.pop(0)
                yield point
            if remaining:
                raise PluginError(
                    f"`change` of attack {attack.name!r} ends before its point {remaining[0]!r}"
                )
    finally:
        # A plug-in's generator undoes its other changes at once, such as hooks.
        if isinstance(changes, Generator):
            changes.close()


def _is_finite(model: Any) -> bool:
    """Whether all weights are finite. Collective."""
    parts = map(local_part, model.parameters())
    own_part_is_finite = all(bool(part.isfinite().all()) for part in parts)
    return all(all_gather(own_part_is_finite))


def _attacked_evaluator(
    attack: _NamedAttack,
    point: str,
    part: str,
    evaluator: Evaluator,
    asked: Mapping[str, _AskedRows],
    rows: AttackRows,
) -> Evaluator:
    """Return an evaluator of the rows as the attack asks them at a point.

    It is kept for the next model, unless its questions depend on the answers of this one.

    Args:
        attack: The attack.
        point: One of its points.
        part: Which part of the rows is asked, see `_parts`.
        evaluator: The evaluator of the plain rows.
        asked: The rows to ask, by set.
        rows: Rows that the attack may use.
    """
    if type(attack.plugin).asked is Attack.asked:
        # The questions stay as they are, so that all points can share one evaluator.
        point = ""
    key = attack.name, attack.plugin.model_dump_json(), point + part
    attacked = evaluator.derived.get(key)
    if attacked is None:
        plain_questions = {set_name: of_set.questions for set_name, of_set in asked.items()}
        attacked_questions: dict[str, tuple[Question, ...]] = {}
        with attack.calls("asked"):
            for set_name, questions in plain_questions.items():
                attacked_questions[set_name] = tuple(
                    attack.plugin.asked(question, point, rows) for question in questions
                )
        attacked = evaluator.with_sets(attacked_questions, plain_questions)
        if not attack.plugin.reads_answers:
            evaluator.derived[key] = attacked
    attacked.batch_tokens = evaluator.batch_tokens
    return attacked


def _with_original_rows(evaluation: Evaluation, asked: Mapping[str, _AskedRows]) -> Evaluation:
    """Return the evaluation with the questions as asked without the attack, and rows' places.

    Two rows may have the same question, so questions alone do not tell which rows were asked.
    """
    sets = dict(evaluation.sets)
    for name, observed in evaluation.sets.items():
        questions = tuple(question.question for question in asked[name].questions)
        sets[name] = replace(observed, questions=questions, places=asked[name].places)
    return replace(evaluation, sets=sets)


@contextmanager
def restored(model: Any) -> Generator[None, None, None]:
    """Restore a model on leaving: weights, buffers, which of them are trained, and the mode.

    Weights are restored bit for bit, from copies in host memory, so that an attack has all of the
    device's memory. Each process restores its own part of a sharded model. A module that replaced
    another one stays.
    """
    copies = {
        name: part.to("cpu", copy=True) for name, part in _own_parts_of_tensors(model).items()
    }
    was_trained = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    was_training = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        with torch.no_grad():
            # `Module.to` moves weights to other memory, and replaces buffers. So the tensors that
            # the model has now are restored, and not those that it had before.
            for name, part in _own_parts_of_tensors(model).items():
                before = copies.get(name)
                # A module that replaced another one may have a weight of another shape.
                if before is not None and before.shape == part.shape:
                    part.copy_(before)
        for name, parameter in model.named_parameters():
            parameter.grad = None
            parameter.requires_grad_(was_trained.get(name, parameter.requires_grad))
        for module, mode in was_training.items():
            module.training = mode


def _own_parts_of_tensors(model: Any) -> dict[str, Tensor]:
    """Return this process's parts of the weights and buffers of a model, by name."""
    named_tensors = (*model.named_parameters(), *model.named_buffers())
    return {name: local_part(tensor.detach()) for name, tensor in named_tensors}
