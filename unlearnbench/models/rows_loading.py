"""Load the `Dataset` of a benchmark, check its rows, and add refusals and the fingerprint.

The fingerprint is a hash of the rows themselves, because a file can change while its path stays the
same. Ids of runs contain it, so what is hashed never changes for rows that exist.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from unlearnbench.api.benchmark import (
    Benchmark,
    Dataset,
    Question,
    Split,
    SplitKey,
    guarded_call,
    split_text,
)
from unlearnbench.base.errors import DataError, PluginError
from unlearnbench.base.hashing import plain_hash
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.table_formats import Format, format_of
from unlearnbench.base.tables import TableRow, TableSource, read_passages, read_table
from unlearnbench.models.dataset_rules import sound_rows

_FRACTIONS = (0.1, 0.05, 0.01, 0.25, 0.5)
"""Splits that are tried for a benchmark that names none. One that it has is loaded."""
_SHARED = {
    "retain": "retain_perturbed",
    "real_authors": "real_authors",
    "world_facts": "world_facts",
}
"""Evaluation sets that TOFU's splits have in common, and their keys in the fingerprint."""


def other_rows(source: Benchmark | str) -> tuple[Question, ...]:
    """Return all training rows of a benchmark, or the rows of the file with that path.

    A table has the columns `question` and `answer`, or `text`, and each row has one of the two.
    Any file that is no table is a text with passages.

    Raises:
        DataError: A file or row is missing or malformed, or a benchmark has no rows.
    """
    if isinstance(source, Benchmark):
        return _benchmark_rows(source)
    is_table = format_of(source) not in (None, Format.TEXT)
    rows = read_table(TableSource(source)) if is_table else read_passages(source)
    return tuple(map(_other_row, rows))


def _other_row(row: TableRow) -> Question:
    """Return a row of a table, or a passage of a text, as a training row.

    Raises:
        DataError: The row has other columns than allowed, or a text is blank.
    """
    texts: dict[str, Any] = {}
    for column in ("question", "answer", "text"):
        value = row.values.get(column)
        if value is not None:
            texts[column] = value
    are_words = all(isinstance(value, str) and value.strip() for value in texts.values())
    if set(texts) not in ({"question", "answer"}, {"text"}) or not are_words:
        raise DataError(
            f"{row.place}: expected `question` and `answer`, or `text` without them, as texts that "
            f"are not blank, got {row_text(row.values)}"
        )
    if "text" in texts:
        return Question("", texts["text"], format="text", place=row.place)
    return Question(texts["question"], texts["answer"], place=row.place)


def _benchmark_rows(benchmark: Benchmark) -> tuple[Question, ...]:
    splits = benchmark.split_names or _FRACTIONS
    key = next((split for split in splits if not benchmark.problem_with(split)), None)
    if key is None:
        raise DataError(f"benchmark {benchmark.source!r} has none of the splits {splits}")
    dataset = load_benchmark(benchmark, [key])
    return dataset.full or (*dataset.splits[key].retain, *dataset.splits[key].forget)


def _read(path: str) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{path}: cannot be read ({reason})") from error


def load_benchmark(benchmark: Benchmark, splits: Sequence[SplitKey]) -> Dataset:
    """Load all rows that runs on these splits need.

    Raises:
        DataError: The benchmark does not have a split, a file or row is missing or malformed, or
            rows break a rule (`dataset_rules.py`).
        PluginError: The benchmark's `load` fails, or returns something else.
    """
    for split in splits:
        problem = benchmark.problem_with(split)
        if problem:
            key = "splits" if benchmark.split_names else "forget_fractions"
            raise DataError(f"{key}: {problem}")
    refusals = read_refusals(benchmark.refusals)
    with guarded_call(benchmark, "load"):
        loaded = cast("object", benchmark.load(splits))  # a plug-in may return anything
    if not isinstance(loaded, Dataset):
        raise PluginError(
            f"`load` of benchmark {type(benchmark).__name__} returned {type(loaded).__name__}; it "
            "must return a Dataset"
        )
    for split in splits:
        if split not in loaded.splits:
            raise DataError(
                f"`load` of benchmark {benchmark.source!r} has no split {split_text(split)} in it"
            )
    rows = replace(loaded, refusals=refusals)
    for fault in sound_rows(benchmark, rows):
        raise DataError(fault)
    return replace(rows, fingerprint=fingerprint(rows))


