"""Training loops to compare with: the usual one, and a bare one around our own computation."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Any

import torch

from unlearnbench.bench.usual import UsualPredictions
from unlearnbench.data.batching import collate
from unlearnbench.data.draws import Draw, TrainingRows
from unlearnbench.data.encoding import Row
from unlearnbench.errors import EvaluationError
from unlearnbench.losses import Predictions, Reference
from unlearnbench.method import PARTS, LossBatch, Part, References, Terms
from unlearnbench.minibatch import Counts, Minibatches, split
from unlearnbench.models.rows import RowReader, RowStates
from unlearnbench.projection import Projection
from unlearnbench.retain import Objective

RATE = 1e-6
"""So small that all loops stay at the same model."""


class _Training:
    """A copy of the start model, its optimiser, and nothing around them."""

    def __init__(self, start: Any, objective: Objective) -> None:
        self.model: Any = copy.deepcopy(start).train()
        layers = self.model.config.num_hidden_layers
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(objective.method.trains(name, layers))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, weight_decay=0.0)

    def update(self, terms: Terms) -> float:
        """A step down the sum of `terms`; returns that."""
        loss = torch.stack([*terms.values()]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


class Usual:
    """A method as it is usually written: a forward pass for each part, a second model beside."""

    def __init__(self, start: Any, objective: Objective, rows: TrainingRows, pad: int) -> None:
        self.training = _Training(start, objective)
        self.objective, self.rows, self.pad = objective, rows, pad
        needed = objective.needs.reference
        self.start = copy.deepcopy(start).requires_grad_(False).eval() if needed else None

    def __call__(self, batches: Iterator[Sequence[Draw]]) -> Iterator[float]:
        """The loss of each step."""
        needs = self.objective.needs
        for draws in batches:
            statistics: Terms = {}
            if needs.statistics:
                with torch.no_grad():
                    known = self._batch(draws, needs.statistics, {})
                    statistics = self.objective.method.statistics(known)
            batch = self._batch(draws, needs.parts, statistics)
            yield self.training.update(self.objective.terms(batch))

    def _batch(self, draws: Sequence[Draw], names: Set[Part], statistics: Terms) -> LossBatch:
        needs = self.objective.needs
        predictions: dict[Part, Predictions] = {}
        references: dict[Part, Reference] = {}
        ordered: list[Part] = [part for part in PARTS if part in names]
        for part in ordered:
            rows = self.rows.of(part, draws, needs)
            found = _full(self.training.model, rows, self.pad, needs.layers)
            place = (found.labels, found.rows, len(rows), len(found.labels), len(rows))
            predictions[part] = UsualPredictions(
                found.hidden, found.projection, *place, found.inner
            )
            if part in needs.reference:
                with torch.no_grad():
                    said = _full(self.start, rows, self.pad, needs.layers)
                    at = said.labels.unsqueeze(1)
                    chosen = said.hidden.log_softmax(1).gather(1, at).squeeze(1)
                whole = (said.hidden, said.projection, said.inner)
                references[part] = Reference(chosen, said.rows, len(rows), *whole)
        state = self.objective.method.start()
        return LossBatch(predictions, References(references), state, statistics)


def _full(model: Any, rows: Sequence[Row], pad: int, layers: Collection[int]) -> RowStates:
    """Logits at all positions, of which those are picked that are scored."""
    tokens = collate(rows, pad, next(model.parameters()).device)
    said = model(
        input_ids=tokens.ids,
        attention_mask=tokens.attention,
        output_hidden_states=bool(layers),
        use_cache=False,
    )
    states = {layer: said.hidden_states[layer][tokens.predicts] for layer in layers}
    logits = said.logits.float()[tokens.predicts]
    return RowStates(logits, states, Projection(None), tokens.labels, tokens.rows)


def bare(
    start: Any, objective: Objective, batches: Iterator[Sequence[Draw]], ours: Minibatches
) -> Iterator[float]:
    """What our own step computes; yields in turn when a batch is ready and when it is done."""
    training, needs = _Training(start, objective), objective.needs
    device = next(training.model.parameters()).device
    reader = RowReader(training.model, ours.reader.pad)
    for draws in batches:
        parts: dict[Part, list[Row]] = {
            p: ours.rows.of(p, draws, needs) for p in PARTS if p in needs.parts
        }
        together = [row for part in parts.values() for row in part]
        if not reader.packs(training.model, together):
            raise EvaluationError("the bare loop is written for models that can be packed")
        prepared = reader.prepared(training.model, together)
        known: dict[Part, Reference] = {
            p: rows.batch(parts[p], device) for p, rows in ours.references.items()
        }
        counts: Counts = {p: (sum(r.scored for r in rows), len(rows)) for p, rows in parts.items()}
        yield 0.0
        states = reader.run(training.model, prepared, needs.layers)
        whole = LossBatch(split(states, parts, counts), References(known), objective.method.start())
        yield training.update(objective.terms(whole))
