"""Attackers are chosen on some rows and seeds, and reported on others."""

from collections.abc import Mapping
from statistics import fmean
from typing import Any

import numpy as np
import pytest

from unlearnbench.analysis.attack_text import attack_sentences, single_attack_sentences
from unlearnbench.analysis.attacked_panels import attacked_panels
from unlearnbench.analysis.attacker_choice import AttackedModel, Search, seeds_of_choice
from unlearnbench.analysis.best_settings import panels
from unlearnbench.analysis.lasting import AttackedPanel, find_variant
from unlearnbench.analysis.recovery import panel_recovery
from unlearnbench.analysis.scorecard import lasting_score
from unlearnbench.analysis.under_attack import Shift
from unlearnbench.api.attack import CHOICE
from unlearnbench.attacks.relearning import Relearning
from unlearnbench.base.errors import RecordError
from unlearnbench.results.table import TableRow

from .test_lasting import COLUMN, PLAIN, row

RATES = {"low": 1e-6, "high": 1e-3, "log": True}
ATTACK = Relearning.model_validate({"search": {"learning_rate": RATES}, "trials": 3, "steps": (5,)})
POINTS = ("relearning@t1.5", "relearning@t2.5", "relearning@t3.5")


def search(points: tuple[str, ...] = POINTS) -> Search:
    return Search("relearning", ATTACK, points, None)


def model(gains: Mapping[str, float], kept: Mapping[str, float] | None = None) -> AttackedModel:
    """A model with these gains on the rows of the choice, and this utility after each attacker."""
    utility = dict.fromkeys(gains, 1.0) | dict(kept or {})
    return AttackedModel(
        utility_before=1.0,
        utility_after=utility,
        shift=lambda variant: Shift(0.1, 0.1 + gains[variant.removesuffix(CHOICE)]),
    )


def of_points(*values: float) -> dict[str, float]:
    return dict(zip(POINTS, values, strict=True))


def test_the_strongest_attacker_has_the_largest_gain_beyond_the_retain_models() -> None:
    setting = [model(of_points(0.1, 0.5, 0.4))]
    assert search().strongest(setting) == POINTS[1]
    # The retain model learns most of it from the same attacker.
    assert search().strongest(setting, model(of_points(0.0, 0.3, 0.0))) == POINTS[2]
    # A retain model that loses subtracts nothing.
    assert search().strongest(setting, model(of_points(0.0, -0.5, -1.0))) == POINTS[1]
    # The mean over the seeds of the choice counts.
    assert search().strongest([*setting, model(of_points(0.9, 0.0, 0.4))]) == POINTS[0]


def test_gains_that_differ_by_rounding_are_tied_and_the_first_attacker_is_chosen() -> None:
    assert search().strongest([model(of_points(0.0, 0.3, 0.3 + 1e-12))]) == POINTS[1]
    assert search().strongest([model(of_points(0.0, 0.3, 0.3 + 1e-6))]) == POINTS[2]


def test_of_tied_attackers_the_one_after_most_steps_is_chosen() -> None:
    """Otherwise, a tie on few rows would favour the method that is attacked."""
    points = ("relearning@t1.3", "relearning@t1.13", "relearning@t2.3", "relearning@t2.13")
    tied = model(dict.fromkeys(points, 0.2))
    assert search(points).strongest([tied]) == "relearning@t1.13"
    assert search(points).strongest([model({**dict.fromkeys(points, 0.2), points[2]: 0.3})]) == (
        "relearning@t2.3"
    )


def test_an_attacker_that_breaks_the_model_does_not_count() -> None:
    broken = model(of_points(0.1, 0.5, 0.4), {POINTS[1]: 0.89})
    assert search().counting([broken]) == [POINTS[0], POINTS[2]]
    assert search().strongest([broken]) == POINTS[2]
    whole = model(of_points(0.1, 0.5, 0.4))
    assert search().counting([broken, whole]) == [*POINTS], "the mean keeps 94.5 %"


def test_an_attacker_that_did_not_end_with_every_seed_does_not_count() -> None:
    whole = model(of_points(0.1, 0.2, 0.9))
    ended = AttackedModel(1.0, {POINTS[0]: 1.0, POINTS[1]: 1.0}, whole.shift)
    assert search().strongest([whole, ended]) == POINTS[1]


def test_problems_of_a_search_are_named() -> None:
    still = model(of_points(0.0, 0.0002, 0.0))
    assert "none of the 3 attackers of relearning moved a model" in search().problem([still], [])
    assert search().problem([still], [model(of_points(0.0, 0.0, 0.2))]) == "", "the other one moves"
    broken = model(of_points(0.5, 0.5, 0.5), dict.fromkeys(POINTS, 0.4) | {POINTS[2]: 0.71})
    problem = search().problem([broken], [])
    assert "no attacker of relearning left 90 %" in problem
    assert "the gentlest left 71 %" in problem


