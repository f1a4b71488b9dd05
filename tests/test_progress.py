"""Progress: an honest time to go, lines for pipes, a bar for terminals."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from io import StringIO
from pathlib import Path

import pytest

from unlearnbench.console import Console
from unlearnbench.plan import RunSpec, make_plan
from unlearnbench.progress import Progress
from unlearnbench.records import EpochResult, Record, run_record
from unlearnbench.settings import MethodGrid, MethodSpec, ModelSettings, SweepConfig


def four_runs() -> tuple[RunSpec, ...]:
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1, 0.2),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        learning_rates=(1e-5, 2e-5),
        epochs=2,
    )
    return make_plan(config, "data").runs


class Clock:
    """Time that passes when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_progress_without_a_terminal_is_plain_lines() -> None:
    runs = four_runs()
    said, clock = StringIO(), Clock()
    with Progress(Console(err=said), clock) as progress:
        progress.running(runs, finished=1, slots=2)
        clock.now = 10.0
        last = EpochResult(2, {"model_utility": 0.713, "log10_forget_quality": -3.21}, 9.0, 1.0)
        progress.epoch(runs[0], last, 10.0)
        progress.ended(runs[0], last)
        progress.failed(runs[1], "ValueError: no")
        progress.warn("something")
        progress.spent({"training": 61.0, "overhead": 2.0}, {"a, 2 slots": 0.912, "a GPU 0": 0.97})
    assert said.getvalue().splitlines() == [
        "running: 4 runs, 2 at a time, 1 are done already",
        "[2/5] npo  lr 1e-05  forget 10 %  epoch 2:  utility 0.71  log10 FQ -3.2   22 s left",
        "[3/5] npo  lr 2e-05  forget 10 %  failed: ValueError: no",
        "warning: something",
        "took 1 min 03 s: training 1 min 01 s, overhead 2 s",
        "busy: a, 2 slots 91 %, a GPU 0 97 % (mean 94 %)",
    ]


def test_progress_on_a_terminal_keeps_a_bar() -> None:
    class Terminal(StringIO):
        def isatty(self) -> bool:
            return True

    runs = four_runs()
    said = Terminal()
    with Progress(Console(err=said)) as progress:
        progress.preparing(["tiny: base [model]"])
        progress.prepared("tiny: base [model]", 3.0)
        progress.running(runs, finished=0, slots=2)
        progress.epoch(runs[0], EpochResult(1, {}, 1.0, 1.0), 2.0)
        progress.ended(runs[0], None, "collapsed")
    assert "prepared tiny: base [model] in 3 s" in said.getvalue()
    assert "[1/4] npo" in said.getvalue()
    assert "collapsed" in said.getvalue()


def test_a_long_preparation_says_how_far_it_is_every_half_minute() -> None:
    now, err = [0.0], StringIO()
    with Progress(Console(err=err), clock=lambda: now[0]) as progress:
        progress.preparing(["model a", "model b"])
        for second in range(0, 70, 2):
            now[0] = float(second)
            progress.under_way({"model a": (second, 100), "model b": None})
    lines = err.getvalue().splitlines()
    assert lines[1:] == [
        "model a 30 %, about 1 min 10 s left",
        "model a 60 %, about 40 s left",
    ]


def test_the_best_is_told_when_it_changes_every_half_minute_at_most_and_at_the_end() -> None:
    runs, said, clock = four_runs(), StringIO(), Clock()
    start = EpochResult(0, {"model_utility": 0.8, "log10_forget_quality": -20.0}, 0.0, 1.0)
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    with Progress(Console(err=said), clock) as progress:
        progress.recorded(replace(tuned, epochs=(start,)))
        progress.running(runs, finished=0, slots=1)
        for seconds, run, quality in zip((10, 40, 50, 90), runs, (-9, -5, -1, -7), strict=True):
            clock.now = float(seconds)
            last = EpochResult(1, {"model_utility": 0.7, "log10_forget_quality": quality}, 9.0, 1.0)
            progress.recorded(run_record(run, status="finished", profile="p@1", epochs=(last,)))
            progress.ended(run, last)
        progress.spent({"training": 1.0})
    best = [line for line in said.getvalue().splitlines() if line.startswith("best")]
    rule = "the highest Forget Quality (FQ) that keeps 80 % of the start's utility"
    assert best == [
        f"best so far of tiny, forget 10 %: {rule}",
        f"best of tiny, forget 10 %: {rule}",
    ]
    lines = said.getvalue().splitlines()
    assert lines.count("  npo     2e-05      1    0.700     -5.00  1e-05") == 2
    assert lines[-2] == (
        "tiny, forget 10 %: No method forgot enough: npo at 2e-05, epoch 1, has the highest Forget "
        "Quality (p = 1e-05) among settings that keep at least 80 % of the start's utility (it "
        "keeps 88 %). Up to p = 0.05 the test still tells a model from one that never saw the "
        "forget set."
    )


