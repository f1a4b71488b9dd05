"""Forgetting under attacks, against the retain model's own gain."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.attack_text import attack_sentences, lasting
from unlearnbench.analysis.attacked_panels import attacked_panels
from unlearnbench.analysis.best_settings import Choice, panels
from unlearnbench.analysis.ended_early import EarlyEnd
from unlearnbench.analysis.lasting import AttackedPanel
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.analysis.under_attack import Shift, UnderAttack
from unlearnbench.analysis.yardstick import memorization_column
from unlearnbench.results.attack_variants import step_of
from unlearnbench.results.table import Numbers, TableRow
from unlearnbench.stats.t_interval import t_interval

from .conftest import table_row

COLUMN = "extraction_strength_forget"
STEPS = ("relearning@1", "relearning@13")


def row(
    kind: str,
    value: float | None,
    variant: str = "",
    *,
    method: str = "npo",
    rate: float | None = 1e-5,
    seed: int = 0,
    utility: float | None = 0.8,
    epoch: int = 1,
    **metrics: float,
) -> TableRow:
    """A row with this extraction strength; without a utility under an attack, as in records."""
    run = kind == "run"
    numbers: dict[str, float | None] = {COLUMN: value, **metrics}
    if not variant:
        numbers |= {"model_utility": utility, "log10_forget_quality": -4.0}
    name = f"{method}-{rate}-{seed}" if run else f"{kind}{variant and '-attacked'}"
    place = {"run_id": name, "learning_rate": rate, "seed": seed, "epoch": epoch} if run else {}
    place |= {"at_inference": run and rate is None}
    fields: dict[str, Any] = {"run_id": name, "variant": variant, **place}
    return table_row(kind, method if run else kind, numbers, **fields)


def variants(kind: str, values: Mapping[str, float | None], **more: Any) -> list[TableRow]:
    return [row(kind, value, variant, **more) for variant, value in values.items()]


PLAIN = [row("fine-tuned", 0.9, utility=1.0), row("retain", 0.1, utility=1.0)]
REFERENCES = [
    *variants("retain", {"relearning@1": 0.1, "relearning@13": 0.2, "paraphrase": 0.1}),
    *variants("fine-tuned", {"relearning@1": 0.9, "relearning@13": 0.9, "paraphrase": 0.7}),
]


def panel(plain: list[TableRow], attacked: list[TableRow], **more: Any) -> AttackedPanel:
    (found,) = attacked_panels(panels([*PLAIN, *plain]), [*REFERENCES, *attacked], **more)
    return found


@pytest.mark.parametrize(
    ("before", "after", "retain_after", "expected"),
    [
        (0.1, 0.1, 0.1, 1.0),  # nothing comes back
        (0.1, 0.9, 0.1, 0.0),  # all of it
        (0.1, 0.5, 0.1, 0.5),
        (0.1, 0.3, 0.3, 1.0),  # no more than the retain model gains
        (0.5, 0.7, 0.1, 0.5),  # half of it was removed, and half of that comes back
        (0.0, 0.1, 0.1, 1 - 0.1 / 0.9),  # below the retain model, and back to its number
        (0.5, 0.2, 0.1, 1.75),  # an attack that makes it forget more: not clipped
        (0.1, 0.5, 0.0, 0.5),  # a retain model that loses subtracts nothing
        (0.85, 0.9, 0.1, None),  # it had removed next to nothing
    ],
)
def test_lasting_by_hand(
    before: float, after: float, retain_after: float, expected: float | None
) -> None:
    one = UnderAttack("x", (Shift(before, after),), Shift(0.1, retain_after), Shift(0.9, 0.9))
    assert one.lasting == (None if expected is None else pytest.approx(expected))
    assert one.lasting_interval is None, "one seed has no interval"


def test_lasting_is_the_same_where_a_smaller_number_means_more_memorised() -> None:
    up = UnderAttack("x", (Shift(0.1, 0.5),), Shift(0.1, 0.2), Shift(0.9, 0.9))
    down = UnderAttack("x", (Shift(-0.1, -0.5),), Shift(-0.1, -0.2), Shift(-0.9, -0.9), sign=-1.0)
    assert up.lasting == pytest.approx(1 - 0.3 / 0.8)
    assert down.lasting == pytest.approx(up.lasting)
    assert replace(down, sign=1.0).lasting is None, "the start model has not learned the rows"


def test_the_worst_attack_counts_with_its_interval_over_seeds() -> None:
    plain = [row("run", 0.1, seed=seed) for seed in range(3)]
    under = [
        one
        for seed, back in enumerate((0.4, 0.5, 0.6))
        for one in variants(
            "run", {"relearning@1": 0.2, "relearning@13": back, "paraphrase": 0.1}, seed=seed
        )
    ]
    (setting,) = panel(plain, under).settings
    worst, shares = setting.worst, [1 - (value - 0.2) / 0.8 for value in (0.4, 0.5, 0.6)]
    assert worst is not None
    assert worst.variant == "relearning@13"
    assert setting.lasting == pytest.approx(sum(shares) / 3)
    assert worst.shares == pytest.approx(shares)
    assert worst.lasting_interval == t_interval([v for v in worst.shares if v is not None])
    assert worst.gain == pytest.approx(0.4)
    assert worst.null == pytest.approx(0.1)


def test_the_reason_is_named_where_there_is_no_number() -> None:
    under = variants("run", {"paraphrase": 0.88})
    (setting,) = panel([row("run", 0.85)], under).settings
    assert setting.why_not == "it forgot too little (less than 25 %) to measure recovery"
    found = setting.at("paraphrase")
    assert found is not None
    assert found.removed == pytest.approx(0.05 / 0.8)
    assert setting.at("sampling") is None
    (bare,) = attacked_panels(
        panels([PLAIN[1], row("fine-tuned", None, utility=1.0), row("run", 0.1)]),
        [*REFERENCES, *under],
    )
    assert bare.settings[0].why_not == "the start model was not evaluated"
    (lost,) = panel([row("run", 0.1)], variants("run", {"paraphrase": None})).settings
    assert lost.why_not == "a number behind it is undefined"


def test_without_the_retain_model_under_the_attack_nothing_is_judged() -> None:
    plain, under = [row("run", 0.1)], variants("run", {"paraphrase": 0.5})
    (found,) = attacked_panels(panels([*PLAIN, *plain]), under)
    assert found.settings[0].why_not == "the retain model was not attacked"
    assert found.settings[0].under[0].gain == pytest.approx(0.4)
    assert any("without that baseline" in line for line in attack_sentences(found))


def test_a_point_before_the_first_step_is_the_number_before() -> None:
    points = {"relearning@0": 0.3, "relearning@13": 0.5}
    attacked = [
        *variants("run", points),
        *variants("retain", {"relearning@0": 0.2, "relearning@13": 0.2}),
        *variants("fine-tuned", {"relearning@0": 0.8, "relearning@13": 0.8}),
    ]
    (found,) = attacked_panels(panels([*PLAIN, row("run", 0.1)]), attacked)
    (one,) = found.settings[0].under
    assert one.variant == "relearning@13", "the point itself is no attack"
    assert one.shifts == (Shift(0.3, 0.5),)
    assert (one.retain, one.start) == (Shift(0.2, 0.2), Shift(0.8, 0.8))


def test_relearning_curves_begin_before_the_attack() -> None:
    plain = [row("run", 0.1, seed=seed) for seed in range(2)]
    under = [
        *variants("run", {"relearning@1": 0.3, "relearning@13": 0.6}, seed=0),
        *variants("run", {"relearning@1": 0.1, "relearning@13": 0.4}, seed=1),
    ]
    (curve,) = panel(plain, under).settings[0].curves
    assert curve.steps == (0, 1, 13)
    assert curve.mean == pytest.approx((0.1, 0.2, 0.5))
    assert curve.retain == (0.1, 0.1, 0.2)
    assert curve.start == (0.9, 0.9, 0.9)
    heights = (0.0, 0.1, 0.3)
    area = (heights[0] + heights[1]) / 2 + 12 * (heights[1] + heights[2]) / 2
    assert curve.area == pytest.approx(area / 13 / 0.8)
    assert curve.steps_to_half == pytest.approx(1 + 12 * 0.25 / 0.3)
    assert curve.symmetric_robustness == pytest.approx(1 - 0.3 / 0.5)


DEPTHS = ("logit-lens@25", "logit-lens@50", "logit-lens@100")


@pytest.mark.parametrize("points", [DEPTHS, ("template@0", "template@1", "template@2")])
def test_points_named_by_digits_are_steps_only_of_attacks_that_train(
    points: tuple[str, ...],
) -> None:
    """Also the point 0 is then a prompt or a depth like any other."""
    first, second, last = points
    attacked = [
        *variants("run", {first: 0.5, second: 0.3, last: 0.1}),
        *variants("retain", dict.fromkeys(points, 0.1)),
        *variants("fine-tuned", dict.fromkeys(points, 0.9)),
    ]
    (found,) = attacked_panels(panels([*PLAIN, row("run", 0.1)]), attacked)
    (setting,) = found.settings
    assert found.variants == points
    assert setting.curves == ()
    assert [one.before for one in setting.under] == [0.1, 0.1, 0.1]
    assert setting.lasting == pytest.approx(0.5), "the first point is the worst"
    attack, _, point = first.partition("@")
    assert step_of(first) is None
    assert attack_sentences(found)[0].startswith(f"Under {attack}, {point}, 50 %")


def test_points_of_an_attack_that_is_not_installed_are_no_steps() -> None:
    attacked = [
        *variants("run", {"gone@0": 0.1, "gone@13": 0.5}),
        *variants("retain", {"gone@0": 0.1, "gone@13": 0.1}),
    ]
    (found,) = attacked_panels(panels([*PLAIN, row("run", 0.1)]), attacked)
    assert found.settings[0].curves == ()
    assert found.settings[0].lasting == pytest.approx(0.5)


def samples(kind: str, greedy: float, rouge: float, best: float | None) -> TableRow:
    """A row under sampling: greedy numbers as without it, and the best of the samples."""
    made = row(kind, greedy, "sampling", rouge_forget=rouge)
    return replace(made, metrics=Numbers({**made.metrics, "expected_best_forget": best}))


def sampled_panel(best: float | None, **more: float) -> AttackedPanel:
    plain = [
        row("fine-tuned", 0.9, utility=1.0, rouge_forget=0.9),
        row("retain", 0.1, utility=1.0, rouge_forget=0.3),
        row("run", 0.1, rouge_forget=0.4),
    ]
    under = [
        samples("fine-tuned", 0.9, 0.9, None if best is None else 0.98),
        samples("retain", 0.1, 0.3, None if best is None else more.get("retain", 0.4)),
        samples("run", 0.1, 0.4, best),
    ]
    (found,) = attacked_panels(panels(plain), under)
    return found


@pytest.mark.parametrize(
    ("best", "retain", "expected"),
    [
        (0.4, 0.3, 1.0),  # samples show no more than the greedy answer
        (0.5, 0.4, 1.0),  # no more than those of the retain model do
        (0.75, 0.4, 0.5),  # 0.35 - 0.1 of the 0.5 that was removed
        (1.0, 0.4, 0.0),
    ],
)
def test_sampling_is_measured_by_what_samples_give_away(
    best: float, retain: float, expected: float
) -> None:
    """The greedy answer is the same under it, so that its metrics cannot move."""
    found = sampled_panel(best, retain=retain)
    (one,) = found.settings[0].under
    assert one.shifts == (Shift(0.4, best),)
    assert one.start.before == 0.9
    assert one.retain == Shift(0.3, retain)
    assert found.settings[0].lasting == pytest.approx(expected)
    sentence = attack_sentences(found)[0]
    assert "extraction strength" not in sentence
    assert (
        f"greedy answer is 0.400, and best of k samples, rouge-l, forget is {best:.3f}" in sentence
    )


def test_sampling_without_a_metric_of_its_samples_has_no_score() -> None:
    found = sampled_panel(None)
    (setting,) = found.settings
    assert setting.lasting is None
    assert setting.worst is None
    assert setting.why_not.startswith("sampling leaves greedy answers as they are")
    assert "comes back" not in attack_sentences(found)[0]
    assert found.most is None


def test_an_attack_that_is_not_installed_and_samples_is_measured_by_its_samples() -> None:
    found = sampled_panel(0.75)
    plain = [one for one in (row("fine-tuned", 0.9, rouge_forget=0.9),)]
    under = [
        replace(samples(kind, 0.1, 0.4, best), variant="gone")
        for kind, best in (("run", 0.75), ("retain", 0.4))
    ]
    rows = [*plain, row("retain", 0.1, rouge_forget=0.3), row("run", 0.1, rouge_forget=0.4)]
    (gone,) = attacked_panels(panels(rows), under)
    assert gone.settings[0].under[0].shares == found.settings[0].under[0].shares


def test_methods_at_inference_time_are_bypassed_by_white_box_attacks() -> None:
    plain = [row("run", 0.1, method="eco", rate=None)]
    values = {"relearning@0": 0.9, "relearning@13": 0.9, "paraphrase": 0.1}
    under = variants("run", values, method="eco", rate=None)
    found = panel(plain, under, white_box="relearning".__eq__)
    (setting,) = found.settings
    assert [one.bypassed for one in setting.under] == [True, False]
    assert setting.bypassed_by == ("relearning",)
    assert setting.under[0].before == 0.1, "the method is gone at the point 0 already"
    assert setting.lasting == pytest.approx(0.125)
    assert attack_sentences(found)[0].startswith("eco, epoch 1, is bypassed, not robust: it")
    sentence = attack_sentences(panel(plain, under, white_box=bool))[0]
    assert "relearning and paraphrase run the model without it." in sentence
    trained = panel([row("run", 0.1)], variants("run", {"relearning@13": 0.9}), white_box=bool)
    assert trained.settings[0].bypassed_by == ()


def test_the_column_is_the_first_that_has_a_number() -> None:
    plain = [replace(one, metrics={**one.metrics, "rouge_forget": 0.5}) for one in PLAIN]
    assert memorization_column(PLAIN, REFERENCES) == COLUMN
    attacked = [row("run", None, "paraphrase", rouge_forget=0.5)]
    assert memorization_column(plain, attacked) == "rouge_forget"
    quality = [row("run", None, "paraphrase", log10_forget_quality=-2.0)]
    assert memorization_column(plain, quality) == "log10_forget_quality"
    assert memorization_column(plain, []) is None


def test_a_best_setting_that_was_not_attacked_has_no_score_of_another_one() -> None:
    plain = [
        row("run", 0.1, rate=1e-5, utility=0.9),
        row("run", 0.1, rate=2e-5, utility=0.85),
        row("run", 0.1, rate=3e-5, utility=0.5),
    ]
    under = [
        one for rate in (2e-5, 3e-5) for one in variants("run", {"paraphrase": 0.1}, rate=rate)
    ]
    found = panel(plain, under)
    (best,) = found.best
    assert best.setting.learning_rate == 1e-5
    assert (best.lasting, best.under) == (None, ())
    assert best.why_not == "it was not attacked at epoch 1 (only other settings of npo were)"
    (shown,) = found.shown
    assert shown.setting.learning_rate == 2e-5, "1e-5 was not attacked, 3e-5 keeps too little"
    assert attack_sentences(found)[0] == (
        "npo at learning rate 1e-05, epoch 1, is not scored: it was not attacked at epoch 1 (only "
        "other settings of npo were)."
    )
    assert text_of_conclusion(found, plain[0]).startswith(
        "Robustness unknown: it was not attacked at epoch 1"
    )
    unknown = replace(plain[0], metrics={**plain[0].metrics, "log10_forget_quality": None})
    attacked = variants("run", {"paraphrase": 0.1}, rate=1e-5)
    (best,) = panel([unknown, *plain[1:]], [*under, *attacked]).best
    assert best.setting.learning_rate == 2e-5, "of 1e-5 it is not known what it forgot"


def text_of_conclusion(found: AttackedPanel, leader: TableRow) -> str:
    (setting,) = average_seeds([leader])
    return lasting(found, setting)


def test_the_best_epoch_is_scored_only_if_it_was_attacked_itself() -> None:
    """With `at: last` the best epoch may be an earlier one."""
    plain = [
        replace(row("run", 0.1, epoch=epoch), metrics={**row("run", 0.1).metrics, **numbers})
        for epoch, numbers in ((2, {"log10_forget_quality": -1.0}), (5, {}))
    ]
    found = panel(plain, variants("run", {"paraphrase": 0.1}, epoch=5))
    (best,) = found.best
    assert (best.setting.epoch, best.lasting) == (2, None)
    assert best.why_not == (
        "it was not attacked at epoch 2 (settings of npo were attacked at epoch 5)"
    )
    assert [item.setting.epoch for item in found.settings] == [5]
    assert found.settings[0].lasting == 1.0, "shown in the details"


def test_an_attack_that_one_seed_lacks_leaves_no_score() -> None:
    """Another seed may have ended by patience, or been attacked at another epoch."""
    plain = [row("run", 0.1, seed=seed) for seed in range(2)]
    under = [
        *variants("run", {"relearning@13": 0.9, "paraphrase": 0.1}, seed=0),
        *variants("run", {"paraphrase": 0.1}, seed=1),
    ]
    found = panel(plain, under)
    (setting,) = found.settings
    assert (setting.lasting, setting.worst) == (None, None)
    assert setting.why_not == "relearning did not attack seed 1 at epoch 1"
    assert setting.at("paraphrase") is not None
    assert "not scored: relearning did not attack seed 1 at epoch 1." in attack_sentences(found)[0]
    assert found.most is None


def test_a_point_that_an_attack_did_not_reach_leaves_no_score() -> None:
    plain = [row("run", 0.1, seed=seed) for seed in range(2)]
    under = [
        *variants("run", {"relearning@1": 0.1, "relearning@13": 0.9}, seed=0),
        *variants("run", {"relearning@1": 0.1}, seed=1),
    ]
    (setting,) = panel(plain, under).settings
    assert setting.why_not == "relearning did not reach 13 with seed 1 at epoch 1"


def test_an_attack_that_other_settings_had_is_not_passed_over() -> None:
    plain = [row("run", 0.1, method=name) for name in ("npo", "idk")]
    under = [
        *variants("run", {"relearning@13": 0.9, "paraphrase": 0.1}, method="idk"),
        *variants("run", {"paraphrase": 0.1}, method="npo"),
    ]
    idk, npo = panel(plain, under).settings
    assert idk.lasting == pytest.approx(1 - (0.8 - 0.1) / 0.8)
    assert (npo.lasting, npo.why_not) == (None, "relearning did not attack it at epoch 1")
    first, second, _ = attack_sentences(panel(plain, under))
    assert "of what idk at" in first
    assert second.startswith("npo at learning rate 1e-05, epoch 1, is not scored: "), "scores first"


def choice(epoch: int = 1, runs: Collection[str] = ("npo-1e-05-1", "npo-1e-05-2")) -> Choice:
    """The setting npo at 1e-5, chosen on seed 0."""
    return Choice(
        *("tiny", 0.1),
        family="npo",
        entry="npo",
        label="npo",
        epoch=epoch,
        runs=frozenset(runs),
        trials=frozenset({"npo-1e-05-0", "npo-0.0001-0"}),
        chosen_on=(0,),
        sweep_runs=frozenset({*(f"npo-1e-05-{seed}" for seed in range(3)), "npo-0.0001-0"}),
    )


def chosen_panel(made: Choice) -> AttackedPanel:
    """Three seeds of the chosen setting, and a trial of another one of which all comes back."""
    plain = [*(row("run", 0.1, seed=seed) for seed in range(3)), row("run", 0.1, rate=1e-4)]
    under = [
        *variants("run", {"paraphrase": 0.2}, seed=0),
        *variants("run", {"paraphrase": 0.4}, seed=1),
        *variants("run", {"paraphrase": 0.6}, seed=2),
        *variants("run", {"paraphrase": 0.9}, rate=1e-4),
    ]
    (found,) = attacked_panels(panels([*PLAIN, *plain], [made]), [*REFERENCES, *under])
    return found


def test_a_chosen_setting_lasts_as_its_reporting_seeds_say() -> None:
    found = chosen_panel(choice())
    (best,) = found.best
    assert [one.seed for one in best.setting.rows] == [1, 2]
    assert best.lasting == pytest.approx(1 - 0.4 / 0.8), "the mean of seeds 1 and 2"
    assert found.of(best.setting) is best
    assert found.most is best, "a trial is not what the method was chosen for"
    assert [line.count("comes back") for line in attack_sentences(found)[:-1]] == [1]


def test_a_choice_whose_epoch_was_not_attacked_has_no_score() -> None:
    plain = [row("run", 0.1, seed=seed, epoch=epoch) for seed in range(3) for epoch in (1, 2)]
    under = [one for s in range(3) for one in variants("run", {"paraphrase": 0.4}, seed=s, epoch=2)]
    (found,) = attacked_panels(panels([*PLAIN, *plain], [choice()]), [*REFERENCES, *under])
    (best,) = found.best
    assert (best.setting.epoch, best.lasting) == (1, None)
    assert best.why_not.startswith(
        "it was not attacked at epoch 1 (settings of npo were attacked at"
    )
    assert [one.seed for one in best.setting.rows] == [1, 2]


def test_a_choice_of_which_only_the_trial_was_attacked_says_so() -> None:
    """With `at: best`, an epoch may be the best so far on one seed only."""
    plain = [*(row("run", 0.1, seed=seed) for seed in range(3)), row("run", 0.1, rate=1e-4)]
    under = [
        *variants("run", {"paraphrase": 0.4}, seed=0),
        *variants("run", {"paraphrase": 0.4}, rate=1e-4),
    ]
    (found,) = attacked_panels(panels([*PLAIN, *plain], [choice()]), [*REFERENCES, *under])
    (best,) = found.best
    assert best.why_not == "it was not attacked at epoch 1 (only other seeds of it were)"


def test_a_choice_without_numbers_is_named_with_the_reason() -> None:
    found = chosen_panel(choice(runs=("npo-1e-05-7",)))
    assert found.best == ()
    assert found.most is None
    assert attack_sentences(found)[0] == (
        "npo is not scored: chosen; no run on the other seeds has ended yet."
    )


def test_a_seed_that_ended_before_the_epoch_leaves_no_score() -> None:
    plain = [row("run", 0.1, seed=seed) for seed in range(2)]
    values = {"paraphrase": 0.4, **dict.fromkeys(STEPS, 0.2)}
    under = [one for seed in range(2) for one in variants("run", values, seed=seed)]
    setting = ("tiny", 0.1, "npo", 1e-5, "")
    text = "seed 2 collapsed at epoch 1"
    end = EarlyEnd("npo-1e-05-2", setting, seed=2, due=frozenset({1}), last=0, text=text)
    (found,) = attacked_panels(panels([*PLAIN, *plain], (), [end]), [*REFERENCES, *under])
    (setting_under,) = found.settings
    assert (setting_under.lasting, setting_under.why_not) == (None, text)
    assert setting_under.under[0].after is None, "a seed does not disappear from a mean"
    assert setting_under.under[0].after_interval is None
    assert setting_under.curves == (), "nor from a mean along the steps of an attack"


def test_what_a_failed_run_was_attacked_by_is_asked_of_no_other() -> None:
    failed = [
        replace(one, status="failed")
        for one in (row("run", 0.1, rate=1e-4), row("run", 0.2, "relearning@13", rate=1e-4))
    ]
    under = [*variants("run", {"paraphrase": 0.1}), failed[1]]
    found = panel([row("run", 0.1), failed[0]], under)
    (setting,) = found.settings
    assert (setting.lasting, setting.why_not) == (1.0, "")


def test_an_undefined_number_under_one_attack_is_not_passed_over() -> None:
    under = variants("run", {"relearning@13": None, "paraphrase": 0.1})
    (setting,) = panel([row("run", 0.1)], under).settings
    assert (setting.lasting, setting.why_not) == (None, "a number behind it is undefined")


@pytest.mark.parametrize(
    ("after", "share", "verdict"),
    [
        ((0.128, 0.13, 0.132), "4 % [3, 4 %]", "comes back, next to nothing:"),
        ((0.12, 0.13, 0.14), "4 % [1, 7 %]", "comes back:"),
        ((0.00, 0.13, 0.26), "4 % [0, 44 %]", "comes back, not more than by chance:"),
        ((0.101,), "0 % (one seed, no interval)", "comes back, not more than by chance:"),
    ],
)
def test_words_are_by_the_interval(after: Sequence[float], share: str, verdict: str) -> None:
    """One seed never shows that next to nothing comes back."""
    runs = [row("run", 0.1, seed=seed) for seed in range(len(after))]
    under = [one for s, v in enumerate(after) for one in variants("run", {"paraphrase": v}, seed=s)]
    sentence = attack_sentences(panel(runs, under))[0]
    assert share in sentence
    assert f"removed {verdict}" in sentence


def test_most_comes_back_of_any_attacked_setting() -> None:
    """Also of one that is no method's best."""
    runs = [row("run", 0.1, rate=r, utility=u) for r, u in ((1e-5, 0.9), (1e-4, 0.85), (1e-3, 0.5))]
    back = {1e-5: 0.3, 1e-4: 0.8, 1e-3: 0.9}
    under = [o for r, v in back.items() for o in variants("run", {"paraphrase": v}, rate=r)]
    most = panel(runs, under).most
    assert most is not None
    assert most.setting.learning_rate == 1e-4
