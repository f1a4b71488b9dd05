"""The work of runs as counts, which do not depend on the device; texts' lengths are estimates."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

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
"""Characters of a token of English text, about, in current vocabularies."""
TEMPLATE = 10
"""Tokens of a template around question and answer, about."""


@dataclass(frozen=True)
class AttackEffort:
    """Work of attacks on one model."""

    evaluations: float = 0.0
    """Evaluations under attacks, as shares of a plain evaluation."""
    steps: int = 0
    """Optimiser steps of attacks that train."""
    rows: int = 0
    """Rows of these steps."""
    trained: float = 0.0
    """Tokens of rows that change all weights."""
    adapted: float = 0.0
    """Tokens of rows that change only adapters."""

    def times(self, count: int) -> "AttackEffort":
        """Return the work of so many such attacks."""
        return AttackEffort(
            self.evaluations * count,
            self.steps * count,
            self.rows * count,
            self.trained * count,
            self.adapted * count,
        )

    def __add__(self, other: "AttackEffort") -> "AttackEffort":
        return AttackEffort(
            self.evaluations + other.evaluations,
            self.steps + other.steps,
            self.rows + other.rows,
            self.trained + other.trained,
            self.adapted + other.adapted,
        )


@dataclass(frozen=True)
class Effort:
    """Work of a run."""

    steps: int
    """Optimiser steps."""
    rows: int
    """Rows that go through the model forward and back: forget, retain and refusal parts."""
    trained: float
    """Tokens of these rows."""
    sampled: float
    """Tokens of the answers that training samples."""
    evaluations: int
    attacked: int
    """Evaluations under attacks, of the sets that each attack is about. After the best epoch so far
    (`at: best`) as if each were the best."""
    whole: float
    """All of these evaluations, those under attacks as shares of a plain one."""
    questions: int
    """Questions of a plain evaluation."""
    scored: float
    """Tokens of an evaluation that are scored."""
    answers: int
    """Answers that are decoded in an evaluation."""
    decoded: float
    """Mean tokens of a decoded answer."""
    limit: int
    """Most tokens of a decoded answer."""
    text: float
    """Tokens of a slot: prompt and answer."""
    attacks: AttackEffort = AttackEffort()
    """Work of the attacks on this run's model, after each epoch from which they start."""
    attacks_once: AttackEffort = AttackEffort()
    """Work of the same attacks on a retain model or start model."""


def rows_per_item(run: RunSpec) -> tuple[int, int]:
    """Trained rows, and sampled answers, for each forget row; none of what trains nothing."""
    method = method_from_spec(run.method)
    if not isinstance(method, Method):
        return 0, 0
    needs = Objective(method, run.method.retain).needs
    sampled = needs.samples.count if needs.samples and "sample" in needs.parts else 0
    return needs.rows_per_item, sampled


