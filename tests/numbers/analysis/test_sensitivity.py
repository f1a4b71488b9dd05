"""Sensitivity to learning rate and hyper-parameters, against plain loops over the records."""

import random
from dataclasses import replace
from statistics import fmean
from typing import Any

from unlearnbench.analysis.best_settings import panels
from unlearnbench.analysis.sensitivity import RATE, MethodSensitivity, strips
from unlearnbench.analysis.sensitivity import sensitivities as of_panels
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.results.setting_value import SettingValue
from unlearnbench.results.table import TableRow

from .conftest import table_row

Q, U = "log10_forget_quality", "model_utility"


def row(
    rate: float, beta: float, seed: int, epoch: int, *, split: SplitKey = 0.1, family: str = "npo"
) -> TableRow:
    """A row whose numbers are computed from its setting."""
    quality = -10 + 3e4 * rate * epoch + beta + 0.1 * seed
    fields: dict[str, Any] = {"family": family, "forget_fraction": split, "learning_rate": rate}
    return table_row(
        "run",
        f"{family} (beta={beta:g})",
        {Q: quality, U: 1 - 1e3 * rate * beta},
        run_id=f"{family}-{rate}-{beta}-{seed}-{split}",
        setting=SettingValue.of({"hyperparameters": {"beta": beta, "fixed": 1}}),
        seed=seed,
        epoch=epoch,
        **fields,
    )


RATES, BETAS, SEEDS, EPOCHS = (1e-5, 1e-4), (0.1, 0.5, 2.0), (0, 1), (1, 2, 3)


def sensitivities(rows: list[TableRow]) -> tuple[MethodSensitivity, ...]:
    return of_panels(panels(rows))


def grid(**more: Any) -> list[TableRow]:
    return [
        row(rate, beta, seed, epoch, **more)
        for rate in reversed(RATES)
        for beta in reversed(BETAS)
        for seed in SEEDS
        for epoch in EPOCHS
    ]


def test_ranges_are_those_of_means_over_seeds_after_the_last_epoch() -> None:
    rows = grid()
    (one,) = sensitivities(rows)
    assert len(one.settings) == len(RATES) * len(BETAS)
    means = [
        fmean(
            r.metrics[Q] or 0.0
            for r in rows
            if (r.learning_rate, r.setting.fields["beta"], r.epoch) == (rate, beta, 3)
        )
        for rate in RATES
        for beta in BETAS
    ]
    assert one.span(Q) == (min(means), max(means), max(means) - min(means))
    assert one.span("unknown") is None


def test_a_line_varies_one_value_and_keeps_the_others() -> None:
    (one,) = sensitivities(grid())
    by_rate, by_beta = one.dependences
    assert (by_rate.name, by_beta.name) == (RATE, "beta"), "what is fixed has no figure"
    assert sorted(tuple(map(by_rate.value, line)) for line in by_rate.lines) == [RATES] * 3
    assert sorted(tuple(map(by_beta.value, line)) for line in by_beta.lines) == [BETAS] * 2
    for line in by_rate.lines:
        assert len({by_beta.value(setting) for setting in line}) == 1
    assert all(len(setting.rows) == 2 for line in by_beta.lines for setting in line)


def test_a_method_with_one_setting_is_left_out_and_panels_are_apart() -> None:
    single = [row(1e-4, 0.1, 0, epoch, family="dpo") for epoch in EPOCHS]
    found = sensitivities([*grid(), *grid(split="books"), *single])
    assert [(one.family, one.forget_fraction) for one in found] == [("npo", 0.1), ("npo", "books")]
    assert sensitivities(single) == ()


def test_collapsed_settings_take_no_part() -> None:
    """Neither those that keep too little, nor those of which a run ended so."""
    start = replace(row(1e-5, 0.0, 0, 0), kind="fine-tuned", metrics={Q: -16.0, U: 1.0})
    low = [replace(one, metrics={Q: -2.0, U: 0.49}) for one in grid(family="low")]
    made = [r for r in grid(family="ended") if not r.seed or r.epoch < EPOCHS[-1]]
    ended = [replace(r, status="collapsed") if r.seed else r for r in made]
    rows = [start, *low, *ended, *grid()]
    assert [one.family for one in sensitivities(rows)] == ["npo"]
    one_left = [r for r in rows if r.family == "npo" or (r.learning_rate, r.epoch) == (1e-4, 3)]
    first = replace(low[0], metrics={Q: -9.0, U: 0.5}, epoch=3)
    assert "low" not in [one.family for one in sensitivities([*one_left, first])]


def test_a_strip_has_every_setting_after_its_last_number_and_says_which_collapsed() -> None:
    """Against a plain loop over random rows, of which some have no number."""
    draw = random.Random(7)
    start = replace(row(1e-5, 0.0, 0, 0), kind="fine-tuned", metrics={Q: -16.0, U: 0.8})
    for _ in range(30):
        settings = [(f, r, b) for f in ("npo", "dpo") for r in RATES for b in BETAS]
        rows: list[TableRow] = []
        expected: dict[str, list[tuple[float, float, int, float | None, bool]]] = {}
        lost: dict[str, int] = {}
        for family, rate, beta in draw.sample(settings, draw.randrange(2, len(settings))):
            found: tuple[float, float, int, float | None, bool] | None = None
            for epoch in EPOCHS:
                kept = draw.choice([None, *(draw.uniform(0, 0.8) for _ in range(3))])
                metrics = {Q: None if kept is None else -1.0, U: kept}
                one = row(rate, beta, 0, epoch, family=family)
                rows.append(replace(one, metrics=metrics))
                if kept is not None:
                    found = (rate, beta, epoch, kept, kept < 0.4)  # half of the start model's
            expected.setdefault(family, [])
            if found is None:
                lost[family] = lost.get(family, 0) + 1
            else:
                expected[family].append(found)
        shown = {
            strip.family: sorted(
                (
                    mark.setting.learning_rate,
                    mark.setting.rows[0].setting.fields["beta"],
                    mark.setting.epoch,
                    mark.setting.kept,
                    mark.has_collapsed,
                )
                for mark in strip.marks
            )
            for strip in strips(panels([start, *rows]))
        }
        assert shown == {family: sorted(marks) for family, marks in sorted(expected.items())}
        without = {s.family: s.without_number for s in strips(panels([start, *rows]))}
        assert {family: count for family, count in without.items() if count} == lost


def test_a_setting_whose_run_collapsed_is_marked_at_every_utility() -> None:
    start = replace(row(1e-5, 0.0, 0, 0), kind="fine-tuned", metrics={Q: -16.0, U: 1.0})
    made = [r for r in grid() if not r.seed or r.epoch < EPOCHS[-1]]
    ended = [replace(r, status="collapsed") if r.seed else r for r in made]
    (strip,) = strips(panels([start, *ended]))
    assert all(mark.has_collapsed for mark in strip.marks)
    assert len(strip.marks) == len(RATES) * len(BETAS)
    (whole,) = strips(panels([start, *grid()]))
    assert not any(mark.has_collapsed or mark.ended for mark in whole.marks)
    rates = [mark.setting.learning_rate for mark in whole.marks]
    assert rates == sorted(rates, key=lambda rate: rate or 0.0)