def test_the_gentlest_attacker_is_one_that_could_have_counted() -> None:
    """A share that rounds to the bound, and a point that one seed did not reach, would puzzle."""
    nearly = model(of_points(0.5, 0.5, 0.5), dict.fromkeys(POINTS, 0.8998))
    assert "left 90 % of the model's own utility (the gentlest left 89 %)" in search().problem(
        [nearly], []
    )
    whole = model(of_points(0.5, 0.5, 0.5), {POINTS[0]: 0.3, POINTS[1]: 0.3})
    ended = AttackedModel(1.0, {POINTS[0]: 0.5, POINTS[1]: 0.1}, whole.shift)
    assert "(the gentlest left 40 %)" in search().problem([whole, ended], [])
    destroyed = model(of_points(0.5, 0.5, 0.5), dict.fromkeys(POINTS, 0.0))
    assert "(the gentlest left 0 %)" in search().problem([destroyed], [])


def test_a_search_whose_counting_attackers_cannot_be_compared_says_why() -> None:
    one = model(of_points(0.1, 0.5, 0.9), {POINTS[2]: 0.2})
    gains_of_retain = {POINTS[2]: 0.0}
    retain = AttackedModel(
        1.0,
        {POINTS[2]: 1.0},
        lambda variant: Shift(0.1, gains_of_retain.get(variant.removesuffix(CHOICE))),
    )
    assert search().strongest([one], retain) is None
    assert search().problem([one], [retain], retain) == (
        "the retain model has no number under any attacker of relearning that left enough utility"
    )
    unknown = AttackedModel(1.0, dict.fromkeys(POINTS, 1.0), lambda _: Shift(0.1, None))
    moved = model(of_points(0.1, 0.5, 0.9))
    assert search().problem([unknown], [moved]) == (
        "a number is undefined under every attacker of relearning that left enough utility"
    )


def test_half_of_the_rows_and_a_third_of_the_seeds_choose() -> None:
    assert [seeds_of_choice(n) for n in (1, 2, 3, 4, 6, 10)] == [1, 1, 1, 1, 2, 3]


def test_the_worst_of_many_is_not_reported_as_an_effect() -> None:
    """Forty attackers without any effect: the largest gain is noise, and the report shows none."""
    generator = np.random.default_rng(0)
    points = tuple(f"relearning@t{i}.5" for i in range(40))
    largest: list[float] = []
    reported: list[float] = []
    for _ in range(200):
        on_choice = dict(zip(points, generator.normal(0, 0.1, 40), strict=True))
        on_report = dict(zip(points, generator.normal(0, 0.1, 40), strict=True))
        strongest = search(points).strongest([model(on_choice)])
        assert strongest is not None
        largest.append(on_choice[strongest])
        reported.append(on_report[strongest])
    assert fmean(largest) > 0.15
    assert abs(fmean(reported)) < 0.03


# From the rows of a table


def rows_of(kind: str, at: Mapping[str, tuple[float, float]], **more: Any) -> list[TableRow]:
    """Rows under the search: by point, the numbers on the rows of the report and of the choice."""
    rows: list[TableRow] = []
    for point, (reported, choosing) in at.items():
        utility = {"model_utility": more.get("kept", {}).get(point, 0.8)}
        fields = {name: value for name, value in more.items() if name != "kept"}
        rows.append(row(kind, reported, f"relearning@{point}", **utility, **fields))
        rows.append(row(kind, choosing, f"relearning@{point}{CHOICE}", **fields))
    return rows


REFERENCES = [
    *rows_of("retain", {"0": (0.1, 0.1), "t1.5": (0.1, 0.1), "t2.5": (0.2, 0.3)}),
    *rows_of("fine-tuned", {"0": (0.9, 0.9), "t1.5": (0.9, 0.9), "t2.5": (0.9, 0.9)}),
]


def panel(attacked: list[TableRow], seeds: int) -> AttackedPanel:
    plain = [row("run", 0.1, seed=seed) for seed in range(seeds)]
    (found,) = attacked_panels(
        panels([*PLAIN, *plain]), [*REFERENCES, *attacked], plugins={"relearning": ATTACK}
    )
    return found


