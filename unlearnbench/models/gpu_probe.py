"""Measure what a run uses of a GPU: the peak of its memory, and how long the GPU was busy.

Memory is what torch has reserved at most, and the rest that is in use at the end: CUDA's context,
and other programs. torch reserves more than its tensors take, and returns little, so the reserved
memory is what another run cannot have.

NVIDIA's driver measures busy time: the fraction of the last second, or of the last sixth of one, in
which at least one kernel ran. Runs of different processes take turns on a GPU, so runs that are
busy for a sixth of the time each have room for five others. The driver's library (NVML) is called
directly, because the Python package for it is not always installed.
"""

import ctypes
import threading
import time
from typing import Any

import torch

from unlearnbench.base.gpu_share import GpuUse

SAMPLE_SECONDS = 0.5
"""Time between two samples of the busy time."""
FEWEST_SAMPLES = 4
"""Smallest number of samples from which a busy time is computed."""
_LIBRARY = "libnvidia-ml.so.1"


class TorchProbe:
    """Probe of the GPU that torch uses in this process."""

    def __init__(self, utilization: "Utilization | None" = None) -> None:
        """Prepare a probe, without any use of the GPU.

        Args:
            utilization: Says how busy the GPU is. None: NVIDIA's driver does.
        """
        self._utilization = Utilization() if utilization is None else utilization
        self._samples: list[float] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._begin = 0.0

    def start(self) -> None:
        """Begin to sample. The GPU is not looked at before the run uses it."""
        self._begin = time.monotonic()
        self._thread.start()

    def finish(self) -> GpuUse:
        """Stop sampling, and return what was measured since `start`."""
        self._ended.set()
        self._thread.join()
        seconds = time.monotonic() - self._begin
        if not torch.cuda.is_initialized():
            return GpuUse("", total=0, memory=0, busy=None, seconds=seconds)
        free, total = torch.cuda.mem_get_info()
        beside_torch = max(total - free - torch.cuda.memory_reserved(), 0)
        busy = None
        if len(self._samples) >= FEWEST_SAMPLES:
            busy = sum(self._samples) / len(self._samples)
        return GpuUse(
            device=torch.cuda.get_device_name(),
            total=total,
            memory=torch.cuda.max_memory_reserved() + beside_torch,
            busy=busy,
            seconds=seconds,
        )

    def _sample(self) -> None:
        """Sample the busy time until the run ends."""
        while not self._ended.wait(SAMPLE_SECONDS):
            # Imports and the loading of a model are once for all runs of a process.
            is_loaded = torch.cuda.is_initialized() and torch.cuda.memory_allocated() > 0
            if not is_loaded:
                continue
            fraction = self._utilization.fraction()
            if fraction is not None:
                self._samples.append(fraction)


class _Rates(ctypes.Structure):
    """NVML's `nvmlUtilization_t`: per cent of a short time, of the GPU and of its memory."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class Utilization:
    """How busy torch's GPU is, as NVIDIA's driver says."""

    def __init__(self) -> None:
        self._library: Any = None
        self._handle = ctypes.c_void_p()
        self._is_open: bool | None = None
        """None before the first use."""

    def fraction(self) -> float | None:
        """Return the fraction of the last moments in which the GPU computed; None if unknown."""
        if self._is_open is None:
            self._is_open = self._open()
        if not self._is_open:
            return None
        rates = _Rates()
        status = self._library.nvmlDeviceGetUtilizationRates(self._handle, ctypes.byref(rates))
        # A part of a GPU (MIG) has no such number.
        return rates.gpu / 100 if status == 0 else None

    def _open(self) -> bool:
        """Find the GPU that torch uses in the driver's library; return whether it was found."""
        try:
            self._library = ctypes.CDLL(_LIBRARY)
        except OSError:
            return False
        if self._library.nvmlInit_v2() != 0:
            return False
        # The ids of torch and NVML are equal, whatever CUDA_VISIBLE_DEVICES hides.
        uuid = f"GPU-{torch.cuda.get_device_properties(torch.cuda.current_device()).uuid}"
        found = self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(self._handle))
        return bool(found == 0)
