"""Time an optimiser step of methods against the usual way of writing it: python -m benchmarks.step

The usual way: a forward pass for each part of the batch, padded; logits at every position; losses
from library functions over full matrices; and, where the method compares with the frozen start
model, that model in memory and run at every step. A third, bare loop does our computation on
tokens packed beforehand and records nothing; what ours takes beyond it is the harness's overhead.

The start model waits in the memory of the CPU, so that a GPU holds what a way needs alone.
"""

import copy
import gc
import sys
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api import registry
from unlearnbench.api.method import PARTS, LossBatch, Part, References, Terms
from unlearnbench.config.precision import Precision
from unlearnbench.config.schema import RetainSpec
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference
from unlearnbench.models.batching import collate
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import Item, TrainingRows, training_rows, with_needed
from unlearnbench.models.limits import pad_id
from unlearnbench.models.row_states import RowReader, RowStates
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.runs.evaluate_model import data_settings
from unlearnbench.training.micro_batches import Counts, split
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import ReferenceParts, load_references
from unlearnbench.training.trainer import Trainer

from .models import LARGE, QUICK, SIZES, random_model
from .plain_losses import PlainPredictions
from .timer import DEVICE, Work, begin, end, now, options_of, peak_bytes, spread

METHODS = ("npo+nll", "ce-u", "kl-minimization", "dpo")
WAYS = ("usual", "ours", "bare")
EPOCHS = 20
RATE = 1e-6
"""So small that all loops stay at the same model."""
AGREE = {"fp32": 1e-3, "bf16": 2e-2}
"""Largest relative difference of the first losses that rounding explains, by precision."""


def objective_of(name: str) -> Objective:
    """The method and retain term in `npo+nll`, with default hyper-parameters."""
    method, _, term = name.partition("+")
    retain = RetainSpec.model_validate({"term": term, "weight": 1.0}) if term else None
    return Objective(registry.load("methods", method)(), retain)


