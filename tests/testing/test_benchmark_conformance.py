"""Every installed benchmark conforms; benchmarks with one mistake each do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Benchmark, Dataset
from unlearnbench.errors import DataError, PluginError
from unlearnbench.files.hub import HubError
from unlearnbench.testing import BENCHMARK_CHECKS, BenchmarkConformance, check_benchmark

from . import broken_benchmarks as broken

SMALL: dict[str, dict[str, Any]] = {
    "passages": {"authors": 4, "chapters": 1, "sentences": 2, "pretraining_authors": 2},
    "synthetic": {"authors": 10, "questions_per_author": 4, "pretraining_authors": 4},
    "tofu": {"pretraining_authors": 2},
}
NAMES = [check.name for check in BENCHMARK_CHECKS]


class TestSums(BenchmarkConformance):
    """A subclass as a plug-in's author writes it."""

    benchmark = broken.Good
    settings = {"size": 8}  # noqa: RUF012  # as short as authors write it


@pytest.mark.parametrize("name", registry.names("benchmarks"))
def test_every_installed_benchmark_conforms(name: str, request: pytest.FixtureRequest) -> None:
    settings = SMALL.get(name, {})
    if name == "tofu":
        settings = {**settings, "path": str(request.getfixturevalue("tofu_folder"))}
    results = check_benchmark(name, settings)
    assert [r.check.name for r in results] == NAMES
    wrong = [(r.check.name, r.outcome.seen) for r in results if r.outcome.verdict == "fault"]
    assert not wrong


@pytest.mark.parametrize(
    ("kind", "check", "seen"),
    [
        (broken.Lenient, "settings", "an unknown key is accepted"),
        (
            broken.UnknownSet,
            "metrics",
            "metric 'paraphrased-probability': sets has 'forgot'; did you mean 'forget'?",
        ),
        (broken.NoColumn, "metrics", "no column 'probability_retained'; did you mean 'probab"),
        (broken.UpsideDown, "metrics", "rouge_forget is declared better higher, and is lower"),
        (
            broken.TestWithoutRetain,
            "metrics",
            "the test of FQ compares with the retain model, and `references` is start; add it, or "
            "leave the test out (and 1 more)",
        ),
        (broken.NoHoldout, "metrics", "'privleak', which needs a set of role holdout"),
        (broken.EveryFraction, "splits", "it has split 0.01, and load((0.01,)) has no row to for"),
        (broken.OneSplit, "splits", "splits 0.25 and 0.5 forget the same rows"),
        (broken.NoRole, "rows", "forget25: its set 'more' is not in `roles`: retain, forget, un"),
        (broken.Blank, "rows", "full, row 1: the answer is empty, so there is nothing to"),
        (broken.Twice, "rows", "forget25, row 2: the row of forget25, row 1 again"),
        (broken.RightIsWrong, "rows", "forget25, row 1: a wrong answer is the right one"),
        (
            broken.Unperturbed,
            "rows",
            "set forget of forget25: metric 'truth_ratio' reads 'perturbed', and 4 of its 4",
        ),
        (broken.OfHoldout, "rows", "no answers are generated to sets of role holdout"),
        (broken.OwnRows, "rows", "full has rows of class WithTopic"),
        (broken.Overlapping, "disjoint", "retain75, row 13: the row of forget25, row 1 again"),
        (
            broken.Unlearned,
            "disjoint",
            "4 forget rows and 12 retain rows of 15; 1 are not in `full`, the first one 'What is 0",
        ),
        (broken.Seen, "disjoint", "set unseen of forget25, row 5: the row of pretraining, row"),
        (broken.Foreign, "disjoint", "set forget of forget25, row 5: none of the rows to forget"),
        (broken.Misplaced, "disjoint", "a training row of another role than general"),
        (broken.NotDerived, "disjoint", "a training row, while the set is in `derived`"),
        (broken.Unseeded, "fingerprint", "random numbers, or a `set`'s order?"),
        (broken.Unordered, "fingerprint", "random numbers, or a `set`'s order?"),
        (broken.Connecting, "fingerprint", "opens a connection to "),
    ],
)
def test_a_mistake_is_found_by_the_check_that_is_for_it(
    kind: type[Benchmark], check: str, seen: str
) -> None:
    found = {
        r.check.name: r.outcome.seen
        for r in check_benchmark(kind)
        if r.outcome.verdict == "fault" and not r.outcome.as_in
    }
    assert [*found] == [check], found
    assert seen in found[check]


def test_every_check_has_a_benchmark_that_breaks_it() -> None:
    mark: Any = test_a_mistake_is_found_by_the_check_that_is_for_it
    assert {check for _, check, _ in mark.pytestmark[0].args[1]} == {*NAMES}


def test_splits_by_name_conform() -> None:
    found = {r.check.name: r.outcome for r in check_benchmark(broken.Named)}
    assert {one.verdict for one in found.values()} == {"passed"}, found
    assert found["splits"].seen == "16 rows; small 4, large 8"


def test_the_sets_that_metrics_lack_are_listed_where_no_metric_is_named() -> None:
    class Bare(broken.Good):
        """Without a retain model."""

        references = frozenset({"start"})

    (only,) = check_benchmark(Bare, only=["metrics"])
    assert only.outcome.verdict == "passed"
    assert "private has no values without the retain model" in only.outcome.seen


def test_rows_out_of_reach_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(*_: Any) -> Dataset:
        raise DataError("cannot be read from the hub") from HubError("away", answered=False)

    monkeypatch.setattr(broken.Good, "load", load)
    found = {r.check.name: r.outcome for r in check_benchmark(broken.Good)}
    assert found["metrics"].verdict == "passed"
    assert (found["splits"].verdict, found["splits"].seen) == (
        "not run",
        "cannot be read from the hub",
    )
    assert (found["rows"].verdict, found["rows"].seen) == ("not run", "'splits' failed")


def test_refused_settings_and_unknown_names_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(PluginError, match="Good cannot be made: size: must be at least 4, got 2"):
        check_benchmark(broken.Good, {"size": 2})
    with pytest.raises(PluginError, match=r"unknown check 'row'; did you mean 'rows'\?"):
        check_benchmark(broken.Good, only=["row"])
    with pytest.raises(PluginError, match=r"unknown benchmark 'tofuu'; did you mean 'tofu'\?"):
        check_benchmark("tofuu")
    (only,) = (
        r for r in check_benchmark("tofu", {"path": str(tmp_path)}) if r.outcome.verdict == "fault"
    )
    assert only.check.name == "splits"
    assert "lacks full.json" in only.outcome.seen
