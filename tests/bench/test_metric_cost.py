"""What each measured way observes, and how its time is set against the others'."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.bench import metric_cost as costs
from unlearnbench.bench.evaluation_case import EvaluationCase, Sets
from unlearnbench.bench.metric_cost import Spread, cost_table, metric_cost
from unlearnbench.config.benchmark_section import benchmark_named
from unlearnbench.config.profiles import get_profile


@pytest.fixture
def case(questions: Sequence[Question], tokenizer: Any) -> EvaluationCase:
    few = tuple(questions[:3])
    sets: Sets = dict.fromkeys(("retain", "real_authors", "world_facts", "forget"), few)
    return EvaluationCase(sets, tokenizer, get_profile("tofu", max_length=48))


def test_each_way_observes_what_its_metrics_read(case: EvaluationCase, model: Any) -> None:
    ways = costs._ways  # pyright: ignore[reportPrivateUsage]
    means, tokens, moments = ways(case, benchmark_named("tofu"))
    known = [{column.name for column in way.plan.columns} for way in (means, tokens, moments)]
    assert known[0] == means.plan.own
    assert {"exact_memorization_forget", "extraction_strength_retain", "mia_zlib"} <= known[1]
    assert known[2] - known[1] == {
        f"mia_min_k_plus_plus{end}" for end in ("", "_tpr", "_control")
    }, "and Min-K++ is all that the last one adds"
    found = [way.evaluator(model).sets for way in (means, tokens, moments)]
    assert all(len(sets["holdout"].answer_loss) == len(sets["forget"].questions) for sets in found)
    assert {seen.token_columns for seen in found[0].values()} == {None}
    assert all(seen.tokens.mean_logprob is None for seen in found[1].values())
    having = {name for name, s in found[2].items() if s.tokens.mean_logprob is not None}
    assert having == {"forget", "holdout"}
    for way, sets in zip((means, tokens, moments), found, strict=True):
        lacking = {name for name, value in way.plan.values(sets).items() if value is None}
        assert not {name for name in lacking if name.startswith(("mia", "ex"))} - {
            "mia_min_k_plus_plus_control"  # retain rows have no moments
        }


def test_the_ways_take_turns_and_their_times_are_compared_in_pairs(
    case: EvaluationCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    labels: list[str] = []

    def measured(_: Any, way: Any) -> dict[str, float]:
        labels.append(way.label)
        first = {"means": 10.0, "EM,": 10.5, "Min-K++": 10.25}[way.label.split()[0]]
        return {"processor": first * len(labels), "wall": 2 * first}

    monkeypatch.setattr(costs, "_measure", measured)
    found = metric_cost(None, case, benchmark_named("tofu"), 1)
    means, tokens, moments = found["seconds"]
    assert labels[3:] == [means, tokens, moments, moments, means, tokens, tokens, moments, means]
    assert found["added"][tokens]["wall"] == pytest.approx(Spread(0.05, 0.05, 0.05)._asdict())
    assert found["added"][moments]["wall"]["median"] == pytest.approx(-0.025)
    rows = cost_table({"memorised": found}).rows
    assert [row[:2] for row in rows] == [("memorised", tokens), ("", moments)]
    assert [row[3] for row in rows] == ["+5.0 % (+5.0 to +5.0)", "-2.5 % (-2.5 to -2.5)"]
