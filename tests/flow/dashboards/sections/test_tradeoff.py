"""The answer beside a panel: title, utility, verdict, groups of methods, scores and next step."""

from __future__ import annotations

import html
import importlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.analysis.recommendation import (
    ComparedMethod,
    MethodStanding,
    Outcome,
    Recommendation,
    RecommendedSetting,
    Verdict,
)
from unlearnbench.results.records import EpochResult

from ..attacked_records import under_attacks
from ..conftest import context_of, metrics, of_poems

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

tradeoff: Any = importlib.import_module("unlearnbench_dashboards.sections.tradeoff")
answers: Any = importlib.import_module("unlearnbench_dashboards.sections.tradeoff.answer")


def answer(*records: Record) -> Any:
    (panel,) = tradeoff.TradeOff().values(context_of(*records))["panels"]
    return panel["answer"]


def html_of(*records: Record) -> str:
    return str(tradeoff.TradeOff().render(context_of(*records).report))


def aside(*records: Record) -> str:
    (found,) = re.findall(r"<aside.*?</aside>", html_of(*records), flags=re.DOTALL)
    words = html.unescape(re.sub(r"<[^>]*>", " ", found))
    return " ".join(words.split())


def references(fabric: Fabric) -> list[Record]:
    return [fabric.reference("fine-tuned"), fabric.reference("retain")]


def seeds(fabric: Fabric, method: str, utility: float, quality: float) -> list[Record]:
    return [fabric.run(method, points=((utility, quality),), seed=seed) for seed in range(3)]


SETTING = RecommendedSetting(
    *("npo", "npo", "npo", 1e-4, "epoch", 3, (0, 1, 2), ("a", "b", "c"), ()),
    *(0.8, 1.0, 0.8, -0.1),
)


@pytest.mark.parametrize(
    ("compared", "seeds", "expected"),
    [
        ((), (0, 1, 2), ("", "The only method.")),
        (
            (ComparedMethod("a", "a", Verdict.NO_SETTING),),
            (0, 1, 2),
            ("", "No other method has a usable setting."),
        ),
        (
            (ComparedMethod("a", "a", Verdict.BETTER, is_runner_up=True),),
            (0, 1, 2),
            ("Better", "than a, the runner-up, at equal utility."),
        ),
        (
            (ComparedMethod("a", "a", Verdict.UNDECIDED, is_runner_up=True),),
            (0,),
            ("Undecided", "against a, the runner-up. Use at least 3 seeds to rank methods."),
        ),
        (
            (ComparedMethod("a", "a", Verdict.UNDECIDED, is_runner_up=True),),
            (0, 1, 2),
            ("Undecided", "against a, the runner-up: the difference may be chance."),
        ),
        (
            (ComparedMethod("a", "a", Verdict.WORSE, is_runner_up=True),),
            (0, 1, 2),
            ("Worse", "than a, the runner-up, at equal utility."),
        ),
        (
            (
                ComparedMethod(
                    *("a", "a", Verdict.NOT_COMPARABLE, True),
                    short_reason="it has more utility (0.832)",
                ),
            ),
            (0, 1, 2),
            (
                "Not comparable",
                "with a, the runner-up: it has more utility (0.832), so nothing is decided.",
            ),
        ),
    ],
)
def test_the_verdict_is_about_the_runner_up(
    compared: tuple[ComparedMethod, ...], seeds: tuple[int, ...], expected: tuple[str, str]
) -> None:
    setting = replace(SETTING, seeds=seeds)
    facts = Recommendation(Outcome.RECOMMENDED, setting, compared=compared)
    assert answers.verdict_of(facts) == expected


FOUR = [("npo", 0.85, -0.1), ("dpo", 0.85, -4.0), ("idk", 0.88, -8.0), ("ce-u", 0.1, -2.0)]
"""Methods with their utility and log10 Forget Quality; the last one has no usable setting."""


def of_four(fabric: Fabric) -> list[Record]:
    runs = [record for point in FOUR for record in seeds(fabric, *point)]
    return [*references(fabric), *runs]


def test_every_method_has_one_line_with_its_verdict(fabric: Fabric) -> None:
    found = answer(*of_four(fabric))
    assert found.title == "Recommended setting"
    assert not found.is_bad
    assert (
        found.utility == "Model Utility 0.850, 96\N{NO-BREAK SPACE}% of the start model's; 3 seeds"
    )
    assert [line.standing.name for line in found.methods] == ["npo", "dpo", "idk", "ce-u"]
    verdicts = {method.name: method.verdict for method in found.facts.compared}
    assert verdicts["ce-u"] is Verdict.NO_SETTING
    npo, *others = found.methods
    assert npo.is_better == "recommended"
    for line in others:
        assert line.is_better == answers.IS_BETTER[verdicts[line.standing.name]]
    assert {*answers.IS_BETTER} == {*Verdict}, "each verdict has its word"


