"""What a worker of Ray works on."""

from __future__ import annotations

import platform

from unlearnbench.execution import Resources


def own_devices(wanted: Resources, slots: int) -> dict[str, float]:
    """By name, the share of each device that this process has.

    slots  runs at a time, of which this is one, where they have no GPUs
    """
    import ray

    node = platform.node()
    gpus = ray.get_gpu_ids()
    if not gpus:
        return {f"{node}, {slots} slot{'s' if slots != 1 else ''}": 1 / slots}
    others = f" and {wanted.world - 1} with it" if wanted.world > 1 else ""
    return {f"{node} GPU {gpu}{others}": min(1.0, wanted.gpu) for gpu in gpus}
