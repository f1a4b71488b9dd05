"""A run has the device that its resources say, or ends before anything is loaded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from unlearnbench.config.loader import load_config
from unlearnbench.config.resources import Resources
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.models import loading
from unlearnbench.models.device import use_device
from unlearnbench.plan.preparation_task import PreparationTask
from unlearnbench.runs.prerequisites import execute_task
from unlearnbench.runtime import gpu_inventory
from unlearnbench.runtime.provenance import provenance
from unlearnbench.sweep.ray_environment import worker_environment


def test_a_gpu_that_torch_cannot_use_is_an_error_before_anything_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.183.01  Sun May 12\n")
    monkeypatch.setattr(gpu_inventory, "_DRIVER", driver)
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


def test_a_machine_without_a_driver_is_named_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_inventory, "_DRIVER", tmp_path / "missing")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UnlearnbenchError, match="no NVIDIA driver"):
        use_device(Resources(gpu=0.5))


def test_no_gpu_means_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    use_device(Resources(gpu=0))
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert worker_environment(1)["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1"


def test_attention_makes_no_plan_for_every_shape(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    use_device(Resources(gpu=1))
    assert not torch.backends.cuda.cudnn_sdp_enabled()


def test_gpus_are_hidden_from_all_tests_but_their_own() -> None:
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""
    assert not torch.cuda.is_available()


def test_provenance_makes_no_cuda_context(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver of a sweep has torch, computes nothing, and would keep 0.5 GB of GPU 0."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", None)
    made = provenance(data="")
    assert (made["device"], made["gpu"]) == ("cpu", {})


def test_provenance_names_the_gpu_and_what_runs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = tmp_path / "version"
    driver.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun May 12\n")
    monkeypatch.setattr(gpu_inventory, "_DRIVER", driver)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    made = provenance(data="")
    assert made["device"] == "cuda: NVIDIA H200"
    assert made["gpu"] == {
        "GPU": "NVIDIA H200",
        "compute capability": "9.0",
        "NVIDIA driver": "580.65.06",
        "CUDA of torch": "13.0",
    }
