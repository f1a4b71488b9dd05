"""The measurements behind the claims, each against the usual way of doing the same."""

from __future__ import annotations

from typing import Literal

Size = Literal["tiny", "100m", "1b"]
"""Models that are built here."""
STATES = ("memorised", "unlearned", "random")
"""How far a model's own answers agree with the true ones; see `measured_models.py`."""
