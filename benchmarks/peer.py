"""Time a run against a plain transformers loop: python -m benchmarks.peer MODEL --data FOLDER

The plain loop is a `Trainer` whose loss is gradient difference: two padded passes a step, then the
weights in bf16, losses over full logits and batched `generate`, as open-unlearning evaluates. Ours
has the same weights, batches, rate and precision, in the same process, in turn.
"""

import gc
import itertools
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

import torch
import transformers
from torch.utils.data import DataLoader, Dataset

from unlearnbench.api import registry
from unlearnbench.api.method import Part
from unlearnbench.config.profiles import get_profile
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.batching import collate
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import Item, TrainingRows, training_rows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.runs.evaluate_model import data_settings, model_settings
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import Trainer

from .evaluation import evaluators
from .plain_evaluator import IGNORED
from .timer import DEVICE, begin, end, now, options_of, spread

RATE = 1e-5
AGREE = 1e-2
"""Largest difference of the first losses, in nats per token."""


class Batches(Dataset[Any]):
    """The steps' batches, padded when they are asked for."""

    def __init__(self, draws: Sequence[Sequence[Item]], rows: TrainingRows, pad: int) -> None:
        self.draws, self.rows, self.pad = draws, rows, pad
        self.needs = registry.load("methods", "gradient-difference").needs

    def __len__(self) -> int:
        return len(self.draws)

    def __getitem__(self, index: int) -> dict[str, dict[str, torch.Tensor]]:
        return {part: self._part(part, index) for part in ("forget", "retain")}

    def _part(self, part: Part, index: int) -> dict[str, torch.Tensor]:
        rows = self.rows.of(part, self.draws[index], self.needs)
        tokens = collate(rows, self.pad, torch.device("cpu"))
        labels = tokens.ids.masked_fill(~tokens.predicts.roll(1, dims=1), IGNORED)
        return {"input_ids": tokens.ids, "attention_mask": tokens.attention, "labels": labels}


class PlainTrainer(transformers.Trainer):
    """Gradient difference in transformers' loop."""

    first: float | None = None
    """Loss of the first step."""

    def get_train_dataloader(self) -> DataLoader[Any]:
        return DataLoader(self.train_dataset, batch_size=None)  # type: ignore[arg-type]

    def compute_loss(self, model: Any, inputs: Any, *_: Any, **__: Any) -> Any:
        forget, retain = (model(**inputs[part]).loss for part in ("forget", "retain"))
        if self.first is None:
            self.first = float(retain.detach() - forget.detach())
        return retain - forget


def main(words: list[str] | None = None) -> int:
    """Compare the first losses, then measure both."""
    parser = options_of(__doc__)
    parser.add_argument("model", help="a folder")
    parser.add_argument("--data", default="synthetic", help="a benchmark, or a folder of files")
    parser.add_argument("--forget", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rows", type=int, help="the most of a set that is evaluated")
    parser.add_argument("--checkpointing", action="store_true", help="of activations")
    options = begin(parser, words)
    source, settings = Source(options.model), model_settings(options.model, "plain", "float32")
    tokenizer, profile = load_tokenizer(source, settings), get_profile("tofu", rows=options.rows)
    benchmark, pad = (
        load_benchmark(data_settings(options.data), (options.forget,)),
        pad_id(tokenizer),
    )
    encoder = Encoder(tokenizer, TEMPLATES["plain"], MAX_LENGTH)
    rows = training_rows(benchmark, options.forget, encoder, 0)
    sets = evaluation_sets(benchmark, options.forget, profile)
    plain_evaluator, our_evaluator = evaluators(sets, tokenizer, profile, "bfloat16")
    objective = Objective(registry.load("methods", "gradient-difference")())
    how = TrainerSettings(options.epochs, options.batch_size, RATE, seed=0, precision="bf16")

    def loaded() -> Any:
        model: Any = load_model(source, settings).to(DEVICE)
        if options.checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        return model

    def usual(steps: int | None) -> tuple[float, list[float]]:
        times, model = [now()], loaded()
        with tempfile.TemporaryDirectory() as folder:
            arguments = transformers.TrainingArguments(
                folder, learning_rate=RATE, lr_scheduler_type="constant", weight_decay=0.0,
                num_train_epochs=1, bf16=True, report_to=[], save_strategy="no", disable_tqdm=True,
                logging_strategy="no", use_cpu=DEVICE.type == "cpu", optim="adamw_torch_fused",
            )  # fmt: skip
            trainer = PlainTrainer(
                model, arguments, train_dataset=Batches(draws[:steps], rows, pad)
            )
            trainer.remove_callback(transformers.PrinterCallback)
            times.append(now())
            trainer.train()
        times.append(now())
        if steps is None:
            # Without the autocast that accelerate has left around `forward`.
            model = trainer.accelerator.unwrap_model(model, keep_fp32_wrapper=False)
            plain_evaluator(model.to(torch.bfloat16).eval())
        assert trainer.first is not None
        return trainer.first, [*times, now()]

    def ours(steps: int | None) -> tuple[float, list[float]]:
        times, trainer = [now()], Trainer(loaded(), objective, rows, how, pad)
        times.append(now())
        epochs = (trainer.epoch(number) for number in range(1, options.epochs + 1))
        every = itertools.islice(itertools.chain.from_iterable(epochs), steps)
        losses = [step.loss for step in every]
        times.append(now())
        if steps is None:
            with trainer.evaluation_model() as model:
                our_evaluator(model)
        return losses[0], [*times, now()]

    schedule = how.plan_steps(len(rows.primary(objective.needs)))
    order = [item for e in range(options.epochs) for item in rows.items(objective.needs, 0, e + 1)]
    draws = [[order[at] for at in schedule.positions(step)] for step in range(schedule.steps)]
    ways = {"usual": usual, "ours": ours}
    first = {way: run(1)[0] for way, run in ways.items()}  # warms up, too
    if abs(first["usual"] - first["ours"]) > AGREE:
        return end(options, False, first_losses=first)
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    for way in [*ways] * options.repeats:
        found[way].append(ways[way](None)[1])
        gc.collect()
        if DEVICE.type == "cuda":
            torch.cuda.empty_cache()
    phases = ("start", "training", "evaluation")
    seconds = {
        way: {phase: spread(t[i + 1] - t[i] for t in each) for i, phase in enumerate(phases)}
        for way, each in found.items()
    }
    total = {way: sum(s["median"] for s in each.values()) for way, each in seconds.items()}
    faster = total["usual"] / total["ours"]
    about = {"steps": len(draws), "questions": {name: len(each) for name, each in sets.items()}}
    return end(options, True, first_losses=first, seconds=seconds, faster=faster, **about)


if __name__ == "__main__":
    sys.exit(main())
