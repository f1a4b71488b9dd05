"""Every two methods of a panel, beside what the comparison of two methods says."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import pytest

from unlearnbench.analysis import compare
from unlearnbench.analysis.pairs import MOST_METHODS, PairTable, Verdict
from unlearnbench.analysis.results import Results
from unlearnbench.results.records import Record
from unlearnbench.stats.paired_test import PairedTest, paired_test

from .conftest import FAR, NEAR, REFERENCES, compared, off, run

TWIN = [run("twin", [(0.80, off(0.2, seed + 9))], seed=seed) for seed in range(3)]
KEEPER = [run("keeper", [(0.90, off(2.4, seed))], seed=seed) for seed in range(3)]
THRIFTY = [run("thrifty", [(0.89, off(1.0, seed))], seed=seed) for seed in range(3)]


def table(*records: Record) -> PairTable:
    (found,) = Results.of((*REFERENCES, *records), name="").pairs
    return found


def verdicts(found: PairTable) -> dict[tuple[str, str], str]:
    return {names: pair.verdict.value for names, pair in found.pairs.items()}


def test_verdicts_are_those_of_the_comparison_of_two_methods() -> None:
    records = (*NEAR, *FAR, *TWIN, *KEEPER)
    found = table(*records)
    names = [best.name for best in found.methods]
    assert {*names} == {"near", "far", "twin", "keeper"}
    assert {*found.pairs} == {*permutations(names, 2)}
    for a, b in permutations(names, 2):
        (panel,) = compared(a, b, (*REFERENCES, *records)).panels
        expected = "undecided"
        if panel.test is None:
            expected = "not comparable"
            assert found.pairs[a, b].reason == panel.why_not
        elif panel.better is not None:
            expected = "better" if panel.better is panel.a else "worse"
        assert found.pairs[a, b].verdict.value == expected
    assert verdicts(found)["near", "far"] == "better"
    assert verdicts(found)["far", "near"] == "worse"
    assert verdicts(found)["near", "twin"] == "undecided"


def test_each_pair_counts_once() -> None:
    found = table(*NEAR, *FAR, *TWIN)
    assert found.count(Verdict.BETTER) == found.count(Verdict.WORSE) == 2
    assert (found.count(Verdict.UNDECIDED), found.count(Verdict.INCOMPARABLE)) == (1, 0)


def test_a_method_that_keeps_more_and_forgets_less_is_not_compared() -> None:
    strong = [run("strong", [(0.75, off(0.1, seed))], seed=seed) for seed in range(3)]
    found = table(*strong, *THRIFTY)
    pair = found.pairs["strong", "thrifty"]
    assert pair.verdict is Verdict.INCOMPARABLE
    assert pair.reason.startswith("strong's best setting forgets more and has less utility than")
    assert "--within" not in pair.reason, "a page has no such option"


def test_the_leading_methods_pairs_say_what_its_sentences_say() -> None:
    results = Results.of((*REFERENCES, *NEAR, *FAR, *TWIN, *KEEPER), name="")
    (order,), (found,) = results.claims.panels, results.pairs
    rivals = order.rivals
    assert rivals is not None
    of_leader = {b: pair.verdict for (a, b), pair in found.pairs.items() if a == rivals.leader}
    better = {name for name, verdict in of_leader.items() if verdict is Verdict.BETTER}
    untested = {name for name, verdict in of_leader.items() if verdict is Verdict.INCOMPARABLE}
    assert better == {*rivals.apart}
    assert untested == {*rivals.untested}


@pytest.mark.parametrize(("lone", "seeds"), [("near", 1), ("far", 1), ("near", 2)])
def test_of_too_few_seeds_nothing_is_claimed_better(lone: str, seeds: int) -> None:
    """Over questions the difference is significant, which says nothing about other seeds."""
    records = [item for item in (*NEAR, *FAR) if item.method != lone or item.seed < seeds]
    (panel,) = compared("near", "far", (*REFERENCES, *records)).panels
    assert panel.better is not None
    found = table(*records)
    assert verdicts(found) == dict.fromkeys(permutations(("near", "far"), 2), "undecided")
    assert f"with {seeds} seed" in found.pairs["near", "far"].reason


def test_answers_that_cannot_be_read_are_not_compared() -> None:
    found = table(*NEAR, *(replace(item, evaluations={}) for item in FAR))
    assert verdicts(found)["far", "near"] == "not comparable"
    assert "has no evaluation of epoch 2" in found.pairs["far", "near"].reason


def test_tests_of_a_method_are_adjusted_for_their_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tests of p = 0.03 are none of 0.05; one is."""

    def with_p(*arguments: Any, **options: Any) -> PairedTest | None:
        found = paired_test(*arguments, **options)
        return None if found is None else replace(found, p_value=0.03)

    monkeypatch.setattr(compare, "paired_test", with_p)
    others = [replace(item, id=f"{item.id}-b", method="other") for item in FAR]
    assert verdicts(table(*NEAR, *FAR))["near", "far"] == "better"
    assert verdicts(table(*NEAR, *FAR, *others))["near", "far"] == "undecided"


def test_of_many_methods_the_best_are_compared() -> None:
    records = [
        run(f"method-{number:02}", [(0.85, off(0.05 * number))], id=f"run-{number}")
        for number in range(MOST_METHODS + 2)
    ]
    found = table(*records)
    assert [best.name for best in found.methods] == [
        f"method-{number:02}" for number in range(MOST_METHODS)
    ]
    assert found.left_out == 2
    assert len(found.pairs) == MOST_METHODS * (MOST_METHODS - 1)
