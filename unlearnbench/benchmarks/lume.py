"""Forget stories, made-up people and Wikipedia biographies.

The rows come from github.com/amazon-science/lume-llm-unlearning, folder `data` (Apache-2.0), which
the user has on disk. The hub has the part of them that SemEval-2025 task 4 published, on request.
There is no retain model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar, Literal

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
)
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.base import hub
from unlearnbench.base.errors import DataError
from unlearnbench.benchmarks.published_tables import Columns, Table, Words, open_tables

_PARTS: tuple[Role, ...] = ("retain", "forget")
_TASKS = ("Task1", "Task2", "Task3")
_KINDS = {"sc": "rouge", "qa": "answer-match"}
"""Metric by kind of row: completions of sentences (`sc`), and questions (`qa`)."""
ANSWER_TOKENS = 256
CONTEXT = 2048
"""Largest number of tokens of an evaluated row: the context of OLMo, as of the published models."""


_WHERE = "take them from the folder data of github.com/amazon-science/lume-llm-unlearning"


def _set(part: str, task: str, kind: str) -> str:
    """Return the name of an evaluation set: `forget_task1_qa`."""
    return f"{part}_{task.lower()}_{kind}"


_ROLES: Mapping[str, Role] = {
    _set(part, task, kind): part for part in _PARTS for task in _TASKS for kind in _KINDS
}


class LUME(Benchmark):
    """Ramakrishna et al. 2025, arXiv:2502.15097; scored as SemEval-2025 task 4 is."""

    roles: ClassVar[Mapping[str, Role]] = _ROLES
    references: ClassVar[frozenset[Reference]] = frozenset({"start"})
    splits: ClassVar[tuple[str, ...]] = ("all",)
    headline: ClassVar[Headline] = Headline(
        kept=HeadlineMetric("tasks_kept", "Tasks kept", "kept score"),
        forgotten=HeadlineMetric("tasks_forgotten", "Tasks forgotten", "forgotten"),
    )

    source: str = "lume"
    path: str | None = Field(
        default=None,
        description="folder of its files, forget.jsonl and retain.jsonl; default: `lume`, if "
        "`hub_id` is not set either",
    )
    hub_id: str | None = Field(
        default=None,
        description="data set of the hub with these splits, for example "
        "llmunlearningsemeval2025organization/semeval25-unlearning-dataset-public (on request)",
    )
    revision: str | None = Field(default=None, description="commit or tag on the hub")
    part: Literal["train", "validation"] | None = Field(
        default=None,
        description="part of SemEval's rows, `train` or `validation`, whose splits are "
        "`forget_train` and `retain_train`, or `forget_validation` and "
        "`retain_validation`; default: the splits are `forget` and `retain`",
    )
    per_task: int | None = Field(
        default=None,
        ge=1,
        description="number of first rows of each task and kind that are used, for a small "
        "study; default: all",
    )

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return ROUGE-L of completions, exact match of answers, and the official aggregate."""
        columns = {"kept": _columns("retain"), "gone": _columns("forget")}
        uses = [MetricUse("task-aggregate", settings=columns)]
        for kind, metric in _KINDS.items():
            uses.append(MetricUse(metric, tuple(name for name in _ROLES if name.endswith(kind))))
        return tuple(uses)

    @property
    def folder(self) -> str | None:
        """The folder, unless rows are read from the hub."""
        return self.path if self.path is not None or self.hub_id is not None else "lume"

    @property
    def repository(self) -> hub.Repository | None:
        """The hub's repository, if one is named and no folder is."""
        if self.path is not None or self.hub_id is None:
            return None
        return hub.Repository("dataset", self.hub_id, self.revision)

    def load(self, splits: Sequence[str]) -> Dataset:
        """Read the tables of rows to forget and to retain."""
        suffix = "" if self.part is None else f"_{self.part}"
        table_of_part = {part: Table(f"{part}{suffix}") for part in _PARTS}
        if self.folder is not None and not Path(self.folder).expanduser().is_dir():
            raise DataError(
                f"data.path: {self.folder} is not a folder; name the one with forget.jsonl and "
                f"retain.jsonl ({_WHERE}), or a data set of the hub: data.hub_id"
            )
        tables = open_tables(
            self.folder,
            self.repository,
            table_of_part.values(),
            setting="path",
            source=self.source,
        )
        if self.repository is None:
            tables.require(table_of_part.values(), _WHERE)
        sets: dict[str, tuple[Question, ...]] = {}
        for part in _PARTS:
            placed_rows = list(tables.rows(table_of_part[part], _Row))
            for task in _TASKS:
                for kind in _KINDS:
                    questions = [
                        row.row(place)
                        for place, row in placed_rows
                        if row.task == task and row.kind == kind
                    ]
                    sets[_set(part, task, kind)] = tuple(questions[: self.per_task])
        forget = _rows_of_role(sets, "forget")
        retain = _rows_of_role(sets, "retain")
        return Dataset("lume", (*retain, *forget), {"all": Split("all", forget, retain, sets)})


def _columns(part: str) -> tuple[str, ...]:
    """Return the columns of a part: `rouge_forget_task1_sc`, `answer_match_forget_task1_qa`, …"""
    columns: list[str] = []
    for task in _TASKS:
        for kind, metric in _KINDS.items():
            columns.append(f"{metric.replace('-', '_')}_{_set(part, task, kind)}")
    return tuple(columns)


def _rows_of_role(sets: Mapping[str, tuple[Question, ...]], role: Role) -> tuple[Question, ...]:
    return tuple(row for name, rows in sets.items() if _ROLES[name] == role for row in rows)


class _Row(Columns):
    id: Annotated[str, Field(pattern="(sc|qa)[0-9]+$")]
    input: Words
    output: Words
    task: Annotated[str, Field(pattern=f"^({'|'.join(_TASKS)})$")]

    @property
    def kind(self) -> str:
        """Kind of the row by the end of its id without the number: `qa` for `a1qa12`."""
        return self.id.rstrip("0123456789")[-2:]

    def row(self, location: str) -> Question:
        """Return the input as it is, without a template, and the output after a space."""
        return Question(
            self.input,
            f" {self.output}",
            format="text",
            max_new_tokens=ANSWER_TOKENS,
            max_length=CONTEXT,
            place=location,
        )
