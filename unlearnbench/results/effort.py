"""The work of runs, counted in steps, rows, evaluations and tokens, whatever the device.

Tokens are estimated from the lengths of texts, because no tokenizer is loaded. `run_estimate.py`
turns the work into hours.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import NamedTuple

from unlearnbench.api.attack import Attack, AttackRows, SamplingAttack
from unlearnbench.api.benchmark import Dataset, Question
from unlearnbench.api.method import Method
from unlearnbench.attacks._training_steps import TrainingAttack
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.sets import evaluation_sets, is_answered
from unlearnbench.training.objective import Objective

CHARACTERS = 4
"""Approximate characters of a token of English text in current vocabularies."""
TEMPLATE = 10
"""Approximate tokens of a chat template around a question and its answer."""
NO_ANSWERS = (0,)
"""Limits of an evaluation that generates no answers."""


@dataclass(frozen=True)
class AttackEffort:
    """Work of attacks on one model."""

    evaluations: float = 0.0
    """Evaluations under attacks, as fractions of a plain evaluation."""
    steps: int = 0
    """Optimiser steps of attacks that train."""
    rows: int = 0
    """Rows of these steps."""
    trained_tokens: float = 0.0
    """Tokens of rows that change all weights."""
    adapted_tokens: float = 0.0
    """Tokens of rows that change only adapters."""

    def times(self, count: int) -> "AttackEffort":
        """Return the work of `count` such attacks."""
        return AttackEffort(
            self.evaluations * count,
            self.steps * count,
            self.rows * count,
            self.trained_tokens * count,
            self.adapted_tokens * count,
        )

    def __add__(self, other: "AttackEffort") -> "AttackEffort":
        return AttackEffort(
            self.evaluations + other.evaluations,
            self.steps + other.steps,
            self.rows + other.rows,
            self.trained_tokens + other.trained_tokens,
            self.adapted_tokens + other.adapted_tokens,
        )


@dataclass(frozen=True)
class Effort:
    """Work of a run. The values of an evaluation are those of a plain one."""

    steps: int
    """Optimiser steps."""
    rows: int
    """Rows that go through the model forward and back: forget, retain and refusal parts."""
    trained_tokens: float
    """Tokens of these rows."""
    sampled_tokens: float
    """Tokens of the answers that training samples."""
    evaluations: int
    """Plain evaluations."""
    attacked: int
    """Evaluations under attacks, each on the sets that the attack is about.

    An attack on the best epoch so far (`at: best`) is counted as if each epoch were the best.
    """
    whole_evaluations: float
    """All evaluations. One under an attack counts as the fraction of questions that it asks."""
    questions: int
    """Questions of an evaluation."""
    scored_tokens: float
    """Tokens of an evaluation that are scored."""
    answers: int
    """Answers that an evaluation generates."""
    answer_tokens: float
    """Mean tokens of a generated answer."""
    longest_answer: int
    """Most tokens of a generated answer."""
    slot_tokens: float
    """Tokens that decoding keeps in memory for an answer: the prompt and the longest answer."""
    attacks: AttackEffort = AttackEffort()
    """Work of the attacks on this run's model, over all epochs that they attack."""
    attacks_once: AttackEffort = AttackEffort()
    """Work of the same attacks on a retain model or start model, which has one epoch."""


def rows_per_item(run: RunSpec) -> tuple[int, int]:
    """Count the trained rows and the sampled answers for each forget row.

    Returns:
        `(2, 0)` for a method with a retain term. `(0, 0)` for a method that trains nothing.
    """
    method = method_from_spec(run.method)
    if not isinstance(method, Method):
        return 0, 0
    needs = Objective(method, run.method.retain).needs
    sampled = 0
    if needs.samples is not None and "sample" in needs.parts:
        sampled = needs.samples.count
    return needs.rows_per_item, sampled


def effort_of(run: RunSpec, benchmark: Dataset) -> Effort:
    """Count the work of a run.

    An evaluation reads each question once, followed by all of its answers.
    """
    profile = profile_of(run.evaluation)
    sets = evaluation_sets(benchmark, run.forget_fraction, profile)
    questions = [question for rows in sets.values() for question in rows]
    mean_prompt = fmean(_prompt_tokens(question) for question in questions)
    mean_answer = fmean(_tokens(question.answer) for question in questions)
    scored_answers = sum(
        _tokens(answer) for question in questions for answer in question.scored_answers
    )

    answered = _answered(sets, run)
    # If neither the question nor the profile limits an answer, the length of the text does.
    default_limit = profile.max_new_tokens or max(profile.max_length - round(mean_prompt), 1)
    limits = [question.max_new_tokens or default_limit for question in answered] or NO_ANSWERS
    # Half of the answers are assumed to end like the true answers, the others at their limits.
    answer_tokens = (mean_answer + fmean(limits)) / 2

    row_tokens = fmean(tokens for tokens, _ in row_lengths(run, benchmark))
    attacks = _attacks_of(run, benchmark, sets, row_tokens)

    forget_rows = len(benchmark.splits[run.forget_fraction].forget)
    trained_rows_per_item, samples_per_item = rows_per_item(run)
    steps = 0
    trained_rows = 0
    # In a training by epochs, a schedule may leave out rows at the end. They are counted here.
    sampled_rows = forget_rows * run.budget
    if trained_rows_per_item:
        schedule = run.schedule(forget_rows)
        steps = schedule.steps
        trained_rows = schedule.rows_drawn * trained_rows_per_item
        if run.unit is Unit.STEP:
            sampled_rows = schedule.rows_drawn
    return Effort(
        steps=steps,
        rows=trained_rows,
        trained_tokens=trained_rows * row_tokens,
        sampled_tokens=sampled_rows * samples_per_item * row_tokens,
        evaluations=len(run.evaluate_at),
        attacked=attacks.evaluation_count,
        whole_evaluations=len(run.evaluate_at) + attacks.all_epochs.evaluations,
        questions=len(questions),
        scored_tokens=scored_answers + len(questions) * mean_prompt,
        answers=len(answered),
        answer_tokens=answer_tokens,
        longest_answer=max(limits),
        slot_tokens=mean_prompt + max(limits),
        attacks=attacks.all_epochs,
        attacks_once=attacks.once,
    )


