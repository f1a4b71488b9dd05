"""`unlearnbench bench step`: an optimiser step of a method against the usual way of writing it.

The usual way: a forward pass for each part of the batch, padded; logits at every position; losses
from library functions over full matrices; and, where the method compares with the frozen start
model, that model in memory and run at every step. A third, bare loop does our computation on
tokens packed beforehand and records nothing; the difference is the overhead of the harness.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache, partial
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api import registry
from unlearnbench.api.method import Method
from unlearnbench.bench.measured_models import random_model
from unlearnbench.bench.measurement import PrintLine, ResultTable, circumstances, now, size_of
from unlearnbench.bench.peak_in_process import Work, peak_in_process
from unlearnbench.bench.training_loops import RATE, bare, usual
from unlearnbench.config.schema import RetainSpec
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.data.encoding import TEMPLATES, Encoder
from unlearnbench.data.epoch_order import Item, TrainingRows, training_rows
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.evaluate_model import data_settings
from unlearnbench.models.loading import pad_id, quiet_transformers
from unlearnbench.training.micro_batches import MicroBatches
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import ReferenceParts, load_references
from unlearnbench.training.trainer import Trainer

WAYS = ("usual", "ours", "bare")
EPOCHS = 20
AGREE = 1e-3
"""Largest relative difference of the first losses in fp32 that rounding explains."""


@dataclass(frozen=True)
class StepSettings:
    """The options of the benchmark, stored in its record."""

    size: str
    data: str
    methods: tuple[str, ...]
    """Names, with an optional retain term: `npo+nll`."""
    batch_size: int
    repeats: int


def objective_of(name: str) -> Objective:
    """The method and retain term in `npo+nll`, with default hyper-parameters."""
    method, _, term = name.partition("+")
    if term not in ("", "nll", "kl"):
        raise EvaluationError(f"--methods {name}: a retain term is nll or kl, got {term}")
    spec = RetainSpec(term=term, weight=1.0) if term else None  # type: ignore[arg-type]
    instance = registry.load_method(method)()
    if not isinstance(instance, Method):
        raise EvaluationError(f"--methods {name}: it trains nothing, so it has no step to measure")
    return Objective(instance, spec)


def bench_step(settings: StepSettings, print_line: PrintLine) -> dict[str, Any]:
    """Measure every method, the ways in turn; returns the result, ready for JSON."""
    quiet_transformers()
    bench = StepBench(settings.size, settings.data, settings.batch_size)
    parameters = sum(p.numel() for p in bench.model.parameters())
    print_line(f"{settings.size}: {parameters / 1e6:.3g}M parameters")
    results: list[dict[str, Any]] = []
    for name in settings.methods:
        seconds, losses = bench.measured(name, settings.repeats)
        medians = {way: statistics.median(values) for way, values in seconds.items()}
        how = asdict(settings) | {"name": name}
        result = {
            "method": name,
            "seconds": seconds,
            "median_seconds": medians,
            "ratio": medians["usual"] / medians["ours"],
            "overhead": medians["ours"] / medians["bare"] - 1 if "bare" in medians else None,
            "first_loss": losses,
            "losses_apart": abs(losses["ours"] - losses["usual"]) / max(abs(losses["usual"]), 1e-9),
            "peak_bytes": {w: peak_in_process(steps_of, how | {"way": w}) for w in WAYS[:2]},
        }
        results.append(result)
        print_line(f"  {name}: {result['ratio']:.2f}×")
    return {
        "bench": "step",
        **circumstances(),
        "settings": asdict(settings),
        "parameters": parameters,
        "model_bytes": sum(p.nbytes for p in bench.model.parameters()),
        "results": results,
    }


def steps_of(how: Mapping[str, Any]) -> Work:
    """Prepare the work whose memory is measured: two steps, with the start model in memory."""
    bench = StepBench(how["size"], how["data"], how["batch_size"])
    # References are computed beforehand: in a sweep they are on disk.
    way = bench.way(how["way"], how["name"])
    return bench.model.device, lambda: [*islice(way(), 2)]


class StepBench:
    """The start model, the rows, and the ways of training on them."""

    def __init__(self, size: str, data: str, batch_size: int) -> None:
        self.batch_size = batch_size
        self.benchmark = load_benchmark(data_settings(data), (0.1,))
        text = [f"Question: {q.question}\nAnswer: {q.answer}" for q in self.benchmark.full]
        self.model, self.tokenizer = random_model(size, "float32", text)
        self.model.to("cuda" if torch.cuda.is_available() else "cpu")
        self.pad = pad_id(self.tokenizer)
        encoder = Encoder(self.tokenizer, TEMPLATES["plain"], MAX_LENGTH)
        self.rows = cache(partial(training_rows, self.benchmark, 0.1, encoder))
        """By the answer tokens that the loss does not see."""

    def measured(self, name: str, repeats: int) -> tuple[dict[str, list[float]], dict[str, float]]:
        """Seconds of the steps, the ways in turn, and each way's first loss."""
        device = self.model.device
        # The statistics of a whole step are computed before it; the bare loop has no such pass.
        ways = WAYS[:2] if objective_of(name).needs.statistics else WAYS
        running = {way: self.way(way, name)() for way in ways}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        losses: dict[str, float] = {}
        for turn in range(repeats + 1):  # the first is warm-up
            for way, steps in running.items():
                if way == "bare":
                    next(steps)  # gets the next batch ready
                begin = now(device)
                loss = next(steps)
                if turn:
                    seconds[way].append(now(device) - begin)
                else:
                    losses[way] = loss
        return seconds, losses

    def way(self, way: str, name: str) -> Callable[[], Iterator[float]]:
        """Return a function that starts training one way and yields the loss of each step."""
        objective = objective_of(name)
        if objective.needs.samples or objective.needs.alternatives:
            raise EvaluationError(
                f"--methods {name}: it generates text, which takes longer than its steps; "
                "no usual way is implemented to compare with"
            )
        rows = self.rows(objective.method.ignore_first_answer_tokens)
        if way == "usual":
            return lambda: usual(
                self.model, objective, self._draws(objective, rows), rows, self.pad
            )
        references = self._references(objective, rows)
        if way == "ours":
            return lambda: self._ours(objective, rows, references)
        ours = MicroBatches(self.model, rows, objective.needs, self.pad, references)
        return lambda: bare(self.model, objective, self._draws(objective, rows), ours)

    def _draws(self, objective: Objective, rows: TrainingRows) -> Iterator[Sequence[Item]]:
        """The batches of the first epochs, as `Trainer` draws them."""
        for epoch in range(1, EPOCHS):
            draws = rows.items(objective.needs, 0, epoch)
            for begin in range(0, len(draws), self.batch_size):
                yield draws[begin : begin + self.batch_size]

    def _references(self, objective: Objective, rows: TrainingRows) -> ReferenceParts:
        with tempfile.TemporaryDirectory(prefix="unlearnbench-") as folder:
            return load_references(
                lambda: self.model,
                "start",
                rows,
                objective.needs,
                seed=0,
                epochs=EPOCHS,
                pad=self.pad,
                folder=Path(folder),
            )

    def _ours(
        self, objective: Objective, rows: TrainingRows, references: ReferenceParts
    ) -> Iterator[float]:
        how = TrainerSettings(EPOCHS, self.batch_size, RATE, seed=0)
        model = copy.deepcopy(self.model)
        trainer = Trainer(model, objective, rows, how, self.pad, references)
        for epoch in range(1, EPOCHS):
            for step in trainer.epoch(epoch):
                yield step.loss


def tables(result: dict[str, Any]) -> tuple[ResultTable, ...]:
    """Seconds and memory by method."""
    columns = ("method", "usual", "ours", "faster", "overhead", "memory, usual", "ours", "losses")
    rows: list[tuple[str, ...]] = []
    for each in result["results"]:
        seconds, peaks, apart = each["median_seconds"], each["peak_bytes"], each["losses_apart"]
        rows.append(
            (
                each["method"],
                f"{seconds['usual']:.3g} s",
                f"{seconds['ours']:.3g} s",
                f"{each['ratio']:.2f}×",
                "-" if each["overhead"] is None else f"{each['overhead']:.1%}",
                size_of(peaks["usual"]),
                size_of(peaks["ours"]),
                f"agree to {apart:.0e}" if apart < AGREE else f"DIFFER by {apart:.0e}",
            )
        )
    title = (
        f"{result['parameters'] / 1e6:.3g}M parameters ({size_of(result['model_bytes'])}), "
        f"{result['settings']['batch_size']} forget rows a step"
    )
    return (ResultTable(columns, rows, title),)
