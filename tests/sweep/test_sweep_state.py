"""The state of a sweep: what the time of a run was spent on."""

from __future__ import annotations

from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.console import Console
from unlearnbench.plan.plan import make_plan
from unlearnbench.results.records import EpochResult, run_record, write_record
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState

from .test_driver import a_config


class Tracker:
    """Logs nothing."""

    def log(self, _: Any) -> None:
        """Log nothing."""


def test_attacks_of_this_command_are_a_phase_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])
    first, second, plain, *_ = make_plan(a_config(tmp_path), "data").runs
    tracker: Any = Tracker()
    state = SweepState(tmp_path, Progress(Console(err=StringIO())), tracker, Storage(None, {}))
    epoch = EpochResult(1, {"model_utility": 0.5}, 2.0, 1.0)
    under = EpochResult(1, {}, 0.0, 5.0, "paraphrase")
    for run, attacked in ((first, (under,)), (second, (under,)), (plain, ())):
        record = run_record(
            run, status="finished", profile="tofu", epochs=(epoch,), attacked=attacked
        )
        write_record(record, tmp_path)
    state.epoch_ended(first, epoch, 3.0, {"here": 1.0})
    clock[0] += 5.0
    state.run_ended(first)
    assert state.time_spent.busy["attacking"] == 5.0
    assert state.time_spent.by_phase(10.0)["overhead"] == pytest.approx(10.0 - 3.0 - 5.0)
    assert state.time_spent.devices == {"here": 8.0}
    # Resumed after its attack, which an earlier command has made: the epoch is only repeated.
    state.epoch_ended(second, epoch, 0.1, {"here": 1.0})
    state.run_ended(second)
    state.epoch_ended(plain, epoch, 3.0, {"here": 1.0})
    state.run_ended(plain)
    assert state.time_spent.busy == {
        **{"preparing": 0.0, "training": 4.0, "evaluating": 2.0},
        "attacking": 5.0,
    }
