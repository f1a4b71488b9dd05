"""What a worker tells of an epoch, as text.

Tune keeps statistics of every number in a result, for as long as the sweep lasts: a hundred
kilobytes a run of forty numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from unlearnbench.records import EpochResult


def told(result: EpochResult, devices: Mapping[str, float]) -> str:
    """An epoch, and what it was done on."""
    return json.dumps([vars(result), dict(devices)])


def heard(text: str) -> tuple[EpochResult, dict[str, float]]:
    """What `told` was given."""
    result, devices = json.loads(text)
    return EpochResult(**result), devices
