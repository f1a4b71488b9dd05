"""Carry out sweeps one after another with one Ray: python -m tests.published_sweeps FOLDER.

For `flow/integration/test_published.py`, in a process of its own: the libraries read the address of
the hub from the environment when they are imported, and so do the workers that this process forks.
FOLDER has `cases.json`, a list of [name, configuration, overrides]. What came of each is written to
`outcomes.json`.
"""

import io
import json
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.sweep import driver
from unlearnbench.sweep.ray_cluster import ray_session

from .warm_ray import running_ray, warm_workers


def _records(folder: Path) -> dict[str, float]:
    """When each record was written, by its place in the folder."""
    files = folder.rglob("record.json")
    return {file.relative_to(folder).as_posix(): file.stat().st_mtime for file in files}


def _carried_out(configuration: str, overrides: list[str]) -> dict[str, Any]:
    shown = io.StringIO()
    begin = time.monotonic()
    words = [word for override in overrides for word in ("--set", override)]
    with redirect_stdout(shown), redirect_stderr(shown):
        code = main(["sweep", configuration, *words, "--force"])
    if code == 2:
        return {"code": code, "shown": shown.getvalue(), "records": {}, "plan": {}}
    config = load_config(configuration, overrides)
    folder = Path(config.output) / config.name
    plan = folder / "plan.json"
    return {
        "code": code,
        "shown": shown.getvalue(),
        "seconds": time.monotonic() - begin,
        "records": _records(folder),
        "plan": json.loads(plan.read_text(encoding="utf-8")) if plan.is_file() else {},
        "has_page": (folder / "report.html").is_file(),
    }


def carry_out(place: Path) -> None:
    """Carry out the cases of a folder, and write what came of them."""
    cases = json.loads((place / "cases.json").read_text(encoding="utf-8"))
    outcomes: dict[str, Any] = {}
    shared = load_config("quickstart", ["ray.concurrent=2"])
    with warm_workers(), ray_session(shared), pytest.MonkeyPatch.context() as patch:
        patch.setattr(driver, "ray_session", running_ray)
        for name, configuration, overrides in cases:
            outcomes[name] = _carried_out(configuration, overrides)
    (place / "outcomes.json").write_text(json.dumps(outcomes), encoding="utf-8")


if __name__ == "__main__":
    carry_out(Path(sys.argv[1]))
