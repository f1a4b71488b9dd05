"""Progress: an honest time to go, lines for pipes, a bar for terminals."""

from dataclasses import replace
from io import StringIO

import pytest

from tests.factories.clock import Clock
from unlearnbench.analysis.best_settings import panels
from unlearnbench.base.console import Console
from unlearnbench.config.plan import make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record, run_record
from unlearnbench.sweep.progress import Progress


def some_runs() -> tuple[RunSpec, ...]:
    """Two splits and rates."""
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1, 0.2),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        learning_rates=(1e-5, 2e-5),
        epochs=2,
    )
    return make_plan(config, "data").runs


def test_progress_without_a_terminal_is_plain_lines() -> None:
    runs = some_runs()
    err, clock = StringIO(), Clock()
    with Progress(Console(err=err), default_headline(), clock) as progress:
        progress.running(runs, finished=1, slots=2)
        clock.now = 10.0
        last = EpochResult(2, {"model_utility": 0.713, "log10_forget_quality": -3.21}, 9.0, 1.0)
        progress.epoch(runs[0], last, 10.0)
        progress.ended(runs[0], last)
        progress.failed(runs[1], "ValueError: no")
        progress.warn("something")
        progress.concluded((), (), 63.0)
    assert err.getvalue().splitlines() == [
        "running: 4 runs, 2 at a time, 1 done already",
        "[2/5] npo  lr 1e-05  forget 10 %  epoch 2:  utility 0.71  log10 FQ -3.2   22 s left",
        "[3/5] npo  lr 2e-05  forget 10 %  failed: ValueError: no",
        "warning: something",
        "took 1 min 03 s",
    ]


def test_tasks_that_end_among_runs_are_lines_and_are_not_counted() -> None:
    runs, err = some_runs(), StringIO()
    with Progress(Console(err=err), default_headline(), Clock()) as progress:
        progress.preparing(["one", "two"])
        progress.prepared("one", 1.0)
        progress.running(runs, finished=0, slots=2)
        progress.prepared("two", 2.0)
        progress.failed(runs[0], "no")
    assert err.getvalue().splitlines() == [
        "preparing: one, two",
        "prepared one in 1 s",
        "running: 4 runs, 2 at a time",
        "prepared two in 2 s",
        "[1/4] npo  lr 1e-05  forget 10 %  failed: no",
    ]


def test_equal_warnings_of_several_processes_are_one_line() -> None:
    err = StringIO()
    with Progress(Console(err=err), default_headline()) as progress:
        for text in ("something", "another thing", "something"):
            progress.warn(text)
    assert err.getvalue().splitlines() == ["warning: something", "warning: another thing"]


@pytest.mark.parametrize(
    ("utility", "quality", "why"),
    [(0.04, -0.1, "the start model knows nothing"), (0.8, -0.5, "has nothing left to forget")],
)
def test_a_useless_start_model_is_a_warning_before_the_runs_and_after_them(
    utility: float, quality: float, why: str
) -> None:
    runs, err = some_runs(), StringIO()
    results = [{"model_utility": utility, "log10_forget_quality": quality}]
    results.append({"model_utility": 0.7, "log10_forget_quality": -0.01})
    start, last = (EpochResult(epoch, metrics, 0.0, 1.0) for epoch, metrics in enumerate(results))
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    tuned = replace(tuned, epochs=(start,))
    record = run_record(runs[0], status="finished", profile="p@1", epochs=(last,))
    with Progress(Console(err=err), default_headline()) as progress:
        progress.running(runs, finished=0, slots=1, panels=panels(table_of([tuned]).rows))
        progress.warn_of_starts(panels(table_of([tuned]).rows))
        progress.concluded(panels(table_of([tuned, record]).rows), (), 1.0)
    warnings = [line for line in err.getvalue().splitlines() if "NO RESULT" in line]
    assert len(warnings) == 2
    assert all(why in warning for warning in warnings)
    assert "best" not in err.getvalue(), "no winner in its place"


def test_lines_name_the_epochs_of_runs_that_differ_in_them() -> None:
    """With `epochs_as: runs` there is a run for each number of epochs."""
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        learning_rates=(1e-5, 1.00000001e-5),
        epochs=2,
        epochs_as="runs",
    )
    runs = make_plan(config, "data").runs
    err = StringIO()
    with Progress(Console(err=err), default_headline(), Clock()) as progress:
        progress.running(runs, finished=0, slots=1)
        for run in runs:
            progress.failed(run, "no")
    names = [line.partition("] ")[2] for line in err.getvalue().splitlines()[1:]]
    assert names == [
        "npo (epochs=1)  lr 1e-05  forget 10 %  failed: no",
        "npo (epochs=2)  lr 1e-05  forget 10 %  failed: no",
        "npo (epochs=1)  lr 1.00000001e-05  forget 10 %  failed: no",
        "npo (epochs=2)  lr 1.00000001e-05  forget 10 %  failed: no",
    ]
