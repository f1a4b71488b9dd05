"""The plugin contract: a method declares what it needs and turns predictions into a loss.

A method is a frozen value whose fields are its hyper-parameters. It sees predictions of answer
tokens only: no padding, no prompt tokens, no shift, no device, no model.

    class GradientAscent(Method):
        needs = Needs(parts={"forget"})

        def loss(self, batch: LossBatch) -> Tensor:
            return -batch.forget.mean_tokens(batch.forget.cross_entropy())
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor

from unlearnbench.errors import PluginError, did_you_mean
from unlearnbench.losses import Predictions, Reference
from unlearnbench.settings import OWN_KEYS

Part = Literal["forget", "retain", "refusal", "alternative", "sample"]
PARTS: tuple[Part, ...] = get_args(Part)

Terms = Mapping[str, Tensor]
_T = TypeVar("_T")
_RESERVED = (*OWN_KEYS, "learning_rate")
"""Names that no hyper-parameter can have: a configuration, or a search, means something else."""


@dataclass(frozen=True)
class Sampling:
    """Answers to the forget rows' questions that a model writes itself."""

    count: int
    """Answers to each question."""
    temperature: float = 1.0
    max_new_tokens: int = 64
    instruction: str = "{question}"
    """What the model is asked: `{question}` and `{answer}` stand for the forget row's. Read for
    alternatives only; the answers become rows of the question itself."""
    prefix: str = ""
    """Text that the model's reply begins with, and its answer goes on from; for alternatives."""
    stop: tuple[str, ...] = ()
    """Texts that an answer ends before; for alternatives."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("max_new_tokens", 1)):
            if getattr(self, name) < least:
                value = getattr(self, name)
                raise PluginError(f"Sampling({name}={value!r}): must be at least {least}")
        if not self.temperature > 0:
            raise PluginError(f"Sampling(temperature={self.temperature!r}): must be above 0")


@dataclass(frozen=True)
class Needs:
    """What a method's loss reads; nothing else is computed or in memory."""

    parts: Set[Part]
    """`forget`: rows to forget; `retain`: as many rows to keep, drawn anew each epoch;
    `refusal`: the forget rows' questions, each answered with a refusal; `alternative`: each
    answered with something else that the start model says; `sample`: each answered, several times
    and anew in every step, by the model as it is then."""
    logprobs: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose log-probabilities under the frozen start model are read."""
    distributions: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose whole next-token distributions under the frozen start model are read."""
    states: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose hidden states in the frozen start model, after `layers`, are read."""
    layers: Set[int] = field(default_factory=frozenset[int])
    """Decoder layers, from 1, whose hidden states are read."""
    statistics: Set[Part] = field(default_factory=frozenset[Part])
    """Parts that `Method.statistics` reads."""
    alternatives: Sampling | None = None
    """How the part `alternative` is made."""
    samples: Sampling | None = None
    """How the part `sample` is made."""
    scores: Set[Part] = field(default_factory=frozenset[Part])
    """Parts whose scores by token are read: of `forget` and `retain` rows the column `score` of
    the data, of `sample` what `Method.token_rewards` returns."""

    def __post_init__(self) -> None:
        for field_ in ("parts", "logprobs", "distributions", "states", "statistics", "scores"):
            object.__setattr__(self, field_, _part_names(field_, getattr(self, field_)))
        given: Any = self.layers
        layers = [given] if isinstance(given, int) else [*given]
        for layer in layers:
            if not isinstance(layer, int) or isinstance(layer, bool) or layer < 1:
                raise PluginError(
                    f"Needs(layers=…): {layer!r} is no decoder layer; they count from 1"
                )
        object.__setattr__(self, "layers", frozenset(layers))
        unread = sorted(self.reference - self.parts - self.statistics)
        if unread:
            raise PluginError(
                f"Needs: a reference for the part {unread[0]!r}, which neither `parts` nor "
                "`statistics` names: nothing would read it"
            )
        for part, how in (("alternative", self.alternatives), ("sample", self.samples)):
            if how is not None and part not in self.parts | self.statistics:
                raise PluginError(
                    f"Needs({part}s=…): how the part {part!r} is made, which neither `parts` nor "
                    "`statistics` names; add it there"
                )

    @property
    def reference(self) -> Set[Part]:
        """Parts of which anything under the frozen start model is read."""
        return frozenset(self.logprobs) | self.distributions | self.states

    def __or__(self, other: Needs) -> Needs:
        return Needs(
            frozenset(self.parts) | other.parts,
            frozenset(self.logprobs) | other.logprobs,
            frozenset(self.distributions) | other.distributions,
            frozenset(self.states) | other.states,
            frozenset(self.layers) | other.layers,
            frozenset(self.statistics) | other.statistics,
            self.alternatives or other.alternatives,
            self.samples or other.samples,
            frozenset(self.scores) | other.scores,
        )


def _part_names(field_: str, given: Any) -> frozenset[Part]:
    """`given` as a set. Raises: PluginError for what is no name of a part."""
    names: list[Any] = [given] if isinstance(given, str) else [*given]
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
    """Something of each part of a micro-batch, by name or as an attribute."""

    parts: Mapping[Part, _T]

    @property
    def forget(self) -> _T:
        """Rows to forget."""
        return self._declared("forget")

    @property
    def retain(self) -> _T:
        """Rows to keep."""
        return self._declared("retain")

    @property
    def refusal(self) -> _T:
        """The forget rows' questions answered with a refusal, row by row."""
        return self._declared("refusal")

    @property
    def alternative(self) -> _T:
        """The forget rows' questions answered with what else the start model says, row by row."""
        return self._declared("alternative")

    @property
    def sample(self) -> _T:
        """Answers by the model as it is now; those to one question stand together."""
        return self._declared("sample")

    def _declared(self, name: Part) -> _T:
        try:
            return self.parts[name]
        except KeyError:
            raise LookupError(
                f"the loss reads {self._what} {name!r}, which its `needs` does not declare; "
                f"declared: {', '.join(sorted(self.parts)) or 'none'}"
            ) from None

    @property
    def _what(self) -> str:
        return "the part"


