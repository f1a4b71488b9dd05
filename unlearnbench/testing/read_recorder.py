"""Batches that record which of their values are read."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor

from unlearnbench.api.method import LossBatch, Part, References
from unlearnbench.losses.predictions import Predictions, Reference

_T = TypeVar("_T")
_STATES = {"states", "hidden_states"}
_LOGPROBS = {"token_logprob", "sequence_logprob"}
_DISTRIBUTIONS = {"hidden", "projection", "distributions", "logits"}


@dataclass
class Reads:
    """The values that were read, by the field names of `Needs`."""

    parts: set[Part] = field(default_factory=set[Part])
    logprobs: set[Part] = field(default_factory=set[Part])
    distributions: set[Part] = field(default_factory=set[Part])
    states: set[Part] = field(default_factory=set[Part])
    layers: set[int] = field(default_factory=set[int])
    scores: set[Part] = field(default_factory=set[Part])
    rewards: bool = False


class _Parts(UserDict[Part, Predictions]):
    """Parts that record which of them are read."""

    seen: set[Part]

    def __getitem__(self, key: Part) -> Predictions:
        found = super().__getitem__(key)
        self.seen.add(key)
        return found


class _Predictions(Predictions):
    """Predictions that record reads of hidden states and of scores."""

    part: Part
    reads: Reads

    @property
    def token_scores(self) -> Tensor:
        self.reads.scores.add(self.part)
        return super().token_scores

    def hidden_states(self, layer: int) -> Tensor:
        self.reads.layers.add(layer)
        return super().hidden_states(layer)


class _Reference(Reference):
    """A reference that records what is read of the start model."""

    part: Part
    reads: Reads

    def hidden_states(self, layer: int) -> Tensor:
        self.reads.layers.add(layer)
        return super().hidden_states(layer)

    def __getattribute__(self, name: str) -> Any:
        for names, kind in (
            (_LOGPROBS, "logprobs"),
            (_DISTRIBUTIONS, "distributions"),
            (_STATES, "states"),
        ):
            if name in names:
                getattr(self.reads, kind).add(self.part)
        return super().__getattribute__(name)


class _LossBatch(LossBatch):
    """A batch that records reads of rewards."""

    reads: Reads

    def __getattribute__(self, name: str) -> Any:
        if name == "rewards":
            self.reads.rewards = True
        return super().__getattribute__(name)


def twin(kind: type[_T], original: Any, **notes: Any) -> _T:
    """Copy `original`, which may be frozen, as its subclass `kind` with extra attributes."""
    copied = object.__new__(kind)
    copied.__dict__.update(vars(original) | notes)
    return copied


def recording(batch: LossBatch, parts: Set[Part], reads: Reads) -> LossBatch:
    """Return `batch` reduced to `parts`; reads of it are added to `reads`."""
    chosen = _Parts()
    chosen.seen = reads.parts
    for part in parts:
        chosen[part] = twin(_Predictions, replace(batch.parts[part]), part=part, reads=reads)
    references: dict[Part, Reference] = {
        part: twin(_Reference, replace(value), part=part, reads=reads)
        for part, value in batch.reference.parts.items()
    }
    plain = replace(batch, parts=chosen, reference=References(references))
    return twin(_LossBatch, plain, reads=reads)
