"""Forget a relationship that others must not imply.

The rows come from github.com/wrh14/deep_unlearning (MIT), as JSON in a folder of the user:

    relationships.jsonl, biographies.jsonl    facts, with `question4` and `answer4`
    subsample.json                            the targets, as indices of relationships
    minimal_sets.json                         the minimal sets of each target

A *minimal set* of a target is a smallest set of facts that has to be forgotten so that the others
do not imply the target. A split is a request, which forgets one target.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

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
from unlearnbench.benchmarks.published_tables import Columns, Words, data_folder, rows_of_file
from unlearnbench.metrics.deep_unlearning import MINIMAL, TARGET

TARGETS = 55
_MinimalSets = dict[int, list[list[int]]]
"""Minimal sets by target. Facts are given by their indices."""
_RELATIONSHIPS = "relationships.jsonl"
_BIOGRAPHIES = "biographies.jsonl"
_FILES = (_RELATIONSHIPS, _BIOGRAPHIES, "subsample.json", "minimal_sets.json")

ModelFamily = Literal["llama", "phi", "gpt2-xl"]


class _Prompt(NamedTuple):
    """The text between a fact's question and its answer."""

    end: str
    """End of the prompt."""
    tag: str
    """Text in front of the answer. It is learned, unlearned and generated with the answer."""


_PROMPTS: Mapping[ModelFamily, _Prompt] = {
    "llama": _Prompt("\n", "Answer:"),
    "phi": _Prompt("\n", "Answer: "),
    "gpt2-xl": _Prompt("\n Answer:", ""),
}
"""Prompts by family of models. Source: wrh14/deep_unlearning@a3c4ccb:config/model_config.yaml."""


class EduRelat(Benchmark):
    """Wu et al. 2024, arXiv:2410.15153: deep unlearning of facts about made-up families."""

    roles: ClassVar[Mapping[str, Role]] = {"biographies": "general", "relationships": "retain"}
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = tuple(f"target{i}" for i in range(1, TARGETS + 1))
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("deep_accuracy", "Other facts kept", "accuracy"),
        forgotten=HeadlineMetric("deep_recall", "Deep unlearning", "recall"),
    )

    source: str = "edu-relat"
    path: str = Field(default="edu_relat", description="folder of its files")
    family: ModelFamily = Field(
        default="llama",
        description="family of models whose prompt is used: with `llama` and `phi`, each answer "
        "begins with `Answer:`; with `gpt2-xl`, `Answer:` is part of the prompt",
    )

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return which facts are still answered, and whether they imply the target."""
        return (
            MetricUse("deep-unlearning", settings={"set": "relationships"}),
            MetricUse("answer-match", tuple(self.roles), {"rule": "contains"}),
        )

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the facts. Each request forgets one fact and retains the others."""
        folder = Path(self.path).expanduser()
        fix = "write the tables of github.com/wrh14/deep_unlearning there, as JSON"
        data_folder(folder, _FILES, f"data.path: {self.path}", fix)
        prompt = _PROMPTS[self.family]
        facts = _facts(folder / _RELATIONSHIPS, prompt)
        biographies = _facts(folder / _BIOGRAPHIES, prompt)
        targets: list[int] = _read(folder / "subsample.json", list[int])
        minimal: _MinimalSets = _read(folder / "minimal_sets.json", _MinimalSets)
        requests: dict[SplitKey, Split] = {}
        for name in splits:
            target = _target(targets, self.splits.index(name), minimal, len(facts), folder)
            labelled = tuple(
                _labelled(fact, i, target, minimal[target]) for i, fact in enumerate(facts)
            )
            retain = (*facts[:target], *facts[target + 1 :], *biographies)
            sets = {"biographies": biographies, "relationships": labelled}
            requests[name] = Split(name, (facts[target],), retain, sets)
        return Dataset("edu-relat", (*facts, *biographies), requests)


def _target(
    targets: Sequence[int], number: int, minimal: _MinimalSets, fact_count: int, folder: Path
) -> int:
    """Return the index of the fact that a request forgets.

    Args:
        targets: Targets of all requests.
        number: Number of the request, from 0.
        minimal: Minimal sets by target.
        fact_count: Number of facts.
        folder: Folder of the tables, for messages.

    Raises:
        DataError: The tables do not fit each other.
    """
    if number >= len(targets):
        table = f"{folder}/subsample.json has {len(targets)} targets"
        raise DataError(f"{table}, so there is no target{number + 1}; write all {TARGETS} there")
    target = targets[number]
    indices = {target}
    for members in minimal.get(target, []):
        indices.update(members)
    if target not in minimal or not all(0 <= index < fact_count for index in indices):
        raise DataError(
            f"{folder}/minimal_sets.json: no minimal sets of fact {target} among the {fact_count} "
            f"facts of {_RELATIONSHIPS}; write the tables of one version there"
        )
    return target


def _labelled(
    fact: Question, index: int, target: int, minimal: Sequence[Sequence[int]]
) -> Question:
    """Label a fact with the minimal sets that it is in, and as the target if it is."""
    labels = [TARGET] if index == target else []
    for number, members in enumerate(minimal):
        if index in members:
            labels.append(f"{MINIMAL}{number}")
    return replace(fact, labels=tuple(labels))


def _read(file: Path, kind: Any) -> Any:
    """Read a JSON file as a value of a type.

    Raises:
        DataError: The file cannot be read so.
    """
    try:
        return TypeAdapter(kind).validate_python(json.loads(file.read_bytes()))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{file}: not the published table ({error}); download it again") from error


class _Fact(Columns):
    question4: Words
    answer4: Words


def _facts(file: Path, prompt: _Prompt) -> tuple[Question, ...]:
    """Read the facts of a file as questions."""
    return tuple(
        Question(
            f"Question: {row.question4}{prompt.end}",
            row.answer4,
            format="text",
            max_new_tokens=10,
            tag=prompt.tag,
            place=location,
        )
        for location, row in rows_of_file(file, str(file), _Fact)
    )
