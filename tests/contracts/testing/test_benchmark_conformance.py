"""Every installed benchmark conforms; benchmarks with one mistake each do not."""

from pathlib import Path
from typing import Any

import pytest

from tests import made_up_benchmarks
from unlearnbench.api import registry
from unlearnbench.api.benchmark import Benchmark, Dataset
from unlearnbench.base.errors import DataError
from unlearnbench.base.hub import HubError
from unlearnbench.testing import SUITES, BenchmarkConformance, check_plugin

from . import broken_benchmarks as broken

SMALL: dict[str, dict[str, Any]] = {
    "passages": {"authors": 4, "chapters": 1, "sentences": 2, "pretraining_authors": 2},
    "synthetic": {"authors": 10, "questions_per_author": 4, "pretraining_authors": 4},
    "tofu": {"pretraining_authors": 2},
}


class TestSums(BenchmarkConformance):
    """A subclass as a plug-in's author writes it."""

    benchmark = broken.Good
    settings = {"size": 8}  # noqa: RUF012  # as short as authors write it


@pytest.mark.parametrize("name", registry.names("benchmarks"))
def test_every_installed_benchmark_conforms(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    settings = SMALL.get(name, {})
    if write := getattr(made_up_benchmarks, name.replace("-", "_"), None):
        settings = write(tmp_path)
    if name == "tofu":
        settings = {**settings, "path": str(request.getfixturevalue("tofu_folder"))}
    results = check_plugin("benchmarks", name, settings)
    assert [r.check.name for r in results] == [check.name for check in SUITES["benchmarks"]]
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "check", "seen"),
    [
        (broken.NoColumn, "metrics", "no column 'probability_retained'; did you mean 'probab"),
        (broken.OneSplit, "rows", "splits 0.25 and 0.5 forget the same rows"),
        (broken.Blank, "rows", "full, row 1: the answer is empty, so there is nothing to"),
        (
            broken.Unlearned,
            "rows",
            "4 forget rows and 12 retain rows of 15; 1 are not in `full`, the first one 'What is 0",
        ),
        (
            broken.AnswerAmongWrong,
            "rows",
            "set retain of forget25: most answers are among their `perturbed_answers` as well",
        ),
        (broken.Unordered, "fingerprint", "random numbers, or a `set`'s order?"),
    ],
)
def test_a_mistake_is_found_by_the_check_that_is_for_it(
    kind: type[Benchmark], check: str, seen: str
) -> None:
    faults = {
        r.check.name: r.outcome.seen
        for r in check_plugin("benchmarks", kind)
        if r.outcome.verdict == "fault"
    }
    assert [*faults] == [check], faults
    assert seen in faults[check]


def test_splits_by_name_conform() -> None:
    outcomes = {r.check.name: r.outcome for r in check_plugin("benchmarks", broken.Named)}
    assert {outcome.verdict for outcome in outcomes.values()} == {"passed"}, outcomes
    assert outcomes["rows"].seen == "16 rows; small 4, large 8"


def test_rows_out_of_reach_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Dataset:
        raise DataError("cannot be read from the hub") from HubError("away", answered=False)

    monkeypatch.setattr(broken.Good, "load", load)
    verdicts = {r.check.name: r.outcome.verdict for r in check_plugin("benchmarks", broken.Good)}
    assert (verdicts["metrics"], verdicts["rows"]) == ("passed", "not run")
