"""Lines of many files become one board; what cannot be true, or does not fit the rest, stays out.

The order of files and lines changes nothing. As long as nothing is refused, merging what was merged
before gives the same bytes as merging all at once.
"""

from __future__ import annotations

import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import numpy as np

from unlearnbench.leaderboard.line import Entry, canonical, precision_of, unpack
from unlearnbench.leaderboard.verify import RefusedError, verified

ROUNDING = 0.05
"""Of the logarithm of a truth ratio, in the median over questions: twice what bfloat16 does to a
mean loss; two models that were trained apart differ by more."""
_KINDS = ("fine-tuned", "retain", "run")


@dataclass(frozen=True)
class Refusal:
    """A line that did not enter."""

    place: str
    """`board.jsonl:12`"""
    id: str
    """Of the record, as far as it could be read."""
    reason: str


@dataclass(frozen=True)
class Board:
    """What is left, and what was done to get there."""

    lines: tuple[str, ...]
    """Canonical, in an order that only their content decides."""
    entries: tuple[Entry, ...]
    """The same, parsed."""
    equal: int
    """Lines that say nothing new: of runs that are there already, with the very same numbers."""
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class _Candidate:
    place: str
    text: str
    entry: Entry


@dataclass(frozen=True)
class _Rule:
    """What has to be the same all over a group."""

    what: str
    group: Callable[[Entry], tuple[Any, ...] | None]
    """None: the rule says nothing about this line."""
    value: Callable[[Entry], Any]
    same: Callable[[Any, Any], bool] = operator.eq


def one_model(ratios: str, others: str) -> bool:
    """Whether two evaluations are of one retain model: other machines round in other ways."""
    first, second = unpack(ratios), unpack(others)
    if len(first) != len(second):
        return False
    with np.errstate(divide="ignore", invalid="ignore"):
        apart = np.abs(np.log(first) - np.log(second))
    apart = np.where(first == second, 0.0, apart)
    known = apart[~np.isnan(apart)]
    return known.size > 0 and float(np.median(known)) <= ROUNDING


def _panel(entry: Entry) -> tuple[Any, ...]:
    return entry["model"], entry["forget_fraction"]


_RULES = (
    _Rule("data", _panel, itemgetter("data")),
    _Rule(
        "start weights",
        lambda entry: None if entry["kind"] == "retain" else _panel(entry),
        itemgetter("weights"),
    ),
    _Rule(
        "weights of the retain model",
        lambda entry: _panel(entry) if entry["kind"] == "retain" else None,
        itemgetter("weights"),
    ),
    _Rule(
        "precision of the evaluation",
        lambda entry: (*_panel(entry), entry["profile"]) if precision_of(entry) else None,
        precision_of,
    ),
    _Rule(
        "truth ratios of the retain model",
        lambda entry: (*_panel(entry), entry["profile"]),
        itemgetter("retain"),
        one_model,
    ),
)


def merge(lines: Iterable[tuple[str, str]]) -> Board:
    """One board of all `lines`, (place, text), that can be true together.

    - Of several lines of one id the one that was begun first stays. The others are refused, unless
      their numbers are the very same: a run was repeated, or comes by two ways.
    - Runs of one model and forget fraction must have been on the same data, start weights and
      retain model: where they differ, the value that most lines have stays.
    """
    refused: list[Refusal] = []
    known: dict[str, _Candidate] = {}
    equal = 0
    seen: set[str] = set()
    for place, text in lines:
        if text in seen:  # verified already
            equal += 1
            continue
        try:
            entry = verified(text)
        except RefusedError as error:
            refused.append(Refusal(place, _id(text), str(error)))
            continue
        seen.add(text)
        written = canonical(entry)
        equal += written in known
        known.setdefault(written, _Candidate(place, written, entry))
    unbelieved = len(refused)
    candidates = _one_each(known.values(), refused)
    equal += len(known) - len(candidates) - (len(refused) - unbelieved)
    for rule in _RULES:
        candidates = _agreed(candidates, rule, refused)
    ordered = sorted(candidates, key=lambda one: _order(one.entry))
    return Board(
        tuple(one.text for one in ordered),
        tuple(one.entry for one in ordered),
        equal,
        tuple(refused),
    )


def _one_each(candidates: Iterable[_Candidate], refused: list[Refusal]) -> list[_Candidate]:
    by_id: dict[str, list[_Candidate]] = defaultdict(list)
    for one in candidates:
        by_id[one.entry["id"]].append(one)
    kept: list[_Candidate] = []
    for same in by_id.values():
        first, *others = sorted(same, key=_begun)
        kept.append(first)
        for other in others:
            if _numbers(other.entry) == _numbers(first.entry):
                continue
            refused.append(
                Refusal(
                    other.place,
                    other.entry["id"],
                    f"it has the id of {first.place}, which was begun earlier, and other content "
                    f"({_difference(first.entry, other.entry)})",
                )
            )
    return kept


def _begun(one: _Candidate) -> tuple[str, str]:
    return str(one.entry["provenance"].get("started", "~")), one.entry["sha256"]


def _numbers(entry: Entry) -> dict[str, Any]:
    """A line without when, where and how fast it was made."""
    # Lines of earlier versions lack the precision; of one id it is the same.
    others = ("provenance", "sha256", "precision")
    told = {key: value for key, value in entry.items() if key not in others}
    made = ("training_seconds", "evaluation_seconds", "log")
    epochs = [{key: e[key] for key in e if key not in made} for e in entry["epochs"]]
    return told | {"epochs": epochs}


def _difference(first: Entry, second: Entry) -> str:
    """The numbers that differ most, or that none does."""
    pairs = {e["epoch"]: e["metrics"] for e in first["epochs"]}
    found = [
        (abs(value - other), f"epoch {epoch['epoch']}: {name} {value:g}, there {other:g}")
        for epoch in second["epochs"]
        for name, value in epoch["metrics"].items()
        if (other := pairs.get(epoch["epoch"], {}).get(name)) is not None and value is not None
    ]
    largest, told = max(found, default=(0.0, ""))
    return told if largest else "its metrics are the same, not its evidence"


def _agreed(
    candidates: Sequence[_Candidate], rule: _Rule, refused: list[Refusal]
) -> list[_Candidate]:
    groups: dict[tuple[Any, ...] | None, list[_Candidate]] = defaultdict(list)
    for one in candidates:
        groups[rule.group(one.entry)].append(one)
    kept = groups.pop(None, [])
    for group in groups.values():
        counts = Counter(rule.value(one.entry) for one in group)
        # Of equally many the smaller, so that the order of files decides nothing.
        value = min(counts, key=lambda each: (-counts[each], str(each)))
        for one in group:
            own = rule.value(one.entry)
            if rule.same(own, value):
                kept.append(one)
                continue
            model, fraction = _panel(one.entry)
            refused.append(
                Refusal(
                    one.place,
                    one.entry["id"],
                    f"{rule.what}: {own!r:.24}, and {value!r:.24} in {counts[value]} lines of "
                    f"{model}, forget {100 * fraction:g} %: such numbers do not "
                    "compare; merge them into a board of their own",
                )
            )
    return kept


def _order(entry: Entry) -> tuple[Any, ...]:
    rate = entry["learning_rate"]
    return (
        *_panel(entry),
        *(_KINDS.index(entry["kind"]), entry["method"], -1.0 if rate is None else rate),
        *(entry["seed"], entry["id"]),
    )


def _id(text: str) -> str:
    """What the line gives as its id, where that can still be read."""
    _, _, after = text.partition('"id":"')
    found = after[:16]
    return found if len(found) == 16 and found.isalnum() else "?"
