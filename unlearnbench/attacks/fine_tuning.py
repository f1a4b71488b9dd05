"""Fine-tune on unrelated rows, as a benign user would."""

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError, model_validator

from unlearnbench.api.attack import AttackTools
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.api.hyperparameters import refuse_unused
from unlearnbench.api.registry import load
from unlearnbench.attacks._training_steps import TrainingAttack
from unlearnbench.base.errors import DataError
from unlearnbench.base.hub import Repository

UNRELATED = {"source": "synthetic", "seed": 1}
"""Settings of a benchmark that shares no row with others: authors that the generator makes from a
seed other than its default."""


class UnrelatedFineTuning(TrainingAttack):
    """Train on rows of another benchmark, or of a file, and measure all rows to forget.

    Forgotten rows can come back although nobody trains on them: Łucki et al. 2024,
    arXiv:2409.18025, fine-tune on general text.
    """

    label = "Fine-tuning on other rows"

    data: Mapping[str, Any] = Field(
        default=UNRELATED,
        description="benchmark whose training rows are used, as a `data` section: its name as "
        "`source`, and its settings; default: generated authors of another seed",
    )
    file: str | None = Field(
        default=None,
        description="file that replaces the benchmark: passages between blank lines, or a table "
        "(.jsonl, .json, .csv, .tsv, .parquet, .arrow) with the columns `question` "
        "and `answer`, or `text`",
    )

    @model_validator(mode="after")
    def _has_one_source(self) -> Self:
        if self.file is not None:
            refuse_unused(self, "file", "data")
        return self

    def content(self) -> str:
        """Return a hash of the rows that the attack trains on, for the ids of runs.

        It covers `file`, or all files at the benchmark's `path`. It is empty if the benchmark makes
        its rows or reads them from a hub.

        Raises:
            DataError: `file` does not exist, or there is no such benchmark.
        """
        if self.file is None:
            path = getattr(_benchmark_of(self.data), "path", None)
            files = _files(Path(path).expanduser()) if path else []
        else:
            files = [Path(self.file).expanduser()]
            if not files[0].is_file():
                raise DataError(f"file: no file {self.file}; give one with rows to train on")
        sha256 = hashlib.sha256()
        for file in files:
            sha256.update(file.read_bytes())
        return sha256.hexdigest()[:16] if files else ""

    @property
    def repositories(self) -> Mapping[str, Repository]:
        """Repositories of the benchmark, by setting.

        Raises:
            DataError: There is no such benchmark.
        """
        if self.file is not None:
            return {}
        by_setting = _benchmark_of(self.data).repositories
        return {f"data.{setting}": repository for setting, repository in by_setting.items()}

    def training_rows(self, tools: AttackTools) -> Sequence[Question]:
        """Return the rows of the file or benchmark.

        Raises:
            DataError: One of them is a row to forget.
        """
        rows = tools.other_rows(self.file or _benchmark_of(self.data))
        texts_to_forget = {(row.question, row.answer) for row in tools.rows.forget}
        for row in rows:
            if (row.question, row.answer) in texts_to_forget:
                text = repr(row.question or row.answer)[:80]
                raise DataError(
                    f"the rows to train on are to be unrelated, and {text} is a row to forget; "
                    "name another benchmark or file, or use the attack relearning"
                )
        return rows


def _benchmark_of(settings: Mapping[str, Any]) -> Benchmark:
    """Return the benchmark with some settings, which name it in `source`.

    Raises:
        DataError: There is no such benchmark, or a setting is wrong.
    """
    source = settings.get("source")
    if not isinstance(source, str):
        raise DataError("data: name the benchmark, such as {source: synthetic, seed: 1}")
    kind: type[Benchmark] = load("benchmarks", source)
    try:
        return kind.model_validate(settings)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        location = ".".join(["data", *map(str, first["loc"])])
        raise DataError(f"{location}: {first['msg']}") from None


def _files(path: Path) -> list[Path]:
    """Return a file itself, or all files in a folder."""
    return [file for file in (path, *sorted(path.rglob("*"))) if file.is_file()]
