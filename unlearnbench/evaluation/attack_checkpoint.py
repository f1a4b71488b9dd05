"""One model, plain and under attacks, in one call: for a script, a notebook, and the command line.

    from unlearnbench.config.entries import attack_specs
    from unlearnbench.evaluation.attack_checkpoint import attack_checkpoint
    from unlearnbench.evaluation.evaluate_model import set_up

    setup = set_up("./my-model", data="../tofu")
    attacked = attack_checkpoint("./my-model", attack_specs({"relearning": {}}), setup)
    attacked.under["relearning@13"]  # an Evaluation, as attacked.plain is

Needs neither Ray nor MLflow nor Plotly. The model's files are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.api.callbacks import ProgressCallback
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.data.encoding import Encoder
from unlearnbench.data.other_rows import other_rows
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.evaluate_model import EvaluationSetup
from unlearnbench.evaluation.under_attack import attack_rows, evaluations_under
from unlearnbench.training.fine_tuning import FineTuner


@dataclass(frozen=True, eq=False)
class AttackedModel:
    """The evaluations of one model."""

    plain: Evaluation
    """On every set of the benchmark."""
    under: Mapping[str, Evaluation]
    """By variant, on the sets and rows that the attack is about."""


@dataclass(eq=False)
class CheckpointTools:
    """Help for attacks on a checkpoint, see `api.attack.AttackTools`."""

    rows: AttackRows
    fine_tune: FineTuner
    """With the length and precision that runs have by default."""
    _setup: EvaluationSetup
    _start: str | Path | None
    """Folder or hub id of the model before unlearning."""
    _loaded: Any = None

    @classmethod
    def of(cls, setup: EvaluationSetup, start: str | Path | None) -> CheckpointTools:
        """The tools for models that are evaluated by `setup`."""
        own = setup.evaluator
        length = TrainingSettings().max_length
        encoder = Encoder(own.encoder.tokenizer, own.encoder.template, length)
        return cls(attack_rows(setup.rows, setup.forget), FineTuner(encoder, own.pad), setup, start)

    def start_model(self) -> Any:
        """The start model, loaded once. Raises: EvaluationError where none is given."""
        if self._start is None:
            raise EvaluationError(
                "an attack reads the start model, the one before unlearning: give it with --start"
            )
        if self._loaded is None:
            self._loaded = self._setup.loaded(self._start)
        return self._loaded

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """The training rows of another benchmark, or the rows of a file."""
        return other_rows(source)


def attack_checkpoint(
    model: Any,
    attacks: Sequence[AttackSpec],
    setup: EvaluationSetup,
    *,
    start: str | Path | None = None,
    progress: ProgressCallback | None = None,
    done: Callable[[str], None] = lambda _: None,
) -> AttackedModel:
    """Evaluate a model, then attack it in each way and evaluate it again.

    model     folder, hub id, or a model in memory, whose weights are restored bit for bit
    start     folder or hub id of the start model, for attacks that read it
    progress  of the plain evaluation
    done      called with the name of each variant that has been evaluated
    """
    tools = CheckpointTools.of(setup, start)
    with setup.ready(model) as loaded:
        plain = setup.evaluator(loaded, None, progress)
        under: dict[str, Evaluation] = {}
        for spec in attacks:
            how = spec.name, attack_from_spec(spec), loaded, setup.evaluator, tools, plain
            for name, found in evaluations_under(*how):
                under[name] = found
                done(name)
    return AttackedModel(plain, under)
