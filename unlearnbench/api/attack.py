"""The contract of an attack: how an adversary uses a model that is said to have forgotten.

An attack is a frozen value whose fields are its settings. It changes the model's weights, or what
is asked, or how often the model is asked; the harness evaluates the model then, and restores it:

    class Paraphrase(PromptAttack):
        label = "Paraphrased question"

        def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
            return replace(row, question=row.paraphrased_question or row.question)

An evaluation under an attack is a variant of the plain one, with a name: `paraphrase`, or
`relearning@13` where an attack is evaluated at several points. The retain model and the start model
are attacked in the same way, so that what an attack gives back has a null to compare it with.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field

from unlearnbench.api.attack_rows import AttackRows as AttackRows
from unlearnbench.api.benchmark import Question
from unlearnbench.api.edit import EditTools, ModelEdit
from unlearnbench.api.edit import FineTune as FineTune
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.metric import Role
from unlearnbench.base.hub import Repository

When = Literal["last", "best", "every"]
PointsAre = Literal["steps", "kinds"]
AttackTools = EditTools


class Attack(HyperParameters, ABC):
    """Base of attacks. Subclasses of plug-ins: `WeightAttack`, `PromptAttack`, `SamplingAttack`."""

    reserved: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    """Raised when the same settings come to give other numbers."""
    label: ClassVar[str]
    """Name for people: `Relearning`."""
    roles: ClassVar[frozenset[Role]] = frozenset({"forget"})
    """Evaluation sets that are evaluated under it."""
    white_box: ClassVar[bool] = False
    """True if the adversary holds the weights and runs them without what a method puts in front of
    the model: a method at inference time is bypassed."""
    reads_answers: ClassVar[bool] = False
    """True if `asked` reads `AttackRows.answers`."""
    points_are: ClassVar[PointsAre | None] = None
    """Meaning of the names that `points` returns.

    `steps`: optimiser steps of one training, as whole numbers. `0` is the model before the first
    step. Only steps have a curve, an area under it and a number of steps to half.
    `kinds`: anything else, such as codes, prompts or depths, also if they are named by digits.
    None: `steps` for a `WeightAttack` that declares `trains`, `kinds` for all others.
    """

    at: When = Field(
        default="last",
        description="epochs, among the evaluated ones, at which the model is attacked",
    )

    def points(self) -> tuple[str, ...]:
        """Names of what is evaluated, in order: steps, or kinds of prompts; one "" for one."""
        return ("",)

    def content(self) -> str:
        """Hash of what it reads from files beyond its settings; part of a run's identity."""
        return ""

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """The hub's repositories that it reads, by the setting that names each.

        A plan finds the commit of each one, and every process of a sweep reads that commit.
        """
        return {}

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Return whether a row of an evaluation set is evaluated under the attack."""
        return True

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """The row as it is evaluated at a point; its answers stay as they are."""
        return row


class WeightAttack(Attack, ModelEdit):
    """Base of attacks that change the weights; yields each of `points`, in their order."""

    trains: ClassVar[bool] = False
    """True if it trains by `tools.fine_tune`, for which weights may not be sharded. Its points are
    steps, unless `points_are` says something else."""


class PromptAttack(Attack):
    """Base of attacks that ask otherwise."""

    @abstractmethod
    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """The row as it is evaluated at a point; its answers stay as they are."""


class SamplingAttack(Attack):
    """Base of attacks that ask many times and sample the answers."""

    samples: int = Field(
        default=20, ge=1, le=10_000, description="number of answers to each question"
    )
    temperature: float = Field(
        default=1.0, gt=0, description="temperature of the samples; 1: the model's own distribution"
    )
    top_p: float = Field(
        default=1.0,
        gt=0,
        le=1,
        description="probability of the nucleus from which tokens are sampled; 1: the whole "
        "vocabulary",
    )
    seed: int = Field(default=0, ge=0, description="seed of the samples")


def has_steps(kind: type[Attack]) -> bool:
    """Whether the points of an attack are steps of a training, see `Attack.points_are`."""
    if kind.points_are is None:
        return issubclass(kind, WeightAttack) and kind.trains
    return kind.points_are == "steps"


def only_samples(kind: type[Attack]) -> bool:
    """Whether an attack puts the same questions to the same model, and only samples answers.

    Then greedy answers and losses are those of the plain evaluation. Only metrics that read
    `samples` can move.
    """
    same_model = not issubclass(kind, WeightAttack)
    return issubclass(kind, SamplingAttack) and same_model and kind.asked is Attack.asked


def variant(name: str, point: str) -> str:
    """Name of the evaluation at a point of an attack: `paraphrase`, `relearning@13`."""
    return f"{name}@{point}" if point else name
