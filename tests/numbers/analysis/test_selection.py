"""The best setting of each method, chosen on some seeds and reported on the others."""

from typing import Any

import pytest

from unlearnbench.analysis.selection import (
    choose,
    report_chosen,
)
from unlearnbench.config.search import SelectSettings
from unlearnbench.results.table import TableRow

from .conftest import table_row

Point = tuple[float | None, float | None]


def row(method: str, rate: float, seed: int, epoch: int, point: Point, **more: Any) -> TableRow:
    metrics: dict[str, Any] = dict(
        zip(("model_utility", "log10_forget_quality"), point, strict=True)
    )
    place: dict[str, Any] = {"learning_rate": rate, "seed": seed, "epoch": epoch}
    fields = {"run_id": f"{method}-{rate:g}-{seed}", **place, **more}
    return table_row(fields.pop("kind", "run"), method, metrics, **fields)


START = row("fine-tuned", 0.0, 0, 0, (0.5, -10.0), kind="fine-tuned", learning_rate=None)
FIRST = SelectSettings(utility=0.8, seeds=(0,))


def chosen(rows: list[TableRow], select: SelectSettings = FIRST) -> tuple[Any, ...]:
    (found,) = choose(rows, select)
    return found.learning_rate, found.epoch, found.forgotten


def test_highest_forget_quality_with_enough_utility() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.50, -9.0)),
        row("npo", 1e-5, 0, 2, (0.45, -6.0)),
        row("npo", 1e-4, 0, 1, (0.40, -5.0)),  # exactly 0.8 of 0.5
        row("npo", 1e-4, 0, 2, (0.39, -1.0)),  # forgets most, and keeps too little
    ]
    assert chosen(rows) == (1e-4, 1, -5.0)
    assert chosen(rows, SelectSettings(utility=0.9)) == (1e-5, 2, -6.0)
    (none,) = choose(rows, SelectSettings(utility=1.0))
    assert (none.learning_rate, none.epoch) == (1e-5, 1)
    poor = [START, row("npo", 1e-4, 0, 1, (0.3, -1.0))]
    (none,) = choose(poor, FIRST)
    assert none.epoch is None
    assert none.why_not == "no setting keeps at least 80 % of the start model's utility, 0.5"


def test_the_other_seeds_have_no_part_in_the_choice() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-4, 0, 1, (0.5, -6.0)),
        row("npo", 1e-4, 1, 1, (0.5, 0.0)),
        row("npo", 1e-4, 2, 1, (0.5, 0.0)),
    ]
    assert chosen(rows) == (1e-5, 1, -5.0)
    assert chosen(rows, SelectSettings(seeds=(0, 1))) == (1e-4, 1, -3.0), "1e-5 lacks seed 1"


def test_a_collapsed_seed_is_no_candidate() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-4, 0, 1, (None, -1.0)),
    ]
    assert chosen(rows) == (1e-5, 1, -5.0)
    (found,) = choose(rows, FIRST)
    assert found.candidates == 1
    (lost,) = choose([START, rows[2]], FIRST)
    assert lost.why_not == "no setting has numbers for all seeds of the choice"


def test_the_setting_that_spans_most() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -8.0)),
        row("npo", 1e-5, 0, 2, (0.4, -6.0)),  # with the epoch before 0.5 · 2 + 0.4 · 2 = 1.8
        row("npo", 1e-4, 0, 1, (0.4, -5.75)),  # 0.4 · 4.25 = 1.7, more than either alone
    ]
    select = SelectSettings(rule="hypervolume")
    (found,) = choose(rows, select)
    assert (found.learning_rate, found.epoch, found.runs) == (1e-5, 2, ("npo-1e-05-0",))
    assert found.hypervolume == pytest.approx(1.8)
    higher = SelectSettings(rule="hypervolume", reference=(0.3, -10.0))
    # 0.2 · 2 + 0.1 · 2 = 0.6 against 0.1 · 4.25; alone the first epoch spans 0.4, the second 0.4.
    (found,) = choose(rows, higher)
    assert found.hypervolume == pytest.approx(0.6)
    nothing = SelectSettings(rule="hypervolume", reference=(0.6, -10.0))
    assert choose(rows, nothing)[0].why_not == "no setting is above (0.6, -10) in both"
    assert "give select.reference" in choose(rows[1:], select)[0].why_not


def test_reported_on_the_other_seeds_at_the_chosen_epoch() -> None:
    rows = [
        START,
        row("npo", 1e-5, 0, 1, (0.5, -5.0)),
        row("npo", 1e-5, 1, 1, (0.4, -6.0)),
        row("npo", 1e-5, 2, 1, (0.3, -8.0)),
        row("npo", 1e-5, 1, 2, (0.1, -1.0)),
    ]
    (choice,) = choose(rows, FIRST)
    followed = ["npo-1e-05-1", "npo-1e-05-2"]

    def reported(rows: list[TableRow]) -> tuple[Any, ...]:
        found = report_chosen(choice, rows, followed)["reported"]
        numbers = (found["model_utility"], found["log10_forget_quality"])
        return (found["seeds"], *(tuple(one.values()) for one in numbers))

    seeds, utility, quality = reported(rows)
    assert seeds == [1, 2]
    assert utility == pytest.approx((0.35, 0.005**0.5))
    assert quality == pytest.approx((-7.0, 2**0.5))
    assert reported(rows[:3]) == ([1], (0.4, None), (-6.0, None)), "one seed has no spread"
    assert reported(rows[:2]) == ([], (None, None), (None, None))
    fallen = [*rows[:3], row("npo", 1e-5, 2, 1, (None, -8.0))]
    assert reported(fallen)[1] == (None, None), "collapse is not averaged away"
