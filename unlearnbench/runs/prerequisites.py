"""Prerequisites of runs, each done once: prepared models, and evaluations of the baselines.

`preparation_tasks` lists them for a plan, each with the tasks that it waits for. `execute_task`
carries out one of them, in a worker of a sweep or in the process of a single run.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from unlearnbench.api.benchmark import SplitKey, split_name
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import barrier, broadcast_from_main, is_main_process
from unlearnbench.base.provenance import provenance
from unlearnbench.config.precision import precision_of_spec
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
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
from unlearnbench.runs.attack_model import metrics_under, results_under
from unlearnbench.runs.baselines import START, ComparedWith
from unlearnbench.runs.checkpoints import RunState, remove_state, state_folders
from unlearnbench.runs.model_sources import is_prepared
from unlearnbench.runs.training_warnings import usual_preparation_rate, weights_of
from unlearnbench.runs.workspace import Workspace, clear_workspaces, workspace


def preparation_tasks(
    config: SweepConfig, runs: Sequence[RunSpec], folder: Path
) -> tuple[PreparationTask, ...]:
    """Return the prerequisites of runs, each after those that it needs.

    A task is marked as done if its model or record is on the disk now.

    Args:
        config: The configuration of the sweep.
        runs: The runs that are to begin.
        folder: The sweep's folder.

    Raises:
        EvaluationError: An evaluation is recorded that was made in another precision.
    """
    clear_workspaces()  # an earlier command of this process may have loaded other content
    space = workspace(config, folder)
    tasks: list[PreparationTask] = []
    for name in dict.fromkeys(run.model.name for run in runs):
        splits = dict.fromkeys(run.forget_fraction for run in runs if run.model.name == name)
        of_model = _ModelTasks(space, name)
        of_model.add_all(list(splits))
        tasks += of_model.tasks
    return tuple(tasks)


class _ModelTasks:
    """The prerequisites of the runs of one model, in an order in which they can be done.

    Models come before evaluations. Two models that are prepared side by side then leave none to be
    prepared while the machine has nothing else to do.
    """

    def __init__(self, space: Workspace, name: str) -> None:
        self._space = space
        self._name = name
        self._models = space.models(name)
        self._has_retain = "retain" in space.config.references
        self._has_start = "start" in space.config.references
        self.tasks: list[PreparationTask] = []

    def add_all(self, splits: Sequence[SplitKey]) -> None:
        """Add the tasks for runs on these splits."""
        base: tuple[str, ...] = ()
        if self._models.is_tiny:
            base = (self._add("base model", (), "base"),)
        start = base
        if self._models.settings.fine_tuned is None:
            start = (self._add("start model", base, START),)
        retain_by_split = {split: self._add_retain_model(split, base) for split in splits}
        for split in splits:
            self._add_evaluations(split, start, retain_by_split[split])

    def _add(
        self,
        label: str,
        after: tuple[str, ...],
        target: str,
        split: SplitKey | None = None,
        attack: str = "",
        *,
        is_ahead: bool = False,
    ) -> str:
        """Add a task, and return its id.

        Args:
            label: What the task does, for the user.
            after: Ids of the tasks that have to be done before it.
            target: The model: `base`, `full`, or a retain model such as `retain90`.
            split: The split on which the model is evaluated. None: the model is prepared.
            attack: Name of the attack under which it is evaluated.
            is_ahead: Whether another task writes the record of the evaluation.
        """
        title = f"{self._name}: {label}"
        rows = self._trained_rows(target) if split is None else 0
        task = PreparationTask(title, after, self._name, target, split, attack, is_ahead, rows)
        self.tasks.append(replace(task, done=_is_done(self._space, task)))
        return task.id

    def _trained_rows(self, target: str) -> int:
        """Return how many rows a model is trained on, summed over epochs."""
        preparation = self._models.settings.preparation
        if target == "base":
            return preparation.base_epochs * len(self._models.base_rows())
        return preparation.epochs * len(self._models.tuning_rows(target))

    def _add_retain_model(self, split: SplitKey, base: tuple[str, ...]) -> tuple[str, ...]:
        """Add the retain model of a split, and return the ids that its evaluation waits for."""
        retain = split_name("retain", split)
        is_given = retain in self._models.settings.retain
        if not self._has_retain or is_given:
            return base
        return (self._add(f"{retain} model", base, retain),)

    def _add_evaluations(
        self, split: SplitKey, start_model: tuple[str, ...], retain_model: tuple[str, ...]
    ) -> None:
        """Add the evaluations of the retain and start model on a split, also under attacks.

        Both models are evaluated side by side. The record of the start model has metrics that
        compare it with the retain model, so that a further task writes it after both.
        """
        retain = split_name("retain", split)
        forget = split_name("forget", split)
        evaluated = start_model
        if self._has_retain:
            needs_start = "start_loss" in self._space.metrics.extra
            after = (*retain_model, *start_model) if needs_start else retain_model
            evaluated += (self._add(f"evaluate {retain}", after, retain, split),)
        if self._has_start:
            label = f"evaluate the start model on {forget}"
            if self._has_retain:
                evaluated += (self._add(label, start_model, START, split, is_ahead=True),)
                label = f"compare the start model with {retain}"
            evaluated += (self._add(label, evaluated, START, split),)
        # Both models are attacked side by side, too. A retain model that is given as a log of its
        # evaluation cannot be attacked.
        has_retain_weights = self._has_retain and not is_log(self._models.target(retain).place)
        for attack in self._space.config.attacks:
            under = f"under {attack.name}"
            after = evaluated
            if has_retain_weights:
                after += (self._add(f"{retain} {under}", evaluated, retain, split, attack.name),)
            if self._has_start:
                label = f"start model {under}"
                if has_retain_weights:
                    ahead = self._add(label, evaluated, START, split, attack.name, is_ahead=True)
                    after += (ahead,)
                    label = f"compare the start model with {retain} {under}"
                self._add(label, after, START, split, attack.name)


def _place(space: Workspace, task: PreparationTask) -> Path:
    """Return the folder of the model that a task prepares, or of the record that it writes.

    The evaluation of a task that writes no record is stored like the state of a run.
    """
    if task.fraction is None:
        return space.models(task.model).folder(task.target)
    attack = space.attack(task.attack) if task.attack else None
    record = space.baselines.record_folder(task.model, task.target, task.fraction, attack)
    if task.is_ahead:
        state, _ = state_folders(space.folder, record.name)
        return state
    return record


def _is_done(space: Workspace, task: PreparationTask) -> bool:
    """Whether a task is done.

    Raises:
        EvaluationError: An evaluation is recorded that was made in another precision.
    """
    folder = _place(space, task)
    if task.fraction is None:
        return is_prepared(folder) or space.storage.has(folder)
    if task.is_ahead:
        # The record replaces what is stored before it.
        record = _place(space, replace(task, is_ahead=False))
        return record.is_dir() or folder.is_dir() or space.storage.has(folder)
    if task.attack:
        return folder.is_dir() or space.storage.has(folder)
    if not folder.is_dir():
        return False
    # Runs of this command would not compare with an evaluation in another precision.
    settings = {
        "model": space.models(task.model).settings.model_dump(),
        "evaluation": space.config.evaluation.model_dump(),
    }
    stored = read_record(folder).precision
    device = "cuda" if space.config.resources_of(task.model).gpus else "cpu"
    wanted = precision_of_spec(settings, device)
    check_precision(f"{folder}: {task.target}", stored, "runs", wanted)
    return True


def execute_task(task: PreparationTask, config: SweepConfig, folder: Path) -> float:
    """Carry out a task unless it is done. Collective.

    Returns:
        The seconds that it took.
    """
    begin = time.monotonic()
    use_device(config.resources_of(task.model))
    space = workspace(config, folder)
    # When the sweep was planned, the hub may not have answered, and this was left out.
    check_targets(space.models(task.model).settings)
    targets = () if task.target == "base" else (task.target,)
    space.fetch_models(task.model, *targets)
    with deterministic(config.training.deterministic):
        if task.fraction is None:
            space.preparer(task.model).prepare(task.target)
        elif task.is_ahead:
            _evaluate_ahead(space, task, task.fraction)
        else:
            _record(space, task, task.fraction)
    if is_main_process():
        space.storage.push(_place(space, task))
    return time.monotonic() - begin


def _evaluate_ahead(space: Workspace, task: PreparationTask, fraction: SplitKey) -> None:
    """Evaluate the start model, and store the evaluation until the retain model has one, too.

    Collective. If the retain model has been evaluated already, the record is written at once.
    """
    of_record = replace(task, is_ahead=False)
    retain = _place(space, replace(of_record, target=split_name("retain", fraction)))
    if broadcast_from_main(lambda: retain.is_dir() or _place(space, of_record).is_dir()):
        _record(space, of_record, fraction)
        return
    state = _evaluated(space, of_record, fraction)
    if is_main_process():
        with atomic_folder(_place(space, task)) as part:
            state.save(part, set(), partial(space.kept, split=fraction))
    barrier()


def _evaluated(space: Workspace, task: PreparationTask, fraction: SplitKey) -> RunState:
    """Evaluate a model, and return its evaluations, whose metrics come later. Collective."""
    started = time.time()
    begin = time.monotonic()
    space.preparer(task.model).ensure_prepared(task.target)
    state = RunState(started=started)
    if task.attack:
        for attacked, evaluation in _evaluations_under_attack(space, task, fraction):
            state = state.evaluated(attacked, evaluation)
        return state
    is_start = task.target == START
    source = space.models(task.model).target(task.target)
    evaluation = model_evaluation(space, task.model, source, fraction, is_start=is_start)
    if is_start:
        _warn_of_answers(space, task.model, fraction, evaluation)
    result = EpochResult(0, {}, 0.0, time.monotonic() - begin)
    return state.evaluated(result, evaluation)


def _record(space: Workspace, task: PreparationTask, fraction: SplitKey) -> None:
    """Evaluate the start model or a retain model, and write its record. Collective."""
    folder = _place(space, task)
    if broadcast_from_main(folder.is_dir):
        return
    space.preparer(task.model).ensure_prepared(task.target)
    state = _state_of(space, task, fraction)
    if task.attack:
        results = _results_under_attack(space, task, fraction, state)
    else:
        results = _plain_results(space, task, fraction, state)
    models = space.models(task.model)
    evaluator = space.evaluator(task.model, fraction)
    kind: Literal["fine-tuned", "retain"] = "fine-tuned" if task.target == START else "retain"
    record = Record(
        id=folder.name,
        kind=kind,
        model=task.model,
        forget_fraction=fraction,
        method=kind,
        learning_rate=None,
        seed=models.settings.preparation.seed,
        spec=_spec(space, task, fraction),
        status="finished",
        profile=space.profile.id,
        provenance=provenance(
            data=fingerprint(space.benchmark, fraction),
            weights=models.target(task.target).weights(),
            commits=space.commits(task.model, task.target),
            begin=state.started,
        )
        | evaluator.padding_entry
        | uncounted_entry(evaluator, space.metrics)
        | _start_check_entry(space, task, fraction, results),
        **results,
    ).redacted()
    if is_main_process():
        # Without an attack, a retain model is compared only with itself, see `_plain_results`.
        is_alone = kind == "retain" and not task.attack
        references = () if is_alone else None
        write_record(space.with_inputs(record, space.rules.key, references), space.folder)
        remove_state(space.folder, record.id, space.storage)
    barrier()


def _spec(space: Workspace, task: PreparationTask, fraction: SplitKey) -> dict[str, Any]:
    """Return what determines the results of an evaluation, for its record."""
    spec: dict[str, Any] = {
        "model": space.models(task.model).settings.model_dump(mode="json"),
        "target": task.target,
        "data": space.config.data.model_dump(mode="json"),
        "identity": space.baselines.identity(task.model, task.target, fraction),
    }
    metrics = space.config.evaluation.metrics
    if metrics:
        spec["metrics"] = metrics
    if task.attack:
        spec["attack"] = space.attack(task.attack).model_dump(mode="json")
    return spec


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
    if task.target != START or task.attack:
        return {}
    return _measured(space, task.model, fraction, results["evaluations"][0]).entry


def _measured(
    space: Workspace, model: str, fraction: SplitKey, evaluation: Evaluation
) -> StartCheck:
    """Measure what a start model knows from its evaluation and from the retain model's."""
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


