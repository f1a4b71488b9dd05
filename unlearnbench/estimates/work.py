"""Count the steps, rows and questions of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from unlearnbench.api.benchmark import SplitKey
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.estimates.time_to_go import rows_per_item
from unlearnbench.plan.plan import Plan


@dataclass(frozen=True)
class SplitSize:
    """Number of rows of one split."""

    forget: int
    evaluated: int
    """Questions of one evaluation, all four sets together."""


@dataclass(frozen=True)
class PlannedWork:
    """The work of a plan as counts, which do not depend on the machine."""

    runs: int
    optimiser_steps: int
    training_rows: int
    """Rows that go through the model forward and back: forget, retain and refusal parts."""
    evaluations: int
    evaluated_questions: int
    attacked_evaluations: int
    """Evaluations of the runs under attacks, of the sets that each attack is about.

    After the best epoch so far (`at: best`) as if each were the best.
    """


def count_work(plan: Plan, rows: Mapping[SplitKey, SplitSize]) -> PlannedWork:
    """Count the work of a plan, given the rows of each split."""
    steps = training_rows = evaluations = questions = attacked = 0
    for run in plan.runs:
        size, (trained, _) = rows[run.forget_fraction], rows_per_item(run)
        if trained:
            schedule = run.schedule(size.forget)
            steps += schedule.steps
            training_rows += schedule.rows_drawn * trained
        evaluations += len(run.evaluate_at)
        questions += len(run.evaluate_at) * size.evaluated
        for attack in map(attack_from_spec, run.attacks):
            times = 1 if attack.at == "last" else len(run.evaluate_at)
            attacked += len(attack.points()) * times
    return PlannedWork(len(plan.runs), steps, training_rows, evaluations, questions, attacked)
