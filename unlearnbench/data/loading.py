"""From settings to a `Benchmark`: picks the source and adds what all sources share.

The fingerprint covers the rows themselves, because a path can stay while the file changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib.resources import files

from unlearnbench.bounded import TEXT_BYTES, BoundsError, expanded, read_bytes, shortened
from unlearnbench.data import synthetic, tofu
from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.errors import DataError
from unlearnbench.plan import content_hash
from unlearnbench.settings import DataSettings


def load_benchmark(settings: DataSettings, fractions: Sequence[float]) -> Benchmark:
    """All rows that runs at these forget fractions need; `splits` has the fractions as given.

    Raises DataError for a fraction that the source does not have, and for a file or row that is
    missing or malformed.
    """
    refusals = read_refusals(settings.refusals)
    if settings.source == "tofu":
        rows = tofu.load(settings, fractions)
        rows = replace(rows, pretraining=synthetic.pretraining_rows(settings, rows.full))
    else:
        rows = synthetic.load(settings, fractions)
    benchmark = replace(rows, refusals=refusals)
    return replace(benchmark, fingerprint=fingerprint(benchmark))


def fingerprint(benchmark: Benchmark, fraction: float | None = None) -> str:
    """16 hex digits of the SHA-256 of all rows, or of those that a run at `fraction` can see.

    The second does not change when other fractions join the benchmark.
    """
    splits = benchmark.splits.values() if fraction is None else (benchmark.splits[fraction],)
    return content_hash(
        {
            "full": _plain(benchmark.full),
            "splits": {
                split.name: [
                    _plain(split.forget),
                    _plain(split.retain),
                    _plain(split.forget_perturbed),
                ]
                for split in splits
            },
            "retain_perturbed": _plain(benchmark.retain_perturbed),
            "real_authors": _plain(benchmark.real_authors),
            "world_facts": _plain(benchmark.world_facts),
            "refusals": benchmark.refusals,
            "pretraining": _plain(benchmark.pretraining),
        }
    )


def _plain(rows: Iterable[Question]) -> list[list[object]]:
    return [
        [
            *(r.question, r.answer, r.paraphrased_answer, r.perturbed_answers),
            r.paraphrased_question,
            *(() if r.score is None else (r.score,)),  # rows without keep their fingerprint
        ]
        for r in rows
    ]


def read_refusals(path: str | None) -> tuple[str, ...]:
    """The lines of a text file without the blank ones; without a path, the built-in list."""
    if path is None:
        text = files("unlearnbench.data").joinpath("refusals.txt").read_text(encoding="utf-8")
    else:
        text = _read(path)
    refusals = tuple(line.strip() for line in text.splitlines() if line.strip())
    if not refusals:
        raise DataError(f"data.refusals: {path} has no text; write one refusal a line")
    return refusals


def _read(path: str) -> str:
    try:
        return read_bytes(expanded(path), TEXT_BYTES).decode()
    except OSError as error:
        raise DataError(f"data.refusals: {path} cannot be read ({error.strerror})") from error
    except BoundsError as error:
        raise DataError(f"data.refusals: {shortened(path)[1:-1]}: {error}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"data.refusals: {path} is not UTF-8 (byte {error.start + 1})") from error
