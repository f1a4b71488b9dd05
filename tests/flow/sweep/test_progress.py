"""Progress: an honest time to go, lines for pipes, a bar for terminals."""

from dataclasses import replace
from io import StringIO

import pytest

from unlearnbench.base.console import Console
from unlearnbench.config.plan import RunSpec, make_plan
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.results.records import EpochResult, Record, run_record
from unlearnbench.sweep.progress import Progress


def some_runs(*betas: float) -> tuple[RunSpec, ...]:
    """Two splits and rates; or a setting for each of `betas` in their place."""
    specs = tuple(MethodSpec(name="npo", hyperparameters={"beta": beta}) for beta in betas)
    config = SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.1,) if betas else (0.1, 0.2),
        methods=(MethodGrid(specs=specs or (MethodSpec(name="npo"),)),),
        learning_rates=(1e-5,) if betas else (1e-5, 2e-5),
        epochs=2,
    )
    return make_plan(config, "data").runs


class Clock:
    """A clock that is set by hand."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


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
        progress.time_spent({"training": 61.0, "overhead": 2.0})
    assert err.getvalue().splitlines() == [
        "running: 4 runs, 2 at a time, 1 are done already",
        "[2/5] npo  lr 1e-05  forget 10 %  epoch 2:  utility 0.71  log10 FQ -3.2   22 s left",
        "[3/5] npo  lr 2e-05  forget 10 %  failed: ValueError: no",
        "warning: something",
        "took 1 min 03 s: training 1 min 01 s, overhead 2 s",
    ]


def test_the_best_is_printed_when_it_changes_and_at_the_end() -> None:
    runs, err, clock = some_runs(), StringIO(), Clock()
    start = EpochResult(0, {"model_utility": 0.8, "log10_forget_quality": -20.0}, 0.0, 1.0)
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    with Progress(Console(err=err), default_headline(), clock) as progress:
        progress.live_best.add(replace(tuned, epochs=(start,)))
        progress.running(runs, finished=0, slots=1)
        for seconds, run, quality in zip((10, 40, 50, 90), runs, (-9, -5, -1, -7), strict=True):
            clock.now = float(seconds)
            last = EpochResult(1, {"model_utility": 0.7, "log10_forget_quality": quality}, 9.0, 1.0)
            progress.live_best.add(
                run_record(run, status="finished", profile="p@1", epochs=(last,))
            )
            progress.ended(run, last)
        progress.time_spent({"training": 1.0})
    best = [line for line in err.getvalue().splitlines() if line.startswith("best")]
    assert [line.partition(":")[0] for line in best] == [
        *("best so far of tiny, forget 10 %", "best of tiny, forget 10 %")
    ]
    lines = err.getvalue().splitlines()
    assert lines.count("  npo     2e-05      1    0.700     -5.00  1e-05") == 2


@pytest.mark.parametrize(
    ("utility", "quality", "why"),
    [(0.04, -0.1, "the start model knows nothing"), (0.8, -0.5, "has nothing left to forget")],
)
def test_a_useless_start_model_is_a_warning_before_the_runs_and_after_them(
    utility: float, quality: float, why: str
) -> None:
    runs, err, clock = some_runs(), StringIO(), Clock()
    metrics = {"model_utility": utility, "log10_forget_quality": quality}
    start = EpochResult(0, metrics, 0.0, 1.0)
    tuned = Record("s", "fine-tuned", "tiny", 0.1, "fine-tuned", None, 0, {}, "finished", "p@1")
    with Progress(Console(err=err), default_headline(), clock) as progress:
        progress.live_best.add(replace(tuned, epochs=(start,)))
        progress.running(runs, finished=0, slots=1)
        last = EpochResult(1, {"model_utility": 0.7, "log10_forget_quality": -0.01}, 9.0, 1.0)
        progress.live_best.add(
            run_record(runs[0], status="finished", profile="p@1", epochs=(last,))
        )
        progress.time_spent({"training": 1.0})
        assert [why in text for text in progress.no_result()] == [True]
    warnings = [line for line in err.getvalue().splitlines() if "NO RESULT" in line]
    assert len(warnings) == 2
    assert all(why in warning for warning in warnings)
    assert "best" not in err.getvalue(), "no winner in its place"
