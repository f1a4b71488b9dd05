"""The contract of a method: it declares its needs and turns predictions into a loss.

A method is a frozen value whose fields are its hyperparameters. It sees predictions of answer
tokens only. There is no padding, no prompt token, no shift, no device and no model in its code.

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
"""Parts with the role `retain`. All other parts have the role `forget`."""

Terms = Mapping[str, Tensor]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Sampling:
    """Settings of the answers that a model samples to the forget rows' questions.

    Both the part `alternative` (answers of the start model, sampled once) and the part `sample`
    (answers of the trained model, sampled in every step) have such settings.
    """

    count: int
    """Number of answers to each question."""
    temperature: float = 1.0
    """Temperature of the samples. 1 is the model's own distribution."""
    max_new_tokens: int = 64
    """Most tokens of an answer, its end included."""
    instruction: str = "{question}"
    """Prompt, in which `{question}` and `{answer}` stand for those of the forget row. Read for
    alternatives only. The rows that the loss sees have the question itself."""
    prefix: str = ""
    """Text that the model's reply begins with. Read for alternatives only."""
    stop: tuple[str, ...] = ()
    """Texts that end an answer. Read for alternatives only."""


@dataclass(frozen=True)
class _NeedsFields:
    """The fields of `Needs` as they are stored.

    The constructor of `Needs` first makes sets of what an author writes, and then stores them in
    these fields. So nothing has to be written into a frozen value afterwards.
    """

    parts: frozenset[Part]
    logprobs: frozenset[Part]
    distributions: frozenset[Part]
    states: frozenset[Part]
    layers: frozenset[int]
    statistics: frozenset[Part]
    alternatives: Sampling | None
    samples: Sampling | None
    prompts: tuple[str, ...]
    questions: tuple[str, ...]
    text: str
    logits: bool
    scores: frozenset[Part]


@dataclass(frozen=True, init=False)
class Needs(_NeedsFields):
    """The inputs of a method's loss. Nothing else is computed or kept in memory.

    For example, NPO compares the forget rows with the start model:
    `Needs(parts={"forget"}, logprobs={"forget"})`. A single name or a list may stand for a set.

    Attributes:
        parts: Parts that the loss reads, which go through the model in every step.

            - `forget`: the rows to forget.
            - `whole`: the rows to forget, with a loss on their prompts, too.
            - `retain`: as many retain rows, drawn again in each epoch.
            - `refusal`: the forget rows' questions, each with a refusal as its answer.
            - `retain_refusal`: the retain rows' questions, each with a refusal as its answer.
            - `alternative`: the forget rows' questions, each with another answer of the start
              model.
            - `sample`: the forget rows' questions, each with several answers that the trained model
              samples in the step.
        logprobs: Parts whose token log-probabilities under the frozen start model are read.
        distributions: Parts whose whole next-token distributions under the frozen start model are
            read.
        states: Parts whose hidden states in the frozen start model, after `layers`, are read.
        layers: Decoder layers, from 1, whose hidden states are read. The states of the last layer
            are those after the final norm.
        statistics: Parts that `Method.statistics` reads, before the first backward pass of a step.
        alternatives: Settings of the part `alternative`. None if the loss does not read it.
        samples: Settings of the part `sample`. None if the loss does not read it.
        prompts: Other prompts of the forget rows, with `{question}`. `References.prompted` has the
            start model's distributions over the tokens of the answers after each prompt.
        questions: Other questions. `Reference.direction` points from the start model's states at
            the end of the forget rows' prompts to its states at the end of these questions, if
            `states` has `forget`.
        text: Text whose tokens `Predictions.text_labels` puts in the place of a row's own tokens.
        logits: Whether the loss reads `Predictions.logits`. All logits are then in memory at once,
            which the estimate of memory counts.
        scores: Parts whose scores by token are read. The score of `forget` and `retain` rows is the
            column `score` of the data. The score of `sample` is what `Method.token_rewards`
            returns.
    """

    def __init__(
        self,
        parts: Set[Part],
        logprobs: Set[Part] = frozenset(),
        distributions: Set[Part] = frozenset(),
        states: Set[Part] = frozenset(),
        layers: Set[int] = frozenset(),
        statistics: Set[Part] = frozenset(),
        alternatives: Sampling | None = None,
        samples: Sampling | None = None,
        prompts: tuple[str, ...] = (),
        questions: tuple[str, ...] = (),
        text: str = "",
        logits: bool = False,
        scores: Set[Part] = frozenset(),
    ) -> None:
        """Make sets of names, and refuse names that mean nothing.

        For each set, a single name or a list will do, too.

        Raises:
            PluginError: A part or a layer is unknown, or nothing reads a part.
        """
        super().__init__(
            parts=_part_names("parts", parts),
            logprobs=_part_names("logprobs", logprobs),
            distributions=_part_names("distributions", distributions),
            states=_part_names("states", states),
            statistics=_part_names("statistics", statistics),
            scores=_part_names("scores", scores),
            layers=_layer_numbers(layers),
            alternatives=alternatives,
            samples=samples,
            prompts=prompts,
            questions=questions,
            text=text,
            logits=logits,
        )
        unread = sorted(self.reference - self.parts - self.statistics)
        if unread:
            raise PluginError(
                f"Needs: a reference for the part {unread[0]!r}, which neither `parts` nor "
                "`statistics` names: nothing would read it"
            )

    @property
    def reference(self) -> Set[Part]:
        """Parts of which anything under the frozen start model is read."""
        return self.logprobs | self.distributions | self.states

    @property
    def all_parts(self) -> Set[Part]:
        """Parts that the loss or the statistics read."""
        return self.parts | self.statistics

    @property
    def rows_per_item(self) -> int:
        """Number of rows with a forward and a backward pass for each forget row."""
        rows = len(self.parts - {"sample"})
        if "sample" in self.parts:
            rows += self.samples.count if self.samples else 1
        return rows

    def __or__(self, other: Needs) -> Needs:
        """Return the needs of two losses together. Settings of `self` come first."""
        joined: dict[str, Any] = {}
        for field_ in fields(self):
            mine: Any = getattr(self, field_.name)
            theirs: Any = getattr(other, field_.name)
            joined[field_.name] = mine | theirs if isinstance(mine, frozenset) else mine or theirs
        return Needs(**joined)


