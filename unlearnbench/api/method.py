"""The contract of a method: it declares its needs and turns predictions into a loss.

A method is a frozen value whose fields are its hyper-parameters. It sees predictions of answer
tokens only: no padding, no prompt tokens, no shift, no device, no model.

    class GradientAscent(Method):
        needs = Needs(parts={"forget"})

        def loss(self, batch: LossBatch) -> Tensor:
            return -batch.forget.mean_tokens(batch.forget.cross_entropy())
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import Field
from torch import Tensor

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.base.errors import PluginError, did_you_mean
from unlearnbench.losses.predictions import Predictions, Reference, mean_over_union

Part = Literal["forget", "whole", "retain", "refusal", "retain_refusal", "alternative", "sample"]
PARTS: tuple[Part, ...] = get_args(Part)
RETAIN_PARTS = frozenset[Part]({"retain", "retain_refusal"})
"""Parts of the rows to keep; the role of all others is to forget."""

Terms = Mapping[str, Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Sampling:
    """Settings of the answers that a model generates to the forget rows' questions."""

    count: int
    """Number of answers to each question."""
    temperature: float = 1.0
    max_new_tokens: int = 64
    instruction: str = "{question}"
    """Prompt with `{question}` and `{answer}` of the forget row. For alternatives only; their rows
    have the question itself."""
    prefix: str = ""
    """Text that the model's reply begins with; for alternatives."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer; for alternatives."""


