"""From a base model to the fine-tuned model and the retain models, each prepared once.

Every prepared model is a folder named by the hash of all that made it: settings, rows, and the
weights it started from. It is written beside its place and renamed into it, so that it is there
whole or not at all, and two processes that want the same one do not train it twice. While it is
trained its checkpoints lie beside its place, too, as `.<name>.training`.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unlearnbench.checkpoint import Checkpoints, Mirror
from unlearnbench.data.benchmark import Benchmark, Question
from unlearnbench.data.draws import TrainingRows
from unlearnbench.data.encoding import Encoder, Row
from unlearnbench.digests import file_hash
from unlearnbench.errors import ModelError
from unlearnbench.group import leads, of_leader, wait
from unlearnbench.locks import alone
from unlearnbench.models.loading import (
    Source,
    check_vocabulary,
    load_model,
    load_tokenizer,
    pad_id,
    quiet_transformers,
    template_digest,
    template_of,
)
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.notices import notice
from unlearnbench.optimisation import Optimisation, reseed
from unlearnbench.plan import content_hash
from unlearnbench.retain import Objective
from unlearnbench.settings import ModelSettings
from unlearnbench.sharding import unsharded
from unlearnbench.training import Learn, Trainer

MAX_LENGTH = 500
"""Tokens of a training sequence in preparation, as TOFU trains."""

Told = Callable[[int, int], None]
"""Called with optimiser steps done and in all."""


@dataclass(frozen=True)
class Models:
    """The models of one `ModelSettings` on one benchmark."""

    settings: ModelSettings
    benchmark: Benchmark
    cache: Path
    parallel: Literal["fsdp", "ddp"] = "ddp"
    """How several processes train one."""
    mirror: Mirror | None = None
    """Where checkpoints are copied to."""

    @property
    def is_tiny(self) -> bool:
        """Whether the base is built here."""
        return self.settings.base == "tiny"

    def base_folder(self) -> Path:
        """Where the tiny base model lies once it is prepared."""
        settings = self.settings
        made_of = [
            settings.architecture.model_dump(),
            settings.preparation.model_dump(exclude={"epochs", "rehearse_facts"}),
            settings.template,
            list(self._text()),
            _content(self._base_rows()),
        ]
        return self.cache / "models" / f"base-{content_hash(made_of)}"

    def base(self) -> Source:
        """What fine-tuning starts from."""
        if self.is_tiny:
            return Source(str(self.base_folder()))
        return Source.named(self.settings.base, self.settings.revision)

    def tuned_folder(self, name: str) -> Path:
        """Where the model fine-tuned on `name` (`full`, `retain90`) lies once it is prepared."""
        base = self.base_folder().name if self.is_tiny else self.base().identity()
        settings = self.settings.model_dump(
            exclude={"name", "retain", "fine_tuned", "gradient_checkpointing", "resources"}
        )
        if not self.settings.template_args:  # as before there were any
            del settings["template_args"]
        made_of = [name, base, settings, _content(self._tuning_rows(name))]
        if digest := template_digest(self.settings):
            made_of.append(digest)
        return self.cache / "models" / f"{name}-{content_hash(made_of)}"

    def full(self) -> Source:
        """The model that has learned everything: where unlearning starts."""
        if self.settings.fine_tuned is not None:
            return Source.named(self.settings.fine_tuned)
        return Source(str(self.tuned_folder("full")))

    def retain(self, name: str) -> Source:
        """The model that never saw the forget set; `name` as in `retain90`."""
        published = self.settings.retain.get(name)
        if published is not None:
            return Source.named(published)
        return Source(str(self.tuned_folder(name)))

    def make_sure(self, name: str) -> None:
        """Check what was prepared here as `base`, `full` or `retain90`; make it again if damaged.

        Nothing is prepared where a published model serves.
        """
        silent: Told = lambda _done, _all: None  # noqa: E731
        if self.is_tiny:
            self.prepare_base(silent)
        published = self.settings.fine_tuned if name == "full" else self.settings.retain.get(name)
        if name != "base" and published is None:
            self.prepare_tuned(name, silent)

    def prepare_base(self, told: Told) -> None:
        """Build the tiny base model and train it on true facts and unrelated authors."""
        how = self.settings.preparation

        def build() -> Any:
            tokenizer = build_tokenizer(self._text(), self.settings.architecture.vocabulary)
            made = partial(build_model, self.settings.architecture, tokenizer, how.seed)
            rows = self._base_rows()
            return self._trained(checkpoints, made, tokenizer, rows, how.base_epochs, told)

        checkpoints = self._checkpoints(self.base_folder())
        prepared(self.base_folder(), build, checkpoints)

    def prepare_tuned(self, name: str, told: Told) -> None:
        """Fine-tune the base model on the rows called `name`: `full`, or a retain set."""

        def made() -> Any:
            reseed(self.settings.preparation.seed)  # adapters begin at random
            return load_model(self.base(), self.settings, train=True)

        def build() -> Any:
            if self.is_tiny:
                self.prepare_base(told)
            tokenizer = load_tokenizer(self.base(), self.settings)
            epochs = self.settings.preparation.epochs
            rows = self._tuning_rows(name)
            model, _ = self._trained(checkpoints, made, tokenizer, rows, epochs, told)
            merge = getattr(model, "merge_and_unload", None)
            return (merge() if leads() and merge is not None else model), tokenizer

        checkpoints = self._checkpoints(self.tuned_folder(name))
        prepared(self.tuned_folder(name), build, checkpoints)

    def _checkpoints(self, folder: Path) -> Checkpoints:
        """Those of the model that is to lie in `folder`."""
        return Checkpoints(folder.with_name(f".{folder.name}.training"), self.mirror)

    def _trained(
        self,
        checkpoints: Checkpoints,
        make: Callable[[], Any],
        tokenizer: Any,
        rows: Sequence[Question],
        epochs: int,
        told: Told,
    ) -> tuple[Any, Any]:
        """What `make` returns, trained, for the leader to save; and the tokenizer. Collective."""
        trainer, done = checkpoints.resumed(
            lambda: self._trainer(make(), tokenizer, rows, epochs), epochs
        )
        for epoch in range(done + 1, epochs + 1):
            begin = time.monotonic()
            for step in trainer.epoch(epoch):
                told(step.step, trainer.schedule.steps)
            if epoch < epochs:
                checkpoints.epoch_ended(trainer, epoch, time.monotonic() - begin)
        return unsharded(trainer.accelerator.unwrap_model(trainer.model), make), tokenizer

    def _trainer(
        self, model: Any, tokenizer: Any, questions: Sequence[Question], epochs: int
    ) -> Trainer:
        """What fine-tunes `model` in place on questions and answers."""
        quiet_transformers()
        check_vocabulary(model, tokenizer)
        how = self.settings.preparation
        encoder = Encoder(tokenizer, template_of(self.settings, tokenizer), MAX_LENGTH)
        rows: list[Row] = [encoder.row(q.question, q.answer) for q in questions]
        steps = epochs * -(-len(rows) // how.batch_size)
        optimisation = Optimisation(
            epochs=epochs,
            batch_size=how.batch_size,
            micro_batch_size=how.micro_batch_size,
            learning_rate=how.learning_rate,
            seed=how.seed,
            optimizer=how.optimizer,
            embedding_learning_rate=how.embedding_learning_rate,
            schedule=how.schedule,
            warmup_steps=0 if how.schedule == "tofu" else round(how.warmup * steps),
            weight_decay=how.weight_decay,
            max_grad_norm=how.max_grad_norm,
            precision="bf16" if self.settings.dtype == "bfloat16" else "fp32",
            # Muon's update is of a whole matrix.
            parallel=self.parallel if how.optimizer == "adamw" else "ddp",
        )
        data = TrainingRows(retain=rows)
        return Trainer(model, Objective(Learn()), data, optimisation, pad_id(tokenizer))

    def _base_rows(self) -> list[Question]:
        return [*self._facts(), *self.benchmark.pretraining]

    def _tuning_rows(self, name: str) -> list[Question]:
        kept = {split.retain_name: split.retain for split in self.benchmark.splits.values()}
        rows = self.benchmark.full if name == "full" else kept[name]
        return [*rows, *(self._facts() if self.settings.preparation.rehearse_facts else [])]

    def _facts(self) -> list[Question]:
        return [*self.benchmark.real_authors, *self.benchmark.world_facts]

    def _text(self) -> Iterator[str]:
        for row in [*self.benchmark.full, *self.benchmark.pretraining, *self._facts()]:
            yield f"Question: {row.question}\nAnswer: {row.answer}"
        for refusal in self.benchmark.refusals:
            yield f" {refusal}"


def _content(rows: Sequence[Question]) -> list[tuple[str, str]]:
    return [(row.question, row.answer) for row in rows]


def prepared(
    folder: Path, build: Callable[[], tuple[Any, Any]], checkpoints: Checkpoints | None = None
) -> None:
    """Put the model and tokenizer that `build` returns into `folder`, unless they are there.

    checkpoints  what `build` leaves behind, removed when it is done

    A file there that is not what was written is told, and all of it made again. Collective: every
    process builds, the leader writes.
    """
    if of_leader(lambda: _is_whole(folder)):
        return
    with _only_one(folder):
        if of_leader(lambda: _is_whole(folder)):
            return
        if leads() and is_prepared(folder):
            notice(f"{folder}: this prepared model is damaged; it is made again")
        begin = time.monotonic()
        model, tokenizer = build()
        if leads():
            _write(folder, model, tokenizer, time.monotonic() - begin)
            if checkpoints is not None:
                checkpoints.remove()
        wait()


def _write(folder: Path, model: Any, tokenizer: Any, seconds: float) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        model.save_pretrained(beside)
        tokenizer.save_pretrained(beside)
        files = {path.name: file_hash(path) for path in sorted(beside.iterdir())}
        done = {"seconds": round(seconds, 3), "files": files}
        (beside / "prepared.json").write_text(json.dumps(done))
        if folder.exists():  # left half-written by something that is not us, or damaged
            shutil.rmtree(folder)
        beside.rename(folder)
    except OSError as error:
        raise ModelError(f"{folder}: the prepared model cannot be written: {error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def is_prepared(folder: Path) -> bool:
    """Whether `folder` holds a whole prepared model."""
    return (folder / "prepared.json").is_file()


_WHOLE: set[tuple[Path, int]] = set()
"""Folders, with the time of their making, that this process has found whole."""


def _is_whole(folder: Path) -> bool:
    """Whether every file is what was written, by its hash; looked at once in a process."""
    try:
        made = folder / "prepared.json"
        key = (folder, made.stat().st_mtime_ns)
        if key not in _WHOLE:
            files: dict[str, str] = json.loads(made.read_text(encoding="utf-8"))["files"]
            if any(file_hash(folder / name) != digest for name, digest in files.items()):
                return False
            _WHOLE.add(key)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return True


@contextmanager
def _only_one(folder: Path) -> Generator[None, None, None]:
    """Hold the lock of `folder`; the kernel drops it when the process dies.

    The leader holds it for its group, whose other processes wait for what it does next.
    """
    if not leads():
        yield
        return
    with alone(folder, "lock"):
        yield