def layer_of(parameter: str) -> int:
    """Return the number of the decoder layer that a weight belongs to.

    Args:
        parameter: Name of the weight, for example `model.layers.3.mlp.up_proj.weight`.

    Returns:
        The number, from 1: 4 for the example. 0 for a weight outside decoder layers.
    """
    return next((int(part) + 1 for part in parameter.split(".") if part.isdigit()), 0)


_DOWN: Set[str] = {"down_proj", "fc2", "dense_4h_to_h", "c_proj", "w2"}
"""Names that architectures give to the second matrix of an MLP."""


def is_down_projection(parameter: str) -> bool:
    """Whether a weight belongs to the second matrix of an MLP, or to an adapter on that matrix.

    Args:
        parameter: Name of the weight, for example `model.layers.3.mlp.down_proj.weight`.
    """
    parts = parameter.split(".")
    # GPT-2 calls a matrix of its attention by the same name.
    return not _DOWN.isdisjoint(parts) and "attn" not in parts and parts[-1] != "bias"


def _layer_numbers(value: Any) -> frozenset[int]:
    """Return a layer, or several layers, as a set.

    Args:
        value: The number or numbers as the author has written them.

    Raises:
        PluginError: A number is below 1.
    """
    layers = [value] if isinstance(value, int) else [*value]
    if min(layers, default=1) < 1:
        raise PluginError(f"Needs(layers={layers!r}): decoder layers count from 1")
    return frozenset(layers)


def _part_names(field_: str, value: Any) -> frozenset[Part]:
    """Return a name, or several names, as a set.

    Args:
        field_: Field of `Needs`, for the message.
        value: The name or names as the author has written them.

    Raises:
        PluginError: A part is unknown.
    """
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
        """The forget rows' questions with refusals, in the order of the forget rows."""
        return self._declared("refusal")

    @property
    def whole(self) -> _T:
        """Rows to forget, with a loss on their prompts, too."""
        return self._declared("whole")

    @property
    def retain_refusal(self) -> _T:
        """The retain rows' questions with refusals, in the order of the retain rows."""
        return self._declared("retain_refusal")

    @property
    def alternative(self) -> _T:
        """The forget rows' questions with other answers of the start model, in the same order."""
        return self._declared("alternative")

    @property
    def sample(self) -> _T:
        """Answers of the trained model to the forget rows' questions, grouped by question."""
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
    """Predictions of the frozen start model for each part that the method's needs declare."""

    prompted: Sequence[Reference] = ()
    """Predictions of the forget rows' answers after each of `Needs.prompts`, in their order."""
    _what: ClassVar[str] = "a reference for"


