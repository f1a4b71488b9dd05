"""A benchmark that conforms, and benchmarks each with one mistake.

Apart from the tests, because another process imports them without the suite.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import Field

from unlearnbench.api import (
    Benchmark,
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Split,
)
from unlearnbench.api.metric import Role

Rows = tuple[Question, ...]
SETS = ("retain", "forget")


def row(i: int, text: str = "What is {0} and {0}?", **more: Any) -> Question:
    """A sum in words."""
    wrong = tuple(f"It is {n}." for n in (2 * i + 1, 2 * i + 2))
    return Question(text.format(i), f"It is {2 * i}.", f"{2 * i} it is.", wrong, **more)


class Good(Benchmark):
    """Sums in words: own work."""

    roles: ClassVar[Mapping[str, Role]] = {
        "retain": "retain",
        "forget": "forget",
        "unseen": "holdout",
    }
    headline: ClassVar[Headline] = Headline(
        HeadlineMetric("probability_retain", "Known sums", "known"),
        HeadlineMetric("exact_memorization_forget", "Solved", "solved", better="lower"),
    )

    size: int = Field(default=16, ge=4, description="rows in all")

    def split_problem(self, fraction: float) -> str:
        """A quarter or a half is forgotten."""
        return "" if fraction in (0.25, 0.5) else f"a quarter or a half, got {fraction:g}"

    def metrics(self, profile: Any) -> tuple[MetricUse, ...]:
        """Four, on both sets."""
        del profile
        names = ("rouge", "probability", "exact-memorization", "truth-ratio")
        return tuple(MetricUse(name, SETS) for name in names)

    def rows(self) -> Rows:
        """The rows of the benchmark."""
        return tuple(map(row, range(self.size)))

    def split(self, key: float, rows: Rows) -> Split:
        """A split of the rows."""
        n = round(key * len(rows))
        unseen = tuple(row(i, "And {0} twice?") for i in range(n))
        sets = {"retain": rows[n:], "forget": rows[:n], "unseen": unseen}
        return Split(key, rows[:n], rows[n:], sets)

    def load(self, splits: Sequence[Any]) -> Dataset:
        """Make the rows."""
        rows = self.rows()
        found = {key: self.split(key, rows) for key in splits}
        others = tuple(Question(f"Say {i}.", f"{i}!") for i in range(4))
        return Dataset("sums", rows, found, pretraining=others)


class Named(Good):
    """Splits by name in place of fractions."""

    splits: ClassVar[tuple[str, ...]] = ("small", "large")

    def split(self, key: float | str, rows: Rows) -> Split:
        made = super().split({"small": 0.25, "large": 0.5}[str(key)], rows)
        return Split(key, made.forget, made.retain, made.sets)


class NoColumn(Good):
    """A headline without its column."""

    headline = replace(Good.headline, kept=HeadlineMetric("probability_retained", "K", "k"))


class OneSplit(Good):
    """The same rows at every fraction."""

    def split(self, key: float, rows: Rows) -> Split:
        made = super().split(0.25, rows)
        return Split(key, made.forget, made.retain, made.sets)


class Blank(Good):
    """An answer without a word."""

    def rows(self) -> Rows:
        first, *others = super().rows()
        return (replace(first, answer=" "), *others)


class Unlearned(Good):
    """A forget row that is not in the full set."""

    def load(self, splits: Sequence[Any]) -> Dataset:
        rows = super().load(splits)
        return replace(rows, full=rows.full[1:])


class AnswerAmongWrong(Good):
    """A multiple choice whose wrong options have the true one among them."""

    def split(self, key: float, rows: Rows) -> Split:
        made = super().split(key, rows)
        chosen = tuple(
            replace(r, perturbed_answers=(r.answer, *r.perturbed_answers), answer_index=0)
            for r in made.sets["retain"]
        )
        return replace(made, sets={**made.sets, "retain": chosen})

    def metrics(self, profile: Any) -> tuple[MetricUse, ...]:
        return (MetricUse("choice-accuracy", ("retain",)), *super().metrics(profile)[1:])


class Unordered(Good):
    """The order of a set, which another process has otherwise."""

    def rows(self) -> Rows:
        return tuple({one.question: one for one in {*super().rows()}}.values())
