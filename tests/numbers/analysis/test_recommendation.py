"""The facts of the first screen: outcome, scores, verdicts and the next step."""

import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pytest
import yaml

from unlearnbench.analysis.next_step import entry_in_yaml
from unlearnbench.analysis.pairs import MOST_METHODS
from unlearnbench.analysis.recommendation import NextStep, Outcome, Recommendation, Verdict
from unlearnbench.analysis.results import Results
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record
from unlearnbench.results.table import Table

from .conftest import FAR, NEAR, REFERENCES, attacked_by, off, reference, run

TWIN = [run("twin", [(0.80, off(0.2, s + 9))], seed=s) for s in range(3)]
BROKEN = [run("broken", [(0.1, off(0.1, s))], seed=s) for s in range(3)]


def facts_of(records: Sequence[Record]) -> Recommendation:
    (conclusion,) = Results("", tuple(records), Table(table_of(records).rows)).conclusions
    assert conclusion.facts is not None
    return conclusion.facts


def strong(rate: float, utility: float, shift: float) -> list[Record]:
    return [run("strong", [(utility, off(shift, s))], seed=s, learning_rate=rate) for s in range(3)]


def test_each_other_method_has_a_verdict() -> None:
    facts = facts_of([*REFERENCES, *NEAR, *FAR, *TWIN, *BROKEN])
    assert facts.outcome is Outcome.RECOMMENDED
    assert facts.setting is not None
    assert (facts.setting.method, facts.setting.at, facts.setting.seeds) == ("twin", 1, (0, 1, 2))
    assert facts.setting.utility == pytest.approx(0.8)
    assert facts.setting.utility_share == pytest.approx(0.8 / 0.9)
    verdicts = {method.name: method.verdict for method in facts.compared}
    assert verdicts == {
        "near": Verdict.UNDECIDED,
        "far": Verdict.BETTER,
        "broken": Verdict.NO_SETTING,
    }
    assert facts.runner_up is not None
    assert facts.runner_up.name == "near"
    assert facts.next_step == NextStep(
        "to decide between twin and near", "run 2 more seeds", "seeds: [0, 1, 2, 3, 4]"
    )


def test_a_method_of_more_utility_is_not_comparable_and_a_rate_between_may_decide() -> None:
    gentle = [run("gentle", [(0.88, off(1.0, s))], seed=s) for s in range(3)]
    records = [*REFERENCES, *gentle, *strong(1e-3, 0.75, 0.2), *strong(1e-4, 0.80, 1.5)]
    facts = facts_of(records)
    (other,) = facts.compared
    assert (other.name, other.verdict) == ("gentle", Verdict.NOT_COMPARABLE)
    assert other.short_reason == "it has more utility (0.880)"
    assert "--within" not in other.reason, "an option of a command does not help on a page"
    assert facts.next_step is not None
    assert facts.next_step.action == "try strong at a learning rate between 0.0001 and 0.001"
    assert yaml.safe_load(facts.next_step.edit) == {"learning_rates": [1e-4, 3e-4, 1e-3]}
    facts = facts_of([*REFERENCES, *gentle, *strong(1e-3, 0.75, 0.2)])
    assert facts.next_step is not None
    assert facts.next_step.action == "try strong at a learning rate below 0.001"
    assert yaml.safe_load(facts.next_step.edit) == {"learning_rates": [3e-4, 1e-3]}


@pytest.mark.parametrize(
    ("others", "action", "rates"),
    [
        # A retain term may need the higher rate: a lower one has less utility.
        ({1e-4: 0.74}, "above 0.001", [1e-4, 1e-3, 3e-3]),
        ({1e-4: 0.74, 1e-2: 0.80}, "between 0.001 and 0.01", [1e-4, 1e-3, 3e-3, 1e-2]),
        ({1e-4: 0.80, 1e-2: 0.74}, "between 0.0001 and 0.001", [1e-4, 3e-4, 1e-3, 1e-2]),
        ({1e-2: 0.74}, "below 0.001", [3e-4, 1e-3, 1e-2]),
        ({1e-4: 0.74, 1e-2: 0.74}, None, None),
    ],
)
def test_the_next_rate_lies_where_there_is_more_utility(
    others: dict[float, float], action: str | None, rates: list[float] | None
) -> None:
    gentle = [run("gentle", [(0.88, off(1.0, s))], seed=s) for s in range(3)]
    tried = [record for rate, utility in others.items() for record in strong(rate, utility, 1.5)]
    step = facts_of([*REFERENCES, *gentle, *strong(1e-3, 0.75, 0.2), *tried]).next_step
    if action is None:
        assert step is None
        return
    assert step is not None
    assert step.action == f"try strong at a learning rate {action}"
    assert (step.purpose, step.entry_text) == ("to compare it with gentle", "`strong`")
    rate = action.rpartition(" ")[2]
    tried_rates = {f"{known:g}": utility for known, utility in others.items()}
    neighbour = next((known for known in tried_rates if known in step.reason), "")
    if neighbour == rate or "between" in action:
        assert step.reason == f"{neighbour} has more utility: {tried_rates[neighbour]:.3f}"
    else:
        assert step.reason == f"{neighbour} has less utility: {tried_rates[neighbour]:.3f}"
    assert step.entry == "strong", "at the top of the file it would not reach an entry with rates"
    assert yaml.safe_load(step.edit) == {"learning_rates": rates}


