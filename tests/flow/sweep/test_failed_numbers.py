"""A run that failed has only the numbers that it reported while the sweep ran."""

from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from unlearnbench.base.console import Console
from unlearnbench.config.plan import make_plan
from unlearnbench.evaluation.benchmark_schema import default_headline
from unlearnbench.report.sweep_tracker import SweepTracker
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, read_records
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState

from .noop_sweep import noop_config


def test_they_have_no_note_before_something_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, *_ = make_plan(noop_config(tmp_path, 1), "data").runs
    tracker = cast(SweepTracker, SimpleNamespace(log=list[Any]().append))
    display = Progress(Console(err=StringIO()), default_headline())
    state = SweepState(tmp_path, display, tracker, Storage(None, {}))
    numbers: Any = {"model_utility": 0.5, "log10_forget_quality": -3.0}
    with display:
        display.running([run], finished=0, slots=1)
        state.epoch_ended(run, EpochResult(1, numbers, 0.0, 0.0), 0.0)
        state.run_ended(run, "it broke")
    records = read_records(tmp_path)
    assert [record.status for record in records] == ["failed"]
    table = table_of(records)
    assert table.notes == ()
    assert table.rows[0].kept == 0.5
    monkeypatch.setattr("unlearnbench.results.rules.own_code", lambda: "other code")
    (note,) = table_of(records).notes
    assert note.startswith("numbers of 1 evaluations are shown as recorded, because what was ")
    assert table_of(records).rows == table.rows
