"""Where methods are checked: a tiny model, random rows that it half knows, and the path that
training takes.

Rows are collated, predicted and cut up by `Minibatches`, references come from `reference_rows`, and
losses through `Objective`: what is checked here is what runs. Answers that a model would write
itself (`alternative`, `sample`) are random ones; each sample's reward is drawn with it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unlearnbench.data.draws import Draw, TrainingRows
from unlearnbench.data.encoding import Row
from unlearnbench.method import PARTS, LossBatch, Method, Needs, Part
from unlearnbench.minibatch import Carried, Minibatches
from unlearnbench.reference import ReferenceParts, references_of
from unlearnbench.retain import Objective, called
from unlearnbench.sampling import Sampled
from unlearnbench.testing.tiny import (
    END,
    FIRST_WORD,
    PAD,
    VOCABULARY,
    TinyLlama,
    build,
    in_type,
    memorise,
    moved,
    rename,
)

SEED, EPOCHS = 7, 2
LENGTHS = (4, 1, 7, 2, 5, 3)
"""Answer tokens of the forget rows, the one that ends an answer included."""
_REFUSALS = 3

Cuts = Sequence[Sequence[Draw]]
"""The items of an optimiser step, by micro-batch."""


@dataclass(frozen=True)
class Measured:
    """What an optimiser step would see."""

    loss: float
    terms: Mapping[str, float]
    gradients: Mapping[str, Tensor]
    """By parameter; zeros where there is none."""
    state: Mapping[str, float]
    """After the step."""

    @property
    def norm(self) -> float:
        """Of the whole gradient."""
        return float(self.flat.norm())

    @property
    def flat(self) -> Tensor:
        """The whole gradient as one vector."""
        return torch.cat([g.flatten().double() for g in self.gradients.values()])


class Laboratory:
    """A method with everything it needs."""

    def __init__(
        self,
        method: Method,
        *,
        lengths: Sequence[int] = LENGTHS,
        dtype: torch.dtype = torch.float64,
        names: Tensor | None = None,
        depth: int = 1,
    ) -> None:
        """`lengths`: of the answers; `names`: [V] ids of the vocabulary entries, if not their own;
        `depth`: decoder layers below the last, if the method does not read more.

        `start` is the frozen start model, `model` one that has moved a little away from it.
        """
        self.method, self.objective, self.lengths = method, Objective(method), lengths
        self.needs = self.objective.needs
        self.fresh: int | None = None
        """Number of the request to a fresh process, once one was sent."""
        self.dtype, self.names = dtype, names
        learned = _learned(max([depth, *self.needs.layers]) + 1)
        self.start = in_type(learned.copied(), dtype)
        self.model = in_type(moved(learned, 0.1), dtype)
        if names is not None:
            rename(self.start, names)
            rename(self.model, names)
        skipped = method.ignore_first_answer_tokens
        self.rows, self.samples = _rows(self.needs, lengths, names, skipped)
        self.draws = self.rows.draws(self.needs, SEED, 1)

    def like(self, **changes: Any) -> Laboratory:
        """The same method elsewhere."""
        own: dict[str, Any] = {"lengths": self.lengths, "dtype": self.dtype, "names": self.names}
        return Laboratory(self.method, **{**own, **changes})

    @cached_property
    def references(self) -> ReferenceParts:
        """What the start model says of every row."""
        with tempfile.TemporaryDirectory() as folder:
            return references_of(
                lambda: self.start,
                "the laboratory's",
                self.rows,
                self.needs,
                seed=SEED,
                epochs=EPOCHS,
                pad=self.pad,
                folder=Path(folder),
            )

    @property
    def pad(self) -> int:
        """Id of the padding token."""
        return PAD if self.names is None else int(self.names[PAD])

    @property
    def sequences(self) -> list[Row]:
        """The rows of a step in one micro-batch, as they lie in the model's input."""
        made, step = self._minibatches(self.model, [self.draws], {})
        named: list[Part] = [part for part in PARTS if part in self.needs.parts]
        return [row for part in named for row in made.rows_of(part, self.draws, step)]

    def _minibatches(
        self, model: TinyLlama, cuts: Cuts, state: Mapping[str, float]
    ) -> tuple[Minibatches, Carried]:
        made = Minibatches(model, self.rows, self.needs, self.pad, self.references)
        draws = [*chain.from_iterable(cuts)]
        counts = made.counts(draws)
        if "sample" in self.needs.parts:
            rows = [row for draw in draws for row in self.samples[draw.index].rows]
            counts["sample"] = (sum(row.scored for row in rows), len(rows))
        return made, Carried(counts, state, samples=self.samples)

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
        made, step = self._minibatches(model, cuts, begin)
        sums: dict[str, Tensor] = {}
        for cut in cuts if self.needs.statistics else ():
            with torch.no_grad():
                part = made.batch(model, cut, step, self.needs.statistics)
                with called(self.method, "statistics"):
                    found = self.method.statistics(part)
            _add(sums, found)
        step = replace(step, statistics=sums)
        for cut in cuts:
            yield made.batch(model, cut, step, only)

    def measure(self, cuts: Cuts | None = None, model: TinyLlama | None = None) -> Measured:
        """Loss and gradient of one optimiser step; by default all of it is one micro-batch."""
        model = self.model if model is None else model
        model.zero_grad(set_to_none=True)
        terms: dict[str, Tensor] = {}
        reported: dict[str, Tensor] = {}
        for batch in self.batches([self.draws] if cuts is None else cuts, model):
            found = self.objective.terms(batch)
            torch.stack([*found.values()]).sum().backward()
            _add(terms, found)
            _add(reported, batch.reported)
        numbers = {name: value.item() for name, value in terms.items()}
        named = model.named_parameters()
        gradients = {
            name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in named
        }
        told = {name: value.item() for name, value in reported.items()}
        with called(self.method, "advance"):
            state = self.method.advance(self.method.start(), told, 1)
        return Measured(sum(numbers.values()), numbers, gradients, dict(state))

    def batch(self, state: Mapping[str, float] | None = None) -> LossBatch:
        """The whole step in one micro-batch, with the parts that statistics read as well."""
        with torch.no_grad():
            both = self.needs.parts | self.needs.statistics
            return next(self.batches([self.draws], state=state, only=both))

    def total(self, batch: LossBatch) -> Tensor:
        """The scalar that is minimised, on a batch of any origin."""
        if self.needs.statistics:
            with torch.no_grad(), called(self.method, "statistics"):
                batch = replace(batch, statistics=self.method.statistics(batch))
        return torch.stack([*self.objective.terms(batch).values()]).sum()


