"""What all runs wait for, each done once: models to prepare, and the models that runs are
measured against (the fine-tuned one, and per forget fraction one that never saw the forget set).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from unlearnbench.data.benchmark import split_name
from unlearnbench.data.loading import fingerprint
from unlearnbench.device import deterministic, use_device
from unlearnbench.evaluation.log import read_log
from unlearnbench.evaluation.metrics import summarize
from unlearnbench.evaluation.precision import check_precision, precision_of_spec
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.group import leads, of_leader, wait
from unlearnbench.models.loading import (
    Source,
    check_vocabulary,
    is_log,
    load_model,
    quiet_transformers,
)
from unlearnbench.plan import RunSpec, content_hash
from unlearnbench.preparation import Told, is_prepared
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, Record, read_record, write_record
from unlearnbench.settings import SweepConfig
from unlearnbench.workspace import Workspace, workspace


@dataclass(frozen=True)
class PreparationTask:
    """Something that runs wait for: a model to train, or an anchor to evaluate."""

    id: str
    label: str
    after: tuple[str, ...]
    done: bool
    model: str
    target: str
    """`base`, `full`, or the retain model's name; for anchors what is evaluated."""
    fraction: float | None = None
    """Set for evaluations: against which forget set."""


def preparation_tasks(
    config: SweepConfig, runs: Sequence[RunSpec], folder: Path
) -> tuple[PreparationTask, ...]:
    """What has to be there before `runs` can start, in an order that works."""
    space = workspace(config.model_dump_json(), folder)
    tasks: list[PreparationTask] = []
    for name in dict.fromkeys(run.model.name for run in runs):
        fractions = dict.fromkeys(run.forget_fraction for run in runs if run.model.name == name)
        tasks += _model_tasks(space, name, list(fractions))
    return tuple(tasks)


def _model_tasks(space: Workspace, name: str, fractions: list[float]) -> list[PreparationTask]:
    models = space.models(name)
    tasks: list[PreparationTask] = []

    def add(target: str, label: str, after: tuple[str, ...], fraction: float | None) -> str:
        at = "" if fraction is None else f"@{fraction:g}"
        key = f"{name}/{target}{at}"
        if fraction is None:
            folder = models.base_folder() if target == "base" else models.tuned_folder(target)
            done = is_prepared(folder) or space.storage.has(folder)
        else:
            done = _is_evaluated(space, name, target, fraction)
        tasks.append(PreparationTask(key, label, after, done, name, target, fraction))
        return key

    base = (add("base", f"{name}: base model", (), None),) if models.is_tiny else ()
    full = base
    if models.settings.fine_tuned is None:
        full = (add("full", f"{name}: fine-tuned model", base, None),)
    # Models before evaluations: two that train side by side leave none to train alone at the end.
    ready: dict[float, tuple[str, ...]] = {}
    for fraction in fractions:
        retain = split_name("retain", 1 - fraction)
        ready[fraction] = base
        if retain not in models.settings.retain:
            ready[fraction] = (add(retain, f"{name}: {retain} model", base, None),)
    for fraction in fractions:
        retain = split_name("retain", 1 - fraction)
        judged = add(retain, f"{name}: evaluate {retain}", ready[fraction], fraction)
        forget = split_name("forget", fraction)
        add("full", f"{name}: evaluate fine-tuned on {forget}", (*full, judged), fraction)
    return tasks


def _is_evaluated(space: Workspace, model: str, target: str, fraction: float) -> bool:
    """Whether the anchor is there. Raises: EvaluationError where it is of another precision."""
    place = space.record(space.anchor_id(model, target, fraction))
    if not place.is_dir():
        return False
    how = {
        "model": space.models(model).settings.model_dump(),
        "evaluation": space.config.evaluation.model_dump(),
    }
    stored = read_record(place).precision
    device = "cuda" if space.config.resources_of(model).gpu else "cpu"
    check_precision(f"{place}: {target}", stored, "runs", precision_of_spec(how, device))
    return True


def execute_task(task: PreparationTask, config: SweepConfig, folder: Path) -> float:
    """Do `task` unless it is done; returns the seconds it took. Collective."""
    begin = time.monotonic()
    use_device(config.resources_of(task.model))
    told = _teller(_steps_file(task, folder))
    space = workspace(config.model_dump_json(), folder)
    models = space.models(task.model)
    space.fetch_models(task.model, *(() if task.target == "base" else (task.target,)))
    with deterministic(config.training.deterministic):
        if task.fraction is not None:
            _evaluate_anchor(space, task.model, task.target, task.fraction)
            made = space.record(space.anchor_id(task.model, task.target, task.fraction))
        elif task.target == "base":
            models.prepare_base(told)
            made = models.base_folder()
        else:
            models.prepare_tuned(task.target, told)
            made = models.tuned_folder(task.target)
    if leads():
        space.storage.push(made)
    return time.monotonic() - begin


def task_steps(task: PreparationTask, folder: Path) -> tuple[int, int] | None:
    """Optimiser steps done and in all of a task under way, wherever its worker runs."""
    try:
        done, total = _steps_file(task, folder).read_text().split()
    except (FileNotFoundError, ValueError):  # not begun, or being written at this moment
        return None
    return int(done), int(total)


def _steps_file(task: PreparationTask, folder: Path) -> Path:
    return folder / "state" / f"{content_hash(task.id)}.steps"


def _teller(path: Path) -> Told:
    """Writes the steps into `path`, once a second at most."""
    path.parent.mkdir(parents=True, exist_ok=True)
    last = 0.0

    def tell(done: int, total: int) -> None:
        nonlocal last
        if not leads():
            return
        if time.monotonic() - last >= 1 or done == total:
            path.write_text(f"{done} {total}")
            last = time.monotonic()

    return tell


def _evaluate_anchor(space: Workspace, model: str, target: str, fraction: float) -> None:
    """Evaluate the fine-tuned or a retain model and keep it as a record."""
    key = space.anchor_id(model, target, fraction)
    if of_leader(space.record(key).is_dir):
        return
    begin, started = time.monotonic(), time.time()
    models = space.models(model)
    models.make_sure(target)
    source = models.full() if target == "full" else models.retain(target)
    evaluation = _anchor_evaluation(space, model, source, fraction)
    retain = evaluation if target != "full" else space.retain_evaluation(model, fraction)
    metrics = summarize(evaluation, retain, space.profile)
    seconds = time.monotonic() - begin
    record = Record(
        id=key,
        kind="fine-tuned" if target == "full" else "retain",
        model=model,
        forget_fraction=fraction,
        method="fine-tuned" if target == "full" else "retain",
        learning_rate=None,
        seed=models.settings.preparation.seed,
        spec={
            "model": models.settings.model_dump(mode="json"),
            "target": target,
            "identity": space.anchor_identity(model, target, fraction),
        },
        status="finished",
        profile=space.profile.id,
        precision=evaluation.precision,
        epochs=(EpochResult(0, metrics, 0.0, seconds),),
        provenance=provenance(
            data=fingerprint(space.benchmark, fraction),
            weights=source.identity(),
            commits=space.commits(model, target),
            begin=started,
        ),
        evaluations={0: evaluation},
    )
    if leads():
        write_record(record, space.folder)
    wait()


def _anchor_evaluation(space: Workspace, model: str, source: Source, fraction: float) -> Evaluation:
    if is_log(source.place):
        return read_log(Path(source.place))
    settings = space.models(model).settings
    quiet_transformers()
    loaded = load_model(source, settings)
    check_vocabulary(loaded, space.tokenizer(model))
    return space.evaluator(model, fraction)(loaded)
