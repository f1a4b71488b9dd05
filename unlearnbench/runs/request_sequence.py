"""Requests in sequence: each run starts from the model that the run before it has left.

A run with a successor stores its weights in the sweep's folder, as `requests/<run id>`. They are
deleted once the successor has a record.
"""

import shutil
from pathlib import Path
from typing import Any

import torch

from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.distributed import is_main_process
from unlearnbench.base.errors import ModelError
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.models.lora import merged
from unlearnbench.models.quiet_libraries import quiet_peft
from unlearnbench.models.source import Source
from unlearnbench.results.records import PROVISIONAL, read_record
from unlearnbench.runs.workspace import Workspace


def start_of(spec: RunSpec, space: Workspace) -> Source:
    """Return the model that a run starts from, which is prepared first if necessary.

    Raises:
        ModelError: The run before this one has left no model. The message has the reason.
    """
    if not spec.after:
        space.preparer(spec.model.name).ensure_prepared("full")
        return space.models(spec.model.name).full()
    folder = _model_folder(space, spec.after)
    if space.storage.fetch(folder):
        return Source(str(folder))
    raise _no_model_left(spec.after, space)


def _no_model_left(run_id: str, space: Workspace) -> ModelError:
    """Return the error that says why a run has left no model."""
    record_folder = space.record(run_id)
    space.storage.fetch(record_folder)
    names = [run_id, *(run_id + suffix for suffix in PROVISIONAL.values())]
    folders = [record_folder.with_name(name) for name in names]
    existing = [folder for folder in folders if folder.is_dir()]
    if not existing:
        return ModelError(f"the request before it is run {run_id}, which is not done: run it")
    record = read_record(existing[0])
    if record.status != "finished":
        reason = (record.error or "by the scheduler").partition("\n")[0]
        return ModelError(
            f"the request before it, run {run_id}, left no model: {record.status} ({reason})"
        )
    return ModelError(
        f"the model that run {run_id} left for it is gone, as it is once a next request is "
        "recorded: a longer sequence needs another name (--set name=…), and only the first request "
        "of one can be exported"
    )


def has_successor(spec: RunSpec, space: Workspace) -> bool:
    """Whether another run starts from the model of this run."""
    config = space.config
    return config.requests == "in-sequence" and spec.forget_fraction != config.split_keys[-1]


def leave_model(model: Any, spec: RunSpec, space: Workspace) -> None:
    """Store the model of a run for the next run. An adapter is merged into it."""
    if not is_main_process():
        return
    folder = _model_folder(space, spec.id)
    folder.parent.mkdir(exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    with atomic_folder(folder) as part:
        save_weights(model, spec, part)
    space.storage.push(folder)


def remove_model(spec: RunSpec, space: Workspace) -> None:
    """Delete the model that a run started from, once the run is recorded."""
    if spec.after and is_main_process():
        folder = _model_folder(space, spec.after)
        space.storage.remove(folder)
        shutil.rmtree(folder, ignore_errors=True)


def save_weights(
    model: Any, spec: RunSpec, to: Path, *, adapter: bool = False, dtype: str | None = None
) -> None:
    """Write a trained model.

    Args:
        model: The model, with its adapter if it has one.
        spec: Its run.
        to: The folder to write into.
        adapter: Whether to write only the adapter instead of the model that it is merged into.
        dtype: Type of the written weights, such as `bfloat16`. None: as they were trained.
    """
    if not adapter:
        if spec.model.lora is not None:
            model = merged(model)
        # Training turned the cache of keys and values off. Generation is slow without it.
        model.config.use_cache = True
    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    with quiet_peft():
        model.save_pretrained(to)


def _model_folder(space: Workspace, run_id: str) -> Path:
    return space.folder / "requests" / run_id
