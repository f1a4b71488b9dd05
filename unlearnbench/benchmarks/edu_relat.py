"""Forget a relationship that others must not imply.

Its rows are those of github.com/wrh14/deep_unlearning (MIT) as JSON, in a folder of the user's:
relationships.jsonl and biographies.jsonl with `question4` and `answer4`, subsample.json with the
targets, and minimal_sets.json with the minimal sets of each. A split is a request: one target.
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
"""By target, the sets of indices of facts."""
_RELATIONSHIPS, _BIOGRAPHIES = "relationships.jsonl", "biographies.jsonl"
_FILES = (_RELATIONSHIPS, _BIOGRAPHIES, "subsample.json", "minimal_sets.json")

ModelFamily = Literal["llama", "phi", "gpt2-xl"]


class _Prompt(NamedTuple):
    """The text between a fact's question and its answer."""

    end: str
    """End of the prompt."""
    tag: str
    """Text in front of the answer that is learned, unlearned and generated with it."""


_PROMPTS: Mapping[ModelFamily, _Prompt] = {
    "llama": _Prompt("\n", "Answer:"),
    "phi": _Prompt("\n", "Answer: "),
    "gpt2-xl": _Prompt("\n Answer:", ""),
}
"""By family of models: wrh14/deep_unlearning@a3c4ccb:config/model_config.yaml."""


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
        """Which facts are still answered, and whether what is left implies the target."""
        return (
            MetricUse("deep-unlearning", settings={"set": "relationships"}),
            MetricUse("answer-match", tuple(self.roles), {"rule": "contains"}),
        )

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the facts; each request forgets one and retains the others."""
        folder = Path(self.path).expanduser()
        fix = "write the tables of github.com/wrh14/deep_unlearning there, as JSON"
        data_folder(folder, _FILES, f"data.path: {self.path}", fix)
        prompt = _PROMPTS[self.family]
        facts, biographies = (
            _facts(folder / name, prompt) for name in (_RELATIONSHIPS, _BIOGRAPHIES)
        )
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
    """Return the fact of a request. Raises: DataError if the tables do not fit each other."""
    if number >= len(targets):
        table = f"{folder}/subsample.json has {len(targets)} targets"
        raise DataError(f"{table}, so there is no target{number + 1}; write all {TARGETS} there")
    target = targets[number]
    indices = {target, *(index for members in minimal.get(target, []) for index in members)}
    if target not in minimal or not all(0 <= index < fact_count for index in indices):
        raise DataError(
            f"{folder}/minimal_sets.json: no minimal sets of fact {target} among the {fact_count} "
            f"facts of {_RELATIONSHIPS}; write the tables of one version there"
        )
    return target


def _labelled(fact: Question, i: int, target: int, minimal: Sequence[Sequence[int]]) -> Question:
    """The fact with the minimal sets that it is in."""
    labels = [TARGET] * (i == target)
    labels += [f"{MINIMAL}{number}" for number, members in enumerate(minimal) if i in members]
    return replace(fact, labels=tuple(labels))


def _read(file: Path, kind: Any) -> Any:
    try:
        return TypeAdapter(kind).validate_python(json.loads(file.read_bytes()))
    except (ValueError, ValidationError) as error:
        raise DataError(f"{file}: not the published table ({error}); download it again") from error


class _Fact(Columns):
    question4: Words
    answer4: Words


def _facts(file: Path, prompt: _Prompt) -> tuple[Question, ...]:
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
