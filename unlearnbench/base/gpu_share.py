"""The share of a GPU that this process has by measurement (`resources.gpu: auto`), and its probe.

The first runs of a sweep have a GPU to themselves, and a probe measures how much of it they use.
Later runs share a GPU. Their processes note the share here, because two things depend on it: how
much memory torch may take, and what happens if memory runs out (`base/out_of_memory.py`).
"""

from typing import Any, NamedTuple, Protocol

CACHE_SHARE = 0.7
"""Share of a GPU's free memory for keys and values. The rest is for activations.

Runs share a GPU only if each of them needs at most this share of its part of the memory. An
evaluation then has room for as many keys and values as it would have alone, and so decodes in the
same batches.
"""
WHOLE = 1.0
"""The share of a process that has a GPU to itself."""

_share_of_process: list[float] = [WHOLE]
"""One entry: the share of this process."""


def set_gpu_share(share: float) -> None:
    """Note the share of a GPU that the next run of this process has by measurement."""
    _share_of_process[:] = [share]


def gpu_share() -> float:
    """Return the share of a GPU that this process has by measurement; 1 without a measurement."""
    return _share_of_process[0]


class GpuUse(NamedTuple):
    """What a run that was alone on a GPU used of it."""

    device: str
    """Name of the GPU."""
    total: int
    """Bytes of the GPU's memory."""
    memory: int
    """Most bytes that the run took, with CUDA's context. 0 if it did not compute on the GPU."""
    busy: float | None
    """Fraction of the run's time in which the GPU computed. None if it could not be measured."""
    seconds: float
    """Time of the run."""

    @classmethod
    def read(cls, document: Any) -> "GpuUse | None":
        """Read what `_asdict` has written as JSON; None if it is something else."""
        try:
            busy = document["busy"]
            return cls(
                device=str(document["device"]),
                total=int(document["total"]),
                memory=int(document["memory"]),
                busy=None if busy is None else float(busy),
                seconds=float(document["seconds"]),
            )
        except (KeyError, TypeError, ValueError):
            return None


class GpuProbe(Protocol):
    """Measures what a run uses of a GPU, in the run's process."""

    def start(self) -> None:
        """Begin before the run loads anything."""

    def finish(self) -> GpuUse:
        """End after the run's last attack, and return what it has used."""
        ...
