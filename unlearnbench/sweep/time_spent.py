"""Busy seconds of a sweep by phase and by device; the rest of the wall time is overhead."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

Devices = Mapping[str, float]
"""The share of each device, by name, that a run has."""
PHASES = ("preparing", "training", "evaluating")
"""Phases of every sweep; a sweep with attacks also has `attacking`."""


@dataclass
class TimeSpent:
    """Busy seconds summed over all slots, by phase and by device."""

    slots: int = 1
    busy: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))
    devices: dict[str, float] = field(default_factory=dict[str, float])
    """Busy seconds by device; runs that share a GPU count by their shares."""
    started: float | None = None
    """Time at which the slots first existed."""

    def begin(self, slots: int) -> None:
        """Start the clock, the first time, with this number of slots."""
        self.slots, self.started = slots, self.started or time.monotonic()

    def add(self, phase: str, seconds: float, devices: Devices) -> None:
        """Add the work of a slot on `devices`."""
        self.busy[phase] = self.busy.get(phase, 0.0) + seconds
        for device, share in devices.items():
            self.devices[device] = self.devices.get(device, 0.0) + seconds * share

    def by_phase(self, wall: float) -> dict[str, float]:
        """Split `wall` seconds by phase: busy seconds per slot, and the rest."""
        shares = {phase: seconds / self.slots for phase, seconds in self.busy.items()}
        return shares | {"overhead": max(0.0, wall - sum(shares.values()))}

    def by_device(self) -> dict[str, float]:
        """The busy share of each device since the start, idlest first.

        The slots of a machine without GPUs are one device, which is busy when all of them are.
        """
        wall = time.monotonic() - (self.started or time.monotonic())
        shares = [(device, min(1.0, s / wall)) for device, s in self.devices.items()]
        return dict(sorted(shares, key=lambda share: share[1]))
