"""The scorecard of a model: groups of metrics, and reasons for what is missing."""

from pathlib import Path

import pytest

from unlearnbench.api.metric import Compared
from unlearnbench.benchmarks.tofu_metrics import ROLES
from unlearnbench.config.profiles import OPEN_UNLEARNING
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.model_verdict import UNDEFINED, Scorecard, scorecard
from unlearnbench.evaluation.summary import plan_of, summarize


def card_of(folder: Path, *compared: Compared, without: str = "") -> Scorecard:
    """The scorecard of a fine-tuned model, beside a retain model and itself."""
    full, retain = (read_log(folder / f"{name}.json.gz") for name in ("full_forget01", "retain99"))
    sets = {name: seen for name, seen in full.sets.items() if name != without}
    others = {"retain": retain, "start": full}
    given = [others[name] if name in compared else None for name in ("retain", "start")]
    values = summarize(type(full)(full.profile, sets), given[0], OPEN_UNLEARNING, given[1])
    return scorecard(
        plan_of(OPEN_UNLEARNING), ROLES, values, {*sets}, {*compared}, {"start", "retain"}
    )


def test_scores_come_with_what_they_are_relative_to(open_unlearning_numbers: Path) -> None:
    card = card_of(open_unlearning_numbers, "retain", "start")
    assert [(one.label, one.relative_to) for one in card.scores] == [
        ("Forgotten", ("start", "retain")),
        ("Private", ("retain",)),
        ("Kept", ("start",)),
    ]
    numbers = dict(card.numbers)
    assert numbers["Model Utility"] == pytest.approx(0.5991534707368931, abs=1e-6)
    assert numbers["log10 Forget Quality"] == pytest.approx(-2.17000626, abs=1e-6)
    assert card.sets == ("retain", "real_authors", "world_facts", "forget")
    rows = dict(card.by_set)
    assert rows["Exact memorization"][-1] == pytest.approx(0.9803751230239868, abs=1e-6)
    assert rows["Exact memorization"][:3] == (None, None, None)
    assert dict(card.attacks)["LOSS"][0] == 1.0


def test_each_missing_metric_has_one_reason(open_unlearning_numbers: Path) -> None:
    missing = dict(card_of(open_unlearning_numbers, without="holdout").missing)
    needed = missing["need the retain model: --retain"]
    assert needed == ("Forget Quality", "Reference attack", "Private", "PrivLeak")
    assert missing["need the start and the retain model: --start, --retain"] == ("Forgotten",)
    assert {"LOSS attack", "Distinct 4-grams", "Extraction strength"} <= {*missing[UNDEFINED]}
    alone = dict(card_of(open_unlearning_numbers, "retain", "start").missing)
    assert "Forgotten" in alone[UNDEFINED]
    assert not any("--" in reason for reason in alone)
    assert "no world facts set" in dict(
        card_of(open_unlearning_numbers, without="world_facts").missing
    )