def test_lasting_of_a_search_by_hand() -> None:
    """Seed 0 chooses attacker 2 on its rows; seeds 1 and 2 are reported on the other rows."""
    attacked: list[TableRow] = []
    for seed, reported in enumerate((0.9, 0.5, 0.6)):
        points = {"0": (0.1, 0.1), "t1.5": (0.8, 0.15), "t2.5": (reported, 0.7)}
        attacked += rows_of("run", points, seed=seed)
    found = panel(attacked, seeds=3)
    assert found.variants == ("relearning@tuned",)
    (setting,) = found.settings
    under = setting.worst
    assert under is not None
    assert under.tuned is not None
    assert under.evaluated == "relearning@t2.5"
    assert under.tuned.choosing_seeds == (0,)
    assert under.tuned.reporting_seeds == (1, 2)
    assert under.tuned.trials == 2
    rate = ATTACK.attackers()["2"].learning_rate
    assert under.tuned.settings == f"learning rate {rate:.4g}, 5 steps"
    # 1 − ((m − m₀) − max(0, r − r₀)) / (s₀ − m₀), with the retain model under the same attacker
    expected = [1 - ((after - 0.1) - 0.1) / 0.8 for after in (0.5, 0.6)]
    assert under.shares == pytest.approx(expected)
    assert lasting_score(setting).by_seed == pytest.approx({1: expected[0], 2: expected[1]})
    assert under.tuned.retain_after == pytest.approx(0.2), "the retain model's own strongest one"
    assert found.attackers_of_retain["relearning@tuned"].variant == "relearning@t2.5"
    assert under.label == "relearning, the strongest of 2 attackers"
    first, *_ = attack_sentences(found)
    assert "the strongest of 2 attackers (learning rate" in first
    kept = "the attacked model keeps 100 % of its utility"
    assert f"5 steps; chosen on seed 0, reported on seeds 1, 2; {kept})" in first
    assert "and to 0.200 under the attacker chosen for it" in first


def test_sentences_name_no_attacker_of_a_retain_model_that_each_attacker_breaks() -> None:
    points = {point: (0.1, 0.1) for point in ("0", "t1.5", "t2.5")}
    broken = rows_of("retain", points, kept={"t1.5": 0.3, "t2.5": 0.3})
    attacked = rows_of("run", {"0": (0.1, 0.1), "t1.5": (0.3, 0.6), "t2.5": (0.9, 0.4)})
    other = "quantization@nf4"
    plain = [row("run", 0.1)]
    start = [line for line in REFERENCES if line.kind == "fine-tuned"]

    def sentences(*more: TableRow) -> tuple[str, ...]:
        (found,) = attacked_panels(
            panels([*PLAIN, *plain]),
            [*broken, *start, *attacked, *more],
            plugins={"relearning": ATTACK},
        )
        return attack_sentences(found)

    first, baseline = sentences()
    assert "0.100 to 0.100, and no attacker could be chosen for it; start model" in first
    assert "undefined" not in first
    assert baseline.startswith("No attacker of relearning could be chosen for the retain model")
    assert "nothing can be judged" not in baseline, "the settings have a score"

    *_, baseline = sentences(*(row(kind, 0.1, other) for kind in ("retain", "fine-tuned", "run")))
    assert baseline == "The retain model itself gains nothing, under any attack except relearning."


def test_one_seed_chooses_on_some_rows_and_reports_the_others() -> None:
    attacked = rows_of("run", {"0": (0.1, 0.1), "t1.5": (0.3, 0.6), "t2.5": (0.9, 0.4)})
    found = panel(attacked, seeds=1)
    (setting,) = found.settings
    assert setting.worst is not None
    assert setting.worst.evaluated == "relearning@t1.5", "0.5 more on the rows of the choice"
    assert setting.lasting == pytest.approx(1 - 0.2 / 0.8)
    assert setting.worst.tuned is not None
    assert setting.worst.tuned.seeds_text == "chosen on seed 0, reported on other rows"
    # A checkpoint that `unlearnbench attack` judges has no seed.
    verdict, _ = single_attack_sentences(found, "relearning")
    assert "; chosen on half of the rows, reported on the others; the attacked model" in verdict


def test_a_setting_without_a_counting_attacker_has_no_score_and_a_reason() -> None:
    attacked = rows_of(
        "run",
        {"0": (0.1, 0.1), "t1.5": (0.9, 0.9), "t2.5": (0.9, 0.9)},
        kept={"t1.5": 0.3, "t2.5": 0.4},
    )
    (setting,) = panel(attacked, seeds=1).settings
    assert setting.worst is None
    assert setting.why_not.startswith("no attacker of relearning left 90 % of the model's own")
    assert "the gentlest left 50 %" in setting.why_not