@pytest.mark.parametrize(
    ("utility", "quality", "why"),
    [(0.04, -0.1, "the start model knows nothing"), (0.8, -0.5, "has nothing left to forget")],
)
def test_a_start_that_shows_nothing_is_an_alarm_before_the_runs_and_after_them(
    utility: float, quality: float, why: str
) -> None:
    runs, said, clock = four_runs(), StringIO(), Clock()
    metrics = {"model_utility": utility, "log10_forget_quality": quality}
    start = EpochResult(0, metrics, 0.0, 1.0)
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    with Progress(Console(err=said), clock) as progress:
        progress.recorded(replace(tuned, epochs=(start,)))
        progress.running(runs, finished=0, slots=1)
        last = EpochResult(1, {"model_utility": 0.7, "log10_forget_quality": -0.01}, 9.0, 1.0)
        progress.recorded(run_record(runs[0], status="finished", profile="p@1", epochs=(last,)))
        progress.spent({"training": 1.0})
        assert [why in text for text in progress.no_result()] == [True]
    alarms = [line for line in said.getvalue().splitlines() if "NO RESULT" in line]
    assert len(alarms) == 2
    assert all(why in alarm for alarm in alarms)
    assert "best" not in said.getvalue(), "no winner in its place"


def test_a_run_that_collapsed_says_why() -> None:
    runs, said = four_runs(), StringIO()
    with Progress(Console(err=said), Clock()) as progress:
        progress.running(runs, finished=0, slots=1)
        progress.ended(runs[0], None, "collapsed", "NaN loss at step 1 (epoch 1)")
    assert "forget 10 %  collapsed: NaN loss at step 1 (epoch 1)" in said.getvalue()


def test_runs_that_the_plan_names_no_more_are_not_among_the_best() -> None:
    runs, said = four_runs(), StringIO()
    start = EpochResult(0, {"model_utility": 0.8, "log10_forget_quality": -20.0}, 0.0, 1.0)
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    last = EpochResult(1, {"model_utility": 0.7, "log10_forget_quality": -5.0}, 9.0, 1.0)
    with Progress(Console(err=said)) as progress:
        progress.recorded(replace(tuned, epochs=(start,)))
        for run in runs:
            progress.recorded(run_record(run, status="finished", profile="p@1", epochs=(last,)))
        progress.planned({runs[1].id})
        progress.spent({})
    assert "npo at 2e-05" in said.getvalue()
    assert "1e-05  " not in said.getvalue()


def test_what_was_said_is_kept_with_the_time_and_a_full_disk_is_no_matter(tmp_path: Path) -> None:
    said = StringIO()
    log = tmp_path / "sweep.log"
    with Progress(Console(err=said)) as progress:
        progress.warn("before there is a folder")
        progress.keep(log)
        progress.warn("something")
        progress.prepared("base", 3.0)
        progress.keep(tmp_path / "nowhere" / "sweep.log")
        progress.warn("the disk is full")
    kept = [line.partition("  ") for line in log.read_text(encoding="utf-8").splitlines()]
    assert [text for _, _, text in kept] == ["warning: something", "prepared base in 3 s"]
    assert all(datetime.fromisoformat(when).tzinfo is not None for when, _, _ in kept)
    assert len(said.getvalue().splitlines()) == 4
