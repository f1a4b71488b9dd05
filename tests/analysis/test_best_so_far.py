"""The best so far is what the page would say, however the records come in."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import pytest

from unlearnbench.analysis.best_settings import best_per_method
from unlearnbench.analysis.best_so_far import LiveBest, best_lines
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import table


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


def by_page(records: list[Record]) -> dict[Any, list[Any]]:
    found: dict[Any, list[Any]] = {}
    for best in best_per_method(table(records)):
        if best.setting is not None:
            one = best.setting
            place = found.setdefault((best.model, best.forget_fraction), [])
            metrics = (one.metrics["log10_forget_quality"], one.metrics["model_utility"])
            place.append((*metrics, one.method, one.learning_rate, one.epoch, len(one.rows)))
    return {place: sorted(lines, reverse=True) for place, lines in found.items()}


def by_live_best(live_best: LiveBest) -> dict[Any, list[Any]]:
    return {
        place: sorted(
            (
                (
                    *(one.forgotten, one.kept, one.method),
                    *(one.learning_rate, one.epoch, one.seeds),
                )
                for one in leaders
            ),
            reverse=True,
        )
        for place, leaders in live_best.leaders(99).items()
        if leaders
    }


@pytest.mark.parametrize("seed", range(3))
def test_live_best_equals_the_page_after_each_record(seed: int) -> None:
    records, live_best = drawn(seed), LiveBest()
    for count, one in enumerate(records, start=1):
        live_best.add(one)
        assert by_live_best(live_best) == by_page(records[:count])
    live_best.add(records[0])
    assert by_live_best(live_best) == by_page(records), "the same record again changes nothing"
    remaining = {one.id for one in records if one.learning_rate != 1e-5}
    live_best.retain_only(remaining)
    left = [one for one in records if one.kind != "run" or one.id in remaining]
    found, expected = by_live_best(live_best), by_page(left)
    # The removed runs still count for labels.
    assert found == expected
    live_best.retain_only({one.id for one in records})
    assert by_live_best(live_best) == by_page(records), "runs that the plan gets back"


def test_only_so_many_are_named_best_first() -> None:
    live_best = LiveBest()
    live_best.add(record("start", [(0.8, -20.0)], "fine-tuned"))
    for i, method in enumerate("abcdef"):
        live_best.add(record(method, [(0.7, -float(i))], method=method))
    ((_, leaders),) = live_best.leaders(3).items()
    assert [one.method for one in leaders] == ["a", "b", "c"]
    assert leaders[1].cells == ("b", "1e-05", "1", "0.700", "-1.00", "0.1")
    assert best_lines(live_best.starts()["tiny", 0.1], leaders[1:], last=True) == [
        "best of tiny, forget 10 %: the highest Forget Quality (FQ) that keeps 80 % of the start's "
        "utility",
        "  method   rate  epoch  utility  log10 FQ      p",
        "  b       1e-05      1    0.700     -1.00    0.1",
        "  c       1e-05      1    0.700     -2.00   0.01",
        "  start       -      0    0.800    -20.00  1e-20",
    ]


def test_the_table_counts_seeds_where_there_are_several() -> None:
    live_best = LiveBest()
    live_best.add(record("start", [(0.8, -20.0)], "fine-tuned"))
    for seed in (0, 1):
        live_best.add(record(f"npo-{seed}", [(0.7, -1.0)], seed=seed))
    (leaders,) = live_best.leaders(3).values()
    lines = best_lines(live_best.starts()["tiny", 0.1], leaders, last=False)
    assert [line.split()[-1] for line in lines[1:]] == ["seeds", "2", "-"]