def test_the_entry_is_named_as_the_configuration_has_it() -> None:
    assert entry_in_yaml("npo") == "`npo`"
    assert entry_in_yaml("npo+nll") == "`npo` with `retain: {term: nll}`"
    assert entry_in_yaml("npo+kl+sam+gru") == (
        "`npo` with `retain: {term: kl}` and `modifiers: [sam, gru]`"
    )
    for family in ("npo+nll", "npo+kl"):
        (text,) = re.findall("with `(.*)`", entry_in_yaml(family))
        assert yaml.safe_load(text) == {"retain": {"term": family.partition("+")[2]}}


@pytest.mark.parametrize(
    ("utilities", "may_keep_too_little"),
    [
        ((0.80, 0.80, 0.80), False),
        ((0.78, 0.80, 0.82), False),  # ± 4.302653 * 0.02 / √3 = 0.0497
        ((0.75, 0.80, 0.85), True),  # ± 0.1242
        ((0.71, 0.89), True),  # of two seeds, the range
        ((0.80,), False),  # of one seed, nothing is known
    ],
)
def test_a_utility_whose_interval_reaches_below_the_minimum_is_in_doubt(
    utilities: tuple[float, ...], may_keep_too_little: bool
) -> None:
    runs = [run("a", [(utility, off(0.2, s))], seed=s) for s, utility in enumerate(utilities)]
    setting = facts_of([*REFERENCES, *runs]).setting
    assert setting is not None
    assert setting.least_utility == pytest.approx(0.8 * 0.9)
    assert setting.may_keep_too_little is may_keep_too_little
    if len(utilities) == 3:
        assert setting.utility_interval == "95 % t interval of the mean over 3 seeds"
        assert setting.utility_low is not None
        assert setting.utility_high is not None
        assert setting.utility_low <= 0.8 <= setting.utility_high


def test_few_seeds_come_first() -> None:
    facts = facts_of([*REFERENCES, NEAR[0], FAR[0]])
    assert facts.next_step == NextStep("to rank methods", "run 2 more seeds", "seeds: [0, 1, 2]")
    facts = facts_of([*REFERENCES, *NEAR[1:], *FAR[1:]])
    assert facts.next_step == NextStep("to rank methods", "run 1 more seed", "seeds: [0, 1, 2]")


@pytest.mark.parametrize(
    ("records", "outcome", "edit"),
    [
        ([*REFERENCES, *BROKEN], Outcome.NO_UTILITY, {"learning_rates": [3e-6, 1e-5]}),
        (
            [*REFERENCES, *(run("idle", [(0.9, off(3.0))], seed=s) for s in range(3))],
            Outcome.NOTHING,
            {"learning_rates": [1e-5, 3e-5]},
        ),
        (
            [*REFERENCES, *strong(1e-4, 0.85, 1.5)],
            Outcome.NOT_ENOUGH,
            {"learning_rates": [1e-4, 3e-4]},
        ),
        ([reference("fine-tuned", 0.02, off(3.0)), *NEAR], Outcome.NO_RESULT, None),
        ([*REFERENCES, *NEAR], Outcome.RECOMMENDED, None),
    ],
)
def test_the_step_follows_from_how_far_methods_got(
    records: list[Record], outcome: Outcome, edit: Any
) -> None:
    facts = facts_of(records)
    assert facts.outcome is outcome
    assert (facts.next_step and yaml.safe_load(facts.next_step.edit)) == edit
    # What is drawn as a setting must be one that has forgotten something.
    has_setting = outcome in (Outcome.RECOMMENDED, Outcome.NOT_ENOUGH)
    assert (facts.setting is not None) == has_setting


def test_a_score_without_a_number_says_what_to_add() -> None:
    scores = {score.name: score for score in facts_of([*REFERENCES, *NEAR]).scores}
    assert [*scores] == ["Forgotten", "Private", "Kept", "Lasting"]
    lasting = scores["Lasting"]
    assert lasting.value is None
    assert lasting.not_scored == "no attack was run"
    edit = yaml.safe_load(lasting.to_add)
    assert float(edit["attacks"]["relearning"]["learning_rate"]) == 1e-5, "as the best setting's"
    for score in scores.values():
        assert (score.value is None) == bool(score.not_scored)


