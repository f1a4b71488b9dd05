"""A tiny model, random rows that it has half learned, and the code path of training.

Rows are collated, predicted and split by `MicroBatches`, references come from `load_references`,
and losses go through `Objective`, so the checks run the code that training runs. Answers that a
model would generate (`alternative`, `sample`) are random, and so are the samples' rewards.

The model is a Llama small enough for float64. It records the hidden states that a loss can read.
Input and output embeddings are untied, so that a token's gradient as an input is visible.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from unlearnbench.api.method import PARTS, LossBatch, Method, Needs, Part, Terms
from unlearnbench.models.batching import collate
from unlearnbench.models.epoch_order import Item, TrainingRows
from unlearnbench.models.token_row import Row
from unlearnbench.training.answer_sampling import SampledAnswers
from unlearnbench.training.micro_batches import MicroBatches, StepContext, Sums
from unlearnbench.training.objective import Objective, called
from unlearnbench.training.reference_model import ReferenceParts, load_references

VOCABULARY = 128
"""More than 100, so that the label −100 is a valid index. A loss that uses it raises no error, but
fails a check."""
PAD = 0
END = 2
"""The token that ends every answer."""
FIRST_WORD = 3
"""The first of the tokens that rows are made of."""
_HIDDEN = 16
_HEADS = 2
_CONTEXT = 96

SEED = 7
EPOCHS = 2
LENGTHS = (4, 1, 7, 2, 5, 3)
"""Answer tokens of the forget rows, including the one that ends an answer."""
_REFUSALS = 3
"""Refusals for each question."""
_STATES = 12
"""States that are tried. A method may read or use a part only after its warm-up."""


class TinyLlama(LlamaForCausalLM):
    """A Llama that records the hidden states of its last forward pass."""

    def __init__(self, config: LlamaConfig) -> None:
        super().__init__(config)
        self.states: list[Tensor] = []
        """[B, T, H] of the last forward pass: final hidden states, and inner ones if requested."""
        self.lm_head.register_forward_pre_hook(self._record)

    def _record(self, _: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        self.states = [_with_grad(inputs[0])]

    def forward(self, *args: Any, **options: Any) -> Any:
        """Record inner hidden states, too."""
        output: Any = super().forward(*args, **options)
        if output.hidden_states is not None:
            # Views: their gradients are those of a loss that reads them, and not of later layers.
            output.hidden_states = tuple(_with_grad(state[:]) for state in output.hidden_states)
            self.states += output.hidden_states
        return output

    def copied(self) -> TinyLlama:
        """Copy the weights, without gradients and recorded states."""
        self.states = []
        self.zero_grad(set_to_none=True)
        return copy.deepcopy(self)


def _with_grad(tensor: Tensor) -> Tensor:
    """Keep the gradient of a tensor that is not a leaf."""
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


def build(layers: int) -> TinyLlama:
    """Build a model with random weights, in float64."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=_CONTEXT,
        # So wide that predictions are neither sure nor all alike.
        initializer_range=0.3,
        tie_word_embeddings=False,
        # No token is special to the embedding, either.
        pad_token_id=None,
        bos_token_id=1,
        eos_token_id=END,
    )
    # The forward pass packs the rows of a model without a window. With a window in the
    # configuration, which a Llama ignores, rows stay rows [B, T], and checks can look at positions.
    config.update({"sliding_window": 1})
    # transformers draws from the global generator.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = TinyLlama(config)
    # Both work in place. Those of transformers have no types.
    nn.Module.double(model)
    nn.Module.eval(model)
    return model


def memorise(model: TinyLlama, rows: Sequence[Row], steps: int) -> None:
    """Train a model on the answers of rows, so that there is something to unlearn."""
    tokens = collate(rows, PAD, torch.device("cpu"))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(steps):
        logits = model(input_ids=tokens.ids, attention_mask=tokens.attention).logits
        logits = logits[tokens.predicts]
        nn.functional.cross_entropy(logits, tokens.labels).backward()
        optimizer.step()
        optimizer.zero_grad()


