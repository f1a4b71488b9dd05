"""Averages over seeds, the rule behind «best», and the table of the best as a sweep prints it."""

from dataclasses import replace

import pytest

from unlearnbench.analysis.best_settings import best_per_method, panels
from unlearnbench.analysis.best_text import best_lines
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.analysis.start_model import Start
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import Record

from .conftest import pointed

START = pointed("start", ((0.9, -16.0),), kind="fine-tuned")
GOAL = pointed("goal", ((0.88, 0.0),), kind="retain")


def test_seeds_are_averaged_with_their_range() -> None:
    rows = table_of(
        [pointed(f"s{s}", ((u, -4.0),), seed=s) for s, u in enumerate((0.5, 0.7, 0.9))]
    ).rows
    (setting,) = average_seeds(rows)
    assert setting.metrics["model_utility"] == pytest.approx(0.7)
    assert setting.spread("model_utility") == (0.5, 0.9)
    assert len(setting.rows) == 3


def test_a_seed_without_a_number_leaves_its_setting_without_one() -> None:
    rows = table_of([pointed("a", ((0.8, -1.0),)), pointed("b", ((None, None),), seed=1)]).rows
    (setting,) = average_seeds(rows)
    assert setting.metrics["model_utility"] is None
    assert best_per_method(panels([*table_of([START]).rows, *rows]))[0].setting is None


def test_a_failed_run_says_nothing_about_its_setting() -> None:
    # It was evaluated before it failed, and is tried again.
    failed = replace(pointed("c", ((0.2, -9.0),), seed=2), status="failed")
    ended = [pointed("a", ((0.8, -1.0),)), pointed("b", ((0.7, -2.0),), seed=1)]
    rows = table_of([START, *ended, failed]).rows
    assert "c" in {row.run_id for row in rows}
    (setting,) = average_seeds(rows)
    assert setting.metrics["model_utility"] == pytest.approx(0.75)
    assert [row.run_id for row in setting.rows] == ["a", "b"]
    assert average_seeds(table_of([START, failed]).rows) == ()


def test_best_has_the_highest_quality_with_enough_utility() -> None:
    # 80 % of 0.9 is 0.72: epoch 3 has forgotten most but has lost too much.
    points = ((0.85, -12.0), (0.73, -6.0), (0.71, -1.0))
    rows = table_of(
        [START, GOAL, pointed("a", points), pointed("b", ((0.88, -9.0),), rate=1e-4)]
    ).rows
    (best,) = best_per_method(panels(rows))
    assert best.setting is not None
    assert (best.setting.learning_rate, best.setting.epoch) == (1e-5, 2)


@pytest.mark.parametrize(("utility", "is_best"), [(0.8, True), (0.799, False)])
def test_exactly_eighty_percent_is_enough(utility: float, is_best: bool) -> None:
    start = pointed("s", ((1.0, -9.0),), kind="fine-tuned")
    (best,) = best_per_method(panels(table_of([start, pointed("a", ((utility, -5.0),))]).rows))
    assert (best.setting is not None) is is_best


def test_nothing_is_best_from_a_start_model_that_has_nothing_to_forget() -> None:
    start = pointed("s", ((1.0, -0.5),), kind="fine-tuned")
    (best,) = best_per_method(panels(table_of([start, pointed("a", ((0.9, -0.1),))]).rows))
    assert best.setting is None


def test_epoch_0_replaces_a_missing_start_model_and_is_never_best() -> None:
    run = pointed("a", ((0.9, -4.0), (0.85, -5.0)))
    run = replace(run, epochs=tuple(replace(e, epoch=e.epoch - 1) for e in run.epochs))
    (panel,) = panels(table_of([run]).rows)
    assert panel.start.utility == 0.9
    (best,) = panel.best
    assert best.setting is not None
    assert best.setting.epoch == 1


def test_hyper_parameter_settings_of_a_method_compete_and_the_best_method_is_first() -> None:
    records = [START, *(pointed(f"b{b}", ((0.8, -b),), beta=b) for b in (2.0, 5.0))]
    others = [pointed("x", ((0.8, -1.0),), method="x"), pointed("y", ((0.1, -1.0),), method="y")]
    best = best_per_method(panels(table_of([*records, *others]).rows))
    assert [one.method for one in best] == ["x", "npo (beta=2)", "y"]


def lines_of(*records: Record, most: int = 3) -> list[str]:
    """The table of the best as it is printed at the end of a sweep."""
    (panel,) = panels(table_of(records).rows)
    return best_lines(panel, most)


@pytest.mark.parametrize("start", [(0.01, -20.0), (0.9, -20.0), None])
def test_a_panel_without_a_best_has_no_table(start: tuple[float, float] | None) -> None:
    """Where the start model knows nothing, no setting keeps its utility, or there is none."""
    first = () if start is None else (pointed("start", (start,), "fine-tuned"),)
    assert lines_of(*first, pointed("a", ((0.7, -1.0),))) == []


@pytest.mark.parametrize(
    ("least", "kept", "valid"),
    [(None, 0.0, False), (None, 0.01, True), (0.2, 0.1, False), (0.2, 0.3, True)],
)
@pytest.mark.parametrize("forgotten", [None, 0.5])
def test_a_start_model_that_has_nothing_to_keep_shows_nothing(
    least: float | None, kept: float, valid: bool, forgotten: float | None
) -> None:
    headline = replace(default_headline(), least_kept=least)
    headline = replace(headline, forgotten=replace(headline.forgotten, test=None))
    start = Start("tiny", "all", kept, forgotten, headline)
    assert (start.fault == "") is valid
    assert valid or "so that there is nothing to keep" in start.fault
    assert (", below 0.2" in start.fault) is (least is not None and not valid)


def test_a_rule_that_counts_no_words_is_not_blamed_on_training() -> None:
    start = Start("tiny", 0.1, 0.0, -20.0, default_headline(), {"retain": 1.0, "forget": 0.97})
    assert start.fault == (
        "the evaluation profile does not count the answers' words: Model Utility is 0.00 because "
        "the profile counts only words of a-z and 0-9, and the true answers of retain, forget are "
        "mostly in other scripts. Set evaluation.profile to unlearnbench and run again"
    )
    few = Start("tiny", 0.1, 0.0, -20.0, default_headline(), {"retain": 0.1})
    assert "the start model knows nothing" in few.fault
    known = Start("tiny", 0.1, 0.6, -20.0, default_headline(), {"retain": 1.0})
    assert known.fault == ""


def test_methods_that_do_not_differ_beyond_chance_share_a_place() -> None:
    qualities = {"far": (-8.0, -8.2, -8.1), "a": (-1.0, -2.0, -3.0), "b": (-3.0, -1.0, -3.0)}
    runs = [
        pointed(f"{method}-{seed}", ((0.7, quality),), seed=seed, method=method)
        for method, by_seed in qualities.items()
        for seed, quality in enumerate(by_seed)
    ]
    lines = lines_of(pointed("start", ((0.8, -20.0),), "fine-tuned"), *runs)
    assert [line.split()[-2:] for line in lines[1:]] == [
        *(["seeds", "place"], ["3", "1"], ["3", "1"], ["3", "3"], ["-", "-"])
    ]
