"""Requests in sequence: each run goes on from the model that the one before it has left.

The weights of a run with a successor stay beside the records until the successor has one.
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
    """The model that a run starts from.

    Raises: ModelError where the run before it has left none, with the reason.
    """
    if not spec.after:
        space.preparer(spec.model.name).ensure_prepared("full")
        return space.models(spec.model.name).full()
    folder, record = _folder(space, spec.after), space.record(spec.after)
    if space.storage.fetch(folder):
        return Source(str(folder))
    space.storage.fetch(record)
    places = [record.with_name(spec.after + suffix) for suffix in ("", *PROVISIONAL.values())]
    before = next((read_record(path) for path in places if path.is_dir()), None)
    if before is None:
        raise ModelError(f"the request before it is run {spec.after}, which is not done: run it")
    if before.status != "finished":
        reason = (before.error or "by the scheduler").partition("\n")[0]
        text = f"the request before it, run {spec.after}, left no model: {before.status}"
        raise ModelError(f"{text} ({reason})")
    raise ModelError(
        f"the model that run {spec.after} left for it is gone, as it is once a next request is "
        "recorded: a longer sequence needs another name (--set name=…), and only the first request "
        "of one can be exported"
    )


def has_successor(spec: RunSpec, space: Workspace) -> bool:
    """True if another run goes on from this one."""
    config = space.config
    return config.requests == "in-sequence" and spec.forget_fraction != config.split_keys[-1]


def leave_model(model: Any, spec: RunSpec, space: Workspace) -> None:
    """Store the model of a run for the next one; with an adapter it is merged for good."""
    folder = _folder(space, spec.id)
    if is_main_process():
        folder.parent.mkdir(exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)
        with atomic_folder(folder) as part:
            save_weights(model, spec, part)
        space.storage.push(folder)


def remove_model(spec: RunSpec, space: Workspace) -> None:
    """Delete the model that a run has started from, once the run is recorded."""
    if spec.after and is_main_process():
        space.storage.remove(_folder(space, spec.after))
        shutil.rmtree(_folder(space, spec.after), ignore_errors=True)


def save_weights(
    model: Any, spec: RunSpec, to: Path, *, adapter: bool = False, dtype: str | None = None
) -> None:
    """Write a trained model, with its adapter merged unless that is wanted.

    dtype  of the weights; default: as they were trained
    """
    if not adapter:
        model = merged(model) if spec.model.lora is not None else model
        model.config.use_cache = True  # which training turned off
    if dtype is not None:
        model = model.to(getattr(torch, dtype))
    with quiet_peft():
        model.save_pretrained(to)


def _folder(space: Workspace, run: str) -> Path:
    return space.folder / "requests" / run