class Case:
    """The start model, the rows, and the ways of training on them."""

    def __init__(
        self, size: str, data: str, batch_size: int, precision: Precision = "fp32"
    ) -> None:
        self.size, self.batch_size = size, batch_size
        self.precision: Precision = precision
        self.benchmark = load_benchmark(data_settings(data), (0.1,))
        self.model, tokenizer = random_model(size, self.benchmark.full)
        self.model.cpu()
        self.pad = pad_id(tokenizer)
        self.encoder = Encoder(tokenizer, TEMPLATES["plain"], MAX_LENGTH)
        self.rows = cache(partial(training_rows, self.benchmark, 0.1, self.encoder))
        """By the answer tokens that the loss does not see."""

    def measured(
        self, name: str, repeats: int
    ) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
        """Seconds of a step by way, in turn, and each way's first loss, whose step warms up."""
        # The statistics of a whole step are computed before it; the bare loop has no such pass.
        ways = WAYS[:2] if objective_of(name).needs.statistics else WAYS
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        losses: dict[str, float] = {}
        # A GPU has no room for all ways of training a large model at once.
        for together in [(way,) for way in ways] if self.size in LARGE else [ways]:
            for way, second, loss in self._turns(together, name, repeats + 1):
                seconds[way].append(second)
                losses.setdefault(way, loss)
            gc.collect()
        return {way: spread(each[1:]) for way, each in seconds.items()}, losses

    def _turns(
        self, ways: Iterable[str], name: str, turns: int
    ) -> Iterator[tuple[str, float, float]]:
        """Way, seconds and loss of a step of each way in turn."""
        running = {way: self.way(way, name) for way in ways}
        for _ in range(turns):
            for way, steps in running.items():
                if way == "bare":
                    next(steps)  # gets the next batch ready
                start = now()
                loss = next(steps)
                yield way, now() - start, loss

    def autocast(self) -> torch.autocast:
        """The context of forward passes and losses, as in `Trainer`."""
        return torch.autocast(DEVICE.type, torch.bfloat16, enabled=self.precision == "bf16")

    def started(self) -> Any:
        """A copy of the start model on the device."""
        return copy.deepcopy(self.model).to(DEVICE)

    def rows_of(self, objective: Objective) -> TrainingRows:
        """The rows, with the tokens of the text that a method needs."""
        rows = self.rows(objective.method.ignore_first_answer_tokens)
        questions = self.benchmark.splits[0.1].forget
        return with_needed(rows, questions, objective.needs, self.encoder)

    def way(self, way: str, name: str) -> Iterator[float]:
        """Train one way; yields the loss of each step."""
        objective = objective_of(name)
        if way == "usual":
            return self._usual(objective)
        references = self.references(objective)
        return (self._ours if way == "ours" else self._bare)(objective, references)

    def references(self, objective: Objective) -> ReferenceParts:
        """What the start model predicts for the rows of an objective."""
        with tempfile.TemporaryDirectory() as folder:
            return load_references(
                self.started,
                "start",
                self.rows_of(objective),
                objective.needs,
                seed=0,
                epochs=EPOCHS,
                pad=self.pad,
                folder=Path(folder),
                precision=self.precision,
            )

    def trainer(self, objective: Objective, rate: float = RATE) -> Trainer:
        """A trainer of the start model, as runs have it."""
        return self._trainer(objective, self.references(objective), rate)

    def _draws(self, objective: Objective) -> Iterator[Sequence[Item]]:
        """The batches of the first epochs, as `Trainer` draws them."""
        rows = self.rows_of(objective)
        for epoch in range(1, EPOCHS):
            draws = rows.items(objective.needs, 0, epoch)
            for first in range(0, len(draws), self.batch_size):
                yield draws[first : first + self.batch_size]

    def _ours(self, objective: Objective, references: ReferenceParts) -> Iterator[float]:
        trainer = self._trainer(objective, references, RATE)
        for epoch in range(1, EPOCHS):
            for step in trainer.epoch(epoch):
                yield step.loss

    def _trainer(self, objective: Objective, references: ReferenceParts, rate: float) -> Trainer:
        settings = TrainerSettings(EPOCHS, self.batch_size, rate, seed=0, precision=self.precision)
        rows = self.rows_of(objective)
        return Trainer(self.started(), objective, rows, settings, self.pad, references)

    def _usual(self, objective: Objective) -> Iterator[float]:
        """A method as usually written: a pass for each part, and a second model in memory."""
        training, needs = _Training(self.started(), objective), objective.needs
        reads_frozen = bool(needs.reference or needs.prompts)
        frozen = self.started().requires_grad_(False).eval() if reads_frozen else None
        rows = self.rows_of(objective)

        def reference(several: Sequence[Row], layers: Collection[int]) -> Reference:
            """Compute what the frozen model predicts for rows, from all of its logits."""
            with torch.no_grad():
                known = _full(frozen, several, self.pad, layers)
                at = known.labels.unsqueeze(1)
                chosen = known.hidden.log_softmax(1).gather(1, at).squeeze(1)
            whole = (known.hidden, known.projection, known.inner)
            return Reference(chosen, known.rows, len(several), *whole)

        directions: dict[int, torch.Tensor] = {}
        if needs.questions:  # see `Reference.direction`
            with torch.no_grad():
                ends = [_full(frozen, r, self.pad, needs.layers).inner for r in rows.prompt_ends]
            for layer in needs.layers:
                toward, away = (states[layer].mean(0) for states in ends)
                directions[layer] = toward - away

        def batch(draws: Sequence[Item], names: Set[Part], statistics: Terms) -> LossBatch:
            predictions: dict[Part, Predictions] = {}
            references: dict[Part, Reference] = {}
            ordered: list[Part] = [part for part in PARTS if part in names]
            for part in ordered:
                several = rows.of(part, draws, needs)
                states = _full(training.model, several, self.pad, needs.layers)
                counts = (len(several), len(states.labels), len(several))
                text = [rows.text[i % len(rows.text)] for row in several for i in range(row.scored)
                        if rows.text]  # fmt: skip
                predictions[part] = PlainPredictions(
                    states.hidden, states.projection, states.labels, states.rows, *counts,
                    states.inner, text_tokens=torch.tensor(text) if text else None,
                )  # fmt: skip
                if part in needs.reference:
                    known = reference(several, needs.layers)
                    references[part] = replace(known, directions=directions)
            state = objective.method.start()
            prompted = [reference(rows.of(i, draws, needs), ()) for i in range(len(needs.prompts))]
            return LossBatch(predictions, References(references, prompted), state, statistics)

        for draws in self._draws(objective):
            with self.autocast():
                with torch.no_grad():
                    counted = batch(draws, needs.statistics, {})
                    statistics = objective.method.statistics(counted) if needs.statistics else {}
                terms = objective.terms(batch(draws, needs.parts, statistics))
            yield training.update(terms)

    def _bare(self, objective: Objective, references: ReferenceParts) -> Iterator[float]:
        """Our step without the harness; yields once when a batch is ready, then its loss."""
        training, needs = _Training(self.started(), objective), objective.needs
        rows = self.rows_of(objective)
        reader = RowReader(training.model, self.pad)
        for draws in self._draws(objective):
            parts: dict[Part, list[Row]] = {
                p: rows.of(p, draws, needs) for p in PARTS if p in needs.parts
            }
            together = [row for part in parts.values() for row in part]
            with self.autocast():
                prepared = reader.prepared(training.model, together)
            known: Mapping[Part, Reference] = {
                p: each.batch(parts[p], DEVICE)
                for p, each in references.items()
                if isinstance(p, str)
            }
            prompted = [
                references[i].batch(rows.of(i, draws, needs), DEVICE)
                for i in range(len(needs.prompts))
            ]
            counts: Counts = {
                p: (sum(r.scored for r in each), len(each)) for p, each in parts.items()
            }
            yield 0.0
            with self.autocast():
                states = reader.run(training.model, prepared, needs.layers)
                whole = LossBatch(
                    split(states, parts, counts, text=rows.text),
                    References(known, prompted),
                    objective.method.start(),
                )
                terms = objective.terms(whole)
            yield training.update(terms)


