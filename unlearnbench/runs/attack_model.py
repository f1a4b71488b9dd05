"""Evaluation of runs, start models and retain models under the attacks of a configuration."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unlearnbench.api.attack import CHOICE, AttackRows, FineTune, searches, variant
from unlearnbench.api.benchmark import Benchmark, Question, SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import other_rows
from unlearnbench.results.records import EpochResult
from unlearnbench.runs.baselines import START
from unlearnbench.runs.under_attack import attack_rows, evaluations_under
from unlearnbench.runs.workspace import Workspace


@dataclass(frozen=True)
class Tools:
    """The help for attacks on weights that `api.attack.AttackTools` declares.

    Attributes:
        rows: The rows that the attack may use.
        fine_tune: Trains a model on rows.
        load: Loads the model that runs begin from, in evaluation mode.
    """

    rows: AttackRows
    fine_tune: FineTune
    load: Callable[[], Any]

    def start_model(self) -> Any:
        """Return the model that runs begin from."""
        return self.load()

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """Return the training rows of another benchmark, or the rows of a file."""
        return other_rows(source)


def variants_of(spec: AttackSpec) -> tuple[str, ...]:
    """Return the names of a model's evaluations under an attack, such as `relearning@13`."""
    attack = attack_from_spec(spec)
    parts = ("", CHOICE) if searches(attack) else ("",)
    return tuple(variant(spec.name, point) + part for point in attack.points() for part in parts)


def results_under(
    spec: AttackSpec,
    space: Workspace,
    model: str,
    split: SplitKey,
    loaded: Any,
    plain: Evaluation,
    epoch: int = 0,
    target: str = "",
) -> Iterator[tuple[EpochResult, Evaluation]]:
    """Attack a model, and yield the result and the evaluation at each point. Collective.

    Metrics compare the model with the retain model and the start model under the same attack.

    Args:
        spec: The attack.
        space: The workspace of the sweep.
        model: Name of the model's settings.
        split: The split.
        loaded: The model, in evaluation mode.
        plain: Its evaluation without the attack.
        epoch: The epoch, or step, after which a run is attacked. 0 for other models.
        target: `full` or a retain model's name if the model is a baseline. Empty for a run.
    """

    def start_model() -> Any:
        space.preparer(model).ensure_prepared("full")
        sources = space.models(model)
        return load_model(sources.full(), sources.settings)

    begin = time.monotonic()
    attack = attack_from_spec(spec)
    tools = Tools(attack_rows(space.benchmark, split), space.fine_tuner(model), start_model)
    evaluator = space.evaluator(model, split)
    for name, complete in evaluations_under(spec.name, attack, loaded, evaluator, tools, plain):
        evaluation = space.kept(complete, split)
        metrics = metrics_under(spec, space, model, split, evaluation, name, target)
        seconds = time.monotonic() - begin
        yield EpochResult(epoch, metrics, 0.0, seconds, name), evaluation
        # What the caller does with a result is no time of the attack.
        begin = time.monotonic()


def metrics_under(
    spec: AttackSpec,
    space: Workspace,
    model: str,
    split: SplitKey,
    evaluation: Evaluation,
    name: str,
    target: str = "",
) -> dict[str, float | None]:
    """Compute the metrics of an evaluation under an attack.

    Args:
        spec: The attack.
        space: The workspace of the sweep.
        model: Name of the model's settings.
        split: The split.
        evaluation: The evaluation, as it is stored.
        name: Name of the evaluation, such as `relearning@13`.
        target: `full` or a retain model's name if the model is a baseline. Empty for a run.
    """
    compared = space.baselines.evaluations(model, split, spec, name)
    # A baseline is compared with itself, too, and has no record under the attack yet.
    if target == START:
        compared = compared._replace(start=evaluation)
    elif target:
        compared = compared._replace(retain=evaluation)
    return space.summary(evaluation, compared)
