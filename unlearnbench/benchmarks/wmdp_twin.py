"""Made-up multiple choice in the layout of WMDP and MMLU."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

from unlearnbench.api.benchmark import Dataset, Headline, MetricUse, Question
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.authors import RandomStream
from unlearnbench.benchmarks.passages import Passages
from unlearnbench.benchmarks.wmdp import HEADLINE, SETS, choice_metrics

OPTIONS = 4


class WMDPTwin(Passages):
    """`wmdp` with rows of a seed, and texts as options: a tiny model cannot choose a letter."""

    roles: ClassVar[Mapping[str, Role]] = SETS
    headline: ClassVar[Headline] = HEADLINE

    source: str = "wmdp-twin"

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Those of `wmdp`."""
        return choice_metrics("texts")

    def load(self, fractions: Sequence[float]) -> Dataset:
        """The passages; of the authors to keep `neighbours`, of the world `mmlu`."""
        rows = super().load(fractions)
        kinds, splits = self.chapters * self.sentences, dict(rows.splits)
        for key, split in rows.splits.items():
            stream = RandomStream(f"{self.source} {self.seed} {key}")
            asked, kept = split.sets["forget"], split.sets["retain"]
            values = [
                sorted({row.answer for rows in (asked, kept) for row in rows[kind::kinds]})
                for kind in range(kinds)
            ]
            sets = {
                "mmlu": tuple(
                    _choice(row, [row.answer, *row.perturbed_answers], stream)
                    for row in split.sets["world_facts"]
                ),
                "neighbours": _choices(kept, values, stream),
                "wmdp": _choices(asked, values, stream),
            }
            splits[key] = replace(split, sets=sets)
        return replace(rows, name=self.source, splits=splits)


def _choices(
    rows: Sequence[Question], values: Sequence[Sequence[str]], stream: RandomStream
) -> tuple[Question, ...]:
    """Each question with values of the same kind that other authors have."""
    return tuple(
        _choice(row, [row.answer, *_others(row, values[i % len(values)], stream)], stream)
        for i, row in enumerate(rows)
    )


def _others(row: Question, values: Sequence[str], stream: RandomStream) -> list[str]:
    return stream.shuffled(value for value in values if value != row.answer)[: OPTIONS - 1]


def _choice(row: Question, options: Sequence[str], stream: RandomStream) -> Question:
    texts = [text.strip() for text in stream.shuffled(options)]
    i = texts.index(row.answer.strip())
    others = (*texts[:i], *texts[i + 1 :])
    return replace(
        row,
        answer=texts[i],
        perturbed_answers=others,
        answer_index=i,
        paraphrased_question=None,
        max_new_tokens=None,
    )
