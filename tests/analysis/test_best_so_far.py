"""The best so far is what the page would say, however the records come in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from unlearnbench.analysis.best_so_far import LiveBest
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import TableRow, table


def record(
    name: str,
    points: Sequence[tuple[float | None, float | None]],
    kind: Any = "run",
    method: str = "npo",
    rate: float = 1e-5,
    seed: int = 0,
    beta: float = 0.1,
    model: str = "tiny",
) -> Record:
    return Record(
        id=name,
        kind=kind,
        model=model,
        forget_fraction=0.1,
        method=method if kind == "run" else kind,
        learning_rate=rate if kind == "run" else None,
        seed=seed,
        spec={"method": {"name": method, "hyperparameters": {"beta": beta}}},
        status="finished",
        profile="tofu@1",
        epochs=tuple(
            EpochResult(epoch, {"model_utility": u, "log10_forget_quality": q}, 1.0, 1.0)
            for epoch, (u, q) in enumerate(points, start=int(kind == "run"))
        ),
    )


def drawn(seed: int) -> list[Record]:
    """Records of two models at random, some without a number, in any order."""
    rng = random.Random(seed)
    found: list[Record] = []
    for model in ("a", "b"):
        found.append(record(f"start-{model}", [(0.8, -20.0)], "fine-tuned", model=model))
        for method in ("npo", "ce-u", "idk"):
            for rate in (1e-5, 2e-5):
                for beta in (0.1, 0.2):
                    for s in (0, 1, 2):
                        points = [
                            (
                                rng.choice([None, *[rng.uniform(0.5, 0.8)] * 9]),
                                round(rng.uniform(-20, 0)),
                            )
                            for _ in range(3)
                        ]
                        name = f"{model}-{method}-{rate}-{beta}-{s}"
                        one = record(name, points, "run", method, rate, s, beta, model)
                        found.append(one)
    rng.shuffle(found)
    return found


def in_order(rows: Sequence[TableRow]) -> list[tuple[Any, ...]]:
    return sorted((r.run_id, r.epoch, r.method, dict(r.metrics)) for r in rows)


@pytest.mark.parametrize("seed", range(3))
def test_rows_equal_the_pages_after_each_record(seed: int) -> None:
    records, live_best = drawn(seed), LiveBest()
    for count, one in enumerate(records, start=1):
        live_best.add(one)
        if count % 20 == 0:
            assert in_order(live_best.rows()) == in_order(table(records[:count]))
    live_best.add(records[0])
    assert in_order(live_best.rows()) == in_order(table(records)), (
        "the same record again changes nothing"
    )
    remaining = {one.id for one in records if one.learning_rate != 1e-5}
    live_best.retain_only(remaining)
    shown = {row.run_id for row in live_best.rows()}
    assert shown == remaining | {"start-a", "start-b"}
    live_best.retain_only({one.id for one in records})
    assert in_order(live_best.rows()) == in_order(table(records)), "runs that the plan gets back"


def test_only_so_many_are_named_best_first() -> None:
    live_best = LiveBest()
    live_best.add(record("start", [(0.8, -20.0)], "fine-tuned"))
    for i, method in enumerate("abcdef"):
        live_best.add(record(method, [(0.7, -1.0 - i)], method=method))
    assert live_best.tables(2, last=True) == {
        ("tiny", 0.1): [
            "best of tiny, forget 10 %: the highest Forget Quality (FQ) that keeps 80 % of the "
            "start's utility",
            "  method   rate  epoch  utility  log10 FQ      p",
            "  a       1e-05      1    0.700     -1.00    0.1",
            "  b       1e-05      1    0.700     -2.00   0.01",
            "  start       -      0    0.800    -20.00  1e-20",
        ]
    }


def test_a_panel_without_a_best_has_no_table() -> None:
    live_best = LiveBest()
    live_best.add(record("a", [(0.7, -1.0)]))
    assert live_best.tables(3) == {}, "no start model"
    live_best.add(record("start", [(0.01, -20.0)], "fine-tuned"))
    assert live_best.tables(3) == {}, "the start model knows nothing"
    assert "knows nothing" in live_best.starts()["tiny", 0.1].fault
    live_best.add(record("start", [(0.9, -20.0)], "fine-tuned"))
    assert live_best.tables(3) == {}, "no setting keeps the utility"


def test_the_table_counts_seeds_where_there_are_several() -> None:
    live_best = LiveBest()
    live_best.add(record("start", [(0.8, -20.0)], "fine-tuned"))
    for seed in (0, 1):
        live_best.add(record(f"npo-{seed}", [(0.7, -1.0)], seed=seed))
    (lines,) = live_best.tables(3).values()
    assert [line.split()[-2:] for line in lines[1:]] == [["seeds", "place"], ["2", "1"], ["-", "-"]]


def test_methods_that_do_not_differ_beyond_chance_share_a_place() -> None:
    live_best = LiveBest()
    live_best.add(record("start", [(0.8, -20.0)], "fine-tuned"))
    for method, qualities in (
        ("far", (-8.0, -8.2, -8.1)),
        ("a", (-1, -2, -3)),
        ("b", (-3, -1, -3)),
    ):
        for seed, quality in enumerate(qualities):
            live_best.add(record(f"{method}-{seed}", [(0.7, quality)], seed=seed, method=method))
    (lines,) = live_best.tables(3).values()
    places = [(line.split()[0], line.split()[-1]) for line in lines[2:5]]
    assert places == [("a", "1"), ("b", "1"), ("far", "3")]