def _answered(sets: Mapping[str, Sequence[Question]], run: RunSpec) -> list[Question]:
    """Return the questions that an evaluation generates answers to."""
    roles = run.data.set_roles
    answered: list[Question] = []
    for name, rows in sets.items():
        if is_answered(rows, roles[name]):
            answered += rows
    return answered


class _AttacksOfRun(NamedTuple):
    """Work of all attacks of a run."""

    evaluation_count: int
    all_epochs: AttackEffort
    """On the run's own model, which some attacks attack in several epochs."""
    once: AttackEffort
    """On a model of one epoch."""


def _attacks_of(
    run: RunSpec,
    benchmark: Dataset,
    sets: Mapping[str, Sequence[Question]],
    row_tokens: float,
) -> _AttacksOfRun:
    """Count the work of a run's attacks.

    Args:
        run: The run.
        benchmark: With the rows of its split.
        sets: Its evaluation sets.
        row_tokens: Mean tokens of a training row.
    """
    split = benchmark.splits[run.forget_fraction]
    rows = AttackRows(tuple(split.forget), tuple(split.retain))
    roles = run.data.set_roles
    question_count = sum(len(questions) for questions in sets.values())
    evaluation_count = 0
    all_epochs = AttackEffort()
    once = AttackEffort()
    for attack in map(attack_from_spec, run.attacks):
        epochs = 1 if attack.at == "last" else len(run.evaluate_at)
        asked = sum(
            len(questions)
            for name, questions in sets.items()
            if roles[name] in attack.evaluated_roles
        )
        work = _attack_effort(attack, asked / question_count, rows, row_tokens)
        evaluation_count += len(attack.points()) * epochs
        all_epochs += work.times(epochs)
        once += work
    return _AttacksOfRun(evaluation_count, all_epochs, once)


def _attack_effort(
    attack: Attack, asked_fraction: float, rows: AttackRows, row_tokens: float
) -> AttackEffort:
    """Count the work of an attack on one model.

    Args:
        attack: The attack.
        asked_fraction: Questions that it asks, as a fraction of a plain evaluation's.
        rows: The rows of the split.
        row_tokens: Mean tokens of a training row.
    """
    evaluations_of_point = attack.samples if isinstance(attack, SamplingAttack) else 1
    evaluations = len(attack.points()) * evaluations_of_point * asked_fraction
    if not isinstance(attack, TrainingAttack):
        return AttackEffort(evaluations)
    whole = AttackEffort(evaluations)
    for attacker in attack.attackers().values():
        whole += _training_effort(attacker, rows, row_tokens)
    return whole


def _training_effort(attacker: TrainingAttack, rows: AttackRows, row_tokens: float) -> AttackEffort:
    """Count the work of the training of one attacker."""
    steps = attacker.steps[-1]
    trained_rows = steps * attacker.rows_of_step(rows)
    tokens = trained_rows * row_tokens
    if attacker.lora_rank is None:
        return AttackEffort(0, steps, trained_rows, trained_tokens=tokens)
    return AttackEffort(0, steps, trained_rows, adapted_tokens=tokens)


def efforts_of(runs: Iterable[RunSpec], benchmark: Dataset) -> list[Effort]:
    """Count the work of each run, once for runs that differ only in model, rate and seed."""
    effort_by_key: dict[tuple[object, ...], Effort] = {}
    efforts: list[Effort] = []
    for run in runs:
        key = run.method.model_dump_json(), run.forget_fraction, run.budget, run.evaluate_at
        if key not in effort_by_key:
            effort_by_key[key] = effort_of(run, benchmark)
        efforts.append(effort_by_key[key])
    return efforts


def planned_work(efforts: Sequence[Effort]) -> dict[str, int]:
    """Add up the work of runs, with the keys of `plan --json`."""
    return {
        "runs": len(efforts),
        "optimiser_steps": sum(effort.steps for effort in efforts),
        "training_rows": sum(effort.rows for effort in efforts),
        "evaluations": sum(effort.evaluations for effort in efforts),
        "evaluated_questions": sum(effort.evaluations * effort.questions for effort in efforts),
        "attacked_evaluations": sum(effort.attacked for effort in efforts),
    }


def row_lengths(run: RunSpec, benchmark: Dataset) -> list[tuple[int, int]]:
    """Estimate the (tokens, tokens of the answer) of each training row of a run from the texts."""
    split = benchmark.splits[run.forget_fraction]
    longest = run.training.max_length
    lengths: list[tuple[int, int]] = []
    for row in (*split.forget, *split.retain):
        answer = _tokens(row.answer)
        whole = _prompt_tokens(row) + answer
        lengths.append((min(whole, longest), min(answer, longest)))
    return lengths


def _prompt_tokens(question: Question) -> int:
    """Estimate the tokens before an answer: the question and the examples shown before it."""
    examples = ["".join(example) for example in question.examples]
    template = TEMPLATE if question.format == "chat" else 0
    return sum(_tokens(turn) + template for turn in (question.question, *examples))


def _tokens(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS)
