"""Carry out one run, from its spec to its record, without Ray or MLflow.

`Run.carry_out` shows the order of a run: prepare, then for each epoch train, evaluate, attack and
store, then attack the last model and write the record. The workers of a sweep call `run_epochs`,
and `unlearnbench run` calls `run_single` in its own process.

The state of a run is stored after every epoch, but its trainer only where a checkpoint pays. An
interrupted run goes on from the last checkpoint. It trains and evaluates the later epochs again, so
that a record never mixes two courses of training.

A *moment* is the number of an epoch, at which a run pauses. A run by steps pauses at the end of
each epoch and after each evaluated step, and its moments are numbers of steps. So are its values
that are called `epoch`.
"""

import os
import time
from collections.abc import Callable, Collection, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

from unlearnbench.api.inference_method import Wrapper
from unlearnbench.api.method import Method
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.distributed import (
    all_gather,
    barrier,
    broadcast_from_main,
    is_main_process,
    world_size,
)
from unlearnbench.base.errors import ModelError
from unlearnbench.base.gpu_share import WHOLE, gpu_share
from unlearnbench.base.out_of_memory import OomRetry
from unlearnbench.base.provenance import provenance
from unlearnbench.base.signals import (
    Stopped,
    defer_sigterm,
    handle_sigterm,
    raise_if_stopped,
    sigterm_received,
)
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.evaluation.word_check import uncounted_entry
from unlearnbench.models.device import cuda_variables, deterministic, use_device
from unlearnbench.models.named_models import local_contents
from unlearnbench.models.prompt_shift import ShiftedModel
from unlearnbench.models.prompted_model import PromptedModel
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.results.records import EpochResult, Record, read_record, run_record, write_record
from unlearnbench.results.run_estimate import check_run, estimated_peak
from unlearnbench.runs.attack_model import results_under, variants_of
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.checkpoints import (
    Checkpoints,
    RunState,
    remove_state,
    state_folders,
)
from unlearnbench.runs.early_ends import collapse_reason, patience_reason
from unlearnbench.runs.fitted_model import fitted_model
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks, start_check
from unlearnbench.runs.request_sequence import has_successor, leave_model, remove_model
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.training.optimizer_state import on_host
from unlearnbench.training.step_result import StepResult
from unlearnbench.training.trainer import NonFiniteError, Trainer


def run_epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """Carry out a run whose start and retain models are prepared and evaluated.

    An interrupted run continues after its last checkpoint, with the same numbers.

    Args:
        spec: The run.
        config: The configuration of its sweep.
        folder: The sweep's folder, in which the record is written at the end.

    Yields:
        The result of each evaluated epoch. Stored results of an interrupted run come first.
    """
    use_device(config.resources_of(spec.model.name))
    quiet_transformers()
    is_repeatable = config.training_of(spec.method.name).deterministic
    with closing(_results(spec, config, folder)) as results:
        while True:
            # While the generator is suspended, the process may do something else. Kernels are
            # therefore deterministic only while it computes the next result.
            with deterministic(is_repeatable):
                result = next(results, None)
            if result is None:
                return
            yield result


def _results(
    spec: RunSpec, config: SweepConfig, folder: Path
) -> Generator[EpochResult, None, None]:
    """Check that a run can begin, then carry it out."""
    space = workspace(config, folder)
    check_run(spec, config, space.benchmark)
    if spec.content and local_contents(spec.model) != spec.content:
        raise ModelError(
            f"models.{spec.model.name}: a folder or log has changed since the runs were planned; "
            "start the same command again"
        )
    if _is_recorded_in_storage(spec, space):
        return
    space.fetch_models(spec.model.name, "full")
    yield from Run(spec, space).carry_out()


def _is_recorded_in_storage(spec: RunSpec, space: Workspace) -> bool:
    """Whether the storage has the run's record, which another machine may have made. Collective."""
    record = space.record(spec.id)
    if not space.storage.url or not broadcast_from_main(lambda: space.storage.fetch(record)):
        return False
    if is_main_process():
        space.storage.push(record)  # the attempt that made it may have failed to store it
    return True


