"""Prepare the base model, the start model and the retain models, each once.

A model is written into a temporary folder, which is then renamed. So the model's folder is complete
or missing, and never half written. A lock keeps two processes from training the same model.
Checkpoints of the training of `<name>` are in `.<name>.training` in the same place.
"""

import json
import math
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
from unlearnbench.config.schema import ModelSettings
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
from unlearnbench.runs.model_sources import PREPARED_FILE, ModelSources, is_prepared
from unlearnbench.runs.row_warnings import cut_warning
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings, reseed
from unlearnbench.training.trainer import FineTuning, Trainer


@dataclass(frozen=True)
class _Preparation:
    """What it takes to prepare one model.

    Attributes:
        make: Makes the model before its first step. It is called once more if a checkpoint does not
            fit, or if the trained weights are sharded and have to be put together.
        tokenizer: The model's tokenizer.
        rows: The rows that it is trained on. If there are none, the model is kept as it was made.
        epochs: Number of epochs.
        warns_of_cut_rows: Whether to warn of rows that are cut. Only the start model does, because
            its rows contain those of all retain models.
    """

    make: Callable[[], Any]
    tokenizer: Any
    rows: Sequence[Question]
    epochs: int
    warns_of_cut_rows: bool = False


@dataclass(frozen=True)
class ModelPreparer:
    """Trains the models of `sources` that are not given.

    Attributes:
        sources: The models.
        parallel: How several processes train one model.
        storage: Receives copies of the checkpoints.
    """

    sources: ModelSources
    parallel: Literal["fsdp", "ddp"] = "ddp"
    storage: Storage = NO_STORAGE

    def ensure_prepared(self, name: str) -> None:
        """Prepare a model, unless it exists or is given. Collective.

        Args:
            name: `base` for the tiny base model, `full` for the start model, or a retain model's
                name, such as `retain90`. For `base`, nothing happens if the base is not tiny.
        """
        if self.sources.is_tiny:
            self.prepare("base")
        if name != "base" and self.sources.published(name) is None:
            self.prepare(name)

    def prepare(self, name: str) -> None:
        """Train a model, unless its folder exists. Collective.

        Args:
            name: `base` for the tiny base model, which learns true facts and unrelated authors. For
                any other name, the base model is fine-tuned on the rows of this name.
        """
        folder = self.sources.folder(name)
        checkpoints = Checkpoints(folder.with_name(f".{folder.name}.training"), self.storage)

        def build() -> tuple[Any, Any]:
            preparation = self._base() if name == "base" else self._fine_tuning(name)
            # A benchmark may have no unrelated rows. Its tiny base keeps its random weights.
            if preparation.rows:
                model = self._train(preparation, checkpoints)
            else:
                model = preparation.make()
            # Only the main process writes the model.
            if is_main_process() and hasattr(model, "merge_and_unload"):
                model = merged(model)
            return model, preparation.tokenizer

        prepared(folder, build, checkpoints)

    def _base(self) -> _Preparation:
        """Return the preparation of the tiny base model, with its new tokenizer."""
        settings = self.sources.settings
        tokenizer = build_tokenizer(self.sources.text(), settings.architecture.vocabulary)
        seed = settings.preparation.seed
        return _Preparation(
            make=partial(build_model, settings.architecture, tokenizer, seed),
            tokenizer=tokenizer,
            rows=self.sources.base_rows(),
            epochs=settings.preparation.base_epochs,
        )

    def _fine_tuning(self, name: str) -> _Preparation:
        """Return the preparation of the start model or of a retain model."""
        sources = self.sources
        settings = sources.settings
        if sources.is_tiny:
            self.prepare("base")

        def load_base() -> Any:
            # New adapters have random weights.
            reseed(settings.preparation.seed)
            return load_model(sources.base(), settings, train=True)

        return _Preparation(
            make=load_base,
            tokenizer=load_tokenizer(sources.base(), settings),
            rows=sources.tuning_rows(name),
            epochs=settings.preparation.epochs,
            warns_of_cut_rows=name == "full",
        )

    def _train(self, preparation: _Preparation, checkpoints: Checkpoints) -> Any:
        """Train a model, from its checkpoint if there is one. Collective.

        Returns:
            The model, which is complete in the main process only if it was sharded.
        """
        last = preparation.epochs
        trainer, done = checkpoints.resumed(lambda: self._trainer(preparation), last)
        for epoch in range(done + 1, last + 1):
            begin = time.monotonic()
            for _ in trainer.epoch(epoch):
                pass
            if epoch < last:
                checkpoints.epoch_ended(trainer, epoch, time.monotonic() - begin)
        return gather_to_main(trainer.accelerator.unwrap_model(trainer.model), preparation.make)

    def _trainer(self, preparation: _Preparation) -> Trainer:
        """Make the model and a trainer that fine-tunes it in place.

        Raises:
            DataError: An answer consists of control tokens alone.
            ModelError: The tokenizer does not fit the model, or a row is too long for it.
        """
        settings = self.sources.settings
        questions = preparation.rows
        tokenizer = preparation.tokenizer
        model = preparation.make()
        quiet_transformers()
        check_vocabulary(model, tokenizer)
        encoder = Encoder(
            tokenizer,
            template_of(settings, tokenizer),
            settings.preparation.max_length,
            eos_as_padding=settings.eos_as_padding,
        )
        control = ControlText.of(tokenizer)
        for question in questions:
            control.check_answers(question)
        rows = [encoder.row(question) for question in questions]
        check_context(model, rows, questions, "models.preparation.max_length")
        if preparation.warns_of_cut_rows:
            warning = cut_warning(settings.name, rows, questions, encoder, "preparation.max_length")
            if warning is not None:
                warn_later(warning)
        optimisation = self._optimisation(model, len(rows), preparation.epochs)
        training_rows = TrainingRows(retain=rows)
        objective = Objective(FineTuning())
        return Trainer(model, objective, training_rows, optimisation, pad_id(tokenizer))

    def _optimisation(self, model: Any, row_count: int, epochs: int) -> TrainerSettings:
        """Return the settings of the optimiser steps."""
        settings = self.sources.settings.preparation
        step_count = epochs * math.ceil(row_count / settings.batch_size)
        warmup_steps = round(settings.warmup * step_count)
        # The settings' dtype would not do: the tiny base, which models of all types start from, is
        # in float32. A model of float16 is not trained.
        is_bfloat16 = model.dtype.itemsize == 2
        # Muon's update needs the whole matrix of a weight.
        parallel = self.parallel if settings.optimizer == "adamw" else "ddp"
        return TrainerSettings(
            epochs=epochs,
            batch_size=settings.batch_size,
            micro_batch_size=settings.micro_batch_size,
            learning_rate=settings.learning_rate,
            seed=settings.seed,
            optimizer=settings.optimizer,
            embedding_learning_rate=settings.embedding_learning_rate,
            schedule=settings.schedule,
            # The schedule `tofu` has a warm-up of its own.
            warmup_steps=0 if settings.schedule == "tofu" else warmup_steps,
            weight_decay=settings.weight_decay,
            decay_norms_and_biases=settings.decay_norms_and_biases,
            max_grad_norm=settings.max_grad_norm,
            precision="bf16" if is_bfloat16 else settings.precision,
            parallel=parallel,
        )