@dataclass(frozen=True)
class References(_Parts[Reference]):
    """What the frozen start model says of each part, as far as the method's needs declare it."""

    @property
    def _what(self) -> str:
        return "a reference for"


@dataclass(frozen=True)
class LossBatch(_Parts[Predictions]):
    """One micro-batch, as the loss sees it."""

    reference: References = field(default_factory=lambda: References({}))
    state: Mapping[str, float] = field(default_factory=dict[str, float])
    """What the method carries from step to step; begins as `Method.start` says."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """What `Method.statistics` said, summed over the whole optimiser step."""
    rewards: Tensor | None = None
    """[samples] what `Method.reward` says of each sampled answer."""
    reported: dict[str, Tensor] = field(default_factory=dict[str, Tensor])

    def report(self, name: str, value: Tensor) -> None:
        """Have `value`, summed over the whole optimiser step, handed to `Method.advance`."""
        self.reported[name] = value.detach()


class HyperParameters(BaseModel):
    """What every kind of method is: a frozen value whose fields are its hyper-parameters."""

    # An infinite value is refused unless its field declares it: Field(allow_inf_nan=True).
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    later: ClassVar[frozenset[str]] = frozenset()
    """Hyper-parameters added after runs were published: a run's identity names them only where
    they differ from their defaults, so that earlier runs keep their ids."""

    def resolved(self) -> dict[str, Any]:
        """Hyper-parameters by name, without those of `later` at their defaults."""
        fields = type(self).model_fields
        return {
            key: value
            for key, value in self.model_dump().items()
            if key not in self.later or value != fields[key].get_default()
        }

    @classmethod
    def __pydantic_init_subclass__(cls, **_: Any) -> None:
        """Refuse fields that no configuration could set."""
        for key in cls.model_fields.keys() & set(_RESERVED):
            raise PluginError(
                f"{cls.__name__}.{key}: a hyper-parameter cannot be called {key!r}, which means "
                f"something else in a configuration; rename it (reserved: {', '.join(_RESERVED)})"
            )

    @field_validator("*")
    @classmethod
    def _is_a_number(cls, value: Any) -> Any:
        if isinstance(value, float) and math.isnan(value):
            raise ValueError("must be a number, got nan")  # it equals nothing, not even itself
        return value


Prompt = tuple[int, ...]
"""A question as the model reads it, in tokens."""

Shift = Callable[[Sequence[Prompt]], Sequence[Tensor | None]]
"""Of each prompt, what is added to the first d dimensions of its tokens' embeddings, [tokens, d];
None where it is left alone."""


@dataclass(frozen=True)
class Prompts:
    """What a wrapper may learn from: the questions of both sides, and no answer."""

    forget: Sequence[Prompt]
    retain: Sequence[Prompt]
    pad: int
    """Token to pad with."""
    seed: int
    """The run's."""


