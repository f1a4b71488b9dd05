"""`unlearnbench doctor` where all works, and on stand-ins of what does not."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.cli import diagnosis, torch_probe
from unlearnbench.cli.diagnosis import Finding

Run = Callable[..., tuple[int, str, str]]
TORCH = """
import warnings
class version: cuda = "13.0"
class cuda:
    def is_available():
        {available}
    def get_arch_list(): return ["sm_80", "sm_90", "compute_90"]
    def device_count(): return 1
    def get_device_properties(index):
        class one: name, major, minor, total_memory = "{name}", {major}, 0, 80 * 10**9
        return one
class zeros:
    def __init__(self, *shape, device): pass
    def add_(self, one): return self
    def item(self): return 1.0
"""
SMI = "#!/bin/sh\necho '470.82.01, Old GPU'\n"


@pytest.fixture
def torch_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts another torch in the place of the installed one, and tools before the machine's."""
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hub"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    torch_probe.nvidia_smi.cache_clear()

    def put(code: str, nvidia_smi: str = "") -> None:
        tools = tmp_path / "tools"
        tools.mkdir()
        (tools / "torch.py").write_text(code)
        if nvidia_smi:
            (tools / "nvidia-smi").write_text(nvidia_smi)
            (tools / "nvidia-smi").chmod(0o755)
        monkeypatch.setenv("PYTHONPATH", str(tools))
        monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")

    return put


def topics(out: str) -> dict[str, dict[str, Any]]:
    return {one["topic"]: one for one in json.loads(out)["findings"]}


def working(name: str = "New GPU", major: int = 9, available: str = "return True") -> str:
    return TORCH.format(name=name, major=major, available=available)


def test_all_that_is_needed_works(
    run: Run, torch_is: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_is(working(), SMI)

    def without_s3(name: str) -> str:
        if name == "s3fs":
            raise PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(diagnosis, "version", without_s3)
    begin = time.monotonic()
    code, out, err = run("doctor")
    assert time.monotonic() - begin < 6
    assert (code, err) == (0, "")
    assert out.endswith("\neverything needed works\n")
    for line in (
        f"Python            {sys.version.split()[0]}",
        "New GPU, capability 9.0, 80 GB; torch can use it",
        "NVIDIA driver     470.82.01",
        "results           runs: writable, ",
        "pip install 'unlearnbench[s3]'",
        "no answer (",
    ):
        assert line in out, line
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("raise ImportError('libcudart.so.13: cannot open')", "ImportError: libcudart.so.13"),
        ("raise OSError('libtorch.so: bad ELF')", "OSError: libtorch.so: bad ELF"),
        ("import os; os._exit(139)", "ended with code 139"),
    ],
)
def test_a_broken_torch(run: Run, torch_is: Callable[..., None], code: str, message: str) -> None:
    torch_is(code)
    status, out, _ = run("doctor", "--json")
    found = [one for one in json.loads(out)["findings"] if one["state"] == "wrong"]
    assert (status, [one["topic"] for one in found]) == (1, ["torch"])
    assert message in found[0]["text"]
    assert "pytorch.org" in found[0]["fix"]


def test_an_old_driver(run: Run, torch_is: Callable[..., None]) -> None:
    warn = "warnings.warn('The NVIDIA driver on your system is too old'); return False"
    torch_is(working(available=warn), SMI)
    code, out, _ = run("doctor")
    assert code == 1
    assert "Old GPU: torch, built for CUDA 13.0, cannot use it with driver 470.82.01" in out
    assert "→ update NVIDIA's driver, or install a torch that is built for an older CUDA" in out
    assert "torch warns       The NVIDIA driver on your system is too old" in out
    assert out.endswith("\nwill not work: GPU\n")


def test_an_old_gpu_and_a_driver_that_raises(run: Run, torch_is: Callable[..., None]) -> None:
    torch_is(working("Older GPU", 6))
    code, out, _ = run("doctor", "--json")
    assert (code, "no kernels for sm_60" in topics(out)["GPU"]["text"]) == (1, True)


def test_a_gpu_that_fails_in_use_and_one_that_is_hidden(
    run: Run, torch_is: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_is(working(available="raise RuntimeError('CUDA driver initialization failed')"), SMI)
    code, out, _ = run("doctor", "--json")
    assert (code, "initialization failed" in topics(out)["torch"]["text"]) == (1, True)
    assert "driver" in topics(out)["torch"]["fix"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    hidden = [*torch_probe.accelerators({"cuda": "13.0", "usable": False})]
    assert Finding(
        "GPU", "Old GPU: hidden by CUDA_VISIBLE_DEVICES=''", "note", "unset CUDA_VISIBLE_DEVICES"
    ) in hidden  # fmt: skip


def test_broken_caches(
    run: Run, torch_is: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch_is(working())
    for name, text in (("full-1", "{"), ("full-2", '{"files": {"gone": "0"}}')):
        (tmp_path / "runs/cache/models" / name).mkdir(parents=True)
        (tmp_path / "runs/cache/models" / name / "prepared.json").write_text(text)
    (tmp_path / "hub").write_text("a file where a folder should be")
    code, out, _ = run("doctor", "--json")
    found = topics(out)
    assert (code, found["hub's cache"]["state"]) == (1, "wrong")
    assert "is not a folder" in found["hub's cache"]["text"]
    assert found["prepared models"]["text"] == "2 of 2 damaged: full-1, full-2"
    assert found["prepared models"]["state"] == "note"

    def refuse(_folder: Path) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    found_now = [*diagnosis.places(tmp_path / "runs", tmp_path)]
    assert [(one.topic, one.state) for one in found_now] == [
        ("results", "wrong"), ("hub's cache", "wrong"), ("prepared models", "wrong"),
    ]  # fmt: skip
    assert all("Permission denied" in one.text for one in found_now)


def test_systems_without_posix_locks_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Windows")
    first = next(diagnosis.software())
    assert (first.state, "WSL 2" in first.fix) == ("wrong", True)
    monkeypatch.setattr("platform.system", lambda: "Darwin")
    assert next(diagnosis.software()).state == "note"


def test_missing_and_old_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    def other(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return "1.0" if name == "torch" else "9999.0"

    monkeypatch.setattr(diagnosis, "version", other)
    wrong = {one.topic: one for one in diagnosis.software() if one.state == "wrong"}
    assert wrong.keys() == {"ray", "torch"}
    assert wrong["torch"].text.startswith("1.0, and >=")
    assert wrong["ray"].fix.startswith("pip install 'ray>=")
