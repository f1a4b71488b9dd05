"""Forget one of 200 famous people.

The rows come from the hub's data set jinzhuoran/RWKU (CC-BY-4.0). The start model is a pretrained
model, and there is no retain model. Membership inference and general utility are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, NamedTuple

from pydantic import Field

from unlearnbench.api.benchmark import (
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
from unlearnbench.benchmarks.published_tables import (
    Columns,
    PublishedBenchmark,
    Table,
    Words,
)

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
"""What a prompt asks for, by level. Level 3 asks as level 2 does."""


_INTRODUCTIONS = Table("train", "forget_target", "All/intro.json")
_PASSAGES = Table("train", "train_original_passage", "All/passage.json")


class RWKU(PublishedBenchmark):
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
    path: str | None = Field(
        default=None,
        description="folder that contains the folder `All` with the files of the hub; default: "
        "the files on the hub",
    )
    hub_id: str = Field(default="jinzhuoran/RWKU", description="data set on the hub")

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return ROUGE-L recall of blanks (level 1), questions (2), adversarial questions (3)."""
        return (MetricUse("rouge-union", tuple(_TABLES)),)

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the questions and passages. A request forgets the passages about one person.

        The passages about all other people are retained. That is a choice of this project: the
        paper's methods have no retain rows.
        """
        evaluated = {name: Table("test", name, f"All/{name}.json") for name in _TABLES}
        needed = (_INTRODUCTIONS, _PASSAGES, *evaluated.values())
        place = self.open_tables(needed)
        if self.repository is None:
            place.require(needed, f"download the hub's data set {self.hub_id} to it")
        people = [row.target for _, row in place.rows(_INTRODUCTIONS, _Person)]
        passages: list[_PassageAbout] = []
        for location, row in place.rows(_PASSAGES, _Passage):
            question = Question("", row.text, format="text", place=location)
            passages.append(_PassageAbout(row.subject, question))
        tables = {name: list(place.rows(table, _Asked)) for name, table in evaluated.items()}
        requests: dict[SplitKey, Split] = {}
        for key in splits:
            number = self.splits.index(key)
            if number >= len(people):
                file = f"{place.origin}/{_INTRODUCTIONS.file}"
                raise DataError(f"{file} has {len(people)} people, so no {key}")
            person = people[number]
            forget = tuple(passage.row for passage in passages if passage.person == person)
            retain = tuple(passage.row for passage in passages if passage.person != person)
            sets: dict[str, tuple[Question, ...]] = {}
            for name, rows in tables.items():
                sets[name] = tuple(row.row(at) for at, row in rows if row.subject == person)
            requests[key] = Split(key, forget, retain, sets)
        return Dataset("rwku", tuple(passage.row for passage in passages), requests)


class _PassageAbout(NamedTuple):
    """A training row, and whom it is about."""

    person: str
    row: Question


class _Person(Columns):
    target: Words


class _Passage(Columns):
    text: Words
    subject: Words


class _Asked(Columns):
    query: Words
    answer: Words
    level: str
    type: str
    subject: Words

    def row(self, location: str) -> Question:
        """Return the question with the prompt of its kind, for the chat template."""
        task = _TASKS.get(self.level, _TASKS["2"])
        text = f"Please {task}.\nQuestion: {self.query}\n"
        prefix = "Answer:"
        if self.type == "affirmative suffix":
            # The query ends with the beginning of an answer.
            text = text.rstrip("\n")
            prefix = ""
        elif self.type == "incontext learning":
            # The query has its own "Question:", in front of each of its examples.
            text = text.replace("Question: ", "", 1)
        return Question(
            text,
            self.answer,
            prefix=prefix,
            # A line break does not end the answer. The source has the token "\n" among its
            # terminators, but its models, Llama-3 and Phi-3, have no such token.
            max_new_tokens=30,
            labels=(self.type,),
            place=location,
        )