class _Training:
    """A model, which is trained in place, and its optimiser."""

    def __init__(self, model: Any, objective: Objective) -> None:
        self.model: Any = model.train()
        layers = self.model.config.num_hidden_layers
        for name, parameter in self.model.named_parameters():
            parameter.requires_grad_(objective.method.trains(name, layers))
        self.parameters = [p for p in self.model.parameters() if p.requires_grad]
        fused = True if DEVICE.type == "cuda" else None  # as ours
        self.optimizer = torch.optim.AdamW(self.parameters, lr=RATE, weight_decay=0.0, fused=fused)

    def update(self, terms: Terms) -> float:
        """Take a step on the sum of `terms`; returns the sum."""
        loss = torch.stack([*terms.values()]).sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters, 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def _full(model: Any, rows: Sequence[Row], pad: int, layers: Collection[int]) -> RowStates:
    """Compute logits at all positions, then select the scored ones."""
    tokens = collate(rows, pad, DEVICE)
    output = model(
        input_ids=tokens.ids,
        attention_mask=tokens.attention,
        output_hidden_states=bool(layers),
        use_cache=False,
    )
    states = {layer: output.hidden_states[layer][tokens.predicts] for layer in layers}
    logits = output.logits.float()[tokens.predicts]
    return RowStates(logits, states, Projection(None), tokens.labels, tokens.rows)


def two_steps(
    size: str, data: str, batch_size: int, precision: Precision, name: str, way: str
) -> Work:
    """The work whose memory is measured, with the start model in memory."""
    steps = Case(size, data, batch_size, precision).way(way, name)
    return lambda: [*islice(steps, 2)]


def main(words: list[str] | None = None) -> int:
    """Measure each method."""
    parser = options_of(__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--data", default="synthetic", help="a benchmark, or a folder of files")
    parser.add_argument("--batch-size", type=int, default=32, help="rows to forget a step")
    parser.add_argument("--precision", choices=[*AGREE], default="fp32")
    parser.add_argument("--methods", nargs="+", default=METHODS, help="+nll or +kl adds a term")
    options = begin(parser, words)
    arguments = (options.size, options.data, options.batch_size, options.precision)
    case = Case(*arguments)
    results: list[dict[str, Any]] = []
    for name in options.methods:
        seconds, losses = case.measured(name, options.repeats)
        median = {way: each["median"] for way, each in seconds.items()}
        # A GPU counts what is allocated; a process that reuses what it has freed needs no other.
        order, here = (two_steps, *arguments, name), options.size in QUICK or DEVICE.type == "cuda"
        apart = abs(losses["ours"] - losses["usual"]) / max(abs(losses["usual"]), 1e-9)
        result: dict[str, Any] = {
            "method": name,
            "seconds": seconds,
            "faster": median["usual"] / median["ours"],
            "overhead": median["ours"] / median["bare"] - 1 if "bare" in median else None,
            "losses_apart": apart,
            "peak_bytes": {way: peak_bytes(*order, way, here=here) for way in WAYS[:2]},
        }
        results.append(result)
    parameters = sum(p.numel() for p in case.model.parameters())
    agree = all(each["losses_apart"] < AGREE[options.precision] for each in results)
    return end(options, agree, parameters=parameters, results=results)


if __name__ == "__main__":
    sys.exit(main())