@dataclass(frozen=True)
class Needs:
    """The inputs of a method's loss; nothing else is computed or in memory."""

    parts: Set[Part]
    """`forget`: rows to forget; `whole`: the same, whose prompts count, too; `retain`: as many
    retain rows, drawn again each epoch; `refusal`: the forget rows' questions, each with a refusal;
    `retain_refusal`: those of the retain rows; `alternative`: the forget rows' questions, each with
    another answer of the start model; `sample`: each with several answers that the model generates
    in every step."""
    logprobs: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose log-probabilities under the frozen start model are read."""
    distributions: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose whole next-token distributions under the frozen start model are read."""
    states: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose hidden states in the frozen start model, after `layers`, are read."""
    layers: Set[int] = field(default_factory=frozenset[int])
    """Decoder layers, from 1, whose states are read: of the last one, behind the final norm."""
    statistics: Set[Part] = field(default_factory=frozenset[Part])
    """Parts that `Method.statistics` reads."""
    alternatives: Sampling | None = None
    """How the part `alternative` is generated."""
    samples: Sampling | None = None
    """How the part `sample` is generated."""
    prompts: tuple[str, ...] = ()
    """Other prompts of the forget rows, with `{question}`: the start model's distributions over
    their answers behind each are `References.prompted`."""
    questions: tuple[str, ...] = ()
    """Other questions: `Reference.direction` points from the start model's states at the end of the
    forget rows' prompts to those at the end of theirs. `states` must name `forget`."""
    text: str = ""
    """Text whose tokens `Predictions.text_labels` puts in the place of a row's own."""
    logits: bool = False
    """True for a loss that reads `Predictions.logits`, all of which are then in memory at once: the
    estimate of memory counts them."""
    scores: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose scores by token are read: of `forget` and `retain` rows the column `score` of
    the data, of `sample` what `Method.token_rewards` returns."""

    def __post_init__(self) -> None:
        for field_ in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
            object.__setattr__(self, field_, _part_names(field_, getattr(self, field_)))
        value: Any = self.layers
        layers = [value] if isinstance(value, int) else [*value]
        if min(layers, default=1) < 1:
            raise PluginError(f"Needs(layers={layers!r}): decoder layers count from 1")
        object.__setattr__(self, "layers", frozenset(layers))
        unread = sorted(self.reference - self.parts - self.statistics)
        if unread:
            raise PluginError(
                f"Needs: a reference for the part {unread[0]!r}, which neither `parts` nor "
                "`statistics` names: nothing would read it"
            )

    @property
    def reference(self) -> Set[Part]:
        """Parts of which a value under the frozen start model is read."""
        return frozenset(self.logprobs) | self.distributions | self.states

    @property
    def all_parts(self) -> Set[Part]:
        """Parts that the loss or its statistics read."""
        return frozenset(self.parts) | self.statistics

    @property
    def rows_per_item(self) -> int:
        """Rows that go through the model, forward and back, for each forget row."""
        samples = self.samples.count if self.samples else 1
        return len(self.parts - {"sample"}) + samples * ("sample" in self.parts)

    def __or__(self, other: Needs) -> Needs:
        pairs: dict[str, Any] = {
            f.name: (getattr(self, f.name), getattr(other, f.name)) for f in fields(self)
        }
        return Needs(
            **{k: a | b if isinstance(a, frozenset) else a or b for k, (a, b) in pairs.items()}
        )


def layer_of(parameter: str) -> int:
    """Number of the decoder layer, from 1, that a weight is of; 0 for one of none."""
    return next((int(part) + 1 for part in parameter.split(".") if part.isdigit()), 0)


_DOWN: Set[str] = {"down_proj", "fc2", "dense_4h_to_h", "c_proj", "w2"}
"""Names that architectures give to the second matrix of an MLP."""


def is_down_projection(parameter: str) -> bool:
    """Whether a weight is of the second matrix of an MLP, or of an adapter on it."""
    parts = parameter.split(".")
    # GPT-2 calls a matrix of its attention by the same name.
    return not _DOWN.isdisjoint(parts) and "attn" not in parts and parts[-1] != "bias"


def _part_names(field_: str, value: Any) -> frozenset[Part]:
    """`value` as a set. Raises: PluginError for an unknown part."""
    names: list[Any] = [value] if isinstance(value, str) else [*value]
    for name in names:
        if name not in PARTS:
            near = did_you_mean(name, PARTS) if isinstance(name, str) else ""
            raise PluginError(
                f"Needs({field_}=…): unknown part {name!r}{near or ';'} "
                f"parts are {', '.join(PARTS)}"
            )
    return frozenset(names)


@dataclass(frozen=True)
class _Parts(Generic[_T]):
    """A value for each part of a micro-batch, by name or as an attribute."""

    parts: Mapping[Part, _T]

    @property
    def forget(self) -> _T:
        """Rows to forget."""
        return self._declared("forget")

    @property
    def retain(self) -> _T:
        """Retain rows."""
        return self._declared("retain")

    @property
    def refusal(self) -> _T:
        """The forget rows' questions answered with a refusal, row by row."""
        return self._declared("refusal")

    @property
    def whole(self) -> _T:
        """Rows to forget, whose prompts count, too."""
        return self._declared("whole")

    @property
    def retain_refusal(self) -> _T:
        """The retain rows' questions answered with a refusal, row by row."""
        return self._declared("retain_refusal")

    @property
    def alternative(self) -> _T:
        """The forget rows' questions with other answers of the start model, row by row."""
        return self._declared("alternative")

    @property
    def sample(self) -> _T:
        """Answers of the current model, grouped by question."""
        return self._declared("sample")

    def _declared(self, name: Part) -> _T:
        try:
            return self.parts[name]
        except KeyError:
            raise LookupError(
                f"the loss reads {self._what} {name!r}, which its `needs` does not declare; "
                f"declared: {', '.join(sorted(self.parts)) or 'none'}"
            ) from None

    _what: ClassVar[str] = "the part"


@dataclass(frozen=True)
class References(_Parts[Reference]):
    """Predictions of the frozen start model for each part, as declared by the method's needs."""

    prompted: Sequence[Reference] = ()
    """Of the forget rows' answers behind each of `Needs.prompts`."""
    _what: ClassVar[str] = "a reference for"


