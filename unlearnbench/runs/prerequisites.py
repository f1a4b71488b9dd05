"""Prerequisites of runs, each done once: prepared models, and the evaluations of the start model
and, per split, of the retain model.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from unlearnbench.api.benchmark import SplitKey, split_name, split_text
from unlearnbench.api.callbacks import ProgressCallback
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.data.loading import fingerprint
from unlearnbench.evaluation.benchmark_schema import version_entry
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.privacy_control import control_warning
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.models.device import deterministic, use_device
from unlearnbench.models.loading import (
    Source,
    check_vocabulary,
    is_log,
    load_model,
    quiet_transformers,
)
from unlearnbench.plan.preparation_task import PreparationTask
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import EpochResult, Record, read_record, write_record
from unlearnbench.runs.attack_model import results_under
from unlearnbench.runs.prepared_models import is_prepared
from unlearnbench.runs.workspace import Workspace, clear_workspaces, workspace
from unlearnbench.runtime.deferred_warnings import warn_later
from unlearnbench.runtime.distributed import barrier, broadcast_from_main, is_main_process
from unlearnbench.runtime.provenance import provenance


def preparation_tasks(
    config: SweepConfig, runs: Sequence[RunSpec], folder: Path
) -> tuple[PreparationTask, ...]:
    """Prerequisites of `runs`, each after those that it needs, by what is on disk now."""
    clear_workspaces()  # an earlier command of this process may have loaded other content
    space = workspace(config, folder)
    tasks: list[PreparationTask] = []
    for name in dict.fromkeys(run.model.name for run in runs):
        fractions = dict.fromkeys(run.forget_fraction for run in runs if run.model.name == name)
        tasks += _model_tasks(space, name, list(fractions))
    return tuple(tasks)


def _model_tasks(space: Workspace, name: str, fractions: list[SplitKey]) -> list[PreparationTask]:
    models, references = space.models(name), space.config.data.references
    tasks: list[PreparationTask] = []

    def add(
        target: str,
        label: str,
        after: tuple[str, ...],
        fraction: SplitKey | None,
        attack: AttackSpec | None = None,
    ) -> str:
        at = "" if fraction is None else f"@{split_text(fraction)}"
        key = f"{name}/{target}{at}"
        if attack is not None and fraction is not None:
            key += f" under {attack.name}"
            place = space.attack_record(name, target, fraction, attack)
            done = place.is_dir() or space.storage.has(place)
        elif fraction is None:
            folder = models.base_folder() if target == "base" else models.tuned_folder(target)
            done = is_prepared(folder) or space.storage.has(folder)
        else:
            done = _is_evaluated(space, name, target, fraction)
        under = "" if attack is None else attack.name
        tasks.append(PreparationTask(key, label, after, done, name, target, fraction, under))
        return key

    base = (add("base", f"{name}: base model", (), None),) if models.is_tiny else ()
    full = base
    if models.settings.fine_tuned is None:
        full = (add("full", f"{name}: fine-tuned model", base, None),)
    # Models before evaluations: two that train side by side leave none to train alone at the end.
    ready: dict[SplitKey, tuple[str, ...]] = {}
    scored = full if "start_loss" in space.metrics.extra else ()
    for fraction in fractions:
        retain = split_name("retain", fraction)
        ready[fraction] = base
        if "retain" in references and retain not in models.settings.retain:
            ready[fraction] = (add(retain, f"{name}: {retain} model", base, None),)
    for fraction in fractions:
        after: tuple[str, ...] = full
        retain, forget = split_name("retain", fraction), split_name("forget", fraction)
        attacked = "retain" in references and not is_log(models.target(retain).place)
        if "retain" in references:
            first = (*ready[fraction], *scored)
            after += (add(retain, f"{name}: evaluate {retain}", first, fraction),)
        if "start" in references:
            start = add("full", f"{name}: evaluate fine-tuned on {forget}", after, fraction)
            after += (start,)
        for attack in space.config.attacks:
            before = after
            if attacked:
                label = f"{name}: {retain} under {attack.name}"
                before = (*after, add(retain, label, after, fraction, attack))
            if "start" in references:
                add("full", f"{name}: fine-tuned under {attack.name}", before, fraction, attack)
    return tasks


def _is_evaluated(space: Workspace, model: str, target: str, fraction: SplitKey) -> bool:
    """Return whether there is a record. Raises: EvaluationError if it is of another precision."""
    place = space.evaluation_record(model, target, fraction)
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
    """Carry out `task` unless it is done; returns the seconds that it took. Collective."""
    begin = time.monotonic()
    use_device(config.resources_of(task.model))
    progress = _step_writer(_steps_file(task, folder))
    space = workspace(config, folder)
    models, preparer = space.models(task.model), space.preparer(task.model)
    space.fetch_models(task.model, *(() if task.target == "base" else (task.target,)))
    with deterministic(config.training.deterministic):
        if task.fraction is not None and task.attack:
            attack = next(one for one in config.attacks if one.name == task.attack)
            _record_attack(space, task.model, task.target, task.fraction, attack)
            place = space.attack_record(task.model, task.target, task.fraction, attack)
        elif task.fraction is not None:
            _record_evaluation(space, task.model, task.target, task.fraction)
            place = space.evaluation_record(task.model, task.target, task.fraction)
        elif task.target == "base":
            preparer.prepare_base(progress)
            place = models.base_folder()
        else:
            preparer.prepare_tuned(task.target, progress)
            place = models.tuned_folder(task.target)
    if is_main_process():
        space.storage.push(place)
    return time.monotonic() - begin


def task_steps(task: PreparationTask, folder: Path) -> tuple[int, int] | None:
    """Optimiser steps done and in all of a running task, on whichever machine it runs."""
    try:
        done, total = _steps_file(task, folder).read_text().split()
    except (FileNotFoundError, ValueError):  # not begun, or being written at this moment
        return None
    return int(done), int(total)


def _steps_file(task: PreparationTask, folder: Path) -> Path:
    return folder / "state" / f"{content_hash(task.id)}.steps"


def _step_writer(path: Path) -> ProgressCallback:
    """Return a callback that writes the steps into `path`, once a second at most."""
    path.parent.mkdir(parents=True, exist_ok=True)
    last = 0.0

    def write(done: int, total: int) -> None:
        nonlocal last
        if not is_main_process():
            return
        if time.monotonic() - last >= 1 or done == total:
            path.write_text(f"{done} {total}")
            last = time.monotonic()

    return write


def _record_evaluation(space: Workspace, model: str, target: str, fraction: SplitKey) -> None:
    """Evaluate the start model or a retain model, and write its record."""
    place = space.evaluation_record(model, target, fraction)
    if broadcast_from_main(place.is_dir):
        return
    begin, started = time.monotonic(), time.time()
    models = space.models(model)
    space.preparer(model).ensure_prepared(target)
    source = models.target(target)
    evaluation = _model_evaluation(space, model, source, fraction, is_start=target == "full")
    if target == "full":
        retain, start = space.retain_evaluation(model, fraction), evaluation
    else:  # evaluated before the start model: `numbers` gives what is relative to that one
        retain, start = evaluation, None
    metrics = space.summary(evaluation, retain, start)
    if start is not None and (line := control_warning(metrics, model, fraction)):
        warn_later(line)
    if start is not None and start.statistics and (cut := start.statistics.cut):
        warn_later(f"{model}: {cut} true answers are cut at evaluation.max_length")
    seconds = time.monotonic() - begin
    _write(
        *(space, place, model, target, fraction, started),
        precision=evaluation.precision,
        epochs=(EpochResult(0, metrics, 0.0, seconds),),
        evaluations={0: evaluation},
    )


def _record_attack(
    space: Workspace, model: str, target: str, fraction: SplitKey, attack: AttackSpec
) -> None:
    """Evaluate the start model or a retain model under an attack, and write its record."""
    place = space.attack_record(model, target, fraction, attack)
    if broadcast_from_main(place.is_dir):
        return
    started, models = time.time(), space.models(model)
    space.preparer(model).ensure_prepared(target)
    quiet_transformers()
    loaded = load_model(models.target(target), models.settings)
    plain = read_record(space.evaluation_record(model, target, fraction)).evaluations[0]
    how: Any = {"epoch": 0, "target": target}
    found = [*results_under(attack, space, model, fraction, loaded, plain, **how)]
    _write(
        *(space, place, model, target, fraction, started),
        precision=plain.precision,
        attacked=tuple(result for result, _ in found),
        attacked_evaluations={(0, result.variant): seen for result, seen in found},
        attack=attack,
    )


def _write(
    space: Workspace,
    place: Path,
    model: str,
    target: str,
    fraction: SplitKey,
    started: float,
    attack: AttackSpec | None = None,
    **found: Any,
) -> None:
    """Write the record of a start or retain model's evaluation. Collective."""
    models, chosen = space.models(model), space.config.evaluation.metrics
    spec: dict[str, Any] = {
        "model": models.settings.model_dump(mode="json"),
        "target": target,
        "data": space.config.data.model_dump(mode="json"),
        "identity": space.evaluation_identity(model, target, fraction),
    }
    if chosen:
        spec["metrics"] = chosen
    if attack is not None:
        spec["attack"] = attack.model_dump(mode="json")
    record = Record(
        id=place.name,
        kind="fine-tuned" if target == "full" else "retain",
        model=model,
        forget_fraction=fraction,
        method="fine-tuned" if target == "full" else "retain",
        learning_rate=None,
        seed=models.settings.preparation.seed,
        spec=spec,
        status="finished",
        profile=space.profile.id,
        provenance=provenance(
            data=fingerprint(space.benchmark, fraction),
            weights=models.target(target).weights(),
            commits=space.commits(model, target),
            begin=started,
        )
        | space.evaluator(model, fraction).padding_entry
        | version_entry(space.config.data, space.profile, chosen),
        **found,
    )
    if is_main_process():
        write_record(record, space.folder)
    barrier()


def _model_evaluation(
    space: Workspace, model: str, source: Source, fraction: SplitKey, *, is_start: bool = False
) -> Evaluation:
    if is_log(source.place):
        return read_log(Path(source.place))
    settings = space.models(model).settings
    quiet_transformers()
    loaded = load_model(source, settings)
    check_vocabulary(loaded, space.tokenizer(model))
    found, start = space.evaluator(model, fraction)(loaded), loaded if is_start else None
    del loaded  # there is to be memory for the start model
    return space.with_start_losses(model, fraction, found, start)
