"""The specification of one run: everything that its numbers depend on, hashed into its id.

Each field declares how it counts in ids (`api/identity.py`). `config/plan.py` makes the specs of a
sweep, and `record.json` stores the spec of each run.
"""

from typing import Annotated, Any, Final

from pydantic import Field

from unlearnbench.api.benchmark import SplitKey, split_label
from unlearnbench.api.identity import (
    ALWAYS,
    IF_SET,
    LEFT_OUT,
    NEVER,
    Id,
    Place,
    Rule,
    identity_of,
)
from unlearnbench.base.hashing import canonical_json, content_hash, json_ready, text_hash
from unlearnbench.base.number_text import float_text
from unlearnbench.base.redaction import ADDRESS, redact_tree
from unlearnbench.config.entries import AttackSpec, BenchmarkSection
from unlearnbench.config.evaluation_settings import EvaluationSettings
from unlearnbench.config.method_settings import MethodSpec
from unlearnbench.config.model_settings import ModelSettings
from unlearnbench.config.section import Settings
from unlearnbench.config.step_schedule import Schedule
from unlearnbench.config.training_settings import TrainingSettings, schedule_of
from unlearnbench.config.unit import Unit

_LENGTH = ("epochs", "steps", "evaluate_at")
"""Values of a run that say how long it is and when it is evaluated."""
_STEPS_ARE_IN_THE_ROW = "those of the row"
"""Stands for the number of steps in the id of a setting. Stored ids contain these words."""


def _is_evaluated_only_at_end(place: Place) -> bool:
    steps = place.read("steps")
    length = place.read("epochs") if steps is None else steps
    return bool(place.read("evaluate_at") == [length])


def _unless_the_row_tells_it(place: Place) -> Any:
    """Leave out the number of epochs of a run that is evaluated only after the last one.

    With `epochs_as: runs`, a setting has a run for each number of epochs. The rows of these runs
    in the table differ in the epoch, so they are never averaged, and the setting has one id.
    """
    return LEFT_OUT if _is_evaluated_only_at_end(place) else place.value


def _steps_unless_the_row_tells_them(place: Place) -> Any:
    """Leave out the number of steps in the same way, but not the fact that the run is by steps."""
    if place.value is None:
        return LEFT_OUT
    return _STEPS_ARE_IN_THE_ROW if _is_evaluated_only_at_end(place) else place.value


UNLESS_IT_FOLLOWS: Final = Rule(
    "unless the epoch of a row tells it", _unless_the_row_tells_it, reads=_LENGTH
)
IF_SET_UNLESS_IT_FOLLOWS: Final = Rule(
    "only if set; unless the step of a row tells it, the number",
    _steps_unless_the_row_tells_them,
    reads=_LENGTH,
)


