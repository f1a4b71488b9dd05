"""The probe of `gpu: auto`, on stand-ins for torch's GPU and for NVIDIA's library."""

import ctypes
import time
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from unlearnbench.models import gpu_probe
from unlearnbench.models.gpu_probe import TorchProbe, Utilization

GIB = 2**30


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What torch answers about a GPU of 80 GiB; tests change it."""
    answers: dict[str, Any] = {
        "is_initialized": True,
        "mem_get_info": (60 * GIB, 80 * GIB),
        "memory_reserved": 18 * GIB,
        "max_memory_reserved": 30 * GIB,
        "memory_allocated": 5 * GIB,
        "get_device_name": "a GPU",
        "current_device": 0,
        "get_device_properties": SimpleNamespace(uuid="1-2-3"),
    }
    for name in answers:
        monkeypatch.setattr(torch.cuda, name, partial(answers.get, name))
    monkeypatch.setattr(gpu_probe, "SAMPLE_SECONDS", 0.001)
    return answers


class Samples(Utilization):
    """Gives fractions one by one, then None."""

    def __init__(self, *fractions: float | None) -> None:
        super().__init__()
        self.fractions = [*fractions]

    def fraction(self) -> float | None:
        return self.fractions.pop(0) if self.fractions else None


def wait_for(is_reached: Callable[[], bool]) -> None:
    for _ in range(5000):
        if is_reached():
            return
        time.sleep(0.001)
    raise AssertionError


@pytest.mark.usefixtures("cuda")
def test_the_peak_counts_what_torch_reserved_and_the_context() -> None:
    samples = Samples(0.1, None, 0.3, 0.2, 0.4)
    probe = TorchProbe(samples)
    probe.start()
    wait_for(lambda: not samples.fractions)
    used = probe.finish()
    assert (used.device, used.total) == ("a GPU", 80 * GIB)
    # 20 GiB are in use, of which torch has reserved 18: the rest is the context.
    assert used.memory == (30 + 2) * GIB
    assert used.busy == pytest.approx(0.25)
    assert used.seconds > 0


def test_loading_and_a_short_run_have_no_busy_time(cuda: dict[str, Any]) -> None:
    cuda["memory_allocated"] = 0  # nothing is loaded yet
    samples = Samples(*[0.0] * 100)
    probe = TorchProbe(samples)
    probe.start()
    time.sleep(0.05)
    assert len(samples.fractions) == 100
    assert probe.finish().busy is None

    cuda["memory_allocated"] = GIB
    samples = Samples(0.5, 0.5, 0.5)
    probe = TorchProbe(samples)
    probe.start()
    wait_for(lambda: not samples.fractions)
    assert probe.finish().busy is None, "three samples are too few"


def test_a_run_that_did_not_use_the_gpu_was_not_measured(cuda: dict[str, Any]) -> None:
    cuda["is_initialized"] = False
    probe = TorchProbe(Samples(0.5))
    probe.start()
    assert probe.finish().memory == 0


class Library:
    """NVML of a machine with one GPU, of which 16 % of the time are busy."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.uuid = b""

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes, handle: Any) -> int:
        self.uuid = uuid
        handle._obj.value = 7
        return 0

    def nvmlDeviceGetUtilizationRates(self, handle: ctypes.c_void_p, rates: Any) -> int:
        assert handle.value == 7
        rates._obj.gpu, rates._obj.memory = 16, 3
        return self.status


@pytest.mark.usefixtures("cuda")
def test_the_driver_is_asked_for_the_gpu_that_torch_uses(monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library()
    monkeypatch.setattr(ctypes, "CDLL", lambda _name: library)  # pyright: ignore
    assert Utilization().fraction() == 0.16
    assert library.uuid == b"GPU-1-2-3"
    library.status = 3  # NVML_ERROR_NOT_SUPPORTED
    assert Utilization().fraction() is None


def test_without_the_drivers_library_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_probe, "_LIBRARY", "no-such-library.so")
    assert Utilization().fraction() is None
