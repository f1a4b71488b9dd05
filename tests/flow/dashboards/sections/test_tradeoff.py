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
            ("Undecided:", "a, the runner-up, is not comparable: it has more utility (0.832)."),
        ),
    ],
)
def test_the_verdict_is_about_the_runner_up(
    compared: tuple[ComparedMethod, ...], seeds: tuple[int, ...], expected: tuple[str, str]
) -> None:
    setting = replace(SETTING, seeds=seeds)
    facts = Recommendation(Outcome.RECOMMENDED, setting, compared=compared)
    assert answers.verdict_of(facts) == expected


def test_every_method_stands_in_one_group(fabric: Fabric) -> None:
    records = [
        *references(fabric),
        *seeds(fabric, "npo", 0.85, -0.1),
        *seeds(fabric, "dpo", 0.85, -4.0),
        *seeds(fabric, "ce-u", 0.1, -2.0),
    ]
    found = answer(*records)
    assert found.title == "Recommended setting"
    assert not found.is_bad
    assert (
        found.utility == "Model Utility 0.850, 96\N{NO-BREAK SPACE}% of the start model's; 3 seeds"
    )
    named = [method.name for _, methods in found.groups for method in methods]
    assert sorted(named) == ["ce-u", "dpo"]
    assert dict(found.groups)["No usable setting"][0].name == "ce-u"


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
