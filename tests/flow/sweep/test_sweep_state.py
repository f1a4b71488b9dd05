"""What the state of a sweep reads of its records."""

from io import StringIO
from pathlib import Path

import pytest

from tests.factories.random_folders import RandomFolder, draw, write
from unlearnbench.analysis.results import Results
from unlearnbench.base.console import Console
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.sweep_tracker import SweepTracker
from unlearnbench.results.records import Record
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState


def state_of(made: RandomFolder, err: StringIO) -> SweepState:
    tracker = SweepTracker(TrackingSettings(enabled=False), made.folder, made.config)
    progress = Progress(Console(err=err), made.config.headline)
    return SweepState(made.folder, progress, tracker, Storage(None, {}))


def test_runs_at_work_are_tracked_when_they_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run may have written its record while other models get ready."""
    made = write(draw(19), tmp_path)
    state = state_of(made, StringIO())
    tracked: list[str] = []

    def log(record: Record) -> None:
        tracked.append(record.id)

    monkeypatch.setattr(state.tracker, "log", log)
    runs = {run.id for run in made.plan.runs}
    finished = state.track_finished(made.plan, new_runs=False)
    assert tracked
    assert not runs & {*tracked}
    assert runs & finished
    references = len(tracked)
    state.track_finished(made.plan)
    assert {*tracked[references:]} == runs & finished
    assert len(tracked) == len({*tracked})


def test_start_models_are_judged_without_a_file_of_a_run(
    tmp_path: Path, read_files: list[str]
) -> None:
    """A sweep of an earlier version may go on with thousands of runs."""
    made = write(draw(19), tmp_path)
    expected = [(panel.panel, panel.start) for panel in Results.read(made.folder).panels]
    state = state_of(made, StringIO())
    read_files.clear()
    state.track_finished(made.plan)
    found = [(panel.panel, panel.start) for panel in state.start_panels()]
    assert found == expected
    runs = {run.id for run in made.plan.runs}
    assert not runs & {*read_files}
