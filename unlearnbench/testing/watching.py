"""A batch that remembers what is read of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from torch import Tensor

from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import LossBatch, Part, References

_K = TypeVar("_K", bound=str)
_V = TypeVar("_V")
_STATES = {"states", "hidden_states"}
_LOGPROBS = {"token_logprob", "sequence_logprob"}
_DISTRIBUTIONS = {"hidden", "projection", "distributions", "logits"}


@dataclass
class Reads:
    """What was read, by the names that `Needs` has for it."""

    parts: set[str] = field(default_factory=set[str])
    logprobs: set[str] = field(default_factory=set[str])
    distributions: set[str] = field(default_factory=set[str])
    states: set[str] = field(default_factory=set[str])
    layers: set[int] = field(default_factory=set[int])
    state: set[str] = field(default_factory=set[str])
    statistics: set[str] = field(default_factory=set[str])
    scores: set[str] = field(default_factory=set[str])
    rewards: bool = False


class _Recorded(Mapping[_K, _V]):
    """A mapping that notes the keys that are looked up."""

    def __init__(self, values: Mapping[_K, _V], seen: set[str]) -> None:
        self._values, self._seen = values, seen

    def __getitem__(self, key: _K) -> _V:
        value = self._values[key]
        self._seen.add(key)
        return value

    def __iter__(self) -> Iterator[_K]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


class _Predictions(Predictions):
    """Notes the layers whose hidden states are read, and that scores are."""

    layers: set[int]
    part: Part
    scored: set[str]

    @property
    def token_scores(self) -> Tensor:
        self.scored.add(self.part)
        return super().token_scores

    def hidden_states(self, layer: int) -> Tensor:
        self.layers.add(layer)
        return super().hidden_states(layer)


class _Reference(Reference):
    """Notes what is read of the start model."""

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
    """Notes that rewards are read."""

    reads: Reads

    def __getattribute__(self, name: str) -> Any:
        if name == "rewards":
            self.reads.rewards = True
        return super().__getattribute__(name)


_T = TypeVar("_T")


def _twin(kind: type[_T], original: Any, **notes: Any) -> _T:
    """The same value as a `kind`, which derives from its class; frozen ones take no assignment."""
    made = object.__new__(kind)
    made.__dict__.update(vars(original) | notes)
    return made


def watched(batch: LossBatch, parts: Set[Part]) -> tuple[LossBatch, Reads]:
    """The named parts of `batch`, and where what is read of them will be noted."""
    reads = Reads()
    predictions: dict[Part, Predictions] = {
        part: _twin(
            _Predictions, replace(value), layers=reads.layers, part=part, scored=reads.scores
        )
        for part, value in batch.parts.items()
        if part in parts
    }
    references: dict[Part, Reference] = {
        part: _twin(_Reference, replace(value), part=part, reads=reads)
        for part, value in batch.reference.parts.items()
    }
    plain = replace(
        batch,
        parts=_Recorded(predictions, reads.parts),
        reference=References(references),
        state=_Recorded(batch.state, reads.state),
        statistics=_Recorded(batch.statistics, reads.statistics),
    )
    return _twin(_LossBatch, plain, reads=reads), reads