def test_tied_attackers_are_in_their_order_whatever_another_run_has_reached() -> None:
    """The first run lacks attacker 1, under which as much comes back of the second run."""
    failed = rows_of("run", {"0": (0.1, 0.1), "t2.5": (0.2, 0.2)})
    tied = {"0": (0.1, 0.1), "t1.5": (0.3, 0.6), "t2.5": (0.4, 0.6)}
    attacked = [*failed, *rows_of("run", tied, method="simnpo")]
    references = [
        *rows_of("retain", {point: (0.1, 0.1) for point in ("0", "t1.5", "t2.5")}),
        *rows_of("fine-tuned", {point: (0.9, 0.9) for point in ("0", "t1.5", "t2.5")}),
    ]
    plain = [row("run", 0.1), row("run", 0.1, method="simnpo")]
    (found,) = attacked_panels(
        panels([*PLAIN, *plain]), [*references, *attacked], plugins={"relearning": ATTACK}
    )
    (under,) = next(one for one in found.settings if one.setting.family == "simnpo").under
    assert under.evaluated == "relearning@t1.5"


def test_numbers_under_an_attacker_that_was_not_chosen_are_no_score() -> None:
    """The retain model lacks attacker 1, and attacker 2 broke the model: nothing is chosen."""
    references = [
        *rows_of("retain", {"0": (0.1, 0.1), "t2.5": (0.2, 0.3)}),
        *rows_of("fine-tuned", {"0": (0.9, 0.9), "t1.5": (0.9, 0.9), "t2.5": (0.9, 0.9)}),
    ]
    points = {"0": (0.1, 0.1), "t1.5": (0.6, 0.6), "t2.5": (0.9, 0.9)}
    attacked = rows_of("run", points, kept={"t2.5": 0.3})
    (found,) = attacked_panels(
        panels([*PLAIN, row("run", 0.1)]), [*references, *attacked], plugins={"relearning": ATTACK}
    )
    (setting,) = found.settings
    assert setting.lasting is None
    assert setting.why_not.startswith("the retain model has no number under any attacker")


def test_a_search_that_no_run_was_attacked_by_is_not_missing() -> None:
    """As with other attacks: that of a retain model alone says nothing about settings."""
    attacked = [row("run", 0.3, "paraphrase")]
    references = [row("retain", 0.1, "paraphrase"), row("fine-tuned", 0.9, "paraphrase")]
    (found,) = attacked_panels(
        panels([*PLAIN, row("run", 0.1)]),
        [*REFERENCES, *references, *attacked],
        plugins={"relearning": ATTACK},
    )
    (setting,) = found.settings
    assert setting.why_not == ""
    assert setting.worst is not None


def test_a_setting_that_the_search_did_not_attack_has_no_score() -> None:
    attacked = rows_of("run", {"0": (0.1, 0.1), "t1.5": (0.3, 0.6), "t2.5": (0.9, 0.4)})
    plain = [row("run", 0.1), row("run", 0.2, method="simnpo")]
    attacked.append(row("run", 0.3, "paraphrase", method="simnpo"))
    attacked.append(row("run", 0.3, "paraphrase"))
    references = [row("retain", 0.1, "paraphrase"), row("fine-tuned", 0.9, "paraphrase")]
    (found,) = attacked_panels(
        panels([*PLAIN, *plain]),
        [*REFERENCES, *references, *attacked],
        plugins={"relearning": ATTACK},
    )
    reasons = {one.setting.family: one.why_not for one in found.settings}
    assert reasons["npo"] == ""
    assert reasons["simnpo"] == "relearning did not attack it at epoch 1"
    assert found.column.name == COLUMN


def test_the_references_of_the_figure_are_over_the_rows_of_the_lines() -> None:
    """Plain numbers are 0.9 and 0.1; on the reported rows, the start model knows 0.7."""
    points = ("0", "t1.5", "t2.5")
    references = [
        *rows_of("retain", dict.fromkeys(points, (0.2, 0.1))),
        *rows_of("fine-tuned", dict.fromkeys(points, (0.7, 0.9))),
    ]
    attacked = rows_of("run", {"0": (0.3, 0.1), "t1.5": (0.5, 0.6), "t2.5": (0.9, 0.4)})
    (found,) = attacked_panels(
        panels([*PLAIN, row("run", 0.1)]), [*references, *attacked], plugins={"relearning": ATTACK}
    )
    recovery = panel_recovery(found)
    assert (recovery.start, recovery.retain) == (0.7, 0.2)
    (line,) = recovery.methods
    assert (line.before, line.after) == (0.3, 0.5)
    assert attack_sentences(found)[-1] == (
        "The retain model itself gains nothing, under the attacker that relearning chose for it."
    )


@pytest.mark.parametrize("name", ["relearning", "relearning@tuned"])
def test_a_comparison_has_to_name_one_attacker_of_a_search(name: str) -> None:
    variants = ["relearning@0", "relearning@t1.13", "relearning@t1.3", "relearning@t2.3"]
    message = "name one attacker .* such as relearning@t1.3 or relearning@t2.3 .one of 3 points"
    with pytest.raises(RecordError, match=message):
        find_variant(name, variants)
    assert find_variant("relearning@t1.13", variants) == "relearning@t1.13"
