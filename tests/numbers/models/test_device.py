"""A run has the device that its resources say, or ends before anything is loaded."""

import os
from pathlib import Path

import pytest
import torch

from unlearnbench.base import provenance
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.loader import load_config
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.resources import Resources
from unlearnbench.models import loading
from unlearnbench.models.device import usable_memory, use_device
from unlearnbench.runs.prerequisites import execute_task


def test_a_gpu_that_torch_cannot_use_is_an_error_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    monkeypatch.setattr(provenance, "_DRIVER", driver)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(loading, "load_model", None)
    config = load_config("quickstart", ["resources.gpu=1", f"output={tmp_path}"])
    name = config.models[0].name
    task = PreparationTask("base model", (), name, "base")
    with pytest.raises(UnlearnbenchError, match=r"torch finds no GPU") as caught:
        execute_task(task, config, tmp_path)
    message = str(caught.value)
    assert torch.__version__ in message
    assert "NVIDIA driver 535.183.01" in message
    assert "--set resources.gpu=0" in message


def test_no_gpu_means_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    use_device(Resources(gpu=0))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_share_of_a_gpu_is_all_that_its_run_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    for gpu in (0.5, 2.0):
        use_device(Resources(gpu=gpu))
    assert shares == [0.5, 1.0], "also where another run was there before"


def test_a_measured_share_limits_memory_and_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run computes as if it were alone, so its estimate and its micro-batches stay the same."""
    shares: list[float] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", shares.append)
    auto, alone = Resources(gpu="auto"), Resources(gpu=1)
    for share in (1.0, 0.25, 1.0):
        monkeypatch.setattr("unlearnbench.base.gpu_share._share_of_process", [share])
        use_device(auto)
        assert usable_memory(10**10, auto) == usable_memory(10**10, alone)
    assert shares == [1.0, 0.25, 1.0]
    assert auto.per_process == alone.per_process
    assert auto.world_size == 1
