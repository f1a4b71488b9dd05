"""Forget private facts of made-up writers, keep public ones.

The rows come from the hub's data set zjunlp/KnowUnDo, configuration `privacy`. The folder
`dataset/KnowUnDo/privacy` of github.com/zjunlp/unlearn (MIT) has them in another layout. The
copyright part is left out. There is no retain model.

The authors unlearn and evaluate text without a template: the question, an empty line, the answer.
The line breaks are scored with the answer, and a row has at most 256 tokens.
Source: zjunlp/KnowUnDo@92aea2b:llm_unlearn/utils/save_tokenized_dataset.py,
llm_tokenize_with_chunk.py.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from unlearnbench.api.benchmark import (
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
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.base.table_files import fetched, files_of_repository
from unlearnbench.benchmarks.published_tables import (
    Columns,
    PlacedRow,
    PublishedBenchmark,
    Table,
    Words,
    rows_of_list,
    unreachable,
)

_EMPTY_LINE = "\n\n"
_CONTEXT = 256
"""Largest number of tokens of an evaluated row of text."""
_FULL = "full"
_TABLES = ("unlearn_train", "retention_train", "unlearn_val", "retention_val")
"""The tables, in the order of their rows in `full`."""
_CONFIG = "privacy"


class KnowUnDo(PublishedBenchmark):
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
    path: str | None = Field(
        default=None,
        description="folder of its files, full.json and others; default: the files on the hub",
    )
    hub_id: str = Field(default="zjunlp/KnowUnDo", description="data set of the hub")
    format: Format = Field(
        default="text",
        description="text: the question, an empty line and the answer, as the authors have them; "
        "chat: both in the model's template",
    )

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return token accuracy without EOS.

        The paper's unlearn success is 100 − the accuracy on `unlearning`, in percent.
        """
        return (MetricUse("exact-memorization", tuple(self.roles)),)

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the tables."""
        repository = self.repository
        tables = self._folder_tables() if repository is None else _hub_tables(repository)
        questions: dict[str, tuple[Question, ...]] = {}
        rows_by_question: dict[str, Question] = {}
        for name in (_FULL, *_TABLES):
            rows = tuple(_question(row, place, self.format) for place, row in tables[name])
            questions[name] = rows
            # For one question, `full` and `unlearn_train` have different answers. The later one is
            # taken.
            rows_by_question |= {row.question: row for row in rows}
        sets = {"retention": questions["retention_val"], "unlearning": questions["unlearn_val"]}
        split = Split("privacy", questions["unlearn_train"], questions["retention_train"], sets)
        return Dataset("knowundo", tuple(rows_by_question.values()), {"privacy": split})

    def _folder_tables(self) -> dict[str, list[PlacedRow[_Row]]]:
        """Return the rows of the five files of a folder, by table."""
        files = {name: Table(name, file=f"{name}.json") for name in (_FULL, *_TABLES)}
        place = self.open_tables(files.values())
        place.require(
            files.values(), "take them from dataset/KnowUnDo/privacy of github.com/zjunlp/unlearn"
        )
        return {name: [*place.rows(table, _Row)] for name, table in files.items()}


class _Row(Columns):
    text: Words
    labels: Words


def _hub_tables(repository: hub.Repository) -> dict[str, list[PlacedRow[_Row]]]:
    """Return the rows of the two files of the hub, by table.

    Each file is one object with two lists, `train` and `val`, so it cannot be read as a table.
    """
    tables: dict[str, list[PlacedRow[_Row]]] = {}
    try:
        files = files_of_repository(repository, _CONFIG)
        for split in ("unlearn", "retention"):
            for file in fetched(repository, _CONFIG, files.get(split, ())):
                document = _lists(file.path.read_bytes(), file.name)
                for part, rows in document.items():
                    tables[f"{split}_{part}"] = [*rows_of_list(rows, f"{file.name}, {part}", _Row)]
    except hub.HubError as error:
        raise unreachable(repository, error, "path", "knowundo") from error
    missing = [name for name in _TABLES if name not in tables]
    if missing:
        raise DataError(
            f"{repository.name}: the configuration {_CONFIG} lacks {', '.join(missing)}; name a "
            "repository or revision with KnowUnDo's files"
        )
    # The hub has no table of all rows. The other tables make it, in this order.
    tables[_FULL] = [row for name in _TABLES for row in tables[name]]
    return tables


def _lists(text: bytes, name: str) -> Mapping[str, list[Any]]:
    """Read a file of the hub: an object of lists.

    Raises:
        DataError: The file has another form.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise DataError(f"{name}: not JSON ({error})") from error
    if not isinstance(document, dict) or not all(map(_is_list, document.values())):
        raise DataError(f"{name}: expected an object with the lists `train` and `val`")
    return document


def _is_list(value: object) -> bool:
    return isinstance(value, list)


def _question(row: _Row, place: str, format_: Format) -> Question:
    return Question(
        row.text,
        row.labels,
        format=format_,
        tag=_EMPTY_LINE if format_ == "text" else "",
        max_length=_CONTEXT if format_ == "text" else None,
        place=place,
    )