def prepared(
    folder: Path, build: Callable[[], tuple[Any, Any]], checkpoints: Checkpoints | None = None
) -> None:
    """Write a new model and its tokenizer into a folder, unless they exist. Collective.

    Args:
        folder: The folder.
        build: Returns the model and the tokenizer. Every process calls it, and the main process
            writes what it returns.
        checkpoints: Checkpoints of `build`, which are removed at the end.
    """
    if broadcast_from_main(lambda: is_prepared(folder)):
        return
    lock_file = folder.with_name(f".{folder.name}.lock")
    # The other processes of the group wait for the main process at the next collective operation.
    lock = exclusive_lock(lock_file) if is_main_process() else nullcontext()
    with lock:
        # Another sweep may have prepared the model while this one waited for the lock.
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
    """Write a model, its tokenizer, and how long the preparation took."""
    with atomic_folder(folder) as part:
        model.save_pretrained(part)
        tokenizer.save_pretrained(part)
        (part / PREPARED_FILE).write_text(json.dumps({"seconds": round(seconds, 3)}))
        # A folder of this name that is no complete model, such as another program's, makes room.
        if folder.exists():
            shutil.rmtree(folder)


@dataclass(frozen=True)
class PlannedModel:
    """A model that a plan prepares before its runs.

    Attributes:
        model: Name of its settings.
        target: `base`, `full`, or a retain model's name, such as `retain90`.
        label: What it is, for the display.
        rows: Number of rows that it is trained on.
        epochs: Number of epochs.
        is_tiny: Whether its base is built here.
        done: Whether the cache has the model. Always False if the base is not built here: the name
            of the model's folder then contains the hash of the base's weights, and to hash them
            would be to read gigabytes.
    """

    model: str
    target: str
    label: str
    rows: int
    epochs: int
    is_tiny: bool
    done: bool

    @property
    def title(self) -> str:
        """Name and training in one line."""
        work = f"{self.epochs} epochs of {self.rows} rows" if self.rows else "random weights"
        return f"{self.model}: {self.label}, {work}"


def planned_models(plan: Plan, benchmark: Dataset) -> Iterator[PlannedModel]:
    """Yield the models to prepare that runs start from or are compared with, in order."""
    for settings in plan.config.models:
        sources = ModelSources(settings, benchmark, plan.config.cache_folder)
        is_tiny = sources.is_tiny
        if is_tiny:
            yield PlannedModel(
                model=settings.name,
                target="base",
                label="tiny base model",
                rows=len(sources.base_rows()),
                epochs=settings.preparation.base_epochs,
                is_tiny=True,
                done=is_prepared(sources.folder("base")),
            )
        for target, label in _labels_of_targets(plan, settings).items():
            yield PlannedModel(
                model=settings.name,
                target=target,
                label=label,
                rows=len(sources.tuning_rows(target)),
                epochs=settings.preparation.epochs,
                is_tiny=is_tiny,
                done=is_tiny and is_prepared(sources.folder(target)),
            )


def _labels_of_targets(plan: Plan, settings: ModelSettings) -> dict[str, str]:
    """Return the start and retain models to fine-tune, each with its label."""
    labels: dict[str, str] = {}
    if settings.fine_tuned is None:
        labels["full"] = "start model, on all rows"
    if "retain" not in plan.config.references:
        return labels
    for run in plan.runs:
        if run.model.name != settings.name:
            continue
        name = split_name("retain", run.forget_fraction)
        if name not in settings.retain:
            labels[name] = f"retain model {name}"
    return labels
