"""Load the `Dataset` of a benchmark, and add refusals and the fingerprint.

The fingerprint covers the rows themselves: a file can change while its path stays the same.
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
"""Splits of a benchmark, of which one is loaded with all of its rows."""


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
    texts = {
        column: value
        for column in ("question", "answer", "text")
        if (value := row.values.get(column)) is not None
    }
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

    Raises: DataError for a split that the benchmark does not have, for a file or row that is
    missing or malformed, and for one that breaks a rule (`dataset_rules.py`).
    """
    for faults in filter(None, map(benchmark.problem_with, splits)):
        raise DataError(f"{'splits' if benchmark.split_names else 'forget_fractions'}: {faults}")
    refusals = read_refusals(benchmark.refusals)
    with guarded_call(benchmark, "load"):
        loaded = cast("object", benchmark.load(splits))  # a plug-in may return anything
    if not isinstance(loaded, Dataset):
        raise PluginError(
            f"`load` of benchmark {type(benchmark).__name__} returned {type(loaded).__name__}; it "
            "must return a Dataset"
        )
    if missing := [split_text(key) for key in splits if key not in loaded.splits]:
        raise DataError(f"`load` of benchmark {benchmark.source!r} has no split {missing[0]} in it")
    rows = replace(loaded, refusals=refusals)
    for fault in sound_rows(benchmark, rows):
        raise DataError(fault)
    return replace(rows, fingerprint=fingerprint(rows))


def fingerprint(benchmark: Dataset, split: SplitKey | None = None) -> str:
    """16 hex digits of the SHA-256 of all rows, or of those that a run on `split` reads.

    The latter does not depend on the benchmark's other splits. Holdout rows are in neither: no
    model is trained on them, and a run is the same run whether its source had them or not. Where a
    file of them is changed, records keep what was measured (`mia_*`, `private`, `privleak`).
    """
    splits = (*benchmark.splits.values(),) if split is None else (benchmark.splits[split],)
    shared = splits[0].sets if splits else {}
    return plain_hash(
        {
            "full": _plain(benchmark.full),
            "splits": {split.name: _split(split) for split in splits},
            **{key: _plain(shared.get(name, ())) for name, key in _SHARED.items()},
            "refusals": benchmark.refusals,
            "pretraining": _plain(benchmark.pretraining),
        }
    )


def split_fingerprints(benchmark: Dataset) -> dict[SplitKey, str]:
    """Return the fingerprint of each split of a benchmark that `load_benchmark` returned."""
    if len(benchmark.splits) == 1:
        # The rows of an only split are all rows, which have been hashed.
        return dict.fromkeys(benchmark.splits, benchmark.fingerprint)
    return {split: fingerprint(benchmark, split) for split in benchmark.splits}


_SHARED = {
    "retain": "retain_perturbed",
    "real_authors": "real_authors",
    "world_facts": "world_facts",
}
"""Keys of the sets that TOFU's splits have in common."""


def _split(split: Split) -> list[Any]:
    known = {*_SHARED, "forget", "holdout"}
    others = {name: _plain(rows) for name, rows in split.sets.items() if name not in known}
    rows = (split.forget, split.retain, split.sets.get("forget", ()))
    return [*map(_plain, rows), *([others] if others else [])]


def _plain(rows: Iterable[Question]) -> list[list[object]]:
    return [
        [
            *(r.question, r.answer, r.paraphrased_answer, r.perturbed_answers),
            r.paraphrased_question,
            *([] if r.score is None else [r.score]),  # as in versions before scores
            # Attacks divide the rows by it.
            *([{"subject": r.subject}] if r.subject else []),
            *([part] if (part := r.prompt_settings) else []),
            # Earlier versions took the references of such rows from their scored tokens alone,
            # and looked for stops behind the blanks that an answer begins with.
            *(["text"] if r.may_merge or r.stops or r.max_answer_tokens is not None else []),
        ]
        for r in rows
    ]


def read_refusals(path: str | None) -> tuple[str, ...]:
    """Read the lines of a text file that are not blank; without a path, the built-in list."""
    if path is None:
        text = files("unlearnbench.benchmarks").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        text = _read(path)
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"data.refusals: {path} has no text; write one refusal a line")
    return refusals
