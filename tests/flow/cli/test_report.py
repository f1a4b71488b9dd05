"""`unlearnbench report`, `track` and `ui`: output and refusals."""

from pathlib import Path

import pytest

from unlearnbench.cli.main import main
from unlearnbench.results.sweep_folder import lock_folder


def test_track_refuses_a_folder_that_a_sweep_works_in(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "records").mkdir()
    with lock_folder(tmp_path):
        assert main(["track", str(tmp_path)]) == 2
    assert "another command works in it" in capsys.readouterr().err