def effort_of(run: RunSpec, benchmark: Dataset) -> Effort:
    """Count the work of a run. Each question is read once, with each of its answers."""
    profile, roles = profile_of(run.evaluation), run.data.set_roles
    sets = evaluation_sets(benchmark, run.forget_fraction, profile)
    questions = [item for its in sets.values() for item in its]
    prompt = fmean(_prompt(item) for item in questions)
    answer = fmean(_count(item.answer) for item in questions)
    answered = [q for name, its in sets.items() if is_answered(its, roles[name]) for q in its]
    rule = profile.max_new_tokens or max(profile.max_length - round(prompt), 1)
    limits = [question.max_new_tokens or rule for question in answered] or [0]
    scored = sum(_count(text) for item in questions for text in item.scored_answers)

    split = benchmark.splits[run.forget_fraction]
    attack_rows = AttackRows(tuple(split.forget), tuple(split.retain))
    length_of_row = fmean(tokens for tokens, _ in row_lengths(run, benchmark))
    attacked = 0
    attacks, attacks_once = AttackEffort(), AttackEffort()
    for attack in map(attack_from_spec, run.attacks):
        times = 1 if attack.at == "last" else len(run.evaluate_at)
        about = sum(len(its) for name, its in sets.items() if roles[name] in attack.roles)
        attacked += len(attack.points()) * times
        work = _attack_effort(attack, about / len(questions), attack_rows, length_of_row)
        attacks += work.times(times)
        attacks_once += work

    forget = len(benchmark.splits[run.forget_fraction].forget)
    trained, sampled = rows_per_item(run)
    schedule = run.schedule(forget) if trained else None
    rows = schedule.rows_drawn * trained if schedule else 0
    # A schedule may leave out rows at the end of a training by epochs.
    by_epochs = forget * run.budget
    answered_rows = schedule.rows_drawn if schedule and run.unit is Unit.STEP else by_epochs
    return Effort(
        steps=schedule.steps if schedule else 0,
        rows=rows,
        trained=rows * length_of_row,
        sampled=answered_rows * sampled * length_of_row,
        evaluations=len(run.evaluate_at),
        attacked=attacked,
        whole=len(run.evaluate_at) + attacks.evaluations,
        questions=len(questions),
        scored=scored + len(questions) * prompt,
        answers=len(answered),
        decoded=(answer + fmean(limits)) / 2,
        limit=max(limits),
        text=prompt + max(limits),
        attacks=attacks,
        attacks_once=attacks_once,
    )


def _attack_effort(
    attack: Attack, share: float, rows: AttackRows, length_of_row: float
) -> AttackEffort:
    """Count the work of an attack on one model.

    Args:
        attack: The attack.
        share: Questions that it asks, as a share of a plain evaluation.
        rows: The rows of the split.
        length_of_row: Mean tokens of a training row.
    """
    each = attack.samples if isinstance(attack, SamplingAttack) else 1
    evaluations = len(attack.points()) * each * share
    if not isinstance(attack, TrainingAttack):
        return AttackEffort(evaluations)
    steps = attack.steps[-1]
    trained_rows = steps * attack.rows_of_step(rows)
    tokens = trained_rows * length_of_row
    if attack.lora_rank is None:
        return AttackEffort(evaluations, steps, trained_rows, trained=tokens)
    return AttackEffort(evaluations, steps, trained_rows, adapted=tokens)


def efforts_of(runs: Iterable[RunSpec], benchmark: Dataset) -> list[Effort]:
    """The work of each run; it is counted once for runs that differ in model, rate and seed."""
    known: dict[tuple[object, ...], Effort] = {}
    result: list[Effort] = []
    for run in runs:
        key = run.method.model_dump_json(), run.forget_fraction, run.budget, run.evaluate_at
        known[key] = known.get(key) or effort_of(run, benchmark)
        result.append(known[key])
    return result


def planned_work(efforts: Sequence[Effort]) -> dict[str, int]:
    """The sums of the work of runs, as `plan --json` names them."""
    return {
        "runs": len(efforts),
        "optimiser_steps": sum(effort.steps for effort in efforts),
        "training_rows": sum(effort.rows for effort in efforts),
        "evaluations": sum(effort.evaluations for effort in efforts),
        "evaluated_questions": sum(effort.evaluations * effort.questions for effort in efforts),
        "attacked_evaluations": sum(effort.attacked for effort in efforts),
    }


def row_lengths(run: RunSpec, benchmark: Dataset) -> list[tuple[int, int]]:
    """Estimate the tokens of each training row of a run, and of its answer, from the texts."""
    split, most = benchmark.splits[run.forget_fraction], run.training.max_length
    return [
        (min(_prompt(row) + (answer := _count(row.answer)), most), min(answer, most))
        for row in (*split.forget, *split.retain)
    ]


def _prompt(question: Question) -> int:
    turns = [question.question, *("".join(example) for example in question.examples)]
    return sum(_count(text) + TEMPLATE * (question.format == "chat") for text in turns)


def _count(text: str) -> int:
    return math.ceil(len(text) / CHARACTERS)