@dataclass(frozen=True)
class LossBatch(_Parts[Predictions]):
    """One micro-batch, the argument of a loss.

    `batch.forget` and the other parts are `Predictions`. `batch.reference.forget` is a `Reference`,
    the same of the start model.
    """

    reference: References = field(default_factory=lambda: References({}))
    state: Mapping[str, float] = field(default_factory=dict[str, float])
    """The method's state, which `Method.start` begins and `Method.advance` changes after a step."""
    statistics: Mapping[str, Tensor] = field(default_factory=dict[str, Tensor])
    """`Method.statistics` summed over the whole optimiser step."""
    rewards: Tensor | None = None
    """[samples] `Method.reward` of each sampled answer."""
    progress: float = 0.0
    """Fraction of the run's optimiser steps that come before this one, in [0, 1)."""
    separate: bool = False
    """Whether a modifier takes the gradients of forget and retain rows apart."""
    reported: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Values that the loss has passed to `report`."""

    def report(self, name: str, value: Tensor) -> None:
        """Report a value, which is shown with the step and passed to `Method.advance`.

        Args:
            name: Name of the value.
            value: A scalar of this micro-batch. It is summed over the whole optimiser step.
        """
        self.reported[name] = value.detach()

    def mean_over_union(self, **parts: tuple[Predictions, Tensor]) -> Tensor | Terms:
        """Compute the mean over the tokens of several parts together.

        Args:
            parts: By any name, the predictions of a part and a value for each of its tokens [N].

        Returns:
            The mean. If `separate`, each part's contribution to the mean as a term of its own.
        """
        if not self.separate:
            return mean_over_union(*parts.values())
        tokens = max(sum(predictions.step_tokens for predictions, _ in parts.values()), 1)
        return {name: values.sum() / tokens for name, (_, values) in parts.items()}


class Method(HyperParameters, ABC):
    """Base of methods that train the model; a subclass adds hyperparameters, `needs` and `loss`.

    The description of a hyperparameter may end with the source of its default, and a paragraph of
    advice in the docstring may end with its source: `[source: paper, or owner/repository@commit
    path]`, or `[source: ours: the reason]`. `methods show` lists the sources.
    """

    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    """Inputs of the loss, whatever the hyperparameters. See `needed` if they depend on them."""
    family: ClassVar[str] = "other"
    """Kind of method, which overviews group by."""
    learning_rate: ClassVar[float] = 1e-5
    """Learning rate if a configuration states none. Defaults to that of open-unlearning's
    experiments."""

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
        """Compute the loss of a micro-batch.

        Means have to divide by the counts of the whole optimiser step, as `Predictions.mean_tokens`
        and `Predictions.mean_sequences` do.

        Returns:
            A scalar with a gradient, or such scalars by name, whose sum is minimised.
        """

    def needed(self) -> Needs:
        """Return the inputs of the loss with these hyperparameters."""
        return self.needs

    def trains(self, parameter: str, layers: int) -> bool:
        """Whether a weight is trained.

        Args:
            parameter: Name of the weight, for example `model.layers.3.mlp.down_proj.weight`.
            layers: Number of decoder layers of the model.
        """
        return True

    def statistics(self, batch: LossBatch) -> Terms:
        """Compute sums over the rows of a micro-batch that the loss reads of the whole step.

        Called for all micro-batches of a step before the first backward pass, without gradient.

        Args:
            batch: A micro-batch with the parts in `needs.statistics` only.

        Returns:
            Scalars by name. Their sums over the step are `LossBatch.statistics`.
        """
        return {}

    def start(self) -> Mapping[str, float]:
        """Return the state before the first step; empty for a method without a state."""
        return {}

    def advance(
        self, state: Mapping[str, float], reported: Mapping[str, float], epoch: int
    ) -> Mapping[str, float]:
        """Return the state after a step.

        Args:
            state: The state during the step.
            reported: Values that the loss has reported, summed over the step.
            epoch: Epoch of the step, from 1.
        """
        return state

    def reward(self, answer: str, truth: str) -> float:
        """Return the reward of a sampled answer, for a method that needs samples.

        Args:
            answer: Text of the sample.
            truth: The answer to forget.
        """
        raise NotImplementedError(f"{type(self).__name__} needs samples but defines no reward")

    def token_rewards(self, answer: str, tokens: Sequence[str], truth: str) -> Sequence[float]:
        """Return a score for each token of a sampled answer, for a loss that reads them.

        By default each token has the reward of its answer.

        Args:
            answer: Text of the sample.
            tokens: Texts of the sample's tokens, including the token that ends it.
            truth: The answer to forget.

        Returns:
            0 for a token to unlearn, 1 for a token to learn, as many numbers as tokens.
        """
        return [self.reward(answer, truth)] * len(tokens)

    def value_at_reference(self) -> float | Mapping[str, float] | None:
        """Return the value that the loss has while the model equals the start model.

        The conformance suite compares it with the loss.

        Returns:
            The whole loss, or some of its terms by name; None if it depends on the rows.
        """
        return None

    def update_scale(self) -> float:
        """Return the factor f of the evaluated weights, start + f · (trained − start)."""
        return 1.0