def rows(*records: Record) -> list[list[str]]:
    """The lines of the list of methods, as texts of their cells."""
    (table,) = re.findall(r'<table class="methods".*?</table>', html_of(*records), flags=re.DOTALL)
    return [
        [
            " ".join(html.unescape(re.sub(r"<[^>]*>", " ", cell)).split())
            for cell in re.findall(r"<t[hd][ >].*?</t[hd]>", row, flags=re.DOTALL)
        ]
        for row in re.findall(r"<tr.*?</tr>", table, flags=re.DOTALL)
    ]


def test_the_list_of_methods_says_place_utility_and_what_is_forgotten(fabric: Fabric) -> None:
    head, npo, dpo, idk, unusable = rows(*of_four(fabric))
    assert head == ["Place", "Method", "Utility", "log₁₀ FQ", "npo better?"]
    assert [line[:3] for line in (npo, dpo, idk)] == [
        ["1", "npo 1e-4", "96 %"],
        ["2", "dpo 1e-4 runner-up", "96 %"],
        ["3", "idk 1e-4", "100 %"],
    ]
    assert [line[3] for line in (npo, dpo, idk)] == ["−0.10", "−4.00", "−8.00"], "without scores"
    assert npo[4] == "recommended"
    assert unusable == ["–", "ce-u", "no usable setting: keeps at most 11 % of the utility"]
    text = aside(*of_four(fabric))
    assert "3 of 4 methods have a usable setting (at least 80 % of the utility)" in text
    assert "Places: by Forget Quality." in text


def test_the_list_has_the_score_if_there_is_one(fabric: Fabric) -> None:
    records = under_attacks(fabric.sweep(seeds=(0, 1, 2), epochs=2, methods=["npo", "dpo"]))
    one_panel = [record for record in records if record.panel == records[0].panel]
    found = answer(*one_panel)
    (score, *_) = found.facts.scores
    assert (found.forgotten_label == "Forgotten") == (score.value is not None)


def test_methods_of_one_place_are_explained(fabric: Fabric) -> None:
    noise = {"npo": (-0.3, -0.1, -0.2), "dpo": (-0.1, -0.4, -0.3)}
    records = references(fabric)
    for name, qualities in noise.items():
        records += [
            fabric.run(name, points=((0.85, quality),), seed=seed)
            for seed, quality in enumerate(qualities)
        ]
    _, *lines = rows(*records)
    assert [line[0] for line in lines] == ["1", "1"]
    text = aside(*records)
    assert "Places: by Forget Quality. Methods that share a place differ by less than seeds" in text
    recommended = lines[0][1].partition(" ")[0]
    assert f"Last column: does {recommended} forget more at equal utility?" in text
    assert "Both methods have a usable setting" in text


def test_one_method_of_two_has_a_usable_setting(fabric: Fabric) -> None:
    usable = fabric.run("npo", points=((0.85, -1.0),))
    too_little = fabric.run("dpo", points=((0.5, -1.0),))
    text = aside(*references(fabric), usable, too_little)
    assert "1 of 2 methods has a usable setting" in text


def test_a_utility_whose_interval_reaches_below_the_minimum_says_so(fabric: Fabric) -> None:
    records = references(fabric)
    sure = [*records, *seeds(fabric, "npo", 0.85, -0.1)]
    assert answer(*sure).utility_doubt == ""
    assert "below the minimum" not in aside(*sure)
    for seed, utility in enumerate((0.70, 0.74, 0.78)):
        records.append(fabric.run("npo", points=((utility, -0.1),), seed=seed))
    # 4.302653 * 0.04 / sqrt(3) = 0.0994; 80 % of the start model's utility are 0.71.
    least = answer(*records).facts.setting.least_utility
    sentence = f"its interval [0.641, 0.839] reaches below the minimum, {least:.3f}"
    assert answer(*records).utility_doubt == sentence
    assert f"⚠ {sentence}" in aside(*records)


def test_a_low_score_is_called_little_and_over_forgetting_has_its_sign() -> None:
    standing = MethodStanding("a", "a", score=0.2, is_little=True)
    over = MethodStanding("b", "b", score=0.2, is_over_forgotten=True)
    unmoved = MethodStanding("c", "c", score=0.0, is_little=True, is_unmoved=True)
    assert answers.about_signs([standing]) == "little: a score below 0.25."
    assert answers.about_signs([unmoved]) == "", "the list says `nothing`"
    assert answers.about_signs([over, standing]) == (
        "⚠: over-forgotten, knows less than the retain model. little: a score below 0.25."
    )


