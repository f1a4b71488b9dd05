"""Made-up multiple choice in the layout of WMDP and MMLU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from unlearnbench.api.benchmark import Dataset, Headline, MetricUse, Question, Split
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.authors import RandomStream
from unlearnbench.benchmarks.passages import Passages
from unlearnbench.benchmarks.wmdp import HEADLINE, SETS, choice_metrics

OPTIONS = 4
"""Largest number of options of a question."""


class WMDPTwin(Passages):
    """`wmdp` with rows that are generated from a seed.

    Options are texts, because a tiny model cannot choose a letter.
    """

    roles: ClassVar[Mapping[str, Role]] = SETS
    headline: ClassVar[Headline] = HEADLINE

    source: str = "wmdp-twin"

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return the metrics of `wmdp`."""
        return choice_metrics("texts")

    def load(self, fractions: Sequence[float]) -> Dataset:
        """Generate passages, and questions with options.

        `neighbours` asks about authors that are kept, `wmdp` about authors that are forgotten, and
        `mmlu` about true facts.
        """
        passages = super().load(fractions)
        splits = dict(passages.splits)
        for key, split in passages.splits.items():
            stream = RandomStream(f"{self.source} {self.seed} {key}")
            values = self._values(split)
            # In this order, because each set goes on with the draws of the set before.
            mmlu: list[Question] = []
            for row in split.sets["world_facts"]:
                mmlu.append(_choice(row, [row.answer, *row.perturbed_answers], stream))
            sets = {
                "mmlu": tuple(mmlu),
                "neighbours": _choices(split.sets["retain"], values, stream),
                "wmdp": _choices(split.sets["forget"], values, stream),
            }
            splits[key] = replace(split, sets=sets)
        return replace(passages, name=self.source, splits=splits)

    def _values(self, split: Split) -> list[list[str]]:
        """Return the answers of each kind of question, sorted.

        The questions about an author have one kind each, in the same order for all authors.
        """
        kind_count = self.chapters * self.sentences
        values: list[list[str]] = []
        for kind in range(kind_count):
            answers: set[str] = set()
            for name in ("forget", "retain"):
                answers.update(row.answer for row in split.sets[name][kind::kind_count])
            values.append(sorted(answers))
        return values


def _choices(
    rows: Sequence[Question], values: Sequence[Sequence[str]], stream: RandomStream
) -> tuple[Question, ...]:
    """Give each question its answer and values of other authors as options.

    Args:
        rows: Questions about authors.
        values: Values of each kind of question, see `WMDPTwin._values`.
        stream: Draws the options and their order.
    """
    questions: list[Question] = []
    for i, row in enumerate(rows):
        others = _others(row, values[i % len(values)], stream)
        questions.append(_choice(row, [row.answer, *others], stream))
    return tuple(questions)


def _others(row: Question, values: Sequence[str], stream: RandomStream) -> list[str]:
    """Draw wrong options among the values of a kind."""
    return stream.shuffled(value for value in values if value != row.answer)[: OPTIONS - 1]


def _choice(row: Question, options: Sequence[str], stream: RandomStream) -> Question:
    """Return a row with its options, one of which is the answer, in random order."""
    texts = [text.strip() for text in stream.shuffled(options)]
    place = texts.index(row.answer.strip())
    return replace(
        row,
        answer=texts[place],
        perturbed_answers=(*texts[:place], *texts[place + 1 :]),
        answer_index=place,
        paraphrased_question=None,
        max_new_tokens=None,
    )
