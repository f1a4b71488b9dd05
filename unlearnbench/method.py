"""The plugin contract: a method declares what it needs and turns predictions into a loss.

A method is a frozen value whose fields are its hyper-parameters. It sees predictions of answer
tokens only: no padding, no prompt tokens, no shift, no device, no model.

    class GradientAscent(Method):
        needs = Needs(parts={"forget"})

        def loss(self, batch: LossBatch) -> Tensor:
            return -batch.forget.mean_tokens(batch.forget.cross_entropy())
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from unlearnbench.losses import Predictions, Reference

Part = Literal["forget", "retain", "refusal"]
PARTS: tuple[Part, ...] = get_args(Part)

Terms = Mapping[str, Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Needs:
    """What a method's loss reads; nothing else is computed or in memory."""

    parts: Set[Part]
    """`forget`: rows to forget; `retain`: as many rows to keep, drawn anew each epoch;
    `refusal`: the forget rows' questions, each answered with a refusal."""
    logprobs: Set[Part] = field(default_factory=frozenset)
    """Parts whose log-probabilities under the frozen start model are read."""
    distributions: Set[Part] = field(default_factory=frozenset)
    """Parts whose whole next-token distributions under the frozen start model are read."""

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            frozenset(self.parts) | other.parts,
            frozenset(self.logprobs) | other.logprobs,
            frozenset(self.distributions) | other.distributions,
        )


@dataclass(frozen=True)
class References:
    """What the frozen start model says of each part, as far as the method's needs declare it."""

    parts: Mapping[Part, Reference]

    @property
    def forget(self) -> Reference:
        """Reference of the forget rows."""
        return _declared(self.parts, "forget", "a reference for")

    @property
    def retain(self) -> Reference:
        """Reference of the retain rows."""
        return _declared(self.parts, "retain", "a reference for")

    @property
    def refusal(self) -> Reference:
        """Reference of the refusals."""
        return _declared(self.parts, "refusal", "a reference for")


@dataclass(frozen=True)
class LossBatch:
    """One micro-batch, as the loss sees it."""

    parts: Mapping[Part, Predictions]
    reference: References = field(default_factory=lambda: References({}))

    @property
    def forget(self) -> Predictions:
        """Rows to forget."""
        return _declared(self.parts, "forget", "the part")

    @property
    def retain(self) -> Predictions:
        """Rows to keep."""
        return _declared(self.parts, "retain", "the part")

    @property
    def refusal(self) -> Predictions:
        """The forget rows' questions answered with a refusal, row by row."""
        return _declared(self.parts, "refusal", "the part")


def _declared(parts: Mapping[Part, _T], name: Part, what: str) -> _T:
    try:
        return parts[name]
    except KeyError:
        raise LookupError(
            f"the loss reads {what} {name!r}, which its `needs` does not declare; "
            f"declared: {', '.join(sorted(parts)) or 'none'}"
        ) from None


class Method(BaseModel, ABC):
    """Base of every method; a subclass adds hyper-parameters as fields, `needs` and `loss`."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))

    ignore_first_answer_tokens: int = Field(
        default=0,
        ge=0,
        description="first tokens of a forget row's answer or refusal that the loss does not see",
    )

    @abstractmethod
    def loss(self, batch: LossBatch) -> Tensor | Terms:
        """The scalar to minimise, or its terms by name, whose sum is minimised."""
