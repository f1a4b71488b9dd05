"""The report of an epoch that a worker sends to the driver: its result, and the devices used.

It is sent as text: Tune keeps statistics of every number in a result for as long as the sweep
lasts, a hundred kilobytes for a run of forty numbers.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping

from unlearnbench.config.resources import Resources
from unlearnbench.results.records import EpochResult


def device_shares(resources: Resources, slots: int) -> dict[str, float]:
    """The share of each device, by name, that this worker has.

    slots  concurrent runs, among which a machine without GPUs is divided
    """
    import ray

    node = platform.node()
    gpus = ray.get_gpu_ids()
    if not gpus:
        return {f"{node}, {slots} slot{'s' if slots != 1 else ''}": 1 / slots}
    others = f" and {resources.world_size - 1} with it" if resources.world_size > 1 else ""
    return {f"{node} GPU {gpu}{others}": min(1.0, resources.gpu) for gpu in gpus}


def encode_report(result: EpochResult, devices: Mapping[str, float]) -> str:
    """Encode an epoch and the devices that it ran on as JSON."""
    return json.dumps([vars(result), dict(devices)])


def decode_report(text: str) -> tuple[EpochResult, dict[str, float]]:
    """Decode the text of `encode_report`."""
    result, devices = json.loads(text)
    return EpochResult(**result), devices
