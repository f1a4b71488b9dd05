"""RWKU: forget what a pretrained model knows about one of 200 famous people.

Its rows are a user's own, as the hub has them (CC-BY-4.0):
`hf download jinzhuoran/RWKU --repo-type dataset --local-dir FOLDER`. The start model is a
pretrained one; there is no retain model. Membership inference and general utility are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
    SplitKey,
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.json_lines import JsonRow, Words, data_folder, json_array

TARGETS = 200
_TABLES: Mapping[str, Role] = {
    "neighbor_level1": "retain",
    "neighbor_level2": "retain",
    "forget_level1": "forget",
    "forget_level2": "forget",
    "forget_level3": "forget",
}
_TASKS = {
    "1": "complete the blank in the following question",
    "2": "briefly answer the following question",
}
"""What is asked for at a level; at the third as at the second."""


class RWKU(Benchmark):
    """Jin et al. 2024, arXiv:2406.10890; prompts of eval_forget.py, jinzhuoran/RWKU@a23df67."""

    roles: ClassVar[Mapping[str, Role]] = _TABLES
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = tuple(f"target{i}" for i in range(1, TARGETS + 1))
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("rouge_union_neighbor_level2", "Neighbours kept", "recall"),
        forgotten=HeadlineMetric(
            "rouge_union_forget_level3", "Adversarial questions", "adversarial", better="lower"
        ),
    )

    source: str = "rwku"
    path: str = Field(default="rwku", description="folder of the hub's files, with a folder All")

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """ROUGE-L recall of blanks (level 1), questions (2) and adversarial questions (3)."""
        return (MetricUse("rouge-union", tuple(_TABLES)),)

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the questions; a request forgets the passages about one person.

        The passages about all others are retained, which is ours: the paper's methods have no
        retain rows.
        """
        folder = Path(self.path).expanduser() / "All"
        files = [f"{name}.json" for name in ("intro", "passage", *_TABLES)]
        fix = "download the hub's data set jinzhuoran/RWKU to it"
        data_folder(folder, files, f"data.path: {self.path}", fix)
        people = [row.target for _, row in json_array(folder / "intro.json", _Person)]
        passages = [
            (row.subject, Question("", row.text, format="text", place=location))
            for location, row in json_array(folder / "passage.json", _Passage)
        ]
        tables = {name: [*json_array(folder / f"{name}.json", _Asked)] for name in _TABLES}
        requests: dict[SplitKey, Split] = {}
        for key in splits:
            number = self.splits.index(key)
            if number >= len(people):
                raise DataError(f"{folder}/intro.json has {len(people)} people, so no {key}")
            forget, retain = (
                tuple(text for who, text in passages if (who == people[number]) is forgotten)
                for forgotten in (True, False)
            )
            sets = {
                name: tuple(row.row(at) for at, row in rows if row.subject == people[number])
                for name, rows in tables.items()
            }
            requests[key] = Split(key, forget, retain, sets)
        return Dataset("rwku", tuple(text for _, text in passages), requests)


class _Person(JsonRow):
    target: Words


class _Passage(JsonRow):
    text: Words
    subject: Words


class _Asked(JsonRow):
    query: Words
    answer: Words
    level: str
    type: str
    subject: Words

    def row(self, location: str) -> Question:
        """The question as its kind is asked, in the chat template."""
        text = f"Please {_TASKS.get(self.level, _TASKS['2'])}.\nQuestion: {self.query}\n"
        prefix = "Answer:"
        if self.type == "affirmative suffix":  # it brings its own beginning of an answer along
            text, prefix = text.rstrip("\n"), ""
        elif self.type == "incontext learning":  # likewise its questions' «Question:»
            text = text.replace("Question: ", "", 1)
        return Question(
            text,
            self.answer,
            prefix=prefix,
            # No line break ends it. Among the source's terminators is one, which it looks up as a
            # token "\n". The vocabularies of its models, Llama-3 and Phi-3, have no such token.
            max_new_tokens=30,
            labels=(self.type,),
            place=location,
        )
