"""Where the time of a sweep went: seconds of work by phase and by device."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

Devices = Mapping[str, float]
"""By name, the share of it that a run has."""
PHASES = ("preparing", "training", "evaluating", "overhead")


@dataclass
class Spent:
    """Seconds of work by phase, over all slots; what no slot worked is overhead."""

    slots: int = 1
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES[:3], 0.0))
    devices: dict[str, float] = field(default_factory=dict[str, float])
    """Seconds of work by device; of a GPU that runs share, their shares of it."""
    since: float | None = None
    """When the slots were there for the first time."""

    def begin(self, slots: int) -> None:
        """There are so many slots from now on."""
        self.slots, self.since = slots, self.since or time.monotonic()

    def add(self, phase: str, seconds: float, devices: Devices) -> None:
        """A slot has worked so long, on `devices`."""
        self.busy[phase] += seconds
        for device, share in devices.items():
            self.devices[device] = self.devices.get(device, 0.0) + seconds * share

    def by_phase(self, wall: float) -> dict[str, float]:
        """`wall` seconds, split by phase: slot-seconds over slots, and the rest."""
        shares = {phase: seconds / self.slots for phase, seconds in self.busy.items()}
        return shares | {"overhead": max(0.0, wall - sum(shares.values()))}

    def by_device(self) -> dict[str, float]:
        """The share of the time since the slots were there that each device worked, idlest first.

        A machine's slots without GPUs are one device; it is busy when all of them are.
        """
        wall = time.monotonic() - (self.since or time.monotonic())
        shares = [(device, min(1.0, s / wall)) for device, s in self.devices.items()]
        return dict(sorted(shares, key=lambda share: share[1]))
