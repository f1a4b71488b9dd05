"""The shipped sweep for developers runs to its page, and its start model passes the start check."""

import subprocess
import sys
from pathlib import Path

import pytest

from unlearnbench.analysis.results import Results


@pytest.mark.long
def test_the_sweep_for_developers_runs_from_preparation_to_page(tmp_path: Path) -> None:
    """In a process of its own, as a developer starts it, without `--force`."""
    command = [sys.executable, "-m", "unlearnbench.cli.main", "sweep", "smoke"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 runs, all finished" in done.stdout
    folder = tmp_path / "runs" / "smoke"
    assert (folder / "report.html").is_file()
    results = Results.read(folder)
    (panel,) = results.panels
    assert not panel.start.stops
    assert panel.start.check is not None
    assert panel.start.check.passes
    assert {row.variant for row in results.attacked} == {"relearning@0", "relearning@3"}
