"""Outputs are checked before any work: nothing that was read is overwritten, no traceback."""

import resource
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry
from unlearnbench.cli.main import main
from unlearnbench.report.report import write_report
from unlearnbench.results.records import EpochResult, Record, write_record

SMALL = """\
name: small
data: {authors: 10, questions_per_author: 2, pretraining_authors: 2}
models: [{name: tiny, base: tiny}]
forget_fractions: [0.1]
methods: [ce-u]
epochs: 1
"""
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command beside a config, a sweep's folder and a link loop: code, stdout, stderr."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    Path("small.yaml").write_text(SMALL)
    Path("file").write_text("mine")
    Path("loop").symlink_to("loop")
    Path("nowhere").symlink_to("gone")
    write_record(a_record(), Path("runs/a"))

    def ran(*args: str) -> tuple[int, str, str]:
        code = main(args)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return ran


def a_record(**changes: Any) -> Record:
    values: dict[str, Any] = {
        "id": "ab",
        "kind": "run",
        "model": "tiny",
        "forget_fraction": 0.1,
        "method": "npo",
        "learning_rate": 1e-5,
        "seed": 0,
        "spec": {"method": {"name": "npo", "hyperparameters": {"beta": 0.1}}},
        "status": "finished",
        "profile": "tofu@1",
        "epochs": (EpochResult(1, {"model_utility": -0.5}, 1.0, 1.0),),
    }
    return Record(**values | changes)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(p): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_a_full_disk_at_page_or_table_is_one_message_and_keeps_the_old_ones(
    tmp_path: Path,
) -> None:
    write_record(a_record(), tmp_path)
    write_report(tmp_path)
    before = everything(tmp_path)
    code = (
        "import resource, signal; from unlearnbench.cli.main import main\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "for size in (10, 2000):\n"
        f"    resource.setrlimit(resource.RLIMIT_FSIZE, (size, {resource.RLIM_INFINITY}))\n"
        f"    print(main(['report', {str(tmp_path)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.split() == ["2", "2"], done.stderr
    lines = done.stderr.splitlines()
    for line, name in zip(lines, ("results.csv", "report.html"), strict=True):
        assert name in line
        assert "File too large; no record is lost: `unlearnbench report" in line
    assert everything(tmp_path) == before


def test_what_no_check_has_foreseen_is_one_line_with_its_place(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object, error: BaseException) -> int:
        raise error

    for error, message in (
        (OSError(28, "No space left on device", "a/b"), "a/b: No space left on device"),
        (RuntimeError("nobody expected this"), "unexpected error: RuntimeError: nobody expected"),
    ):
        monkeypatch.setattr("unlearnbench.config.loader.load_config", partial(fail, error=error))
        code, out, err = run("configs", "show", "quickstart", "--json")
        assert (code, out) == (2, "")
        assert err.startswith(message)
        assert err.count("\n") == 1
    code, _, err = run("configs", "show", "quickstart", "--json", "--traceback")
    assert code == 2
    assert "Traceback (most recent call last)" in err
