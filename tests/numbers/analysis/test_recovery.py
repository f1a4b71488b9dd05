"""The figure of what attacks bring back: its numbers by hand."""

import pytest

from unlearnbench.analysis.recovery import PanelRecovery, Recovery, panel_recovery
from unlearnbench.results.table import TableRow

from .test_lasting import panel, row, sampled_panel, variants

ALL = {"relearning@1": 0.2, "relearning@13": 0.5, "paraphrase": 0.15}
FEW = ("relearning@1", "relearning@13", "paraphrase")


def recovery(plain: list[TableRow], attacked: list[TableRow]) -> PanelRecovery:
    return panel_recovery(panel(plain, attacked))


def only(plain: list[TableRow], attacked: list[TableRow]) -> Recovery:
    (line,) = recovery(plain, attacked).methods
    return line


def test_the_strongest_attack_is_drawn_and_others_behind_it() -> None:
    """0.1 → 0.5 under 13 steps, of which the retain model gains 0.1: 0.3 of 0.8 comes back."""
    found = recovery([row("run", 0.1)], variants("run", ALL))
    assert (found.start, found.retain, found.column.name) == (
        *(0.9, 0.1, "extraction_strength_forget"),
    )
    (line,) = found.methods
    assert (line.before, line.after, line.drawn) == (0.1, 0.5, "relearning@13")
    assert line.others == (("relearning@1", 0.2), ("paraphrase", 0.15))
    assert line.share == pytest.approx(0.3 / 0.8)
    assert (line.strongest, line.reason) == ("relearning@13", "")


def test_a_share_and_its_interval_lie_from_0_to_1() -> None:
    after = (0.0, 0.1, 0.14)  # on average less than before
    runs = [row("run", 0.1, seed=seed) for seed in range(3)]
    attacked = [
        one
        for seed, value in enumerate(after)
        for one in variants("run", dict.fromkeys(FEW, value), seed=seed)
    ]
    line = only(runs, attacked)
    assert line.share == 0.0
    assert line.interval is not None
    assert line.interval.low == 0.0
    # Mean gain −0.02 of 0.8; s = 0.0721, t = 4.303: half a width of 0.179, so −0.199 to 0.159.
    assert line.interval.high == pytest.approx(0.159 / 0.8, abs=1e-3)


def test_an_interval_beyond_1_is_cut_at_both_ends() -> None:
    """Both seeds gain more than was removed: the range is not from 107 % to 100 %."""
    runs = [row("run", 0.1, seed=seed) for seed in range(2)]
    attacked = [
        one
        for seed, value in enumerate((1.06, 1.2))
        for one in variants("run", dict.fromkeys(FEW, value), seed=seed)
    ]
    line = only(runs, attacked)
    assert line.share == 1.0
    assert line.interval is not None
    assert (line.interval.low, line.interval.high) == (1.0, 1.0)


def test_a_method_without_a_score_says_why_in_short() -> None:
    plain = [
        row("run", 0.1, method="good"),
        row("run", 0.8, method="weak"),
        row("run", 0.1, method="mute", utility=0.1),
        row("run", 0.1, method="spared"),
        row("run", 0.1, method="partly"),
    ]
    attacked = [
        one for method in ("good", "weak", "mute") for one in variants("run", ALL, method=method)
    ]
    attacked += variants("run", {"relearning@1": 0.2, "relearning@13": 0.5}, method="partly")
    lines = {line.method: line for line in recovery(plain, attacked).methods}
    assert {name: line.reason for name, line in lines.items()} == {
        "good": "",
        "weak": "forgot too little to measure",
        "mute": "keeps too little utility",
        "spared": "best setting not attacked",
        "partly": "an attack is missing",
    }
    assert next(iter(lines)) == "good", "methods without a score come last"
    spared = lines["spared"]
    assert (spared.before, spared.after, spared.share) == (0.1, None, None)
    assert (lines["mute"].setting, lines["mute"].before) == (None, None)
    assert (lines["weak"].before, lines["weak"].after) == (0.8, 0.5)


def test_an_attack_of_another_number_has_no_mark_and_its_share_counts() -> None:
    found = panel_recovery(sampled_panel(0.5))
    (line,) = found.methods
    assert line.strongest == "sampling"
    assert line.drawn != "sampling"
    assert not line.is_drawn_as_scored


def test_a_method_that_the_attack_runs_without_is_not_scored() -> None:
    found = panel(
        [row("run", 0.1, rate=None)],
        variants("run", ALL, rate=None),
        white_box="relearning".__eq__,
    )
    (line,) = panel_recovery(found).methods
    assert (line.share, line.interval) == (None, None)
    assert line.reason.startswith("bypassed")