@dataclass(frozen=True)
class LossBatch(_Parts[Predictions]):
    """One micro-batch, the argument of a loss."""

    reference: References = field(default_factory=lambda: References({}))
    state: Mapping[str, float] = field(default_factory=dict[str, float])
    """The method's state, carried from step to step; begins with `Method.start`."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """`Method.statistics` summed over the whole optimiser step."""
    rewards: Tensor | None = None
    """[samples] `Method.reward` of each sampled answer."""
    progress: float = 0.0
    """Share of the run's optimiser steps that are behind this one, in [0, 1)."""
    separate: bool = False
    """True where a modifier takes the gradients of forget and retain rows apart."""
    reported: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def report(self, name: str, value: Tensor) -> None:
        """Pass `value`, summed over the whole optimiser step, to `Method.advance`."""
        self.reported[name] = value.detach()

    def mean_over_union(self, **parts: tuple[Predictions, Tensor]) -> Tensor | Terms:
        """Token mean over several parts together, or, where `separate`, the share of each part."""
        if not self.separate:
            return mean_over_union(*parts.values())
        tokens = max(sum(predictions.step_tokens for predictions, _ in parts.values()), 1)
        return {name: values.sum() / tokens for name, (_, values) in parts.items()}


class Method(HyperParameters, ABC):
    """Base of methods that train the model; a subclass adds hyper-parameters, `needs` and `loss`.

    The description of a hyper-parameter may end with where its default comes from, and so may a
    paragraph of advice in the docstring: `[source: paper, or owner/repository@commit path]`, or
    `[source: ours: the reason]`. `methods show` lists it.
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    """Needs of the method with any hyper-parameters."""
    family: ClassVar[str] = "other"
    """Kind of method, for overviews."""
    learning_rate: ClassVar[float] = 1e-5
    """Rate where a configuration states none: by default that of open-unlearning's experiments."""

    ignore_first_answer_tokens: int = Field(
        default=0,
        ge=0,
        description="number of first tokens that the loss ignores in each answer to a forget "
        "question; above 0, the loss also ignores the label that a template puts before the answer "
        "(training.ignore_label) [source: ours: all tokens count, as in locuslab/tofu]",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Refuse a class whose `needs` is not a Needs."""
        super().__pydantic_init_subclass__(**options)
        result: object = getattr(cls, "needs", None)
        if not isinstance(result, Needs):
            raise PluginError(
                f"{cls.__name__}.needs must be a Needs of the class: "
                '`needs: ClassVar[Needs] = Needs(parts={"forget"})`'
            )

    @abstractmethod
    def loss(self, batch: LossBatch) -> Tensor | Terms:
        """The scalar to minimise, or its terms by name, whose sum is minimised."""

    def needed(self) -> Needs:
        """The needs with these hyper-parameters."""
        return self.needs

    def trains(self, parameter: str, layers: int) -> bool:
        """Return True if the weight `parameter` of a model with `layers` layers is trained."""
        return True

    def statistics(self, batch: LossBatch) -> Terms:
        """Sums over rows that the loss needs of the whole optimiser step, without gradient.

        Called on the parts in `needs.statistics` of all micro-batches before the first is trained.
        """
        return {}

    def start(self) -> Mapping[str, float]:
        """The state before the first step."""
        return {}

    def advance(
        self, state: Mapping[str, float], reported: Mapping[str, float], epoch: int
    ) -> Mapping[str, float]:
        """The state after a step of epoch `epoch` (from 1), given the values it reported."""
        return state

    def reward(self, answer: str, truth: str) -> float:
        """The reward of a sampled `answer`; `truth` is the answer to forget."""
        raise NotImplementedError(f"{type(self).__name__} needs samples but defines no reward")

    def token_rewards(self, answer: str, tokens: Sequence[str], truth: str) -> Sequence[float]:
        """Score in [0, 1] of each token of a sampled `answer`; by default the answer's reward.

        tokens  texts of the answer's tokens, including the one that ends it
        Called where `needs.scores` names the part `sample`.
        """
        return [self.reward(answer, truth)] * len(tokens)

    def value_at_reference(self) -> float | Mapping[str, float] | None:
        """The loss, or some of its terms, while the model equals the start model.

        None where it depends on the rows. The conformance suite compares it with the loss.
        """
        return None

    def update_scale(self) -> float:
        """Scale of the update: the evaluated model is start + scale · (trained − start)."""
        return 1.0
