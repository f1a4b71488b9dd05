"""Settings of evaluations: by which rules, when, and after which results a run ends early.

Each field declares its part in ids (`api/identity.py`), and the rules that only these fields need
stand first. `profiles.py` turns the settings into a profile.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError

from unlearnbench.api.identity import ALWAYS, IF_SET, LEFT_OUT, NEVER, RUNS, Id, Place, Rule
from unlearnbench.api.profile import QuestionKey
from unlearnbench.config.entries import MetricEntries
from unlearnbench.config.precision import Precision
from unlearnbench.config.profile_names import ProfileName
from unlearnbench.config.section import LARGEST_SIZE, MOST_EPOCHS, Settings, is_none
from unlearnbench.config.unit import Unit

OF_PROFILE: Final = ALWAYS.of(*RUNS)
"""For fields that change the profile. Ids of evaluations have the hash of the profile instead."""


def _if_trained(place: Place) -> Any:
    """Return a field that is set, if its run has a learning rate and therefore trains."""
    is_trained = place.read("learning_rate") is not None
    return place.value if is_trained and place.value != place.default else LEFT_OUT


IF_TRAINED: Final = Rule("only if set, and the run trains", _if_trained, reads=("learning_rate",))
"""A method that trains nothing has one evaluation, after which nothing can end early."""


def _if_a_run_may_end_early(place: Place) -> Any:
    """Return a field that is set, if `patience` or `stop_below` can end the run."""
    is_trained = place.read("learning_rate") is not None
    has_patience = place.section.get("patience") is not None and is_trained
    may_end = has_patience or place.section.get("stop_below") is not None
    return place.value if may_end and place.value != place.default else LEFT_OUT


IF_A_RUN_MAY_END_EARLY: Final = Rule(
    "only if set, and a run may end early", _if_a_run_may_end_early, reads=("learning_rate",)
)
"""Metrics are read from the same observations, whichever are asked for. They change a run only if
one of them can end the run."""


def _in_effect(place: Place) -> Any:
    """Return the precision of evaluations that a run has, also if the configuration states none."""
    if place.value is not None:
        return place.value
    # Earlier versions evaluated a run that trains in bf16 under the autocast of its training, which
    # gives other numbers. The dtype in the id tells their runs from those of today.
    if place.read("training.precision") == "bf16":
        return place.read("model.dtype")
    return LEFT_OUT


IN_EFFECT: Final = Rule(
    "if set; the weights' own if the run trains in bf16", _in_effect, reads=("model", "training")
)
"""For the precision of evaluations."""


class Patience(Settings):
    """Early stopping of a run whose metric has not improved for some evaluated epochs, or steps.

    For example, write `{metric: log10_forget_quality, epochs: 2}`, or in a sweep by steps
    `{metric: …, steps: 50}`. The rule looks only at the run itself, and it is part of the run's
    identity. A scheduler, in contrast, compares a run with other runs (status `stopped`).

    Runs with the same rule may end after different numbers of epochs. If you need equal budgets,
    leave the rule out and choose epochs afterwards. A setting has no mean at an epoch that one of
    its seeds did not reach.
    """

    metric: Annotated[str, ALWAYS] = Field(description="a column of results.csv")
    steps: Annotated[int | None, IF_SET] = Field(
        default=None,
        ge=1,
        le=LARGEST_SIZE,
        exclude_if=is_none,
        description="in a sweep by steps, number of steps without improvement after which a run "
        "ends, instead of `epochs`",
    )
    epochs: Annotated[int | None, ALWAYS] = Field(
        default=None,
        ge=1,
        validate_default=True,
        description="number of evaluated epochs without improvement after which a run ends",
    )
    min_delta: Annotated[float, ALWAYS] = Field(
        default=0.0, ge=0, description="smallest improvement that counts"
    )
    mode: Annotated[Literal["max", "min"] | None, ALWAYS] = Field(
        default=None,
        description="whether a larger or a smaller value is better; default: the metric's own "
        "direction, otherwise max",
    )

    @field_validator("epochs")
    @classmethod
    def _epochs_or_steps(cls, epochs: int | None, info: ValidationInfo) -> int | None:
        """Refuse a patience without a number of epochs or steps."""
        # If the stated `steps` are wrong, they are missing in the data, and their field reports it.
        if epochs is None and info.data.get("steps", 1) is None:
            raise PydanticKnownError("missing")
        return epochs

    def ended(
        self,
        evaluated: Iterable[tuple[int, Mapping[str, float | None]]],
        better: Literal["higher", "lower"] | None,
    ) -> str | None:
        """Return the reason to end a run after these evaluations; None to continue.

        An evaluation without a value counts as one without improvement.

        Args:
            evaluated: Moment (epoch or step) and metrics of each evaluation, in order.
            better: Direction of the metric's column. None if the column has no direction.
        """
        is_minimised = self.mode == "min" or (self.mode is None and better == "lower")
        sign = -1.0 if is_minimised else 1.0
        best = -math.inf
        best_moment = 0
        last_moment = 0
        without_improvement = 0
        for moment, metrics in evaluated:
            last_moment = moment
            value = metrics.get(self.metric)
            # NaN is greater than no number, so it never counts as an improvement.
            score = math.nan if value is None else sign * value
            is_first_value = math.isinf(best)
            if score > best and (is_first_value or score - best > self.min_delta):
                best = score
                best_moment = moment
                without_improvement = 0
            else:
                without_improvement += 1

        if self.steps is None:
            unit = Unit.EPOCH
            is_over = self.epochs is not None and without_improvement >= self.epochs
        else:
            unit = Unit.STEP
            is_over = last_moment - best_moment >= self.steps
        if not is_over:
            return None
        reason = "never had a number"
        if best_moment:
            reason = f"has not improved since {unit.at(best_moment)} ({sign * best:.4g})"
        more = f" by more than {self.min_delta:g}" if self.min_delta else ""
        return f"{unit.at(last_moment)}: {self.metric} {reason}{more} (evaluation.patience)"


class EvaluationSettings(Settings):
    """Rules and precision of evaluations, and early stopping."""

    profile: Annotated[ProfileName, OF_PROFILE] = Field(
        default="tofu", description="named set of evaluation rules"
    )
    max_length: Annotated[int | None, OF_PROFILE] = Field(
        default=None,
        ge=8,
        description="maximal length of prompt and answer in tokens, instead of the profile's value",
    )
    rows: Annotated[int | None, OF_PROFILE] = Field(
        default=None,
        ge=1,
        description="number of first rows of each set that are evaluated, instead of the "
        "profile's value",
    )
    question_key: Annotated[QuestionKey | None, IF_SET.of(*RUNS)] = Field(
        default=None,
        description="column of the questions in forget and retain sets, instead of the profile's "
        "column",
    )
    batch_tokens: Annotated[int | None, NEVER] = Field(
        default=None,
        ge=64,
        description="number of tokens in a batch; default: a fast size for the device; it "
        "changes no results",
    )
    precision: Annotated[Precision | None, IN_EFFECT.of(*RUNS), IF_SET.of(Id.EVALUATION)] = Field(
        default=None,
        description="precision of evaluations, including those of the start and retain models; "
        "bf16, fp16: autocast, if the weights are float32; default: bf16 on GPUs, "
        "and the type of the weights on CPUs",
    )
    every: Annotated[int | None, NEVER] = Field(
        default=1,
        ge=1,
        le=MOST_EPOCHS,
        description="number of epochs between two evaluations of a run; the last epoch is always "
        "evaluated",
    )
    every_steps: Annotated[int | None, NEVER] = Field(
        default=None,
        ge=1,
        le=LARGEST_SIZE,
        exclude_if=is_none,
        description="in a sweep by `steps`, number of steps between two evaluations of a run, "
        "instead of `every`; the last step is always evaluated; default: only the "
        "last step",
    )
    stop_below: Annotated[float | None, IF_SET.of(*RUNS)] = Field(
        default=None,
        gt=0,
        le=1,
        description="end a run whose Model Utility is below this share of the start model's "
        "Model Utility",
    )
    patience: Annotated[Patience | None, IF_TRAINED.of(*RUNS)] = Field(
        default=None,
        description="end a run whose metric has not improved for this number of evaluated "
        "epochs: {metric: …, epochs: …}",
    )
    metrics: Annotated[MetricEntries, IF_A_RUN_MAY_END_EARLY.of(*RUNS)] = Field(
        default={},
        description="metrics to report in addition to the usual ones, or with other settings: "
        "[fluency, …], or {mia-min-k: {share: 0.2}, …}; `unlearnbench metrics list` "
        "prints the names",
    )


class EntryEvaluation(Settings):
    """When runs of one method are evaluated, in place of the sweep's `evaluation`."""

    every: int | None = Field(
        default=None,
        ge=1,
        le=MOST_EPOCHS,
        description="number of epochs between two evaluations of a run; the last epoch is always "
        "evaluated",
    )
    every_steps: int | None = Field(
        default=None,
        ge=1,
        le=LARGEST_SIZE,
        description="in a sweep by `steps`: steps between two evaluations of a run",
    )
