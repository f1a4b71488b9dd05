"""Prerequisites of runs, each done once: prepared models, and the evaluations of the start model
and, per split, of the retain model.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from unlearnbench.api.benchmark import SplitKey, split_name
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import barrier, broadcast_from_main, is_main_process
from unlearnbench.base.provenance import provenance
from unlearnbench.config.plan import PreparationTask, RunSpec
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.evaluation.logs import read_log
from unlearnbench.evaluation.precision import check_precision
from unlearnbench.evaluation.privacy_control import control_warning
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.start_check import KEY as START_CHECK
from unlearnbench.evaluation.start_check import StartCheck, Trained
from unlearnbench.evaluation.word_check import uncounted_entry
from unlearnbench.models.device import deterministic, use_device
from unlearnbench.models.limits import check_vocabulary
from unlearnbench.models.loading import load_model
from unlearnbench.models.lora_check import check_targets
from unlearnbench.models.named_models import is_log
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.models.rows_loading import fingerprint
from unlearnbench.models.source import Source
from unlearnbench.results.records import EpochResult, Record, read_record, write_record
from unlearnbench.runs.attack_model import results_under
from unlearnbench.runs.baselines import START, ComparedWith
from unlearnbench.runs.prepared_models import is_prepared
from unlearnbench.runs.training_warnings import usual_preparation_rate, weights_of
from unlearnbench.runs.workspace import Workspace, clear_workspaces, workspace


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
    models, references = space.models(name), space.config.references
    tasks: list[PreparationTask] = []

    def add(label: str, after: tuple[str, ...], *target: Any) -> str:
        task = PreparationTask(f"{name}: {label}", after, name, *target)
        tasks.append(replace(task, done=_is_done(space, task)))
        return task.id

    base = (add("base model", (), "base"),) if models.is_tiny else ()
    full = base
    if models.settings.fine_tuned is None:
        full = (add("start model", base, "full"),)
    # Models before evaluations: two that train side by side leave none to train alone at the end.
    ready: dict[SplitKey, tuple[str, ...]] = {}
    scored = full if "start_loss" in space.metrics.extra else ()
    for fraction in fractions:
        retain = split_name("retain", fraction)
        ready[fraction] = base
        if "retain" in references and retain not in models.settings.retain:
            ready[fraction] = (add(f"{retain} model", base, retain),)
    for fraction in fractions:
        after: tuple[str, ...] = full
        retain, forget = split_name("retain", fraction), split_name("forget", fraction)
        attacked = "retain" in references and not is_log(models.target(retain).place)
        if "retain" in references:
            after += (add(f"evaluate {retain}", (*ready[fraction], *scored), retain, fraction),)
        if "start" in references:
            after += (add(f"evaluate the start model on {forget}", after, "full", fraction),)
        for attack in space.config.attacks:
            before, under = after, f"under {attack.name}"
            if attacked:
                before += (add(f"{retain} {under}", after, retain, fraction, attack.name),)
            if "start" in references:
                add(f"start model {under}", before, "full", fraction, attack.name)
    return tasks


def _place(space: Workspace, task: PreparationTask) -> Path:
    """The folder of the model that `task` prepares, or of the record that it writes."""
    if task.fraction is None:
        return space.models(task.model).folder(task.target)
    reference = task.model, task.target, task.fraction
    if task.attack:
        return space.baselines.record_folder(*reference, space.attack(task.attack))
    return space.baselines.record_folder(*reference)


def _is_done(space: Workspace, task: PreparationTask) -> bool:
    """Return whether a task is done. Raises: EvaluationError if it is of another precision."""
    folder = _place(space, task)
    if task.fraction is None:
        return is_prepared(folder) or space.storage.has(folder)
    if task.attack:
        return folder.is_dir() or space.storage.has(folder)
    if not folder.is_dir():
        return False
    settings = {
        "model": space.models(task.model).settings.model_dump(),
        "evaluation": space.config.evaluation.model_dump(),
    }
    stored = read_record(folder).precision
    device = "cuda" if space.config.resources_of(task.model).gpu else "cpu"
    wanted = precision_of_spec(settings, device)
    check_precision(f"{folder}: {task.target}", stored, "runs", wanted)
    return True


def execute_task(task: PreparationTask, config: SweepConfig, folder: Path) -> float:
    """Carry out `task` unless it is done; returns the seconds that it took. Collective."""
    begin = time.monotonic()
    use_device(config.resources_of(task.model))
    space = workspace(config, folder)
    preparer = space.preparer(task.model)
    check_targets(space.models(task.model).settings)  # no hub may have answered the plan
    space.fetch_models(task.model, *(() if task.target == "base" else (task.target,)))
    with deterministic(config.training.deterministic):
        if task.fraction is not None:
            _record(space, task, task.fraction)
        else:
            preparer.prepare(task.target)
    if is_main_process():
        space.storage.push(_place(space, task))
    return time.monotonic() - begin


def _record(space: Workspace, task: PreparationTask, fraction: SplitKey) -> None:
    """Evaluate the start model or a retain model, and write its record. Collective."""
    folder, started = _place(space, task), time.time()
    if broadcast_from_main(folder.is_dir):
        return
    space.preparer(task.model).ensure_prepared(task.target)
    evaluate = _attacked if task.attack else _evaluated
    results = evaluate(space, task, fraction)
    models, chosen = space.models(task.model), space.config.evaluation.metrics
    spec: dict[str, Any] = {
        "model": models.settings.model_dump(mode="json"),
        "target": task.target,
        "data": space.config.data.model_dump(mode="json"),
        "identity": space.baselines.identity(task.model, task.target, fraction),
    }
    if chosen:
        spec["metrics"] = chosen
    if task.attack:
        spec["attack"] = space.attack(task.attack).model_dump(mode="json")
    kind: Literal["fine-tuned", "retain"] = "fine-tuned" if task.target == "full" else "retain"
    record = Record(
        id=folder.name,
        kind=kind,
        model=task.model,
        forget_fraction=fraction,
        method=kind,
        learning_rate=None,
        seed=models.settings.preparation.seed,
        spec=spec,
        status="finished",
        profile=space.profile.id,
        provenance=provenance(
            data=fingerprint(space.benchmark, fraction),
            weights=models.target(task.target).weights(),
            commits=space.commits(task.model, task.target),
            begin=started,
        )
        | space.evaluator(task.model, fraction).padding_entry
        | uncounted_entry(space.evaluator(task.model, fraction), space.metrics)
        | _start_check_entry(space, task, fraction, results),
        **results,
    )
    if is_main_process():
        # A plain retain model is compared with nothing but itself, see `_evaluated`.
        is_alone = kind == "retain" and not task.attack
        references = () if is_alone else None
        write_record(space.with_inputs(record, space.rules.key, references), space.folder)
    barrier()


def start_check(
    config: SweepConfig, folder: Path, model: str, fraction: SplitKey
) -> StartCheck | None:
    """Return what a start model knows before any unlearning.

    Records by versions that did not measure it have the observations from which it follows, and it
    is measured now. Such a record stays as it is.

    Returns:
        None if the start model has not been evaluated.
    """
    space = workspace(config, folder)
    path = space.baselines.record_folder(model, START, fraction)
    if not path.is_dir():
        return None
    stored = StartCheck.read(read_record(path).provenance.get(START_CHECK))
    if stored is not None:
        return stored
    evaluation = space.baselines.start_evaluation(model, fraction)
    return None if evaluation is None else _measured(space, model, fraction, evaluation)


def _start_check_entry(
    space: Workspace, task: PreparationTask, fraction: SplitKey, results: Mapping[str, Any]
) -> dict[str, Any]:
    """Return what a start model knows before any unlearning, for the provenance of its record.

    Empty for a retain model, and under an attack.
    """
    if task.target != "full" or task.attack:
        return {}
    return _measured(space, task.model, fraction, results["evaluations"][0]).entry


def _measured(
    space: Workspace, model: str, fraction: SplitKey, evaluation: Evaluation
) -> StartCheck:
    """Measure what a start model knows by its plain evaluation, and that of the retain model."""
    models = space.models(model)
    weights = weights_of(models)
    usual_rate = None if weights is None else usual_preparation_rate(models, weights)
    return StartCheck.measure(
        evaluation,
        space.baselines.retain_evaluation(model, fraction),
        space.metrics,
        space.config.data.set_roles,
        Trained.of(models.settings, len(models.tuning_rows("full")), usual_rate),
        has_base=models.settings.base is not None,
    )


def _evaluated(space: Workspace, task: PreparationTask, fraction: SplitKey) -> dict[str, Any]:
    """The fields of the record of a plain evaluation."""
    begin, model = time.monotonic(), task.model
    source = space.models(model).target(task.target)
    is_start = task.target == "full"
    whole = model_evaluation(space, model, source, fraction, is_start=is_start)
    evaluation = space.kept(whole, fraction)
    retain: Evaluation | None = evaluation
    start: Evaluation | None = None
    if is_start:  # a retain model's is made before: `finalize` adds what is relative to the start
        retain, start = space.baselines.retain_evaluation(model, fraction), evaluation
    metrics = space.summary(evaluation, ComparedWith(retain, start))
    if is_start and (line := control_warning(metrics, model, fraction)):
        warn_later(line)
    if is_start and evaluation.statistics and (cut := evaluation.statistics.cut):
        warn_later(_cut_answers(space, model, fraction, cut))
    if is_start and evaluation.statistics:
        for remark in evaluation.statistics.remarks:
            warn_later(f"{model}: {remark}")
    result = EpochResult(0, metrics, 0.0, time.monotonic() - begin)
    return {
        "precision": evaluation.precision,
        "epochs": (result,),
        "evaluations": {0: evaluation},
    }


def _cut_answers(space: Workspace, model: str, fraction: SplitKey, count: int) -> str:
    """Return a line about true answers that are not scored to their end."""
    profile = space.profile
    if profile.reads_whole_context:
        return f"{model}: {count} true answers are cut at the model's context"
    encoder = space.encoder(model, profile.max_length)
    sets = evaluation_sets(space.benchmark, fraction, profile)
    longest = max(encoder.length(row) for rows in sets.values() for row in rows)
    return (
        f"{model}: {count} true answers are cut at evaluation.max_length ({profile.max_length} "
        f"tokens with the question), and the longest has {longest}: the rest is not scored"
    )


def _attacked(space: Workspace, task: PreparationTask, fraction: SplitKey) -> dict[str, Any]:
    """The fields of the record of an evaluation under an attack."""
    models, attack = space.models(task.model), space.attack(task.attack)
    quiet_transformers()
    loaded = load_model(models.target(task.target), models.settings)
    stored = read_record(space.baselines.record_folder(task.model, task.target, fraction))
    plain = stored.evaluations[0]
    results = [
        *results_under(
            attack, space, task.model, fraction, loaded, plain, epoch=0, target=task.target
        )
    ]
    return {
        "precision": plain.precision,
        "attacked": tuple(result for result, _ in results),
        "attacked_evaluations": {(0, result.variant): seen for result, seen in results},
    }


def model_evaluation(
    space: Workspace, model: str, source: Source, fraction: SplitKey, *, is_start: bool = False
) -> Evaluation:
    """Evaluate a start or retain model, or read the log that is given for it."""
    if is_log(source.place):
        return read_log(Path(source.place))
    settings = space.models(model).settings
    quiet_transformers()
    loaded = load_model(source, settings)
    check_vocabulary(loaded, space.tokenizer(model))
    evaluation = space.evaluator(model, fraction)(loaded)
    start = loaded if is_start else None
    del loaded  # free memory for the start model
    return space.with_start_losses(model, fraction, evaluation, start)
