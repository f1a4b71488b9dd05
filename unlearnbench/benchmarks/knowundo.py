"""KnowUnDo: forget private facts about made-up writers, retain their public ones.

Its rows are those of github.com/zjunlp/unlearn, folder `dataset/KnowUnDo/privacy` (MIT), that a
user has on disk; the copyright part is left out. There is no retain model.

The authors unlearn and evaluate text without a template: the question, an empty line, the answer.
The line breaks are scored with the answer, and a row has at most 256 tokens.
Source: zjunlp/KnowUnDo@92aea2b:llm_unlearn/utils/save_tokenized_dataset.py,
llm_tokenize_with_chunk.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Format,
    Headline,
    HeadlineMetric,
    MetricUse,
    Question,
    Reference,
    Split,
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.json_lines import JsonRow, Words, data_folder, json_array

_EMPTY_LINE = "\n\n"
_CONTEXT = 256
"""Most tokens of an evaluated row of text."""
_TABLES = ("full", "unlearn_train", "retention_train", "unlearn_val", "retention_val")


class KnowUnDo(Benchmark):
    """Tian et al. 2024, arXiv:2407.01920: token accuracy on questions that were not trained on."""

    roles: ClassVar[Mapping[str, Role]] = {"retention": "retain", "unlearning": "forget"}
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = ("privacy",)
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("exact_memorization_retention", "Token accuracy, public", "accuracy"),
        forgotten=HeadlineMetric(
            "exact_memorization_unlearning", "Token accuracy, private", "private", better="lower"
        ),
    )

    source: str = "knowundo"
    path: str = Field(default="knowundo", description="folder of its files, full.json and others")
    format: Format = Field(
        default="text",
        description="text: the question, an empty line and the answer, as its authors have them; "
        "chat: in the model's template",
    )

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Token accuracy without EOS: 100 − that of `unlearning` is the paper's unlearn success."""
        return (MetricUse("exact-memorization", tuple(self.roles)),)

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the five tables."""
        folder = Path(self.path).expanduser()
        fix = "take them from dataset/KnowUnDo/privacy of github.com/zjunlp/unlearn"
        files = [f"{name}.json" for name in _TABLES]
        data_folder(folder, files, f"data.path: {self.path}", fix)
        full, forget, retain, private, public = (
            _rows(folder / file, self.format) for file in files
        )
        # Of one question, `full` has another answer than `unlearn_train`, whose answer is taken.
        rows = {row.question: row for row in (*full, *forget, *retain, *private, *public)}
        sets = {"retention": public, "unlearning": private}
        split = Split("privacy", forget, retain, sets)
        return Dataset("knowundo", tuple(rows.values()), {"privacy": split})


class _Row(JsonRow):
    text: Words
    labels: Words


def _rows(file: Path, format_: Format) -> tuple[Question, ...]:
    return tuple(
        Question(
            row.text,
            row.labels,
            format=format_,
            tag=_EMPTY_LINE if format_ == "text" else "",
            max_length=_CONTEXT if format_ == "text" else None,
            place=location,
        )
        for location, row in json_array(file, _Row)
    )