def _state_of(space: Workspace, task: PreparationTask, fraction: SplitKey) -> RunState:
    """Return the stored evaluations of a model, or evaluate it now. Collective."""
    folder = _place(space, replace(task, is_ahead=True))
    space.storage.fetch(folder, changes=True)
    state = broadcast_from_main(lambda: RunState.load(folder))
    is_stored = state.attacked if task.attack else state.results
    return state if is_stored else _evaluated(space, task, fraction)


def _plain_results(
    space: Workspace, task: PreparationTask, fraction: SplitKey, state: RunState
) -> dict[str, Any]:
    """Compute the metrics of a model without an attack, and return the fields of its record."""
    begin = time.monotonic()
    evaluation = space.kept(state.evaluations[0, ""], fraction)
    if task.target == START:
        compared = ComparedWith(space.baselines.retain_evaluation(task.model, fraction), evaluation)
    else:
        # The retain model is recorded before the start model. `finalize` adds the metrics that are
        # relative to the start model.
        compared = ComparedWith(retain=evaluation, start=None)
    metrics = space.summary(evaluation, compared)
    if task.target == START:
        line = control_warning(metrics, task.model, fraction)
        if line:
            warn_later(line)
    (evaluated,) = state.results
    seconds = evaluated.evaluation_seconds + time.monotonic() - begin
    return {
        "precision": evaluation.precision,
        "epochs": (EpochResult(0, metrics, 0.0, seconds),),
        "evaluations": {0: evaluation},
    }


