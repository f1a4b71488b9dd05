"""Ranks over panels against values worked by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from unlearnbench.analysis.best_settings import Best, Setting
from unlearnbench.analysis.mean_ranks import mid_ranks, rank_methods
from unlearnbench.results.epoch_metrics import Numbers
from unlearnbench.results.table import TableRow

Qualities = Mapping[str, Sequence[float] | None]


def best(model: str, qualities: Qualities) -> list[Best]:
    """A panel: log10 Forget Quality of each method's best setting, by seed; None without one."""
    found: list[Best] = []
    for method, values in qualities.items():
        metrics = [Numbers(log10_forget_quality=v) for v in values or ()]
        rows = tuple(
            TableRow(
                run_id=f"{model}-{method}-{seed}",
                kind="run",
                model=model,
                forget_fraction=0.1,
                method=method,
                family=method,
                hyperparameters={},
                learning_rate=1e-5,
                seed=seed,
                epoch=1,
                status="finished",
                metrics=of_seed,
            )
            for seed, of_seed in enumerate(metrics)
        )
        setting = Setting(model, 0.1, method, method, 1e-5, 1, rows, {}) if rows else None
        found.append(Best(model, 0.1, method, method, setting))
    return found


@pytest.mark.parametrize(
    ("values", "ranks"),
    [
        ([], ()),
        ([-1.0], (1.0,)),
        ([-3.0, -1.0, -2.0], (3.0, 1.0, 2.0)),
        # Places 1 and 2 are shared: (1 + 2) / 2.
        ([-1.0, -1.0, -2.0], (1.5, 1.5, 3.0)),
        # Nobody is behind the two without a number: (2 + 3) / 2.
        ([None, -1.0, None], (2.5, 1.0, 2.5)),
        ([None, None], (1.5, 1.5)),
    ],
)
def test_mid_ranks_by_hand(values: list[float | None], ranks: tuple[float, ...]) -> None:
    assert mid_ranks(values) == ranks


def test_means_over_panels() -> None:
    found = rank_methods(
        best("a", {"x": [-1.0], "y": [-2.0], "z": [-3.0]})
        + best("b", {"x": [-1.0], "y": [-1.0], "z": None})
    )
    assert found.panels == (("a", 0.1), ("b", 0.1))
    text = [(one.method, one.places, one.mean, one.without) for one in found.ranks]
    assert text == [
        ("x", (1.0, 1.5), 1.25, 0),
        ("y", (2.0, 1.5), 1.75, 0),
        ("z", (3.0, 3.0), 3.0, 1),
    ]
    # Two panels, drawn twice: both ends are a panel drawn twice, a quarter of all cases each.
    assert [(one.low, one.high) for one in found.ranks] == [(1.0, 1.5), (1.5, 2.0), (3.0, 3.0)]
    assert found.summary == (
        "Ranks of 3 methods by their best settings, from 2 panels (models × forget fractions). "
        "Last because no setting keeps its utility: z (1 of 2)."
    )


def test_one_panel_without_seeds_has_no_interval() -> None:
    found = rank_methods(best("a", {"x": [-1.0], "y": None}))
    assert [(one.mean, one.low, one.high) for one in found.ranks] == [
        (1.0, None, None),
        (2.0, None, None),
    ]
    assert "one panel: they hold for this model and forget fraction only." in found.summary
    assert found.summary.endswith("keeps its utility: y.")


def test_seeds_are_resampled_in_each_panel() -> None:
    # x is -1 and -5, y is always -3: of x's four resamples one is -1, two are -3, one is -5, so
    # that it is first, ties, or is second, a quarter, a half and a quarter of all times.
    found = rank_methods(best("a", {"x": [-1.0, -5.0], "y": [-3.0, -3.0]}))
    assert [(one.mean, one.low, one.high) for one in found.ranks] == [(1.5, 1.0, 2.0)] * 2
    inner = rank_methods(best("a", {"x": [-1.0, -5.0], "y": [-3.0]}), level=0.4)
    assert [(one.low, one.high) for one in inner.ranks] == [(1.5, 1.5)] * 2


def test_methods_that_did_not_run_everywhere_are_left_out() -> None:
    found = rank_methods(best("a", {"x": [-2.0], "y": [-1.0]}) + best("b", {"x": [-1.0]}))
    assert [(one.method, one.places) for one in found.ranks] == [("x", (1.0, 1.0))]
    assert found.left_out == ("y",)
    assert found.summary.endswith("Left out because not run on every panel: y.")


def test_nothing_ran() -> None:
    found = rank_methods([])
    assert (found.panels, found.ranks, found.left_out) == ((), (), ())