def test_places_need_three_seeds(fabric: Fabric) -> None:
    records = [*references(fabric), *(fabric.run(name, points=((0.85, -0.1),)) for name in "ab")]
    head, *_ = rows(*records)
    assert "Place" not in head
    text = aside(*records)
    assert "Intervals and places need 3 seeds (now 1)." in text
    assert "Places:" not in text


def test_a_panel_without_a_usable_setting_lists_what_each_method_keeps(fabric: Fabric) -> None:
    records = [*references(fabric), *seeds(fabric, "npo", 0.1, -0.1), *seeds(fabric, "b", 0.44, -1)]
    head, *lines = rows(*records)
    assert head == ["Method", "Utility", "log₁₀ FQ"], "nothing is compared"
    assert sorted(lines) == [
        ["b", "no usable setting: keeps at most 50 % of the utility"],
        ["npo", "no usable setting: keeps at most 11 % of the utility"],
    ]
    assert "No method has a usable setting" in aside(*records)


def test_a_share_below_the_least_is_not_rounded_up_to_it() -> None:
    space = "\N{NO-BREAK SPACE}"
    assert answers.percent(0.796) == f"79.6{space}%"
    assert answers.percent(0.79) == f"79{space}%"
    assert answers.percent(0.8) == f"80{space}%"


def test_seeds_and_what_would_make_the_answers_surer(fabric: Fabric) -> None:
    text = aside(*references(fabric), *seeds(fabric, "npo", 0.85, -0.1))
    assert "More seeds (now 3), learning rates or epochs would make this surer." in text


def test_no_sentence_stands_twice(fabric: Fabric) -> None:
    records = [*references(fabric), *seeds(fabric, "npo", 0.85, -0.1)]
    for case in (records, [*records[:2], *seeds(fabric, "npo", 0.1, -0.1)]):
        text = aside(*case)
        for sentence in answer(*case).sentences:
            # Code stands between backticks, and is an element of its own on the page.
            first = sentence.partition("`")[0].strip().removesuffix("(")
            assert text.count(first[:60].strip()) == 1


def test_four_scores_and_what_to_add_without_attacks(fabric: Fabric) -> None:
    text = aside(*references(fabric), *seeds(fabric, "npo", 0.85, -0.1))
    assert re.search(r"Forgotten .* Private .* Kept .* Lasting", text)
    assert "no attack was run; add attacks: {relearning: {learning_rate: 0.0001}}" in text


def test_a_warning_of_the_winner_stands_beside_its_score(fabric: Fabric) -> None:
    found = answer(*references(fabric), *seeds(fabric, "npo", 0.85, -0.1))
    kinds = {kind for score in found.facts.scores for kind in score.warnings}
    assert kinds <= {*found.warning_labels}
    assert "knows less than the retain model" in answers.WARNING_LABELS["over-forgotten"]
    assert {*answers.WARNING_LABELS} == {"over-forgotten", "unfamiliar", "repetitive", "bypassed"}


@pytest.mark.parametrize(
    ("point", "title"),
    [
        ((0.85, -16.3), "No method forgot"),
        ((0.85, -8.0), "No method forgot enough"),
        ((0.1, -0.1), "No usable setting"),
    ],
)
def test_without_a_recommended_setting_the_title_says_so(
    fabric: Fabric, point: tuple[float, float], title: str
) -> None:
    records = [*references(fabric), *seeds(fabric, "npo", *point)]
    found = answer(*records)
    assert (found.title, found.is_bad) == (title, True)
    text = aside(*records)
    assert text.startswith(title)
    assert "Next: try " in text, "the answer says what to do"


def test_a_faulty_start_model_has_its_reason_and_no_bars(fabric: Fabric) -> None:
    bad = replace(
        fabric.reference("fine-tuned"),
        epochs=(EpochResult(0, metrics(0.01, -0.1), 0.0, 1.0),),
    )
    text = aside(bad, fabric.reference("retain"), *seeds(fabric, "npo", 0.85, -0.1))
    assert text.startswith("No result The start model knows nothing")
    assert "Forgotten" not in text


def test_a_headline_where_lower_is_better(fabric: Fabric) -> None:
    records = of_poems([fabric.reference("fine-tuned"), *seeds(fabric, "npo", 0.85, -0.1)])
    text = aside(*records)
    assert "Known poems" in text


def test_the_attack_stands_below_lasting(fabric: Fabric) -> None:
    records = under_attacks(fabric.sweep(seeds=(0, 1, 2), epochs=2, methods=["npo", "dpo"]))
    one_panel = [record for record in records if record.panel == records[0].panel]
    lasting = answer(*one_panel).facts.scores[-1]
    assert lasting.name == "Lasting"
    assert (lasting.value is None) != bool(lasting.under)
    assert bool(lasting.given_back) == bool(lasting.under)
    if lasting.under:
        sentence = f"{lasting.given_back} comes back under {lasting.under}"
        assert sentence in aside(*one_panel)
