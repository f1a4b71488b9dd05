"""The work that runs wait for; free of torch, because Ray's coordinators only pass it on."""

from __future__ import annotations

from dataclasses import dataclass

from unlearnbench.api.benchmark import SplitKey


@dataclass(frozen=True)
class PreparationTask:
    """A model to prepare, or a start or retain model to evaluate."""

    id: str
    label: str
    after: tuple[str, ...]
    done: bool
    model: str
    target: str
    """Model to prepare or evaluate: `base`, `full`, or the retain model's name."""
    fraction: SplitKey | None = None
    """Split of an evaluation; None for a model to prepare."""
    attack: str = ""
    """Attack under which it is evaluated; empty for the plain evaluation."""