@torch.no_grad()
def perturb(model: nn.Module, noise: float) -> None:
    """Add noise to all weights, as if the model had been trained for a few steps.

    Args:
        model: Changed in place.
        noise: Relative to the mean absolute value of each tensor.
    """
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        normal = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.add_(noise * weight.abs().mean() * normal)


Cuts = Sequence[Sequence[Item]]
"""How an optimiser step is divided: the items of each micro-batch."""


@dataclass(frozen=True)
class Measured:
    """Loss, gradients and state of one optimiser step."""

    loss: float
    terms: Mapping[str, float]
    """The values of which the loss is the sum."""
    gradients: Mapping[str, Tensor]
    """By name of the parameter. They are zeros for a parameter without a gradient."""
    state: Mapping[str, float]
    """After the step."""

    @property
    def norm(self) -> float:
        """Norm of the whole gradient."""
        return float(self.flat.norm())

    @property
    def flat(self) -> Tensor:
        """The whole gradient as one vector."""
        return torch.cat([g.flatten().double() for g in self.gradients.values()])


class TinyLab:
    """A method with a model, rows and references to run it on."""

    def __init__(
        self,
        method: Method,
        *,
        lengths: Sequence[int] = LENGTHS,
        dtype: torch.dtype = torch.float64,
    ) -> None:
        """Make the model and the rows.

        Args:
            method: With settings.
            lengths: Answer tokens of each forget row.
            dtype: Of the model's weights.
        """
        self.method = method
        self.objective = Objective(method)
        self.needs = self.objective.needs
        self.lengths = lengths
        self.dtype = dtype
        self.fresh: Connection | None = None
        """Where a fresh process answers; None until one is started."""
        self.model = self._model(noise=0.1)
        """The trained model, which has moved a little away from the start model."""
        self.rows, self.samples = _rows(self.needs, lengths, method.ignore_first_answer_tokens)
        self.draws = self.rows.items(self.needs, SEED, 1)
        """The items of an optimiser step, which has all rows."""

        @cache
        def reader(model: TinyLlama) -> MicroBatches:
            return MicroBatches(model, self.rows, self.needs, PAD, self.references)

        self._reader = reader

    @cached_property
    def start(self) -> TinyLlama:
        """The frozen start model."""
        return self._model(noise=0.0)

    def _model(self, noise: float) -> TinyLlama:
        """Return a copy of the model that has learned the rows, moved by relative noise."""
        # It needs the layers that the loss reads, and two at least.
        layers = 1 + max([1, *self.needs.layers])
        model = learned(layers).copied()
        perturb(model, noise)
        # It works in place. That of transformers has no types.
        nn.Module.to(model, self.dtype)
        return model

    def like(self, **changes: Any) -> TinyLab:
        """Return a lab with the same method, and other lengths or another dtype."""
        settings: dict[str, Any] = {"lengths": self.lengths, "dtype": self.dtype}
        return TinyLab(self.method, **(settings | changes))

    @cached_property
    def references(self) -> ReferenceParts:
        """The start model's values for every row."""
        with tempfile.TemporaryDirectory() as folder:
            return load_references(
                lambda: self.start,
                "tiny lab",
                self.rows,
                self.needs,
                seed=SEED,
                epochs=EPOCHS,
                pad=PAD,
                folder=Path(folder),
            )

    @property
    def sequences(self) -> list[Row]:
        """The rows of a step in one micro-batch, in the order of the model's input."""
        micro_batches, step = self._micro_batches(self.model, [self.draws], {})
        rows: list[Row] = []
        for part in PARTS:
            if part in self.needs.parts:
                rows.extend(micro_batches.rows_of(part, self.draws, step))
        return rows

    def _micro_batches(
        self, model: TinyLlama, cuts: Cuts, state: Mapping[str, float]
    ) -> tuple[MicroBatches, StepContext]:
        """Return what makes the micro-batches of a step, and the context of the step."""
        micro_batches = self._reader(model)
        draws = list(chain.from_iterable(cuts))
        counts = micro_batches.counts(draws)
        if "sample" in self.needs.parts:
            rows = [row for draw in draws for row in self.samples[draw.index].rows]
            counts["sample"] = (sum(row.scored for row in rows), len(rows))
        return micro_batches, StepContext(counts, state, samples=self.samples, progress=0.5)

    def batches(
        self,
        cuts: Cuts,
        model: TinyLlama | None = None,
        state: Mapping[str, float] | None = None,
        only: Iterable[Part] | None = None,
    ) -> Iterator[LossBatch]:
        """Yield the micro-batches of one optimiser step.

        Args:
            cuts: How the step is divided.
            model: That makes the predictions. None means the trained model.
            state: Of the method. None means its first state.
            only: Parts that are predicted. None means those that the loss reads.
        """
        model = self.model if model is None else model
        with called(self.method, "start"):
            first_state = self.method.start() if state is None else state
        micro_batches, step = self._micro_batches(model, cuts, first_state)

        # Statistics are sums over the whole step, and come before the first loss.
        sums = Sums()
        if self.needs.statistics:
            for cut in cuts:
                with torch.no_grad():
                    batch = micro_batches.batch(model, cut, step, self.needs.statistics)
                sums.add(self.statistics(batch))
        step = replace(step, statistics=sums.values)
        for cut in cuts:
            yield micro_batches.batch(model, cut, step, only)

    def statistics(self, batch: LossBatch) -> Terms:
        """Return the method's statistics of a batch; empty if it declares none."""
        # Predictions keep what they compute. The loss reads other predictions, because values that
        # were computed here have no gradient.
        parts = {part: replace(predictions) for part, predictions in batch.parts.items()}
        with torch.no_grad(), called(self.method, "statistics"):
            if not self.needs.statistics:
                return {}
            return self.method.statistics(replace(batch, parts=parts))

    @cached_property
    def whole(self) -> Measured:
        """The step in one micro-batch, measured once."""
        return self.measure()

    def measure(self, cuts: Cuts | None = None, model: TinyLlama | None = None) -> Measured:
        """Measure loss and gradient of one optimiser step.

        Args:
            cuts: How the step is divided. None means that it is one micro-batch.
            model: Whose gradients are measured. None means the trained model.
        """
        model = self.model if model is None else model
        model.zero_grad(set_to_none=True)
        sums_of_terms = Sums()
        reported = Sums()
        for batch in self.batches([self.draws] if cuts is None else cuts, model):
            terms = self.objective.terms(batch)
            torch.stack([*terms.values()]).sum().backward()
            sums_of_terms.add(terms)
            reported.add(batch.reported)
        values = {name: value.item() for name, value in sums_of_terms.values.items()}
        gradients: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            gradient = parameter.grad
            gradients[name] = torch.zeros_like(parameter) if gradient is None else gradient.clone()
        state = self._next_state(self.method.start(), reported.values, epoch=1)
        return Measured(sum(values.values()), values, gradients, dict(state))

    def states(self) -> Iterator[Mapping[str, float]]:
        """Yield the states of the method's first epochs, which have one step each.

        A method without a state has one, which is empty.
        """
        state: Mapping[str, float] = self.method.start()
        if not state:
            yield state
            return
        for epoch in range(1, _STATES + 1):
            yield state
            batch = self.batch(state)
            # The loss reports the values that the next state is computed from.
            self.total(batch)
            state = self._next_state(state, batch.reported, epoch)

    def _next_state(
        self, state: Mapping[str, float], reported: Mapping[str, Tensor], epoch: int
    ) -> Mapping[str, float]:
        """Return the state after an epoch in which the loss has reported these values."""
        values = {name: value.item() for name, value in reported.items()}
        with called(self.method, "advance"):
            return self.method.advance(state, values, epoch)

    def batch(self, state: Mapping[str, float] | None = None) -> LossBatch:
        """Return the whole step in one micro-batch, including the parts that statistics read."""
        with torch.no_grad():
            return next(self.batches([self.draws], state=state, only=self.needs.all_parts))

    def total(self, batch: LossBatch) -> Tensor:
        """Return the scalar to minimise, on any batch."""
        batch = replace(batch, statistics=self.statistics(batch))
        return torch.stack([*self.objective.terms(batch).values()]).sum()


