"""Training loops to compare with: the usual one, and a bare one around our own computation."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence, Set
from typing import Any

import torch

from unlearnbench.api.method import PARTS, LossBatch, Part, References, Terms
from unlearnbench.bench.plain_losses import PlainPredictions
from unlearnbench.data.batching import collate
from unlearnbench.data.encoding import Row
from unlearnbench.data.epoch_order import Item, TrainingRows
from unlearnbench.errors import EvaluationError
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.training.micro_batches import Counts, MicroBatches, split
from unlearnbench.training.objective import Objective

RATE = 1e-6
"""So small that all loops stay at the same model."""


class _Training:
    """A copy of the start model and its optimiser."""

    def __init__(self, start: Any, objective: Objective) -> None:
        self.model: Any = copy.deepcopy(start).train()
        layers = self.model.config.num_hidden_layers
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(objective.method.trains(name, layers))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, weight_decay=0.0)

    def update(self, terms: Terms) -> float:
        """Take a step on the sum of `terms`; returns the sum."""
        loss = torch.stack([*terms.values()]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def usual(
    start: Any,
    objective: Objective,
    batches: Iterator[Sequence[Item]],
    rows: TrainingRows,
    pad: int,
) -> Iterator[float]:
    """A method as usually written: a forward pass for each part, and a second model in memory."""
    training, needs = _Training(start, objective), objective.needs
    frozen = copy.deepcopy(start).requires_grad_(False).eval() if needs.reference else None

    def batch(draws: Sequence[Item], names: Set[Part], statistics: Terms) -> LossBatch:
        predictions: dict[Part, Predictions] = {}
        references: dict[Part, Reference] = {}
        ordered: list[Part] = [part for part in PARTS if part in names]
        for part in ordered:
            own = rows.of(part, draws, needs)
            found = _full(training.model, own, pad, needs.layers)
            place = (found.labels, found.rows, len(own), len(found.labels), len(own))
            predictions[part] = PlainPredictions(
                found.hidden, found.projection, *place, found.inner
            )
            if part in needs.reference:
                with torch.no_grad():
                    known = _full(frozen, own, pad, needs.layers)
                    at = known.labels.unsqueeze(1)
                    chosen = known.hidden.log_softmax(1).gather(1, at).squeeze(1)
                whole = (known.hidden, known.projection, known.inner)
                references[part] = Reference(chosen, known.rows, len(own), *whole)
        state = objective.method.start()
        return LossBatch(predictions, References(references), state, statistics)

    for draws in batches:
        with torch.no_grad():
            counted = batch(draws, needs.statistics, {})
            statistics = objective.method.statistics(counted) if needs.statistics else {}
        yield training.update(objective.terms(batch(draws, needs.parts, statistics)))


def _full(model: Any, rows: Sequence[Row], pad: int, layers: Collection[int]) -> RowStates:
    """Compute logits at all positions, then select the scored ones."""
    tokens = collate(rows, pad, next(model.parameters()).device)
    output = model(
        input_ids=tokens.ids,
        attention_mask=tokens.attention,
        output_hidden_states=bool(layers),
        use_cache=False,
    )
    states = {layer: output.hidden_states[layer][tokens.predicts] for layer in layers}
    logits = output.logits.float()[tokens.predicts]
    return RowStates(logits, states, Projection(None), tokens.labels, tokens.rows)


def bare(
    start: Any, objective: Objective, batches: Iterator[Sequence[Item]], ours: MicroBatches
) -> Iterator[float]:
    """Our step without the harness; yields once when a batch is ready, then its loss."""
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
        references: dict[Part, Reference] = {
            p: rows.batch(parts[p], device) for p, rows in ours.references.items()
        }
        counts: Counts = {p: (sum(r.scored for r in rows), len(rows)) for p, rows in parts.items()}
        yield 0.0
        states = reader.run(training.model, prepared, needs.layers)
        whole = LossBatch(
            split(states, parts, counts), References(references), objective.method.start()
        )
        yield training.update(objective.terms(whole))