class Wrapper(HyperParameters, ABC):
    """Base of methods that train no weight and change what goes into the model instead.

    Its runs have no learning rate and no epochs: the model is evaluated once, and retain terms
    mean nothing.
    """

    @abstractmethod
    def fit(self, model: Any, prompts: Prompts) -> Shift:
        """Learn what `model`, the start model in evaluation mode, needs in front of it."""


class Method(HyperParameters, ABC):
    """Base of methods that train; a subclass adds hyper-parameters, `needs` and `loss`.

    The description of a hyper-parameter may end with where its default comes from, and so may a
    paragraph of advice in the docstring: `[source: paper, or owner/repository@commit path]`, or
    `[source: ours: the reason]`. `methods show` lists it.
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    """All that the method may need, whatever its hyper-parameters."""

    ignore_first_answer_tokens: int = Field(
        default=0,
        ge=0,
        description="first tokens of any answer to a forget question that the loss does not see; "
        "above 0, nor the label that a template puts before it (training.ignore_label) "
        "[source: ours: all tokens count, as in locuslab/tofu]",
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **how: Any) -> None:
        """Refuse what contradicts itself before anything is trained."""
        super().__pydantic_init_subclass__(**how)
        found: object = getattr(cls, "needs", None)
        if not isinstance(found, Needs):
            raise PluginError(
                f"{cls.__name__}.needs must be a Needs of the class: "
                '`needs: ClassVar[Needs] = Needs(parts={"forget"})`'
            )

    @abstractmethod
    def loss(self, batch: LossBatch) -> Tensor | Terms:
        """The scalar to minimise, or its terms by name, whose sum is minimised."""

    def needed(self) -> Needs:
        """What these hyper-parameters need."""
        return self.needs

    def trains(self, parameter: str, layers: int) -> bool:
        """Whether the weight `parameter` (its name in a model of `layers` layers) is trained."""
        return True

    def statistics(self, batch: LossBatch) -> Terms:
        """Sums over rows that the loss needs of the whole optimiser step, without gradient.

        Called on the parts in `needs.statistics` of every micro-batch, before any is trained on.
        """
        return {}

    def start(self) -> Mapping[str, float]:
        """The state before the first step."""
        return {}

    def advance(
        self, state: Mapping[str, float], reported: Mapping[str, float], epoch: int
    ) -> Mapping[str, float]:
        """The state after a step of epoch `epoch` (from 1), from what the loss has reported."""
        return state

    def reward(self, answer: str, truth: str) -> float:
        """What a sampled `answer` is worth; `truth` is the answer to forget."""
        raise NotImplementedError(f"{type(self).__name__} needs samples but defines no reward")

    def token_rewards(self, answer: str, tokens: Sequence[str], truth: str) -> Sequence[float]:
        """Score in [0, 1] of each token of a sampled `answer`; by default all have its reward.

        tokens  texts of the answer's tokens, the one that ends it included
        Called where `needs.scores` names the part `sample`.
        """
        return [self.reward(answer, truth)] * len(tokens)

    def value_at_reference(self) -> float | Mapping[str, float] | None:
        """The loss, or some of its terms, where the model still is the start model.

        Whatever the rows say; None where that depends on them. The conformance suite compares.
        """
        return None

    def update_scale(self) -> float:
        """The model that is evaluated is start + scale · (trained − start)."""
        return 1.0