@cache
def _learned(layers: int) -> TinyLlama:
    """A model that half knows the rows: sure of some tokens, not of others."""
    model, (rows, _) = build(layers), _rows(Needs(parts=frozenset()), LENGTHS, None, 0)
    memorise(model, [*rows.forget, *rows.retain], steps=40)
    return model


def _add(sums: dict[str, Tensor], found: Mapping[str, Tensor]) -> None:
    for name, value in found.items():
        sums[name] = sums[name] + value.detach() if name in sums else value.detach()


def _rows(
    needs: Needs, lengths: Sequence[int], names: Tensor | None, skipped: int
) -> tuple[TrainingRows, Mapping[int, Sampled]]:
    """Random rows: prompts of random length, and answers that end with a token of their own.

    Samples and their rewards are drawn as well, by forget row: no model is asked for them.
    """
    generator = torch.Generator().manual_seed(SEED)

    def words(count: int) -> tuple[int, ...]:
        drawn = torch.randint(FIRST_WORD, VOCABULARY, (count,), generator=generator)
        return tuple(drawn.tolist())

    def row(prompt: tuple[int, ...], length: int) -> Row:
        ids = torch.tensor([*prompt, *words(length - 1), END])
        return Row(tuple((ids if names is None else names[ids]).tolist()), len(prompt))

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
        i: Sampled(
            tuple(row(p, short()) for _ in range(count)),
            ("",) * count,
            tuple(torch.rand(count, generator=generator).tolist()),
        )
        for i, p in enumerate(prompts)
    }
    return _scored(rows, samples, needs, generator)


def _scored(
    rows: TrainingRows,
    samples: Mapping[int, Sampled],
    needs: Needs,
    generator: torch.Generator,
) -> tuple[TrainingRows, Mapping[int, Sampled]]:
    """The same with random scores where the method reads them, drawn after all else."""

    def one(row: Row) -> Row:
        return replace(row, scores=tuple(torch.rand(row.scored, generator=generator).tolist()))

    if "forget" in needs.scores:
        rows = replace(rows, forget=[one(row) for row in rows.forget])
    if "retain" in needs.scores:
        rows = replace(rows, retain=[one(row) for row in rows.retain])
    if "sample" in needs.scores:
        samples = {
            i: replace(known, rows=tuple(one(row) for row in known.rows))
            for i, known in samples.items()
        }
    return rows, samples