@handle_sigterm()
def run_single(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> Record:
    """Prepare and carry out one run in this process.

    Args:
        spec: The run.
        config: The configuration of its sweep.
        folder: The sweep's folder.
        show: Is called with each line for the user.

    Returns:
        The run's record. If the folder has one, nothing is trained.
    """
    if config.resources_of(spec.model.name).gpus:
        is_repeatable = config.training_of(spec.method.name).deterministic
        os.environ.update(
            cuda_variables(deterministic=is_repeatable or config.training.deterministic)
        )
    tasks = broadcast_from_main(lambda: preparation_tasks(config, [spec], folder))
    check_run(spec, config, workspace(config, folder).benchmark)
    for task in tasks:
        if not task.done:
            show(task.label)
            execute_task(task, config, folder)

    record_folder = folder / "records" / spec.id
    if not broadcast_from_main(record_folder.is_dir):
        if is_main_process():
            _show_start_check(spec, config, folder, show)
        for result in run_epochs(spec, config, folder):
            _show_warnings(show)
            show(_line_of(result, config))
        _show_warnings(show)

    record = read_record(record_folder)
    if record.ended:
        show(f"ended early: {record.ended}")
    return record


def _show_start_check(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> None:
    """Warn if the start model has not learned its rows.

    A sweep would stop. A single run goes on, because it is often meant to try something.
    """
    check = start_check(config, folder, spec.model.name, spec.forget_fraction)
    if check is None:
        return
    for line in (check.fault, check.doubt):
        if line:
            show(f"warning: {spec.model.name}: {line}")


def _show_warnings(show: Callable[[str], None]) -> None:
    for line in drain():
        show(f"warning: {line}")


def _line_of(result: EpochResult, config: SweepConfig) -> str:
    """Return the headline of an epoch: `epoch 2: Model Utility 0.61, Forget Quality 0.3`."""
    numbers: list[str] = []
    for metric in (config.headline.kept, config.headline.forgotten):
        value = result.metrics.get(metric.column)
        numbers.append(f"{metric.plain_label} {metric.text(value)}")
    return f"{config.unit.at(result.epoch)}: {', '.join(numbers)}"


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """Build the record of a run that was stopped between two epochs, from its stored state.

    Returns:
        None if there is no state, because the run was stopped in its first epoch.
    """
    state_folder, _ = state_folders(folder, spec.id)
    space = workspace(config, folder)
    space.storage.fetch(state_folder, changes=True)
    state = RunState.load(state_folder, spec.unit)
    if not state.epoch:
        return None
    origin = _run_provenance(spec, space, state.started)
    record = run_record(spec, status="stopped", provenance=origin, **state.of_record())
    return space.with_inputs(record, state.rules_key)


def _run_provenance(spec: RunSpec, space: Workspace, begin: float) -> dict[str, Any]:
    """Return the provenance of the record of a run that began at `begin` (seconds since 1970)."""
    origin = provenance(
        data=spec.data_fingerprint,
        weights=space.models(spec.model.name).full().weights(),
        commits=space.commits(spec.model.name, "full"),
        begin=begin,
    )
    evaluator = space.evaluator(spec.model.name, spec.forget_fraction)
    origin |= evaluator.padding_entry
    return origin | uncounted_entry(evaluator, space.metrics)


class Run:
    """A run in progress. Methods that are collective are called in all of its processes.

    Attributes:
        spec: What is to be done.
        space: The workspace of the configuration.
        state: Results and evaluations so far.
    """

    def __init__(self, spec: RunSpec, space: Workspace) -> None:
        self.spec = spec
        self.space = space
        self.state = RunState(unit=spec.unit)
        self._model_name = spec.model.name
        self._split = spec.forget_fraction
        self._compared = space.baselines.evaluations(self._model_name, self._split)
        self._evaluator = space.evaluator(self._model_name, self._split)
        self._folder, trainer_folder = state_folders(space.folder, spec.id)
        self._checkpoints = Checkpoints(trainer_folder, space.storage, spec.unit)
        self._oom_retry = OomRetry()
        self._stored: set[tuple[int, str]] = set()
        """Keys of the evaluations that are in `_folder`."""

        # A method either trains, or is fitted to the start model and put around it.
        self._method = method_from_spec(spec.method)
        self._trainer: Trainer | None = None
        self._wrapped: ShiftedModel | PromptedModel | None = None

    def carry_out(self) -> Iterator[EpochResult]:
        """Train, evaluate and attack the epochs that are left, then write the record.

        Yields:
            The stored results of an interrupted run, then the result of each evaluated epoch.

        Raises:
            Stopped: SIGTERM has come. The run can be continued.
        """
        self._prepare()
        yield from self.state.results
        collapse, early_end = self._reasons_to_end()
        try:
            while collapse is None and early_end is None and self.state.epoch < self.spec.budget:
                begin = time.monotonic()
                moment = self._next_moment()
                self._train_to(moment)
                result = None
                if moment in self.spec.evaluate_at:
                    with self._evaluated_model(exact=self._has_attacks_on_the_way) as model:
                        result = self._evaluate(model, moment, self._seconds_of_training(moment))
                        self._attack(model, self._attacks_after(result))
                self._store(moment, begin)
                if result is not None:
                    yield result
                collapse, early_end = self._reasons_to_end()
            if collapse is None:
                self._attack_the_last_model()
                self._leave_model_to_successor()
        except NonFiniteError as error:
            collapse = str(error)
        except Stopped:
            unit = self.space.config.unit
            epoch = self._checkpoints.epoch
            goes_on = f"goes on after {unit.at(epoch)}" if epoch else "begins again"
            raise Stopped(f"stopped by SIGTERM; the run {goes_on}") from None
        with defer_sigterm():
            self._write_record(collapse, early_end)
            if is_main_process():
                remove_state(self.space.folder, self.spec.id, self.space.storage)
            remove_model(self.spec, self.space)

    # Prepare

    def _prepare(self) -> None:
        """Build the trainer, and take up its checkpoint with the results up to it. Collective."""
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        if isinstance(self._method, Method):
            self.space.storage.fetch(self._folder, changes=True)
            stored = broadcast_from_main(lambda: RunState.load(self._folder, self.spec.unit))
            build = partial(self._build_trainer, self._method)
            self._trainer, moment = self._checkpoints.resumed(build, stored.epoch)
            self.state = self._with_current_metrics(stored.up_to(moment))
        self.state = replace(self.state, rules_key=self.space.rules.key)
        self._stored = {*self.state.evaluations}

    def _build_trainer(self, method: Method) -> Trainer:
        trainer = build_trainer(self.spec, self.space, method)
        # What an interrupted run has found out about memory holds for the rest of it.
        self._oom_retry = trainer.passes.oom_retry
        self._oom_retry.persist(self._folder)
        if self._oom_retry.batch_tokens is not None:
            self._evaluator.batch_tokens = self._oom_retry.batch_tokens
        return trainer

    def _with_current_metrics(self, state: RunState) -> RunState:
        """Compute all metrics of a stored state again.

        The configuration may name other metrics than when it was stored, and code may have changed.
        """

        def updated(result: EpochResult) -> EpochResult:
            evaluation = state.evaluations[result.epoch, result.variant]
            compared = self._compared
            if result.variant:
                # `relearning@13` is the attack `relearning` after 13 steps.
                attack = self.space.attack(result.variant.partition("@")[0])
                compared = self.space.baselines.evaluations(
                    self._model_name, self._split, attack, result.variant
                )
            return replace(result, metrics=self.space.summary(evaluation, compared))

        return replace(
            state,
            results=tuple(updated(result) for result in state.results),
            attacked=tuple(updated(result) for result in state.attacked),
        )

    # Decide what comes next

    def _reasons_to_end(self) -> tuple[str | None, str | None]:
        """Return why the run has collapsed, and why it ends early by patience. Collective."""
        trains = self._trainer is not None
        collapse = collapse_reason(self.spec, self.space, self.state, trains=trains)
        return collapse, patience_reason(self.spec, self.space, self.state)

    def _next_moment(self) -> int:
        """Return the next epoch, or the step at which a run by steps pauses next."""
        moment = self.state.epoch
        if self.spec.unit is Unit.EPOCH or self._trainer is None:
            return moment + 1
        schedule = self._trainer.schedule
        end_of_epoch = schedule.end(schedule.epoch_of(moment))
        evaluated_later = [step for step in self.spec.evaluate_at if step > moment]
        return min(end_of_epoch, *evaluated_later)

    # Train

    def _train_to(self, moment: int) -> None:
        """Train up to a moment, or fit the method if it trains nothing. Collective."""
        begin = time.monotonic()
        if isinstance(self._method, Wrapper):
            self._wrapped = fitted_model(self.spec, self.space, self._method)
        elif self._trainer is not None:
            self._take_steps(self._trainer, moment)
        seconds = {**self.state.seconds, moment: time.monotonic() - begin}
        self.state = replace(self.state, epoch=moment, seconds=seconds)

    def _take_steps(self, trainer: Trainer, moment: int) -> None:
        by_epochs = self.spec.unit is Unit.EPOCH
        remaining = trainer.epoch(moment) if by_epochs else trainer.until(moment)
        steps: list[StepResult] = []
        try:
            with defer_sigterm():
                for step in remaining:
                    steps.append(step)
                    # One process that gets SIGTERM stops all of them, after the same step.
                    if any(all_gather(sigterm_received())):
                        raise Stopped
        finally:
            # The record of a run whose loss is no longer finite has its last steps, too.
            self.state = replace(self.state, steps=(*self.state.steps, *steps))

    # Evaluate

    @contextmanager
    def _evaluated_model(self, *, exact: bool) -> Generator[Any, None, None]:
        """Give the model in evaluation mode.

        Args:
            exact: Whether the model must have its stored weights, which attacks and files need. An
                evaluation can do with the rounded weights that training gathers from shards, if it
                would round them itself.
        """
        if self._trainer is None:
            yield self._wrapped
            return
        exact |= needs_stored_weights(
            self._trainer.model, self.spec.evaluation.precision, self.spec.training.precision
        )
        is_alone = world_size() == 1
        # One of several processes must not leave the others in the middle of an evaluation. The
        # next step stops all of them.
        deferred = nullcontext() if is_alone else defer_sigterm()
        with self._trainer.evaluation_model(exact=exact) as model, deferred:
            if is_alone:
                raise_if_stopped()
            yield model

    def _evaluate(self, model: Any, epoch: int, training_seconds: float) -> EpochResult:
        """Evaluate the model, and add the result to the state. Collective."""
        begin = time.monotonic()
        batch_tokens = self._evaluator.batch_tokens
        evaluation = self._evaluator(model, self._drafts())
        self._oom_retry.evaluation(epoch, batch_tokens, self._evaluator.batch_tokens)
        evaluation = self.space.with_start_losses(self._model_name, self._split, evaluation)
        metrics = self.space.summary(self._kept(evaluation), self._compared)
        result = EpochResult(epoch, metrics, training_seconds, time.monotonic() - begin)
        self.state = self.state.evaluated(result, evaluation)
        return result

    def _drafts(self) -> Evaluation | None:
        """Return the evaluation whose answers are drafts for the next answers: the last one."""
        if not self.state.results:
            return self._compared.start
        return self.state.evaluations[self.state.results[-1].epoch, ""]

    def _seconds_of_training(self, moment: int) -> float:
        """Return the seconds of training from the last evaluation up to a moment."""
        last_evaluated = self.state.results[-1].epoch if self.state.results else 0
        return self.state.seconds_between(last_evaluated, moment)

    def _kept(self, evaluation: Evaluation) -> Evaluation:
        """Return an evaluation as it is stored."""
        return self.space.kept(evaluation, self._split)

    # Attack

    @property
    def _has_attacks_on_the_way(self) -> bool:
        """Whether attacks come before the last epoch, too."""
        return any(spec.settings["at"] != "last" for spec in self.spec.attacks)

    def _attacks_after(self, result: EpochResult) -> list[AttackSpec]:
        """Return the attacks that follow an evaluation before the end of the run."""
        if result.metrics.get(self.space.headline.kept.column) is None:
            return []  # the model has collapsed
        return self._attacks_left({"every", "best"} if self._is_best() else {"every"})

    def _attacks_left(self, occasions: Collection[str]) -> list[AttackSpec]:
        """Return the attacks at the current moment whose results are not stored yet.

        Args:
            occasions: Which attacks are meant, by their setting `at`: `every` epoch, each `best`
                epoch so far, or the `last` one.
        """
        moment = self.state.epoch
        stored = {result.variant for result in self.state.attacked if result.epoch == moment}
        return [
            spec
            for spec in self.spec.attacks
            if spec.settings["at"] in occasions and not stored.issuperset(variants_of(spec))
        ]

    def _is_best(self) -> bool:
        """Whether no epoch up to this one has forgotten more."""
        forgotten = self.space.headline.forgotten
        oriented: dict[int, float] = {}  # by epoch; higher means that more is forgotten
        for result in self.state.results:
            value = result.metrics.get(forgotten.column)
            if value is not None:
                oriented[result.epoch] = forgotten.oriented(value)
        return oriented.get(self.state.epoch) == max(oriented.values(), default=0.0)

    def _attack(self, model: Any, attacks: Iterable[AttackSpec]) -> None:
        """Evaluate the model under attacks, and store the results of each. Collective."""
        epoch = self.state.epoch
        optimizers = self._trainer.optimizers if self._trainer is not None else ()
        for spec in attacks:
            plain = self.state.evaluations[epoch, ""]
            with on_host(optimizers):
                results = list(
                    results_under(
                        spec, self.space, self._model_name, self._split, model, plain, epoch
                    )
                )
            for result, evaluation in results:
                self.state = self.state.evaluated(result, evaluation)
            self._save_state()

    def _attack_the_last_model(self) -> None:
        attacks = self._attacks_left({"last"})
        if not attacks:
            return
        if self._trainer is not None:
            self._trainer.free_states()  # an attack that trains has states of the same size
        with self._evaluated_model(exact=True) as model:
            self._attack(model, attacks)

    def _leave_model_to_successor(self) -> None:
        """Store the model if the next request goes on from it."""
        if has_successor(self.spec, self.space):
            with self._evaluated_model(exact=True) as model:
                leave_model(model, self.spec, self.space)

    # Store

    def _store(self, moment: int, begin: float) -> None:
        """Store the state after a moment, and a checkpoint if it pays. Collective.

        Args:
            moment: The moment up to which the run has been trained.
            begin: When the work since the moment before began, by `time.monotonic`.
        """
        with defer_sigterm():
            self._save_state()
            is_unfinished = moment < self.spec.budget or self._attacks_left({"last"})
            if self._trainer is not None and is_unfinished:
                self._checkpoints.epoch_ended(self._trainer, moment, time.monotonic() - begin)

    def _save_state(self) -> None:
        if is_main_process():
            self.state.save(self._folder, self._stored, self._kept)
            self.space.storage.push(self._folder, changes=True)

    def _write_record(self, collapse: str | None, early_end: str | None) -> None:
        """Write the record. Collective.

        Args:
            collapse: Why the run has collapsed. None: it has finished.
            early_end: Why it ended before its last epoch by `evaluation.patience`, if it did.
        """
        status: Literal["finished", "collapsed"] = "finished" if collapse is None else "collapsed"
        # Texts stay in memory until the end, because answers are drafts for the next evaluation.
        kept = {key: self._kept(seen) for key, seen in self.state.evaluations.items()}
        record = run_record(
            self.spec,
            status=status,
            provenance=self._provenance(),
            error=collapse,
            ended=early_end,
            **replace(self.state, evaluations=kept).of_record(),
        )
        if is_main_process():
            record = self.space.with_inputs(record, self.state.rules_key)
            self.space.storage.push(write_record(record, self.space.folder))
        barrier()

    def _provenance(self) -> dict[str, Any]:
        """Return the provenance of the record, with what is known of memory."""
        origin = _run_provenance(self.spec, self.space, self.state.started)
        origin["processes"] = world_size()
        if torch.cuda.is_available():
            origin["peak_memory_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
            origin["peak_memory_of"] = "allocated on the GPU"
        if gpu_share() < WHOLE:
            origin["gpu_share"] = gpu_share()
        if self._oom_retry.seen:
            origin["out_of_memory"] = self._oom_retry.seen  # batches that were halved
        if self._trainer is not None:
            origin["estimated_memory_mib"] = estimated_peak(self.spec, self._trainer)
            if self._trainer.passes.budget is not None:
                origin["micro_batch"] = asdict(self._trainer.passes.budget)
        return origin