def _warn_of_answers(
    space: Workspace, model: str, fraction: SplitKey, evaluation: Evaluation
) -> None:
    """Warn of anything in a start model's answers that concerns all runs from this model."""
    statistics = evaluation.statistics
    if statistics is None:
        return
    if statistics.cut:
        warn_later(_cut_answers(space, model, fraction, statistics.cut))
    for remark in statistics.remarks:
        warn_later(f"{model}: {remark}")


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


def _evaluations_under_attack(
    space: Workspace, task: PreparationTask, fraction: SplitKey
) -> Iterator[tuple[EpochResult, Evaluation]]:
    """Attack a model, and yield the result and the evaluation at each point. Collective."""
    models = space.models(task.model)
    quiet_transformers()
    loaded = load_model(models.target(task.target), models.settings)
    stored = read_record(space.baselines.record_folder(task.model, task.target, fraction))
    yield from results_under(
        space.attack(task.attack),
        space,
        task.model,
        fraction,
        loaded,
        stored.evaluations[0],
        target=task.target,
    )


def _results_under_attack(
    space: Workspace, task: PreparationTask, fraction: SplitKey, state: RunState
) -> dict[str, Any]:
    """Compute the metrics of a model under an attack, and return the fields of its record.

    The retain model may not have been attacked yet when this model was.
    """
    attack = space.attack(task.attack)
    attacked: list[EpochResult] = []
    evaluations: dict[tuple[int, str], Evaluation] = {}
    for result in state.attacked:
        evaluation = space.kept(state.evaluations[0, result.variant], fraction)
        metrics = metrics_under(
            attack, space, task.model, fraction, evaluation, result.variant, task.target
        )
        attacked.append(replace(result, metrics=metrics))
        evaluations[0, result.variant] = evaluation
    stored = read_record(space.baselines.record_folder(task.model, task.target, fraction))
    return {
        "precision": stored.evaluations[0].precision,
        "attacked": tuple(attacked),
        "attacked_evaluations": evaluations,
    }


def model_evaluation(
    space: Workspace, model: str, source: Source, fraction: SplitKey, *, is_start: bool = False
) -> Evaluation:
    """Evaluate a start or retain model, or read the log that is given for it.

    Args:
        space: The workspace.
        model: Name of the model's settings.
        source: The weights, or the log.
        fraction: The split.
        is_start: Whether the weights are those of the start model, whose losses some metrics need.
    """
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
