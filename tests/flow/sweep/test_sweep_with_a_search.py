"""A whole sweep whose attack searches: its views agree with the recomputation, also resumed."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.numbers.oracle.agreement import disagreements
from tests.numbers.oracle.written_views import views_of
from tests.oracle.claims import Claims

SEARCHING = """
extends: smoke
name: searching
methods: [ce-u]
seeds: [0, 1, 2]
attacks:
  relearning: {steps: [3], search: {learning_rate: [1.0e-3, 3.0e-3]}, trials: 2}
"""


def sweep(place: Path) -> str:
    """Run the sweep in a process of its own."""
    command = [sys.executable, "-m", "unlearnbench.cli.main", "sweep", "searching.yaml"]
    done = subprocess.run(
        command, cwd=place, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.long
def test_a_sweep_with_a_search_agrees_and_is_the_same_when_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "searching.yaml").write_text(SEARCHING)
    assert "3 runs, all finished" in sweep(tmp_path)
    folder = tmp_path / "runs" / "searching"
    written = [(folder / name).read_text() for name in ("attacks.csv", "conclusion.json")]
    with np.errstate(invalid="ignore"):
        claims = Claims.of(folder)
    assert disagreements(views_of(folder), claims) == []
    (panel,) = claims.panels
    attackers = [claim.attackers["relearning@tuned"] for _, _, claim in panel.lasting]
    assert [(*one.choosing, *one.reporting) for one in attackers] == [(0, 1, 2)]

    shutil.rmtree(folder / "records" / panel.settings[0].runs[0])
    assert "2 found, 1 run now" in sweep(tmp_path)
    again = [(folder / name).read_text() for name in ("attacks.csv", "conclusion.json")]
    assert again == written
