"""`unlearnbench doctor` where all works, and on stand-ins of what does not."""

import json
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from unlearnbench.cli import doctor

from ...factories.command_line import Run


def test_all_that_is_needed_works(run: Run) -> None:
    code, out, err = run("doctor")
    assert (code, err) == (0, "")
    assert out.endswith("\neverything needed works\n")
    assert f"torch             {version('torch')}" in out
    assert "results           runs: writable, " in out
    assert not Path("runs").exists()


def test_what_does_not_work_is_named_with_its_fix(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other(name: str) -> str:
        if name == "ray":
            raise PackageNotFoundError(name)
        return "1.0" if name == "torch" else "9999.0"

    def broken() -> int:
        raise RuntimeError("the driver is too old")

    (tmp_path / "hub").write_text("a file where a folder should be")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(doctor, "version", other)
    monkeypatch.setattr(torch.cuda, "device_count", broken)
    code, out, _ = run("doctor", "--json")
    found = {f["topic"]: f["text"] for f in json.loads(out)["findings"] if not f["works"]}
    assert (code, {*found}) == (1, {"ray", "torch", "torch in use", "HF_HOME"})
    assert found["torch"].startswith("1.0 → pip install 'torch>=")
    assert found["torch in use"].startswith("the driver is too old")


@pytest.mark.parametrize(("major", "says"), [(7, True), (8, False), (9, False)])
def test_a_gpu_without_bfloat16_is_told_what_to_set(major: int, says: bool) -> None:
    text = doctor.bfloat16_notice(major)
    assert ("training.precision: fp16" in text) == says
    assert ("evaluation.precision: fp16" in text) == says
