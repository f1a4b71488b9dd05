"""What a plan will cost, counted in steps, rows and questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from unlearnbench import registry
from unlearnbench.plan import Plan

if TYPE_CHECKING:  # it imports torch, which a plan that is only printed has no need of
    from unlearnbench.method import Needs


@dataclass(frozen=True)
class Rows:
    """Size of one forget fraction, in rows."""

    forget: int
    evaluated: int
    """Questions of one evaluation, all four sets together."""


@dataclass(frozen=True)
class Work:
    """What a plan will do, counted, not timed: time depends on the machine."""

    runs: int
    optimiser_steps: int
    training_rows: int
    """Rows that go through the model forward and back: forget, retain and refusal parts."""
    evaluations: int
    evaluated_questions: int


def estimate(plan: Plan, rows: Mapping[float, Rows]) -> Work:
    """The work of a plan, given the rows of each forget fraction."""
    from unlearnbench.method import Method
    from unlearnbench.retain import Objective

    steps = training_rows = evaluations = questions = 0
    parts: dict[str, int] = {}
    for run in plan.runs:
        size, key = rows[run.forget_fraction], repr(run.method)
        if key not in parts:
            method = registry.method_from_spec(run.method)
            parts[key] = 0
            if isinstance(method, Method):
                parts[key] = rows_of_an_item(Objective(method, run.method.retain).needs)
        if parts[key]:
            schedule = run.schedule(size.forget)
            steps += schedule.steps
            training_rows += schedule.rows_drawn * parts[key]
        evaluations += len(run.evaluate_at)
        questions += len(run.evaluate_at) * size.evaluated
    return Work(len(plan.runs), steps, training_rows, evaluations, questions)


def rows_of_an_item(needs: Needs) -> int:
    """Rows that go through the model for each row to forget."""
    samples = needs.samples.count if needs.samples and "sample" in needs.parts else 1
    return len(needs.parts - {"sample"}) + ("sample" in needs.parts) * samples
