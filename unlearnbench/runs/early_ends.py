"""Why a run ends before its last epoch: its model has collapsed, or it improves no longer."""

from typing import Any

from unlearnbench.base.distributed import broadcast_from_main
from unlearnbench.base.row_texts import row_text
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.results.records import EpochResult, read_record
from unlearnbench.runs.baselines import START
from unlearnbench.runs.checkpoints import RunState
from unlearnbench.runs.workspace import Workspace


def collapse_reason(
    spec: RunSpec, space: Workspace, state: RunState, *, trains: bool
) -> str | None:
    """Return why the last evaluation ends a run as collapsed.

    Args:
        spec: The run.
        space: The workspace of its configuration.
        state: The state of the run.
        trains: Whether the method trains. Otherwise `evaluation.stop_below` does not apply.

    Returns:
        None if the run goes on.
    """
    if not state.results:
        return None
    last = state.results[-1]
    kept = space.headline.kept
    utility = last.metrics.get(kept.column)
    # A run that trains nothing counts epochs, but its messages use the unit of its sweep.
    moment = space.config.unit.at(last.epoch)
    if utility is None:
        return f"{moment}: the model's outputs are no longer finite{_first_question(state, last)}"
    share = spec.evaluation.stop_below
    if share is None or not trains:
        return None
    start = _start_utility(spec, space)
    if start is None or utility >= share * start:
        return None
    return (
        f"{moment}: {kept.plain_label} {utility:.4g} is below "
        f"{share * start:.4g}, which is {share:g} of the start model's {start:.4g} "
        "(evaluation.stop_below)"
    )


def _first_question(state: RunState, result: EpochResult) -> str:
    """Return the first question whose outputs are not finite, as the end of a sentence."""
    statistics = state.evaluations[result.epoch, ""].statistics
    question = None if statistics is None else statistics.not_finite
    return "" if question is None else f", first at the question {row_text(question[:60])}"


def _start_utility(spec: RunSpec, space: Workspace) -> float | None:
    """Return the start model's value of the metric that a run has to keep."""
    folder = space.baselines.record_folder(spec.model.name, START, spec.forget_fraction)
    return read_record(folder).epochs[0].metrics.get(space.headline.kept.column)


def patience_reason(spec: RunSpec, space: Workspace, state: RunState) -> str | None:
    """Return why a run ends early by `evaluation.patience`, or None if it goes on. Collective."""
    rule = spec.evaluation.patience
    if rule is None or state.epoch >= spec.budget:
        return None
    better: Any = None
    for column in space.metrics.columns:
        if column.name == rule.metric:
            better = column.better
            break
    results = [(result.epoch, result.metrics) for result in state.results]
    return broadcast_from_main(lambda: rule.ended(results, better))
