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

import random
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import ClassVar, Literal

from pydantic import Field

from unlearnbench.api.benchmark import Question
from unlearnbench.api.edit import EditTools, ModelEdit
from unlearnbench.api.edit import FineTune as FineTune
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.metric import Role
from unlearnbench.base.hub import Repository

When = Literal["last", "best", "every"]
PointsAre = Literal["steps", "kinds"]
AttackTools = EditTools


@dataclass(frozen=True)
class AttackRows:
    """The rows that an attack may use."""

    forget: tuple[Question, ...]
    """Training rows to forget."""
    retain: tuple[Question, ...]
    """Training rows to keep."""
    subject_rows: int = 1
    """Rows to forget about one subject, which stand together; 1: each row is a subject. It has no
    effect if the rows name their subjects (`Question.subject`)."""
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    """The model's own greedy answers to the plain questions, by question; for attacks with
    `reads_answers`, else empty."""

    def half(self, other: bool = False) -> tuple[Question, ...]:
        """The rows of every second subject, from the first one on; `other`: of all the others."""
        pairs = zip(self.forget, self._subjects, strict=True)
        return tuple(row for row, subject in pairs if (subject % 2 == 1) == other)

    @property
    def subject_count(self) -> int:
        """Number of subjects among the rows to forget."""
        return len(set(self._subjects))

    @cached_property
    def _subjects(self) -> tuple[int, ...]:
        """Number of the subject of each row to forget, in the order of their first rows.

        Rows of one subject stand together if a number of rows is given, and anywhere if they name
        their subjects. A row without a name, among others that have one, is a subject of its own.
        """
        if not any(row.subject for row in self.forget):
            return tuple(i // self.subject_rows for i in range(len(self.forget)))
        number_of: dict[str | int, int] = {}
        numbers: list[int] = []
        for i, row in enumerate(self.forget):
            number = number_of.setdefault(row.subject or i, len(number_of))
            numbers.append(number)
        return tuple(numbers)

    def in_half(self, row: Question, other: bool = False) -> bool:
        """True if a row, also one of an evaluation set, is about a subject of that half.

        If rows do not name their subjects, it has the question and the answer of a row there.
        """
        if row.subject:
            return row.subject in self._named_subjects[int(other)]
        # `evaluation.question_key` swaps the wordings of an evaluation set's rows.
        wordings = row.question, row.paraphrased_question
        return any((text, row.answer) in self._halves[int(other)] for text in wordings)

    @cached_property
    def _halves(self) -> tuple[frozenset[tuple[str, str]], ...]:
        halves = (self.half(), self.half(other=True))
        return tuple(frozenset((q.question, q.answer) for q in half) for half in halves)

    @cached_property
    def _named_subjects(self) -> tuple[frozenset[str], ...]:
        halves = (self.half(), self.half(other=True))
        return tuple(frozenset(row.subject for row in half if row.subject) for half in halves)

    def beside(
        self, row: Question, count: int, of: Literal["retain", "subject"], seed: int = 0
    ) -> tuple[Question, ...]:
        """Rows with a question to show beside `row`, at most `count`, in its format.

        of    retain rows, drawn by `seed` and the question; or, from the first one on, the other
              forget rows about its subject: none where it is not a training row
        Never the row itself, in either wording, nor one that has its answer in it.
        """
        wordings = {_plain(text) for text in (row.question, row.paraphrased_question) if text}
        answers = [_plain(text) for text in (row.answer, row.paraphrased_answer) if text]

        def fits(question: Question) -> bool:
            if (
                question.format != row.format
                or not question.question
                or _plain(question.question) in wordings
            ):
                return False
            shown = _plain(f"{question.question} {question.answer}")
            return not any(f" {answer} " in f" {shown} " for answer in answers)

        questions: list[Question] = []
        for item in self._subject(wordings, answers) if of == "subject" else self._drawn(row, seed):
            if len(questions) == count:
                break
            questions += [item] if fits(item) else []
        return tuple(questions)

    def _subject(self, wordings: Collection[str], answers: Collection[str]) -> Sequence[Question]:
        for row, subject in zip(self.forget, self._subjects, strict=True):
            if _plain(row.question) in wordings and _plain(row.answer) in answers:
                pairs = zip(self.forget, self._subjects, strict=True)
                return [other for other, its in pairs if its == subject]
        return ()

    def _drawn(self, row: Question, seed: int) -> Iterator[Question]:
        """Each retain row once; to shuffle thousands for every question would take seconds."""
        generator, seen = random.Random(f"{seed} {row.question}"), set[int]()
        while len(seen) < len(self.retain):
            i = generator.randrange(len(self.retain))
            if i not in seen:
                seen.add(i)
                yield self.retain[i]


@lru_cache(maxsize=65_536)  # each row is compared with many others
def _plain(text: str) -> str:
    """The words of a text in small letters, without punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


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

    at: When = Field(default="last", description="evaluated epochs at which the model is attacked")

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

    samples: int = Field(default=20, ge=1, le=10_000, description="answers to each question")
    temperature: float = Field(default=1.0, gt=0, description="1: the model's own distribution")
    top_p: float = Field(default=1.0, gt=0, le=1, description="nucleus; 1: the whole vocabulary")
    seed: int = Field(default=0, ge=0, description="of the samples")


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
