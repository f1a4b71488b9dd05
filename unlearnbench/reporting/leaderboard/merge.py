"""Merge of lines from many files to one board, without those that are false or inconsistent.

The order of files and lines does not matter. As long as nothing is refused, merging merged files
gives the same bytes as merging all at once.
"""

from __future__ import annotations

import operator
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from unlearnbench.analysis.best_settings import panel_label, panel_order
from unlearnbench.reporting.leaderboard.entry import (
    BoardEntry,
    canonical,
    own_headline,
    panel,
    precision_of,
    unpack,
)
from unlearnbench.reporting.leaderboard.verify import RefusedError, verify_line

ROUNDING = 0.05
"""Median difference of log truth ratios due to rounding: twice what bfloat16 does to a mean loss.
Two models from separate trainings differ by more."""
_KINDS = ("fine-tuned", "retain", "run")


@dataclass(frozen=True)
class Refusal:
    """A line that is not on the board, with the reason."""

    place: str
    """`board.jsonl:12`"""
    id: str
    """Record id, `?` if unreadable."""
    reason: str


@dataclass(frozen=True)
class Board:
    """The merged lines, and the refused ones."""

    lines: tuple[str, ...]
    """Canonical lines, sorted by their content."""
    entries: tuple[BoardEntry, ...]
    """The parsed lines."""
    equal: int
    """Number of repeated lines: same run, same numbers."""
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class _Candidate:
    place: str
    text: str
    entry: BoardEntry


def one_model(ratios: str, others: str) -> bool:
    """True if two evaluations are of one retain model, up to the rounding of different machines."""
    first, second = unpack(ratios), unpack(others)
    if len(first) != len(second):
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(first) - np.log(second))
    apart = np.where(first == second, 0.0, apart)
    comparable = apart[~np.isnan(apart)]
    return comparable.size > 0 and float(np.median(comparable)) <= ROUNDING


_PRECISION, _RETAIN = "precision of the evaluation", "truth ratios of the retain model"


def _shared(entry: BoardEntry) -> dict[str, Any]:
    """Values that must be the same for all lines of a panel."""
    owner = "weights of the retain model" if entry["kind"] == "retain" else "start weights"
    shared = {"data": entry["data"], owner: entry["weights"]}
    others = {_RETAIN: entry["retain"], _PRECISION: precision_of(entry)}
    return shared | {key: value for key, value in others.items() if value is not None}


def merge(lines: Iterable[tuple[str, str]]) -> Board:
    """Merge `lines`, each (place, text), to a consistent board.

    - Of several lines of one id the run that started first stays, in the latest schema. The others
      are refused, unless their numbers are identical because a run was repeated or exported twice.
    - Runs of one model and split need the same data, start weights and retain model: if
      they differ, lines with the most frequent value stay. A benchmark that is ranked by other
      numbers than TOFU's has a table of its own, and so panels of its own.
    """
    refused: list[Refusal] = []
    found: dict[str, _Candidate] = {}
    equal = 0
    seen: set[str] = set()
    for place, text in lines:
        if text in seen:  # verified already
            equal += 1
            continue
        try:
            entry = verify_line(text)
        except RefusedError as error:
            refused.append(Refusal(place, _id(text), str(error)))
            continue
        seen.add(text)
        written = canonical(entry)
        equal += written in found
        found.setdefault(written, _Candidate(place, written, entry))
    false = len(refused)
    candidates = _one_per_id(found.values(), refused)
    equal += len(found) - len(candidates) - (len(refused) - false)
    for what in ("data", "start weights", "weights of the retain model", _PRECISION, _RETAIN):
        candidates = _consistent(candidates, what, refused)
    ordered = sorted(candidates, key=lambda one: _order(one.entry))
    return Board(
        tuple(one.text for one in ordered),
        tuple(one.entry for one in ordered),
        equal,
        tuple(refused),
    )