class RunSpec(Settings):
    """One run: everything that its numbers depend on, and where its data are.

    A field that was added after the first release has a default, which stands for the behaviour of
    the versions before it. So the ids of runs of those versions stay as they are.
    """

    data: Annotated[BenchmarkSection, NEVER]  # `data_fingerprint` represents it
    data_fingerprint: Annotated[str, ALWAYS.because("the rows of the benchmark have changed")]
    """Hash of the rows themselves: a file can change while its path stays the same."""
    model: Annotated[ModelSettings, ALWAYS]
    content: Annotated[
        dict[str, str],
        NEVER.because("a model folder or a log that the configuration names has changed"),
    ] = Field(default_factory=dict)
    """Hashes of the folders and logs that `model` names, by setting (such as `retain.retain90`).
    The hashes stand in the id in place of the paths, see `BY_CONTENT` in
    `config/model_settings.py`. Empty in specs of versions that had the paths in the id."""
    forget_fraction: Annotated[SplitKey, ALWAYS]
    """The fraction of the rows to forget (`0.1`), or the name of the split (`forget10`)."""
    method: Annotated[MethodSpec, ALWAYS]
    learning_rate: Annotated[float | None, ALWAYS]
    """None for a method that trains nothing."""
    epochs: Annotated[int | None, ALWAYS.of(Id.RUN, Id.STATED), UNLESS_IT_FOLLOWS.of(Id.SETTING)]
    """None for a run by steps."""
    steps: Annotated[
        int | None, IF_SET.of(Id.RUN, Id.STATED), IF_SET_UNLESS_IT_FOLLOWS.of(Id.SETTING)
    ] = Field(default=None, exclude_if=lambda steps: steps is None)
    """Optimiser steps of a run by steps. None for a run by epochs, and for a run that trains
    nothing."""
    evaluate_at: Annotated[
        tuple[int, ...], ALWAYS.of(Id.RUN, Id.STATED), UNLESS_IT_FOLLOWS.of(Id.SETTING)
    ]
    """Epochs, or steps, after which the model is evaluated."""
    seed: Annotated[int, ALWAYS.of(Id.RUN, Id.STATED)]
    training: Annotated[TrainingSettings, ALWAYS]
    evaluation: Annotated[EvaluationSettings, ALWAYS]
    attacks: Annotated[tuple[AttackSpec, ...], IF_SET] = ()
    """Attacks under which the run is evaluated, besides its plain evaluation."""
    attack_training: Annotated[
        dict[str, Any], IF_SET.because("attacks train with other settings")
    ] = Field(default_factory=dict)
    """Training settings of the attacks. Empty if they are the same as the run's own."""
    template_digest: Annotated[str, IF_SET.because("the rendered chat template has changed")] = ""
    """Digest of the rendered prompt, see `template_digest` in `models/identity_entries.py`. Empty
    for templates other than a model's chat template and llama-2."""
    turn_digest: Annotated[
        str, IF_SET.because("answers now end where the chat template ends a turn")
    ] = ""
    """Digest of the tokens that end turns and answers, see `ModelSources.turn_digest`. Empty if
    only EOS ends them."""
    leaves_out_label: Annotated[
        bool, IF_SET.because("the label of the prompt is no longer part of the loss")
    ] = False
    """Whether the label of the template (phi's `Answer:`) is left out of a loss that leaves out the
    first answer tokens. False in specs of versions that counted the label's tokens as these."""
    takes_roles_apart: Annotated[
        bool,
        IF_SET.because("modifiers now see the gradient of one role where the loss joins both"),
    ] = False
    """Whether a mean over forget and retain rows together is divided by role for a modifier that
    asks for the gradient of one role. False in specs of versions that gave it both gradients."""
    removes_dropout: Annotated[
        bool,
        IF_SET.because("dropout is now removed for losses that compare with the start model"),
    ] = False
    """Whether the model has dropout, and trains without it. False in specs of versions that always
    kept it."""
    corrections: Annotated[
        tuple[str, ...],
        IF_SET.because("earlier versions computed wrong numbers for the model's architecture"),
    ] = ()
    """Corrected faults that concern the model's architecture, see `models/corrections.py`. Empty in
    specs of versions that had the faults."""
    starts_exactly: Annotated[
        bool,
        IF_SET.because("the retain gradient of the first step is now 0, and was rounding errors"),
    ] = False
    """Whether the gradient of a divergence from the start model is exactly 0 in the first step, see
    `method_specs.starts_exactly`. False in specs of versions in which it was rounding errors."""
    profile_version: Annotated[int, IF_SET.because("the evaluation profile has a new version")] = 1
    """Version of the evaluation profile."""
    after: Annotated[str, IF_SET.because("the run that they continue is repeated")] = Field(
        default="", exclude_if=lambda run: not run
    )
    """Id of the run whose model this run continues. Empty if it begins from the start model."""

    @property
    def identity(self) -> dict[str, Any]:
        """The values whose hash is the id, ready for JSON."""
        identity: dict[str, Any] = redact_tree(identity_of(self))
        return identity

    @property
    def id(self) -> str:
        """Content hash: equal specs on equal data are the same run."""
        identity = identity_of(self)
        text = canonical_json(identity)
        # A sweep computes ids by the ten thousand. `redact_tree` changes only texts with addresses.
        return content_hash(redact_tree(identity)) if ADDRESS in text else text_hash(text)

    @property
    def unit(self) -> Unit:
        """The unit of the run's length and of the moments of its evaluations."""
        return Unit.EPOCH if self.steps is None else Unit.STEP

    @property
    def budget(self) -> int:
        """Number of epochs of the run, or of steps.

        A stored run may have neither. Then it ends with its last evaluation.
        """
        length = self.epochs if self.steps is None else self.steps
        return self.evaluate_at[-1] if length is None else length

    def schedule(self, rows: int) -> Schedule:
        """Return the steps of the run.

        Args:
            rows: Number of forget rows.

        Raises:
            TrainingError: There would be no steps.
        """
        return schedule_of(self.training, rows, self.unit, self.budget)

    @property
    def title(self) -> str:
        """Name for people: `ce-u · tiny · forget 0.1 · lr 2e-05 · 5 epochs · seed 0`."""
        parts = [self.method.label, self.model.name, split_label(self.forget_fraction)]
        if self.learning_rate is not None:
            parts.append(f"lr {float_text(self.learning_rate)}")
            parts.append(self.unit.counted(self.budget))
        parts.append(f"seed {self.seed}")
        return " · ".join(parts)

    def to_json(self) -> dict[str, Any]:
        """Return every field, ready for JSON: infinite floats become text, secrets are removed."""
        fields: dict[str, Any] = redact_tree(json_ready(self.model_dump(mode="json")))
        return fields