@cache
def learned(layers: int) -> TinyLlama:
    """Return a model that has half learned the rows: it is sure of some tokens only.

    Its weights must not be changed, because all labs of a process copy it.
    """
    model = build(layers)
    rows, _ = _rows(Needs(parts=frozenset()), LENGTHS, skipped=0)
    memorise(model, [*rows.forget, *rows.retain], steps=40)
    return model


def _rows(
    needs: Needs, lengths: Sequence[int], skipped: int
) -> tuple[TrainingRows, Mapping[int, SampledAnswers]]:
    """Draw random rows, whose answers end with the token `END`.

    Samples and their rewards are drawn as well, without a model. The order of the draws decides
    what the rows are, and so all numbers of the checks.

    Args:
        needs: Of the method. Scores, texts and prompts are drawn only if they are needed.
        lengths: Answer tokens of each forget row.
        skipped: First answer tokens that are not scored.

    Returns:
        The rows, and samples by index of the forget row.
    """
    generator = torch.Generator().manual_seed(SEED)

    def words(count: int) -> list[int]:
        return torch.randint(FIRST_WORD, VOCABULARY, (count,), generator=generator).tolist()

    def row(prompt: Sequence[int], length: int) -> Row:
        return Row((*prompt, *words(length - 1), END), len(prompt))

    def short() -> int:
        return 1 + int(torch.randint(max(lengths), (1,), generator=generator))

    prompts = [words(2 + i % 4) for i in range(len(lengths))]
    refusals = [[row(p, 1 + k).without_first(skipped) for k in range(_REFUSALS)] for p in prompts]
    count = needs.samples.count if needs.samples else 1
    rows = TrainingRows(
        [row(p, n).without_first(skipped) for p, n in zip(prompts, lengths, strict=True)],
        [row(words(3), short()) for _ in range(len(lengths) + 2)],
        _REFUSALS,
        lambda question, answer: refusals[question][answer],
        alternatives=[[row(p, short()).without_first(skipped)] for p in prompts],
    )
    samples = {
        i: SampledAnswers(
            tuple(row(p, short()) for _ in range(count)),
            ("",) * count,
            tuple(torch.rand(count, generator=generator).tolist()),
        )
        for i, p in enumerate(prompts)
    }

    def scored(part: Part, rows: Sequence[Row]) -> tuple[Row, ...]:
        """Add random scores if a part has them. They are drawn after all that most methods read."""
        if part not in needs.scores:
            return tuple(rows)
        with_scores: list[Row] = []
        for row in rows:
            scores = torch.rand(row.scored, generator=generator).tolist()
            with_scores.append(replace(row, scores=tuple(scores)))
        return tuple(with_scores)

    forget, retain = scored("forget", rows.forget), scored("retain", rows.retain)
    samples = {
        i: replace(sample, rows=scored("sample", sample.rows)) for i, sample in samples.items()
    }
    refused = [[row(r.ids[: r.start], 1 + k) for k in range(_REFUSALS)] for r in retain]

    def retain_refusal(question: int, answer: int) -> Row:
        return refused[question][answer]

    text = tuple(words(2)) if needs.text else ()
    prompted = [[Row((*words(3), *r.ids[r.start :]), 3) for r in forget] for _ in needs.prompts]
    changed: Any = {"retain_refusal": retain_refusal, "text": text, "prompted": prompted}
    if needs.questions:
        asked = [Row((*prompt, 2), len(prompt)) for prompt in prompts]
        others = [Row((*words(3), 2), 3) for _ in needs.questions]
        changed["prompt_ends"] = (others, asked)
    return replace(rows, forget=forget, retain=retain, **changed), samples