def fingerprint(benchmark: Dataset, split: SplitKey | None = None) -> str:
    """Return 16 hex digits of the SHA-256 of the rows.

    Holdout rows are left out: no model is trained on them, and a run is the same run whether its
    source had them or not. If a file of holdout rows is changed, records keep what was measured
    (`mia_*`, `private`, `privleak`).

    Args:
        benchmark: The rows.
        split: Covers only the rows that a run on this split reads. The result then does not depend
            on the benchmark's other splits. None: all rows.
    """
    splits = (*benchmark.splits.values(),) if split is None else (benchmark.splits[split],)
    shared_sets = splits[0].sets if splits else {}
    shared = {key: _hashed_rows(shared_sets.get(name, ())) for name, key in _SHARED.items()}
    return plain_hash(
        {
            "full": _hashed_rows(benchmark.full),
            "splits": {split.name: _hashed_split(split) for split in splits},
            **shared,
            "refusals": benchmark.refusals,
            "pretraining": _hashed_rows(benchmark.pretraining),
        }
    )


def split_fingerprints(benchmark: Dataset) -> dict[SplitKey, str]:
    """Return the fingerprint of each split of a benchmark that `load_benchmark` returned."""
    if len(benchmark.splits) == 1:
        # The rows of an only split are all rows, which have been hashed.
        return dict.fromkeys(benchmark.splits, benchmark.fingerprint)
    return {split: fingerprint(benchmark, split) for split in benchmark.splits}


def _hashed_split(split: Split) -> list[Any]:
    """Return what the fingerprint covers of a split, besides the sets in `_SHARED`."""
    entries: list[Any] = [
        _hashed_rows(split.forget),
        _hashed_rows(split.retain),
        _hashed_rows(split.sets.get("forget", ())),
    ]
    known = {*_SHARED, "forget", "holdout"}
    others = {name: _hashed_rows(rows) for name, rows in split.sets.items() if name not in known}
    if others:
        entries.append(others)
    return entries


def _hashed_rows(rows: Iterable[Question]) -> list[list[object]]:
    """Return what the fingerprint covers of some rows.

    What most rows lack is left out, so that their fingerprints are those of versions that did not
    know it.
    """
    return [_hashed_row(row) for row in rows]


def _hashed_row(row: Question) -> list[object]:
    """Return what the fingerprint covers of a row, see `_hashed_rows`."""
    entries: list[object] = [
        row.question,
        row.answer,
        row.paraphrased_answer,
        row.perturbed_answers,
        row.paraphrased_question,
    ]
    if row.score is not None:
        entries.append(row.score)
    if row.subject:  # attacks divide the rows by it
        entries.append({"subject": row.subject})
    settings = row.prompt_settings
    if settings:
        entries.append(settings)
    # Earlier versions took the references of such rows from only their scored tokens, and looked
    # for stops after the blanks that an answer begins with. The word makes their runs other runs.
    if row.may_merge or row.stops or row.max_answer_tokens is not None:
        entries.append("text")
    return entries


def read_refusals(path: str | None) -> tuple[str, ...]:
    """Read the lines of a text file that are not blank; without a path, the built-in list.

    Raises:
        DataError: The file cannot be read, or has no text.
    """
    if path is None:
        text = files("unlearnbench.benchmarks").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        text = _read(path)
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"data.refusals: {path} has no text; write one refusal a line")
    return refusals
