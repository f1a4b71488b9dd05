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
from unlearnbench.base.canonical_json import content_hash
from unlearnbench.base.errors import DataError, PluginError
from unlearnbench.models.dataset_rules import sound_rows


def load_benchmark(benchmark: Benchmark, splits: Sequence[SplitKey]) -> Dataset:
    """Load all rows that runs on these splits need.

    Raises: DataError for a split that the benchmark does not have, for a file or row that is
    missing or malformed, and for one that breaks a rule (`dataset_rules.py`).
    """
    for faults in filter(None, map(benchmark.problem_with, splits)):
        raise DataError(f"{'splits' if benchmark.splits else 'forget_fractions'}: {faults}")
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
    model is trained on them and no other number depends on them, and a run is the same run whether
    its source had them or not.
    """
    splits = (*benchmark.splits.values(),) if split is None else (benchmark.splits[split],)
    shared = splits[0].sets if splits else {}
    return content_hash(
        {
            "full": _plain(benchmark.full),
            "splits": {split.name: _split(split) for split in splits},
            **{key: _plain(shared.get(name, ())) for name, key in _SHARED.items()},
            "refusals": benchmark.refusals,
            "pretraining": _plain(benchmark.pretraining),
        }
    )


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
            *([part] if (part := r.prompt_settings) else []),
        ]
        for r in rows
    ]


def read_refusals(path: str | None) -> tuple[str, ...]:
    """Read the lines of a text file that are not blank; without a path, the built-in list."""
    if path is None:
        text = files("unlearnbench.benchmarks").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        try:
            text = Path(path).expanduser().read_text(encoding="utf-8-sig")
        except OSError as error:
            raise DataError(f"data.refusals: {path} cannot be read ({error.strerror})") from error
        except UnicodeDecodeError as error:
            where = f"byte {error.start + 1}"
            raise DataError(f"data.refusals: {path} is not UTF-8 ({where})") from error
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"data.refusals: {path} has no text; write one refusal a line")
    return refusals
