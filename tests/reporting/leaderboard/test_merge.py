"""Boards merge in any order and grouping to the same bytes; what does not fit stays out."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence

import numpy as np
import pytest

from unlearnbench.reporting.leaderboard import merge as merging
from unlearnbench.reporting.leaderboard.entry import (
    board_line,
    canonical,
    pack,
    rules_of,
    unpack,
    with_hash,
)
from unlearnbench.reporting.leaderboard.merge import Board, merge
from unlearnbench.results.records import read_records

from .conftest import EARLY, Sweep, evaluation, lines_of


def board(*files: Sequence[str]) -> Board:
    return merge(
        (f"{name}:{number}", line)
        for name, lines in zip("abcdef", files, strict=False)
        for number, line in enumerate(lines, start=1)
    )


def resigned(line: str, **changes: object) -> str:
    return canonical(with_hash(json.loads(line) | changes))


def test_any_order_and_any_grouping_give_the_same_bytes(sweep: Sweep) -> None:
    a = lines_of(sweep("a", ("npo",), (0, 1)))
    b = lines_of(sweep("b", ("ce-u", "npo"), (1, 2)))
    c = lines_of(sweep("c", ("idk",), (0,)))
    whole = board(a, b, c)
    assert (
        len(whole.lines) == 2 + 2 + 2 + 1 + 1
    )  # start and retain models; npo 0, 1; ce-u 1, 2; npo 2; idk 0
    assert whole.equal == 5
    assert not whole.refused
    for order in itertools.permutations((a, b, c)):
        assert board(*order).lines == whole.lines
        assert board(board(*order[:2]).lines, order[2]).lines == whole.lines
    shuffled = [*a, *b, *c]
    random.Random(0).shuffle(shuffled)
    assert board(shuffled).lines == whole.lines
    assert board(whole.lines, whole.lines).lines == whole.lines


def test_another_spelling_of_a_line_is_the_same_line(sweep: Sweep) -> None:
    lines = lines_of(sweep("a", ("npo",), (0,)))
    spelt = [json.dumps(json.loads(line), indent=None) for line in lines]
    assert board(lines, spelt).lines == board(lines).lines
    assert board(lines, spelt).equal == len(lines)


def test_the_earlier_line_of_a_run_stays_in_any_order(sweep: Sweep) -> None:
    first = lines_of(sweep("a", ("npo",), (0,)))
    later = lines_of(sweep("b", ("npo",), (0,), noise=1, started="2026-11-22T08:00:00.000+00:00"))
    (run,) = [line for line in later if '"kind":"run"' in line]
    for files in ((first, later), (later, first)):
        found = board(*files)
        assert set(found.lines) == set(first)
        assert found.equal == 2, (
            "start and retain models that were evaluated again, with the same numbers"
        )
        (refusal,) = found.refused
        assert refusal.id == json.loads(run)["id"]
        assert refusal.place == f"{'b' if files[1] is later else 'a'}:{later.index(run) + 1}"
        assert "which started earlier, and other content (epoch " in refusal.reason


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"data": "fedcba9876543210"}, "data: 'fedcba9876543210', and '0123456789abcdef' in 5 "),
        (
            {"weights": "beef"},
            "start weights: 'beef', and 'feed' in 4 lines of tiny, forget 10 %",
        ),
    ],
)
def test_other_data_or_start_weights_are_refused_whatever_the_order(
    sweep: Sweep, changed: dict[str, str], reason: str
) -> None:
    most = lines_of(sweep("a", ("npo",), (0, 1, 2)))
    fewer = lines_of(sweep("b", ("ce-u",), (0,), **changed))
    for files in ((most, fewer), (fewer, most)):
        found = board(*files)
        assert set(most) <= set(found.lines)
        assert not any("ce-u" in line for line in found.lines)
        assert any(reason in one.reason for one in found.refused), found.refused


def test_another_retain_model_is_refused(sweep: Sweep) -> None:
    folder = sweep("a", ("npo", "ce-u"), (0,))
    lines = lines_of(folder)
    (record,) = [r for r in read_records(folder) if r.method == "ce-u"]
    other = json.loads(board_line(record, evaluation(99, 2.0)))
    rules = rules_of(other)
    for epoch in other["epochs"]:
        epoch["metrics"] = rules.numbers(rules.arrays(epoch["evidence"]), unpack(other["retain"]))
    board_lines = [line for line in lines if '"method":"ce-u"' not in line]
    found = board(board_lines, [canonical(with_hash(other))])
    assert set(found.lines) == set(board_lines)
    (refusal,) = found.refused
    assert refusal.place == "b:1"
    assert "truth ratios of the retain model: " in refusal.reason


def test_a_line_of_two_schemas_stays_in_the_later_one(sweep: Sweep) -> None:
    now, more = lines_of(sweep("a", ("npo",), (0,))), lines_of(sweep("b", ("ce-u",), (0,)))
    for files in itertools.permutations((EARLY, now, more)):
        found = board(*files)
        assert set(found.lines) == {*now, *more}
        assert (found.equal, found.refused) == (5, ())
    assert len(board(EARLY, more).lines) == 4, "and old runs beside new ones"
    assert board(board(EARLY, more).lines, now).lines == board(now, more).lines


def test_a_tie_is_decided_by_content(sweep: Sweep) -> None:
    one, other = (
        [line for line in lines_of(sweep(name, (method,), (0,), weights=weights)) if "run" in line]
        for name, method, weights in (("a", "npo", "aaaa"), ("b", "ce-u", "bbbb"))
    )
    one, other = ([line for line in lines if '"kind":"run"' in line] for lines in (one, other))
    assert board(one, other).lines == board(other, one).lines == tuple(one)


def test_a_truncated_line_is_reported_and_the_others_stay(sweep: Sweep) -> None:
    lines = lines_of(sweep("a", ("npo",), (0,)))
    found = board([*lines[:-1], lines[-1][:-10]])
    assert set(found.lines) == set(lines[:-1])
    (refusal,) = found.refused
    assert refusal.place == f"a:{len(lines)}"
    assert refusal.id == json.loads(lines[-1])["id"]
    assert "cut short" in refusal.reason


def test_a_run_that_was_repeated_with_the_same_numbers_counts_as_equal(sweep: Sweep) -> None:
    lines = lines_of(sweep("a", ("npo",), (0,)))
    earlier = resigned(lines[-1], provenance={"started": "2026-11-20T00:00:00.000+00:00"})
    for files in ((lines, [earlier]), ([earlier], lines)):
        found = board(*files)
        assert set(found.lines) == {*lines[:-1], earlier}
        assert (found.equal, found.refused) == (1, ())


def test_retain_models_are_the_same_up_to_rounding() -> None:
    ratios = np.exp(np.random.default_rng(0).normal(size=100))
    apart = np.exp(np.random.default_rng(1).normal(size=100))
    rounded = ratios * np.exp(np.random.default_rng(2).uniform(-0.06, 0.06, 100))
    assert merging.one_model(pack(ratios), pack(rounded))
    assert not merging.one_model(pack(ratios), pack(apart))
    assert not merging.one_model(pack(ratios), pack(ratios[1:]))
    ratios[0] = rounded[0] = np.inf
    assert merging.one_model(pack(ratios), pack(rounded))


def test_lines_of_two_precisions_are_not_of_one_board(sweep: Sweep) -> None:
    whole = lines_of(sweep("a", ("npo",), (0, 1, 2)))
    changed = []
    for line in whole:
        entry = json.loads(line)
        first = entry["kind"] == "fine-tuned"
        changed.append(resigned(line, precision="bfloat16") if first else line)
    merged = board(changed)
    assert len(merged.lines) == len(whole) - 1
    (refused,) = merged.refused
    assert "precision of the evaluation: 'bfloat16', and 'float32' in 4 lines" in refused.reason


def test_lines_of_before_precision_was_written_are_believed() -> None:
    whole = EARLY
    old = []
    for line in whole:
        entry = json.loads(line)
        assert entry.pop("precision") == "float32"
        old.append(canonical(with_hash(entry)))
    assert len(board(old).lines) == len(whole)
    assert board(old, whole).equal == len(whole), "of one id, and the same numbers"
    lie = [resigned(line, precision="bfloat16") for line in whole]
    reasons = [one.reason for one in board(lie).refused]
    assert reasons == ["precision: 'bfloat16', and 'float32' by its identity"]
