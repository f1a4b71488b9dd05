"""What the state of a sweep reads of its records."""

from io import StringIO
from pathlib import Path

from tests.factories.random_folders import draw, write
from unlearnbench.analysis.results import Results
from unlearnbench.base.console import Console
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.report.sweep_tracker import SweepTracker
from unlearnbench.results.remote_copies import Storage
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState


def test_start_models_are_judged_without_a_file_of_a_run(
    tmp_path: Path, read_files: list[str]
) -> None:
    """A sweep of an earlier version may go on with thousands of runs."""
    made = write(draw(19), tmp_path)
    expected = [(panel.panel, panel.start) for panel in Results.read(made.folder).panels]
    tracker = SweepTracker(TrackingSettings(enabled=False), made.folder, made.config)
    progress = Progress(Console(err=StringIO()), made.config.headline)
    state = SweepState(made.folder, progress, tracker, Storage(None, {}))
    read_files.clear()
    state.track_finished(made.plan)
    found = [(panel.panel, panel.start) for panel in state.start_panels()]
    assert found == expected
    runs = {run.id for run in made.plan.runs}
    assert not runs & {*read_files}
