"""The benchmark's shape: TOFU's schema as frozen values, whatever the rows come from.

The loaders (`tofu.py`, `synthetic.py`) return a `Benchmark`; nothing after them knows which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Question:
    """One row: a question, its answer and, in the evaluation sets, the answer's variants."""

    question: str
    answer: str
    paraphrased_answer: str | None = None
    perturbed_answers: tuple[str, ...] = ()
    paraphrased_question: str | None = None
    score: float | tuple[float, ...] | None = field(default=None, compare=False)
    """How far the answer is to be learned (1) or unlearned (0): one number, or one for each of its
    tokens and the one that ends it. Not part of what makes two rows equal."""
    place: str = field(default="", compare=False)
    """File and line of a row with a score."""

    @property
    def scored_answers(self) -> tuple[str, ...]:
        """What evaluation scores: the answer, the base of its truth ratio, perturbed answers.

        Facts have no paraphrase; their truth ratio is about the answer itself.
        """
        return (self.answer, self.paraphrased_answer or self.answer, *self.perturbed_answers)


@dataclass(frozen=True)
class Split:
    """What is forgotten and what is kept at one forget fraction."""

    fraction: float
    forget: tuple[Question, ...]
    """Training rows to forget (TOFU's forget01, forget05, forget10)."""
    retain: tuple[Question, ...]
    """Training rows to keep (TOFU's retain99, retain95, retain90)."""
    forget_perturbed: tuple[Question, ...]
    """The forget rows with paraphrased and perturbed answers, for evaluation."""

    @property
    def name(self) -> str:
        """TOFU's name of the split: `forget10` for 0.10, `forget12.5` for 0.125."""
        return split_name("forget", self.fraction)

    @property
    def retain_name(self) -> str:
        """TOFU's name of what is kept: `retain90` for 0.10."""
        return split_name("retain", 1 - self.fraction)


def split_name(role: str, fraction: float) -> str:
    """`role` followed by the percentage, two digits at least: `forget05`, `retain95`."""
    percent = f"{round(fraction * 100, 6):g}"
    whole, dot, rest = percent.partition(".")
    return f"{role}{whole.zfill(2)}{dot}{rest}"


@dataclass(frozen=True)
class Benchmark:
    """All rows of a benchmark that a sweep can need."""

    name: str
    """`tofu` or `synthetic`."""
    full: tuple[Question, ...]
    """Everything the fine-tuned model has learned: forget rows and retain rows."""
    splits: Mapping[float, Split]
    """By forget fraction."""
    retain_perturbed: tuple[Question, ...]
    real_authors: tuple[Question, ...]
    world_facts: tuple[Question, ...]
    refusals: tuple[str, ...]
    """Answers that say «I don't know», for IDK and DPO."""
    pretraining: tuple[Question, ...] = ()
    """Authors in neither set, from which a base model learns the language of the questions."""
    fingerprint: str = field(default="", compare=False)
    """Hash of every row above; part of each run's identity."""

    def sizes(self, fraction: float) -> dict[str, int]:
        """Rows of what is forgotten and kept at a forget fraction, and of each evaluation set."""
        split = self.splits[fraction]
        return {
            "forget": len(split.forget),
            "retain": len(split.retain),
            "forget_perturbed": len(split.forget_perturbed),
            "retain_perturbed": len(self.retain_perturbed),
            "real_authors": len(self.real_authors),
            "world_facts": len(self.world_facts),
        }
