"""The line that a slow command begins with."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from unlearnbench.cli import first_line as module
from unlearnbench.cli.first_line import first_line
from unlearnbench.console import Console


@pytest.fixture(autouse=True)
def _no_rank(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.delenv("RANK", raising=False)
    before = list(sys.meta_path)
    yield
    assert sys.meta_path == before


def _search(name: str) -> None:
    """Look for a module as `import` does where it is not loaded yet."""
    for finder in sys.meta_path[:1]:
        finder.find_spec(name, None)


def test_the_line_comes_once_before_the_first_heavy_import(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with first_line("plan"):
        _search("json")
        assert capsys.readouterr().err == ""
        _search("torch")
        _search("ray")
        assert capsys.readouterr() == ("", "plan: loading torch …\n")


def test_the_line_comes_after_a_while_of_silence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "AFTER", 0.01)
    with first_line("leaderboard merge"):
        end = time.monotonic() + 10
        while not (found := capsys.readouterr().err) and time.monotonic() < end:
            time.sleep(0.01)
    assert found == "leaderboard merge: working …\n"


def test_a_command_that_has_printed_has_no_other_first_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with first_line("sweep"):
        Console().note("24 runs")
        _search("torch")
    monkeypatch.setenv("RANK", "1")  # of a run of several processes
    with first_line("run"):
        _search("torch")
    assert capsys.readouterr().err == "24 runs\n"


@pytest.mark.parametrize(
    ("options", "first"), [([], r"plan: (loading torch|working) …\n"), (["--json"], "")]
)
def test_a_process_prints_it_before_torch_is_imported(
    tmp_path: Path, options: list[str], first: str
) -> None:
    (tmp_path / "torch.py").write_text("import sys; sys.stderr.write('torch'); sys.exit()\n")
    code = "import sys; from unlearnbench.cli.main import main; sys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "plan", "quickstart", *options],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert re.match(f"{first}torch", done.stderr)
