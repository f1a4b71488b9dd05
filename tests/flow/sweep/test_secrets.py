"""Passwords in addresses: a sweep uses them, and nothing that it leaves has them."""

import json
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest

from unlearnbench.base.console import Console
from unlearnbench.config.resources import TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.report.report import finish
from unlearnbench.results.records import EpochResult
from unlearnbench.sweep.driver import run_sweep

from .noop_sweep import NOOP, noop_config

pytestmark = pytest.mark.long

SECRET = "hunter2"


def holders(folder: Path) -> list[str]:
    """Files that hold the secret."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return [str(path) for path in files if SECRET.encode() in path.read_bytes()]


def looking(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """A run that fails where the secret is on the disk while it is at work."""
    if found := holders(folder):
        raise RuntimeError(f"secret in {len(found)} files: {[Path(f).name for f in found]}")
    yield from NOOP.run_epochs(run, config, folder)


@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_leaves_no_secret_and_resumes(tmp_path: Path) -> None:
    config = noop_config(tmp_path / "out", 2).model_copy(
        update={
            "tracking": TrackingSettings(uri=f"http://u:{SECRET}@127.0.0.1:9"),
            "storage": f"file://{tmp_path}/kept?token={SECRET}",
            "description": f"logged to https://{SECRET}@h/",
        }
    )
    err = StringIO()
    pipeline = replace(NOOP, run_epochs=looking, report=finish)
    result = run_sweep(config, Console(err=err), pipeline)
    assert not result.failed, err.getvalue()
    assert "127.0.0.1:9: [Errno 111] Connection refused" in err.getvalue()
    assert SECRET not in err.getvalue()
    assert holders(tmp_path) == []
    stored = next(tmp_path.glob("kept*"))
    assert stored.name == f"kept?token={SECRET}", "the storage itself was reached with it"
    assert len(list(stored.glob("*/records/*"))) >= 2
    plan = json.loads((result.folder / "plan.json").read_text())
    assert plan["config"]["storage"].endswith("/kept?token=***")
    assert plan["config"]["tracking"]["uri"] == "http://127.0.0.1:9"

    before = sorted(path.stat().st_mtime_ns for path in result.folder.glob("records/*"))
    again = run_sweep(config, Console(err=StringIO()), pipeline)
    assert (again.finished, again.failed) == (result.finished, 0)
    after = sorted(path.stat().st_mtime_ns for path in result.folder.glob("records/*"))
    assert after == before, "no run was repeated"
