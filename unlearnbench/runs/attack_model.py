"""A model under the attacks of a configuration: runs, start models and retain models alike."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from unlearnbench.api.attack import AttackRows, FineTune, variant
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
    """Help for attacks on weights, see `api.attack.AttackTools`."""

    rows: AttackRows
    fine_tune: FineTune
    load: Callable[[], Any]
    """The model that runs begin from, in evaluation mode."""

    def start_model(self) -> Any:
        """The model that runs begin from."""
        return self.load()

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The training rows of another benchmark, or the rows of a file."""
        return other_rows(source)


def variants_of(spec: AttackSpec) -> tuple[str, ...]:
    """Names of the variants of an evaluation under the attack."""
    return tuple(variant(spec.name, point) for point in attack_from_spec(spec).points())


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
    """Attack a model; yield the result and the evaluation at each point. Collective.

    model   name of its settings
    loaded  the model, in evaluation mode
    plain   its evaluation without the attack
    target  `full` or a retain model's name, of one that others are compared with

    Metrics compare it with the retain model and the start model under the same attack.
    """

    def start_model() -> Any:
        space.preparer(model).ensure_prepared("full")
        models = space.models(model)
        return load_model(models.full(), models.settings)

    begin = time.monotonic()
    tools = Tools(attack_rows(space.benchmark, split), space.fine_tuner(model), start_model)
    evaluator, attack = space.evaluator(model, split), attack_from_spec(spec)
    for name, whole in evaluations_under(spec.name, attack, loaded, evaluator, tools, plain):
        result = space.kept(whole, split)
        compared = space.baselines.evaluations(model, split, spec, name)
        if target == START:
            compared = compared._replace(start=result)
        elif target:
            compared = compared._replace(retain=result)
        metrics = space.summary(result, compared)
        seconds = time.monotonic() - begin
        yield EpochResult(epoch, metrics, 0.0, seconds, name), result
        begin = time.monotonic()
