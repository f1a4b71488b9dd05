"""Prepare the base model, the start model and the retain models, each once.

A prepared model is written beside its place and renamed into it, so that it is there whole or not
at all, and a lock keeps two processes from training the same one. Its checkpoints are in
`.<name>.training` beside it.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unlearnbench.api.benchmark import Dataset, Question, split_name
from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import barrier, broadcast_from_main, is_main_process
from unlearnbench.base.fsdp import gather_to_main
from unlearnbench.base.locks import exclusive_lock
from unlearnbench.config.plan import Plan
from unlearnbench.models.control_text import ControlText
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.identity_entries import template_of
from unlearnbench.models.limits import check_context, check_vocabulary, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora import merged
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.results.remote_copies import NO_STORAGE, Storage
from unlearnbench.runs.checkpoints import Checkpoints
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.row_warnings import cut_warning
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings, reseed
from unlearnbench.training.trainer import FineTuning, Trainer


@dataclass(frozen=True)
class ModelPreparer:
    """Trains the models of `sources` that are not published."""

    sources: ModelSources
    parallel: Literal["fsdp", "ddp"] = "ddp"
    """How several processes train one model."""
    storage: Storage = NO_STORAGE
    """Receives copies of the checkpoints."""

    def ensure_prepared(self, name: str) -> None:
        """Prepare `base`, `full` or `retain90` unless it is there whole, or published."""
        if self.sources.is_tiny:
            self.prepare("base")
        if name != "base" and self.sources.published(name) is None:
            self.prepare(name)

    def prepare(self, name: str) -> None:
        """Train a model: the tiny base (`base`) on true facts and unrelated authors, or the base
        model on the rows called `name`: `full`, or a retain set.
        """
        sources, settings = self.sources, self.sources.settings
        folder, preparation = sources.folder(name), settings.preparation
        checkpoints = Checkpoints(folder.with_name(f".{folder.name}.training"), self.storage)

        def start() -> Any:
            reseed(preparation.seed)  # adapters begin at random
            return load_model(sources.base(), settings, train=True)

        def build() -> Any:
            make, epochs = start, preparation.epochs
            if name == "base":
                tokenizer = build_tokenizer(sources.text(), settings.architecture.vocabulary)
                make = partial(build_model, settings.architecture, tokenizer, preparation.seed)
                rows, epochs = sources.base_rows(), preparation.base_epochs
            else:
                if sources.is_tiny:
                    self.prepare("base")
                tokenizer, rows = (
                    load_tokenizer(sources.base(), settings),
                    sources.tuning_rows(name),
                )
            if rows:
                is_start = name == "full"
                model = self._train(checkpoints, make, tokenizer, rows, epochs, is_start=is_start)
            else:  # a benchmark may have no other rows: its tiny base has random weights
                model = make()
            has_adapter = hasattr(model, "merge_and_unload")
            return (merged(model) if is_main_process() and has_adapter else model), tokenizer

        prepared(folder, build, checkpoints)

    def _train(
        self,
        checkpoints: Checkpoints,
        make: Callable[[], Any],
        tokenizer: Any,
        rows: Sequence[Question],
        epochs: int,
        *,
        is_start: bool,
    ) -> Any:
        """Train what `make` returns; returns it, whole in the main process. Collective."""
        trainer, done = checkpoints.resumed(
            lambda: self._trainer(make(), tokenizer, rows, epochs, is_start=is_start), epochs
        )
        for epoch in range(done + 1, epochs + 1):
            begin = time.monotonic()
            for _ in trainer.epoch(epoch):
                pass
            if epoch < epochs:
                checkpoints.epoch_ended(trainer, epoch, time.monotonic() - begin)
        return gather_to_main(trainer.accelerator.unwrap_model(trainer.model), make)

    def _trainer(
        self,
        model: Any,
        tokenizer: Any,
        questions: Sequence[Question],
        epochs: int,
        *,
        is_start: bool,
    ) -> Trainer:
        """Trainer that fine-tunes `model` in place on questions and answers.

        Rows that are cut are told of the start model only, which has those of retain models.
        """
        quiet_transformers()
        check_vocabulary(model, tokenizer)
        preparation = self.sources.settings.preparation
        encoder = Encoder(
            tokenizer,
            template_of(self.sources.settings, tokenizer),
            preparation.max_length,
            eos_as_padding=self.sources.settings.eos_as_padding,
        )
        control = ControlText.of(tokenizer)
        for question in questions:
            control.check_answers(question)
        rows = [encoder.row(question) for question in questions]
        check_context(model, rows, questions, "models.preparation.max_length")
        if is_start:
            where, setting = self.sources.settings.name, "preparation.max_length"
            line = cut_warning(where, rows, questions, encoder, setting)
            if line:
                warn_later(line)
        steps = epochs * -(-len(rows) // preparation.batch_size)
        # Not the settings' type: the tiny base, which all types start from, is in float32.
        half = model.dtype.itemsize == 2
        optimisation = TrainerSettings(
            epochs=epochs,
            batch_size=preparation.batch_size,
            micro_batch_size=preparation.micro_batch_size,
            learning_rate=preparation.learning_rate,
            seed=preparation.seed,
            optimizer=preparation.optimizer,
            embedding_learning_rate=preparation.embedding_learning_rate,
            schedule=preparation.schedule,
            warmup_steps=0 if preparation.schedule == "tofu" else round(preparation.warmup * steps),
            weight_decay=preparation.weight_decay,
            decay_norms_and_biases=preparation.decay_norms_and_biases,
            max_grad_norm=preparation.max_grad_norm,
            # Weights of bfloat16; those of float16 are not trained.
            precision="bf16" if half else preparation.precision,
            # Muon's update is of a whole matrix.
            parallel=self.parallel if preparation.optimizer == "adamw" else "ddp",
        )
        data = TrainingRows(retain=rows)
        return Trainer(model, Objective(FineTuning()), data, optimisation, pad_id(tokenizer))


def prepared(
    folder: Path, build: Callable[[], tuple[Any, Any]], checkpoints: Checkpoints | None = None
) -> None:
    """Put the model and tokenizer that `build` returns into `folder`, unless they are there.

    checkpoints  those of `build`, removed at the end

    Collective: every process builds, the main process writes.
    """
    if broadcast_from_main(lambda: is_prepared(folder)):
        return
    lock = folder.with_name(f".{folder.name}.lock")
    # The others wait for the main process at the next collective operation.
    with exclusive_lock(lock) if is_main_process() else nullcontext():
        if broadcast_from_main(lambda: is_prepared(folder)):
            return
        begin = time.monotonic()
        model, tokenizer = build()
        if is_main_process():
            _write(folder, model, tokenizer, time.monotonic() - begin)
            if checkpoints is not None:
                checkpoints.remove()
        barrier()


def _write(folder: Path, model: Any, tokenizer: Any, seconds: float) -> None:
    with atomic_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        (part / "prepared.json").write_text(json.dumps({"seconds": round(seconds, 3)}))
        if folder.exists():  # written by another program
            shutil.rmtree(folder)


def is_prepared(folder: Path) -> bool:
    """Return whether `folder` has a complete prepared model."""
    return (folder / "prepared.json").is_file()


@dataclass(frozen=True)
class PlannedModel:
    """A model that a plan prepares before its runs."""

    model: str
    """Name of its settings."""
    target: str
    """`base`, `full`, or a retain model's name, such as `retain90`."""
    label: str
    rows: int
    epochs: int
    is_tiny: bool
    done: bool
    """True if the cache has it; False of models that are not built here, whose folder's name has
    the hash of the base's weights: gigabytes to read."""

    @property
    def title(self) -> str:
        """Name and training on one line."""
        work = f"{self.epochs} epochs of {self.rows} rows" if self.rows else "random weights"
        return f"{self.model}: {self.label}, {work}"


def planned_models(plan: Plan, benchmark: Dataset) -> Iterator[PlannedModel]:
    """Yield the models that the runs of a plan start from or are compared with, in order."""
    for settings in plan.config.models:
        models = ModelSources(settings, benchmark, plan.config.cache_folder)
        name, tiny, preparation = settings.name, models.is_tiny, settings.preparation
        if tiny:
            rows, done = len(models.base_rows()), is_prepared(models.folder("base"))
            yield PlannedModel(
                name,
                "base",
                "tiny base model",
                rows,
                preparation.base_epochs,
                is_tiny=True,
                done=done,
            )
        labels: dict[str, str] = {}
        if settings.fine_tuned is None:
            labels["full"] = "start model, on all rows"
        if "retain" in plan.config.references:
            splits = (run.forget_fraction for run in plan.runs if run.model.name == name)
            names = dict.fromkeys(split_name("retain", split) for split in splits)
            labels |= {n: f"retain model {n}" for n in names if n not in settings.retain}
        for target, label in labels.items():
            rows = len(models.tuning_rows(target))
            done = tiny and is_prepared(models.folder(target))
            yield PlannedModel(name, target, label, rows, preparation.epochs, tiny, done)
