"""The contract of an attack: how an adversary uses a model that is said to have forgotten.

An attack is a frozen value whose fields are its settings. It changes the model's weights, or the
questions, or the number of samples. The harness evaluates the model and restores it afterwards:

    class Paraphrase(PromptAttack):
        label = "Paraphrased question"

        def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
            return replace(row, question=row.paraphrased_question or row.question)

An evaluation under an attack is called a variant. Its name is the attack's, such as `paraphrase`,
followed by a point if the attack has several: `relearning@13`. The retain model and the start model
are attacked in the same way, because an attack also changes the numbers of a model that never saw
the forget rows.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

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
    """Base of attacks. A plug-in subclasses `WeightAttack`, `PromptAttack` or `SamplingAttack`."""

    reserved: ClassVar[tuple[str, ...]] = ()
    version: ClassVar[int] = 1
    """To be increased when the same settings give other numbers than before."""
    label: ClassVar[str]
    """Name for people: `Relearning`."""
    roles: ClassVar[frozenset[Role]] = frozenset({"forget"})
    """Roles of the evaluation sets that are evaluated under the attack."""
    white_box: ClassVar[bool] = False
    """Whether the adversary has the weights. Then methods that change only the model's input are
    bypassed."""
    reads_answers: ClassVar[bool] = False
    """Whether `asked` reads `AttackRows.answers`."""
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
        """Return the names of the evaluations, in order.

        For example `("0", "1", "13")` for steps, or names of kinds of prompts. By default there is
        a single evaluation, whose point is "".
        """
        return ("",)

    @property
    def evaluated_roles(self) -> frozenset[Role]:
        """Roles of the evaluation sets that are evaluated under the attack as it is set."""
        return self.roles

    def attackers(self) -> Mapping[str, Self]:
        """Return the attackers that are tried, by the name of the trial.

        An attack without a search has one attacker, which is itself. Its name is "". A search
        returns several, and the model is restored before each of them. Their points are named
        `t<trial>.<point>`, except for the point before the first step, which all of them share.
        `points` has the points of all attackers. Each point is evaluated on two parts of the rows:
        attackers are chosen on the part whose name ends with `CHOICE`.
        """
        return {"": self}

    @property
    def least_utility(self) -> float | None:
        """Least share of its own utility that an attacked model keeps, for an attacker to count.

        None without a search. Then the attack counts whatever it does to the model.
        """
        return None

    def content(self) -> str:
        """Return a hash of the files that the attack reads; empty if it reads none.

        The hash is part of a run's id.
        """
        return ""

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """Repositories of the hub that the attack reads, by the setting that names each.

        A plan finds the commit of each one, and every process of a sweep reads that commit.
        """
        return {}

    def selects(self, row: Question, rows: AttackRows) -> bool:
        """Whether a row of an evaluation set is evaluated under the attack."""
        return True

    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """Return a row as the attack asks it.

        Args:
            row: The row of an evaluation set.
            point: One of `points`.
            rows: Rows that the attack may use.

        Returns:
            The row with another question. Its answers must stay as they are.
        """
        return row


class WeightAttack(Attack, ModelEdit):
    """Base of attacks that change the weights. `change` yields each of `points`, in their order."""

    trains: ClassVar[bool] = False
    """Whether the attack trains with `tools.fine_tune`, which needs weights that are not sharded.
    The points are steps then, unless `points_are` says something else."""


class PromptAttack(Attack):
    """Base of attacks that ask other questions."""

    @abstractmethod
    def asked(self, row: Question, point: str, rows: AttackRows) -> Question:
        """Return a row as the attack asks it, see `Attack.asked`."""


class SamplingAttack(Attack):
    """Base of attacks that sample several answers to each question."""

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
    """Whether an attack asks the same model the same questions, and only samples answers.

    Then greedy answers and losses are those of the plain evaluation, and only metrics that read
    `samples` have other values.
    """
    same_model = not issubclass(kind, WeightAttack)
    return issubclass(kind, SamplingAttack) and same_model and kind.asked is Attack.asked


def searches(attack: Attack) -> bool:
    """Whether an attack tries several attackers, of which the strongest one is reported."""
    return len(attack.attackers()) > 1


FIRST_POINT = "0"
"""Point before the first step of an attack that trains."""
CHOICE = ".choice"
"""End of the names of points at which attackers of a search are chosen: `t3.13.choice`."""


def trial_point(trial: str, step: str) -> str:
    """Return the name of a point of one attacker: `t3.13` for the third one after 13 steps.

    Before the first step all attackers have the same model, so that point has no number.
    """
    return step if step == FIRST_POINT else f"t{trial}.{step}"


def variant(name: str, point: str) -> str:
    """Return the name of an evaluation under attack: `paraphrase`, or `relearning@13`."""
    return f"{name}@{point}" if point else name
