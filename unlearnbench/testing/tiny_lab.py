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
"""More than 100, so that the label −100 is a valid index, and its misuse no error but a fault."""
PAD, END, FIRST_WORD = 0, 2, 3
_HIDDEN, _HEADS, _CONTEXT = 16, 2, 96


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
    if tensor.requires_grad:
        tensor.retain_grad()
    return tensor


def build(layers: int) -> TinyLlama:
    """A model of random weights, in float64."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=_HIDDEN,
        intermediate_size=2 * _HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=_HEADS,
        num_key_value_heads=_HEADS,
        max_position_embeddings=_CONTEXT,
        initializer_range=0.3,  # wide: predictions are neither sure nor all alike
        tie_word_embeddings=False,
        pad_token_id=None,  # nothing is special to the embedding either
        bos_token_id=1,
        eos_token_id=END,
    )
    # A Llama has no window; with one in its configuration its rows stay rows [B, T], and the checks
    # can look at each of their positions.
    config.update({"sliding_window": 1})
    with torch.random.fork_rng(devices=[]):  # transformers draws from the global generator
        torch.manual_seed(0)
        model = TinyLlama(config)
    nn.Module.double(model)  # in place; transformers types neither this nor `eval`
    nn.Module.eval(model)
    return model


def memorise(model: TinyLlama, rows: Sequence[Row], steps: int) -> None:
    """Train a model on the answers of `rows`, so that there is something to unlearn."""
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
    """Add relative `noise` to each weight, as of a few steps."""
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        drawn = torch.randn(weight.shape, generator=generator, dtype=weight.dtype)
        weight.add_(noise * weight.abs().mean() * drawn)


SEED, EPOCHS = 7, 2
LENGTHS = (4, 1, 7, 2, 5, 3)
"""Answer tokens of the forget rows, including the one that ends an answer."""
_REFUSALS = 3
_STATES = 12
"""A method with a state may read or use a part only once it has left its warm-up."""

Cuts = Sequence[Sequence[Item]]
"""The items of an optimiser step, by micro-batch."""


@dataclass(frozen=True)
class Measured:
    """Loss, gradients and state of one optimiser step."""

    loss: float
    terms: Mapping[str, float]
    gradients: Mapping[str, Tensor]
    """By parameter; zeros where there is none."""
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
        """`model` has moved a little away from the start model, `start`.

        lengths  of the answers
        """
        self.method, self.objective, self.lengths = method, Objective(method), lengths
        self.needs = self.objective.needs
        self.fresh: Connection | None = None
        """Where a fresh process answers; None until one is started."""
        self.dtype = dtype
        self.model = self._model(noise=0.1)
        self.rows, self.samples = _rows(self.needs, lengths, method.ignore_first_answer_tokens)
        self.draws = self.rows.items(self.needs, SEED, 1)

        @cache
        def reader(model: TinyLlama) -> MicroBatches:
            return MicroBatches(model, self.rows, self.needs, PAD, self.references)

        self._reader = reader

    @cached_property
    def start(self) -> TinyLlama:
        """The frozen start model."""
        return self._model(noise=0.0)

    def _model(self, noise: float) -> TinyLlama:
        """The model that has learned the rows, moved by relative `noise`."""
        model = learned(1 + max([1, *self.needs.layers])).copied()
        perturb(model, noise)
        nn.Module.to(model, self.dtype)  # in place; that of transformers has no types
        return model

    def like(self, **changes: Any) -> TinyLab:
        """The same method in a lab with other settings."""
        settings: dict[str, Any] = {"lengths": self.lengths, "dtype": self.dtype}
        return TinyLab(self.method, **settings | changes)

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
        minibatches, step = self._minibatches(self.model, [self.draws], {})
        named: list[Part] = [part for part in PARTS if part in self.needs.parts]
        return [row for part in named for row in minibatches.rows_of(part, self.draws, step)]

    def _minibatches(
        self, model: TinyLlama, cuts: Cuts, state: Mapping[str, float]
    ) -> tuple[MicroBatches, StepContext]:
        minibatches = self._reader(model)
        draws = [*chain.from_iterable(cuts)]
        counts = minibatches.counts(draws)
        if "sample" in self.needs.parts:
            rows = [row for draw in draws for row in self.samples[draw.index].rows]
            counts["sample"] = (sum(row.scored for row in rows), len(rows))
        return minibatches, StepContext(counts, state, samples=self.samples, progress=0.5)

    def batches(
        self,
        cuts: Cuts,
        model: TinyLlama | None = None,
        state: Mapping[str, float] | None = None,
        only: Iterable[Part] | None = None,
    ) -> Iterator[LossBatch]:
        """The micro-batches of one optimiser step."""
        model = self.model if model is None else model
        with called(self.method, "start"):
            begin = self.method.start() if state is None else state
        minibatches, step = self._minibatches(model, cuts, begin)
        sums = Sums()
        for cut in cuts if self.needs.statistics else ():
            with torch.no_grad():
                counted = minibatches.batch(model, cut, step, self.needs.statistics)
            sums.add(self.statistics(counted))
        step = replace(step, statistics=sums.values)
        for cut in cuts:
            yield minibatches.batch(model, cut, step, only)

    def statistics(self, batch: LossBatch) -> Terms:
        """The method's statistics of a batch; none where it declares none."""
        # Not in the batch that the loss reads: what predictions keep would have no gradient.
        parts = {part: replace(values) for part, values in batch.parts.items()}
        with torch.no_grad(), called(self.method, "statistics"):
            return (
                self.method.statistics(replace(batch, parts=parts)) if self.needs.statistics else {}
            )

    @cached_property
    def whole(self) -> Measured:
        """The step in one micro-batch, measured once."""
        return self.measure()

    def measure(self, cuts: Cuts | None = None, model: TinyLlama | None = None) -> Measured:
        """Loss and gradient of one optimiser step; by default all of it is one micro-batch."""
        model = self.model if model is None else model
        model.zero_grad(set_to_none=True)
        terms, reported = Sums(), Sums()
        for batch in self.batches([self.draws] if cuts is None else cuts, model):
            result = self.objective.terms(batch)
            torch.stack([*result.values()]).sum().backward()
            terms.add(result)
            reported.add(batch.reported)
        numbers = {name: value.item() for name, value in terms.values.items()}
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone()
            for name, p in model.named_parameters()
        }
        state = self._advanced(self.method.start(), reported.values, 1)
        return Measured(sum(numbers.values()), numbers, gradients, dict(state))

    def states(self) -> Iterator[Mapping[str, float]]:
        """The states of the method's first epochs, of one step each; once where it has none."""
        state: Mapping[str, float] = self.method.start()
        for epoch in range(1, _STATES + 1 if state else 2):
            yield state
            if state:
                batch = self.batch(state)
                self.total(batch)
                state = self._advanced(state, batch.reported, epoch)

    def _advanced(
        self, state: Mapping[str, float], reported: Mapping[str, Tensor], epoch: int
    ) -> Mapping[str, float]:
        values = {name: value.item() for name, value in reported.items()}
        with called(self.method, "advance"):
            return self.method.advance(state, values, epoch)

    def batch(self, state: Mapping[str, float] | None = None) -> LossBatch:
        """The whole step in one micro-batch, including the parts that statistics read."""
        with torch.no_grad():
            return next(self.batches([self.draws], state=state, only=self.needs.all_parts))

    def total(self, batch: LossBatch) -> Tensor:
        """The scalar to minimise, on any batch."""
        batch = replace(batch, statistics=self.statistics(batch))
        return torch.stack([*self.objective.terms(batch).values()]).sum()


@cache
def learned(layers: int) -> TinyLlama:
    """A model that has half learned the rows: sure of some tokens, not of others."""
    model, (rows, _) = build(layers), _rows(Needs(parts=frozenset()), LENGTHS, 0)
    memorise(model, [*rows.forget, *rows.retain], steps=40)
    return model


def _rows(
    needs: Needs, lengths: Sequence[int], skipped: int
) -> tuple[TrainingRows, Mapping[int, SampledAnswers]]:
    """Random rows: prompts of random length, and answers that end with a token of their own.

    Samples and their rewards are drawn as well, by forget row, without a model.
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
        """Add random scores where they are read; drawn last, so that no other draw changes."""
        if part not in needs.scores:
            return tuple(rows)
        draws = (torch.rand(row.scored, generator=generator).tolist() for row in rows)
        return tuple(replace(row, scores=tuple(d)) for row, d in zip(rows, draws, strict=True))

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
