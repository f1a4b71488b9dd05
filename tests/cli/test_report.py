"""`unlearnbench report`, `export-log`, `track` and `ui`: output and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from unlearnbench.cli.main import main
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import lock_folder


def test_track_refuses_a_folder_that_a_sweep_works_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records").mkdir()
    with lock_folder(tmp_path):
        assert main(["track", str(tmp_path)]) == 2
    assert "another command works in it" in capsys.readouterr().err


OLD = Path(__file__).parent.parent / "data" / "old_sweep"


@pytest.fixture(scope="module")
def ones() -> dict[str, Record]:
    """A record of the old sweep by kind."""
    return {record.kind: record for record in read_records(OLD)}


def test_a_record_is_exported_as_tofus_log(
    ones: dict[str, Record], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = ones["run"], tmp_path / "log.json"
    last = max(run.evaluations)
    assert main(["export-log", str(OLD), run.id[:6], "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"log  {out}  {run.method}, epoch {last}\n"
    own, back = run.evaluations[last].sets, read_log(out).sets
    for name in own:
        assert back[name].generated == own[name].generated
        np.testing.assert_array_equal(back[name].perturbed_loss, own[name].perturbed_loss)
    words = ["export-log", str(OLD), ones["retain"].id, "--out", str(out), "--epoch", "0"]
    assert main(words) == 0
    retain = ones["retain"].evaluations[0].sets["forget"]
    np.testing.assert_array_equal(read_log(out).sets["forget"].answer_loss, retain.answer_loss)