def test_an_epoch_that_was_not_attacked_says_how_to_attack_it() -> None:
    """Attacks run after the last epoch, and the best one may be earlier."""
    early = [run("early", [(0.80, off(0.2, s)), (0.1, off(0.1, s))], seed=s) for s in range(3)]
    records = attacked_by([*REFERENCES, *early], 2.0, "relearning@13")
    (conclusion,) = Results.of(records, name="").conclusions
    assert conclusion.facts is not None
    *_, lasting = conclusion.facts.scores
    assert lasting.value is None
    assert lasting.not_scored == "not attacked at epoch 1"
    assert yaml.safe_load(lasting.to_add) == {"attacks": {"relearning": {"at": "every"}}}
    assert conclusion.lasts.startswith("Robustness unknown: it was not attacked at epoch 1")


def test_one_method_on_enough_seeds_leaves_nothing_open() -> None:
    facts = facts_of([*REFERENCES, *NEAR])
    assert facts.compared == ()
    assert facts.runner_up is None
    assert facts.next_step is None


def test_more_methods_than_a_table_of_pairs_has_are_compared_with_the_first() -> None:
    many: list[Record] = []
    for number in range(MOST_METHODS + 2):
        ratios = [off(0.2 + number / 10, seed + 9) for seed in range(3)]
        name = f"m{number:02}"
        many += [run(name, [(0.8, ratios[seed])], seed=seed) for seed in range(3)]
    facts = facts_of([*REFERENCES, *many])
    assert [method.name for method in facts.compared] == [
        f"m{number:02}" for number in range(1, MOST_METHODS + 2)
    ]
    assert facts.compared[-1].verdict is Verdict.BETTER, "the last one is far off"
    assert facts.compared[-1].reason.startswith("Model Utility 0.800 and 0.800; difference of D")


def test_every_method_has_a_line_on_what_it_keeps_and_has_forgotten() -> None:
    gone = [
        run("gone", [], seed=s, status="collapsed", error="the loss is NaN\nTraceback")
        for s in range(3)
    ]
    facts = facts_of([*REFERENCES, *NEAR, *FAR, *TWIN, *BROKEN, *gone])
    lines = {line.name: line for line in facts.standings}
    assert [*lines] == ["twin", "near", "far", "broken", "gone"]
    assert [line.place for line in facts.standings] == [1, 1, 3, None, None]
    assert [line.is_usable for line in facts.standings] == [True, True, True, False, False]
    twin = lines["twin"]
    assert (twin.learning_rate, twin.at) == (1e-5, 1)
    assert twin.utility == pytest.approx(0.8)
    assert twin.utility_share == pytest.approx(0.8 / 0.9)
    assert twin.forgotten == facts.setting.forgotten if facts.setting else False
    assert twin.most_kept is None
    broken = lines["broken"]
    assert broken.why_not == "no setting keeps at least 80 % of the start model's utility"
    assert broken.most_kept == pytest.approx(0.1 / 0.9)
    assert broken.score is None
    assert lines["gone"].why_not == "no number: collapsed, the loss is NaN"


def test_standings_do_not_need_a_usable_setting() -> None:
    (broken,) = facts_of([*REFERENCES, *BROKEN]).standings
    assert not broken.is_usable
    assert broken.most_kept == pytest.approx(0.1 / 0.9)
    (idle,) = facts_of(
        [*REFERENCES, *(run("idle", [(0.9, off(3.0))], seed=s) for s in range(3))]
    ).standings
    assert (idle.is_usable, idle.is_unmoved, idle.place) == (True, True, 1)
    assert facts_of([reference("fine-tuned", 0.02, off(3.0)), *NEAR]).standings == ()


def test_standings_survive_the_way_through_json() -> None:
    facts = facts_of([*REFERENCES, *NEAR, *BROKEN])
    stored = json.loads(json.dumps(asdict(facts)))
    assert Recommendation.from_json(stored) == facts
    del stored["standings"], stored["score_name"]
    older = Recommendation.from_json(stored)
    assert older is not None
    assert older.standings == (), "a file of an earlier version has none"


def test_the_share_that_comes_back_stands_beside_lasting() -> None:
    records = attacked_by([*REFERENCES, *NEAR], 2.0, "relearning@13")
    (conclusion,) = Results.of(records, name="").conclusions
    assert conclusion.facts is not None
    *_, lasting = conclusion.facts.scores
    assert lasting.under == "relearning, 13 steps"
    assert lasting.value is not None
    assert lasting.given_back.startswith(f"{round(100 * (1 - lasting.value))} %")
    assert lasting.given_back in conclusion.lasts


def test_the_interval_of_a_lasting_above_1_does_not_end_at_its_mean() -> None:
    shifted = [run("near", [(0.80, off(1.0 + s / 5, s))], seed=s) for s in range(3)]
    records = attacked_by([*REFERENCES, *shifted], -0.3, "relearning@13")
    (conclusion,) = Results.of(records, name="").conclusions
    assert conclusion.facts is not None
    *_, lasting = conclusion.facts.scores
    assert lasting.value is not None
    assert lasting.low is not None
    assert lasting.high is not None
    assert 1 < lasting.value < lasting.high
    assert lasting.value - lasting.low == pytest.approx(lasting.high - lasting.value)
