"""`unlearnbench doctor` where all works, and on stand-ins of what does not."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from unlearnbench.cli import doctor

Run = Callable[..., tuple[int, str, str]]
TORCH = """
import sys
class cuda:
    def is_available(): {available}
    def device_count(): return 1
    def get_device_properties(index):
        class device: name, total_memory = "New GPU", 80 * 10**9
        return device
class zeros:
    def __init__(self, *shape, device): pass
    def add_(self, addend): return self
    def item(self): return 1.0
"""
SMI = "#!/bin/sh\necho '470.82.01, Old GPU'\n"


@pytest.fixture
def torch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Puts another torch in the place of the installed one, with a driver and an own hub cache."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    def put(code: str) -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "torch.py").write_text(code)
        (tools / "nvidia-smi").write_text(SMI)
        (tools / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PYTHONPATH", str(tools))
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")

    return put


def wrong(out: str) -> dict[str, Any]:
    return {f["topic"]: f for f in json.loads(out)["findings"] if f["state"] == "wrong"}


def test_all_that_is_needed_works(run: Run, torch_is: Callable[[str], None]) -> None:
    torch_is(TORCH.format(available="return True"))
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert out.endswith("\neverything needed works\n")
    for line in (
        f"Python            {sys.version.split()[0]}",
        f"torch             {version('torch')}",
        "GPU               New GPU, 80 GB",
        "NVIDIA driver     470.82.01, Old GPU",
        "results           runs: writable, ",
    ):
        assert line in out, line
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("code", "topic", "message"),
    [
        ("raise ImportError('libcudart.so.13')", "torch in use", "ImportError: libcudart.so.13"),
        ("import os; os._exit(139)", "torch in use", "ended with code 139"),
        (TORCH.format(available="sys.stderr.write('too old'); return False"), "GPU", "too old"),
    ],
)
def test_a_torch_that_does_not_work(
    run: Run, torch_is: Callable[[str], None], code: str, topic: str, message: str
) -> None:
    torch_is(code)
    status, out, _ = run("doctor", "--json")
    assert (status, [*wrong(out)]) == (1, [topic])
    assert message in wrong(out)[topic]["text"]
    assert wrong(out)[topic]["fix"]


def test_missing_and_old_packages_and_a_cache_that_is_no_folder(
    run: Run, torch_is: Callable[[str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return "1.0" if name == "torch" else "9999.0"

    torch_is(TORCH.format(available="return True"))
    monkeypatch.setattr(doctor, "version", other)
    (tmp_path / "hub").write_text("a file where a folder should be")
    found = wrong(run("doctor", "--json")[1])
    assert found.keys() == {"ray", "torch", "hub's cache"}
    assert found["torch"]["text"].startswith("1.0, and >=")
    assert found["ray"]["fix"].startswith("pip install 'ray>=")