def _one_per_id(candidates: Iterable[_Candidate], refused: list[Refusal]) -> list[_Candidate]:
    by_id: dict[str, list[_Candidate]] = defaultdict(list)
    for one in candidates:
        by_id[one.entry["id"]].append(one)
    accepted: list[_Candidate] = []
    for same in by_id.values():
        first, *others = sorted(same, key=_start)
        accepted.append(first)
        for other in others:
            if _same_numbers(first.entry, other.entry):
                continue
            reason = (
                f"it has the id of {first.place}, which started earlier, and other content "
                f"({_difference(first.entry, other.entry)})"
            )
            refused.append(Refusal(other.place, other.entry["id"], reason))
    return accepted


def _start(one: _Candidate) -> tuple[str, int, str]:
    started = str(one.entry["provenance"].get("started", "~"))
    return started, -one.entry["schema"], one.entry["sha256"]


def _same_numbers(first: BoardEntry, other: BoardEntry) -> bool:
    """True if two lines differ in provenance, times and file hashes alone.

    Lines of two schemas have evidence of two kinds, which has been verified.
    """
    # Early lines lack the precision, which is the same for one id.
    unlike = {"provenance", "sha256", "precision", "schema", "benchmark", "versions"}
    without = {"training_seconds", "evaluation_seconds", "log"}
    if first["schema"] == other["schema"]:
        unlike -= {"schema", "benchmark", "versions"}
    else:
        without.add("evidence")

    def numbers(entry: BoardEntry) -> dict[str, Any]:
        epochs = [{key: e[key] for key in e.keys() - without} for e in entry["epochs"]]
        return {key: entry[key] for key in entry.keys() - unlike} | {"epochs": epochs}

    return numbers(first) == numbers(other)


def _difference(first: BoardEntry, second: BoardEntry) -> str:
    """Describe the metric that differs most."""
    pairs = {e["epoch"]: e["metrics"] for e in first["epochs"]}
    found = [
        (abs(value - other), f"epoch {epoch['epoch']}: {name} {value:g}, there {other:g}")
        for epoch in second["epochs"]
        for name, value in epoch["metrics"].items()
        if (other := pairs.get(epoch["epoch"], {}).get(name)) is not None and value is not None
    ]
    largest, text = max(found, default=(0.0, ""))
    return text if largest else "its metrics are the same, not its evidence"


def _consistent(
    candidates: Sequence[_Candidate], what: str, refused: list[Refusal]
) -> list[_Candidate]:
    """The candidates that have the most frequent value of their panel, if they have one.

    Precision and retain model's truth ratios may differ between profiles.
    """
    accepted: list[_Candidate] = []
    groups: dict[tuple[Any, ...], list[tuple[_Candidate, Any]]] = defaultdict(list)
    for one in candidates:
        shared = _shared(one.entry)
        if what in shared:
            profile = one.entry["profile"] if what in (_PRECISION, _RETAIN) else ""
            place = (own_headline(one.entry), *panel(one.entry), profile)
            groups[place].append((one, shared[what]))
        else:
            accepted.append(one)
    same = one_model if what == _RETAIN else operator.eq
    for group in groups.values():
        counts = Counter(own for _, own in group)
        # Ties go to the smaller value, so that the order of files does not matter.
        value = min(counts, key=lambda each: (-counts[each], str(each)))
        for one, own in group:
            if same(own, value):
                accepted.append(one)
                continue
            reason = (
                f"{what}: {own!r:.24}, and {value!r:.24} in {counts[value]} lines of "
                f"{panel_label(*panel(one.entry))}: such numbers do not compare; merge them "
                "into a separate board"
            )
            refused.append(Refusal(one.place, one.entry["id"], reason))
    return accepted


def _order(entry: BoardEntry) -> tuple[Any, ...]:
    rate = entry["learning_rate"]
    return (
        panel_order(panel(entry)),
        *(_KINDS.index(entry["kind"]), entry["method"], -1.0 if rate is None else rate),
        *(entry["seed"], entry["id"]),
    )


def _id(text: str) -> str:
    """The id in a line that may be damaged; `?` if unreadable."""
    found = re.search(r'"id":"([0-9A-Za-z]{16})', text)
    return found[1] if found else "?"
