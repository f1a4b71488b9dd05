"""Carry out one run, from its spec to its record, without Ray or MLflow.

The workers of a sweep call these functions, and `unlearnbench run` in its own process. The state of
a run is stored after every epoch, its trainer only where a checkpoint pays. An interrupted run goes
on from there: later epochs are trained and evaluated again, so a record never mixes two courses of
training. A run by steps pauses at the end of each epoch and after each evaluated step. Where names
here say epoch, it has the number of the step.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api.inference_method import Prompts, Wrapper
from unlearnbench.api.method import Method
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.distributed import (
    all_gather,
    barrier,
    broadcast_from_main,
    is_main_process,
    world_size,
)
from unlearnbench.base.errors import ModelError
from unlearnbench.base.out_of_memory import OomRetry
from unlearnbench.base.provenance import provenance
from unlearnbench.base.row_texts import row_text
from unlearnbench.base.signals import (
    Stopped,
    defer_sigterm,
    handle_sigterm,
    raise_if_stopped,
    sigterm_received,
)
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.evaluation.word_check import uncounted_entry
from unlearnbench.models.device import cuda_variables, deterministic, use_device
from unlearnbench.models.limits import check_vocabulary, pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.named_models import local_contents
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states
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
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks, start_check
from unlearnbench.runs.request_sequence import has_successor, leave_model, remove_model
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.training.optimizers import on_host
from unlearnbench.training.step_result import StepResult
from unlearnbench.training.trainer import NonFiniteError, Trainer


def run_epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """Train and evaluate; yields after each evaluated epoch and writes the record at the end.

    An interrupted run continues after its last checkpoint, with the same numbers. For epochs that
    it trains again, its stored results are yielded.
    """
    use_device(config.resources_of(spec.model.name))
    quiet_transformers()
    repeats = config.training_of(spec.method.name).deterministic
    with closing(_epochs(spec, config, folder)) as results:
        while True:
            # Not while the generator is suspended, when the process may do something else.
            with deterministic(repeats):
                result = next(results, None)
            if result is None:
                return
            yield result


def _epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Generator[EpochResult, None, None]:
    space = workspace(config, folder)
    check_run(spec, config, space.benchmark)
    if spec.content and local_contents(spec.model) != spec.content:
        raise ModelError(
            f"models.{spec.model.name}: a folder or log has changed since the runs were planned; "
            "start the same command again"
        )
    done = space.record(spec.id)
    if space.storage.url and broadcast_from_main(lambda: space.storage.fetch(done)):
        if is_main_process():
            space.storage.push(done)  # the last attempt may have failed there
        return
    space.fetch_models(spec.model.name, "full")
    run = Run(spec, space)
    yield from run.state.results
    yield from run.carry_out()


@handle_sigterm()
def run_single(
    spec: RunSpec, config: SweepConfig, folder: Path, show: Callable[[str], None]
) -> Record:
    """Prepare and carry out one run in this process; `show` gets a line at a time."""

    def show_warnings() -> None:
        for line in drain():
            show(f"warning: {line}")

    if config.resources_of(spec.model.name).gpu:
        repeats = config.training_of(spec.method.name).deterministic
        os.environ.update(cuda_variables(deterministic=repeats or config.training.deterministic))
    tasks = broadcast_from_main(lambda: preparation_tasks(config, [spec], folder))
    check_run(spec, config, workspace(config, folder).benchmark)
    for task in tasks:
        if not task.done:
            show(task.label)
            execute_task(task, config, folder)
    path, headline = folder / "records" / spec.id, config.headline
    if not broadcast_from_main(path.is_dir):
        if is_main_process():
            # A sweep would stop. A single run goes on, because it is often meant to try something.
            check = start_check(config, folder, spec.model.name, spec.forget_fraction)
            for line in filter(None, () if check is None else (check.fault, check.doubt)):
                show(f"warning: {spec.model.name}: {line}")
        for result in run_epochs(spec, config, folder):
            show_warnings()
            numbers = ", ".join(
                f"{item.plain_label} {item.text(result.metrics.get(item.column))}"
                for item in (headline.kept, headline.forgotten)
            )
            show(f"{config.unit.at(result.epoch)}: {numbers}")
        show_warnings()
    record = read_record(path)
    if record.ended:
        show(f"ended early: {record.ended}")
    return record


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """Build the record of a run that was stopped between two epochs, from its stored state.

    None if there is none, since it was stopped in its first epoch.
    """
    state_folder, _ = state_folders(folder, spec.id)
    space = workspace(config, folder)
    space.storage.fetch(state_folder, changes=True)
    state = RunState.load(state_folder, spec.unit)
    if not state.epoch:
        return None
    made = _provenance(spec, space, state.started)
    record = run_record(spec, status="stopped", provenance=made, **state.of_record())
    return space.with_inputs(record, state.rules_key)


def _provenance(spec: RunSpec, space: Workspace, begin: float) -> dict[str, Any]:
    """Provenance of the record of a run that began at `begin`."""
    made = provenance(
        data=spec.data_fingerprint,
        weights=space.models(spec.model.name).full().weights(),
        commits=space.commits(spec.model.name, "full"),
        begin=begin,
    )
    evaluator = space.evaluator(spec.model.name, spec.forget_fraction)
    made |= evaluator.padding_entry
    return made | uncounted_entry(evaluator, space.metrics)


class Run:
    """A run: its results so far, its evaluator, and its trainer if its method trains."""

    def __init__(self, spec: RunSpec, space: Workspace) -> None:
        self.spec, self.space = spec, space
        self._panel = spec.model.name, spec.forget_fraction
        self._method = method_from_spec(spec.method)
        self._trainer: Trainer | None = None
        self._wrapped: ShiftedModel | None = None
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        self._oom_retry = OomRetry()
        model, fraction = self._panel
        self._retain = space.evaluation(model, "retain", fraction)
        self._start = space.evaluation(model, "full", fraction)
        self._evaluator = space.evaluator(model, fraction)
        self._folder, trainer = state_folders(space.folder, spec.id)
        self._checkpoints = Checkpoints(trainer, space.storage, spec.unit)
        self.state = RunState(unit=spec.unit)
        # A run that trains nothing is counted in epochs, but named as the others of its sweep.
        self._unit = space.config.unit
        if isinstance(self._method, Method):
            build = partial(self._build_trainer, self._method)
            space.storage.fetch(self._folder, changes=True)
            stored = broadcast_from_main(lambda: RunState.load(self._folder, spec.unit))
            self._trainer, epoch = self._checkpoints.resumed(build, stored.epoch)
            self.state = stored.up_to(epoch)
            # The configuration may name other metrics now, and code may have changed.
            self.state = replace(
                self.state,
                results=tuple(map(self._with_metrics, self.state.results)),
                attacked=tuple(map(self._with_metrics, self.state.attacked)),
            )
        self.state = replace(self.state, rules_key=space.rules.key)
        self._stored = {*self.state.evaluations}

    def _with_metrics(self, result: EpochResult) -> EpochResult:
        """Compute the metrics of a stored result again."""
        evaluation = self.state.evaluations[result.epoch, result.variant]
        retain, start = self._retain, self._start
        if result.variant:
            model, split = self._panel
            attack = self.space.attack(result.variant.partition("@")[0])
            retain = self.space.evaluation(model, "retain", split, attack, result.variant)
            start = self.space.evaluation(model, "full", split, attack, result.variant)
        return replace(result, metrics=self.space.summary(evaluation, retain, start))

    def _kept(self, evaluation: Evaluation) -> Evaluation:
        """An evaluation as it is stored."""
        return self.space.kept(evaluation, self.spec.forget_fraction)

    def _build_trainer(self, method: Method) -> Trainer:
        trainer = build_trainer(self.spec, self.space, method)
        self._oom_retry = trainer.passes.oom_retry
        self._oom_retry.persist(self._folder)
        if self._oom_retry.batch_tokens is not None:
            self._evaluator.batch_tokens = self._oom_retry.batch_tokens
        return trainer

    def carry_out(self) -> Iterator[EpochResult]:
        """Yield the results of the remaining epochs, then write the record."""
        error, ended = self._collapse(), self._out_of_patience()
        try:
            while error is None and ended is None and self.state.epoch < self.spec.budget:
                result = self._next_moment()
                if result is not None:
                    yield result
                error, ended = self._collapse(), self._out_of_patience()
            if error is None and (attacks := self._due(last=True)):
                if self._trainer is not None:
                    self._trainer.free_states()  # an attack that trains has as large ones
                with self._evaluated_model(exact=True) as model:
                    self._attack(model, attacks)
            if error is None and has_successor(self.spec, self.space):
                with self._evaluated_model(exact=True) as model:
                    leave_model(model, self.spec, self.space)
        except NonFiniteError as collapse:
            error = str(collapse)
        except Stopped:
            epoch = self._checkpoints.epoch
            goes_on = f"goes on after {self._unit.at(epoch)}" if epoch else "begins again"
            raise Stopped(f"stopped by SIGTERM; the run {goes_on}") from None
        with defer_sigterm():
            self._finish("finished" if error is None else "collapsed", error, ended)
            if is_main_process():
                remove_state(self.space.folder, self.spec.id, self.space.storage)
            remove_model(self.spec, self.space)

    def _collapse(self) -> str | None:
        """Return why the last evaluation ends the run, or None."""
        if not self.state.results:
            return None
        last, kept = self.state.results[-1], self.space.headline.kept
        epoch, utility = last.epoch, last.metrics.get(kept.column)
        if utility is None:
            statistics = self.state.evaluations[epoch, ""].statistics
            first = None if statistics is None else statistics.not_finite
            where = "" if first is None else f", first at the question {row_text(first[:60])}"
            return f"{self._unit.at(epoch)}: the model's outputs are no longer finite{where}"
        share = self.spec.evaluation.stop_below
        if share is None or self._trainer is None:
            return None
        model, fraction = self._panel
        record = read_record(self.space.evaluation_record(model, "full", fraction))
        start = record.epochs[0].metrics.get(kept.column)
        if start is None or utility >= share * start:
            return None
        return (
            f"{self._unit.at(epoch)}: {kept.plain_label} {utility:.4g} is below "
            f"{share * start:.4g}, which is {share:g} of the start model's {start:.4g} "
            "(evaluation.stop_below)"
        )

    def _out_of_patience(self) -> str | None:
        """Return why the run ends early by `evaluation.patience`, or None. Collective."""
        rule = self.spec.evaluation.patience
        if rule is None or self.state.epoch >= self.spec.budget:
            return None
        columns = self.space.metrics.columns
        better: Any = next(
            (column.better for column in columns if column.name == rule.metric), None
        )
        results = ((r.epoch, r.metrics) for r in self.state.results)
        return broadcast_from_main(lambda: rule.ended(results, better))

    def _next_moment(self) -> EpochResult | None:
        """Train the next epoch, or to the next step; evaluate if that is due, and store it.

        Collective.
        """
        begin, number = time.monotonic(), self._moment_after(self.state.epoch)
        if isinstance(self._method, Wrapper):
            self._wrapped = self._fitted(self._method)
        elif self._trainer is not None:
            self._train(self._trainer, number)
        seconds = {**self.state.seconds, number: time.monotonic() - begin}
        self.state = replace(self.state, epoch=number, seconds=seconds)
        result = self._evaluate_moment(number) if number in self.spec.evaluate_at else None
        with defer_sigterm():
            self._save()
            unfinished = number < self.spec.budget or self._due(last=True)
            if self._trainer is not None and unfinished:
                self._checkpoints.epoch_ended(self._trainer, number, time.monotonic() - begin)
        return result

    def _moment_after(self, moment: int) -> int:
        """Return the next epoch; of a run by steps, where it pauses next."""
        if self.spec.unit is Unit.EPOCH or self._trainer is None:
            return moment + 1
        schedule = self._trainer.schedule
        end_of_epoch = schedule.end(schedule.epoch_of(moment))
        evaluated = (step for step in self.spec.evaluate_at if step > moment)
        return min(end_of_epoch, *evaluated)

    def _train(self, trainer: Trainer, number: int) -> None:
        steps: list[StepResult] = []
        by_epochs = self.spec.unit is Unit.EPOCH
        try:
            with defer_sigterm():
                for step in trainer.epoch(number) if by_epochs else trainer.until(number):
                    steps.append(step)
                    if any(all_gather(sigterm_received())):
                        raise Stopped
        finally:
            self.state = replace(self.state, steps=(*self.state.steps, *steps))

    def _fitted(self, method: Wrapper) -> ShiftedModel:
        """The start model behind `method`, fitted on the questions to forget and to retain."""
        # The evaluator's encoder makes the prompts that the model will be evaluated on.
        encoder, split = self._evaluator.encoder, self.space.benchmark.splits[self._panel[1]]
        self.space.preparer(self.spec.model.name).ensure_prepared("full")
        model = load_model(self.space.models(self.spec.model.name).full(), self.spec.model)
        check_vocabulary(model, encoder.tokenizer)
        forget, retain = (
            [encoder.prompt(question) for question in side] for side in (split.forget, split.retain)
        )
        states = partial(mean_states, model, pad=pad_id(encoder.tokenizer))
        with plugin_code(f"`fit` of {type(method).__name__}"):
            shift = method.fit(model, Prompts(forget, retain, self.spec.seed, states))
        return ShiftedModel(model, shift)

    def _evaluate_moment(self, number: int) -> EpochResult:
        changed = any(spec.settings["at"] != "last" for spec in self.spec.attacks)
        with self._evaluated_model(exact=changed) as model:
            before = self.state.results[-1].epoch if self.state.results else 0
            result = self._evaluate(model, number, self.state.seconds_between(before, number))
            if result.metrics.get(self.space.headline.kept.column) is not None:
                self._attack(model, self._due(last=False))
            return result

    @contextmanager
    def _evaluated_model(self, *, exact: bool) -> Generator[Any, None, None]:
        """The model in evaluation mode."""
        if self._trainer is None:
            yield self._wrapped
            return
        evaluated, trained = self.spec.evaluation.precision, self.spec.training.precision
        exact |= needs_stored_weights(self._trainer.model, evaluated, trained)
        # One of several processes must not leave the others in the middle: the next step stops all.
        deferred = defer_sigterm() if world_size() > 1 else nullcontext()
        with self._trainer.evaluation_model(exact=exact) as model, deferred:
            if world_size() == 1:
                raise_if_stopped()
            yield model

    def _evaluate(self, model: Any, epoch: int, training: float) -> EpochResult:
        """Evaluate `model` after `epoch`; `training`: seconds of it since the last evaluation."""
        begin, before = time.monotonic(), self._evaluator.batch_tokens
        drafts = self._start  # answers that serve as drafts for the next ones
        if self.state.results:
            drafts = self.state.evaluations[self.state.results[-1].epoch, ""]
        evaluation = self._evaluator(model, drafts)
        self._oom_retry.evaluation(epoch, before, self._evaluator.batch_tokens)
        evaluation = self.space.with_start_losses(*self._panel, evaluation)
        metrics = self.space.summary(self._kept(evaluation), self._retain, self._start)
        result = EpochResult(epoch, metrics, training, time.monotonic() - begin)
        self.state = self.state.evaluated(result, evaluation)
        return result

    def _due(self, *, last: bool) -> list[AttackSpec]:
        """The attacks of this epoch that are not stored yet.

        last  those of the run's last epoch; else those of each epoch, and of each best one so far
        """
        moments = ["last"] if last else ["every"]
        if not last and self._is_best():
            moments.append("best")
        due = [spec for spec in self.spec.attacks if spec.settings["at"] in moments]
        done = {r.variant for r in self.state.attacked if r.epoch == self.state.epoch}
        return [spec for spec in due if not done.issuperset(variants_of(spec))]

    def _is_best(self) -> bool:
        """Return whether no epoch up to this one has forgotten more."""
        forgotten = self.space.headline.forgotten
        values = {
            result.epoch: forgotten.oriented(value)
            for result in self.state.results
            if (value := result.metrics.get(forgotten.column)) is not None
        }
        return values.get(self.state.epoch) == max(values.values(), default=0.0)

    def _attack(self, model: Any, attacks: Iterable[AttackSpec]) -> None:
        """Evaluate `model` under attacks; each is stored when it is done. Collective."""
        epoch, optimizers = self.state.epoch, self._trainer.optimizers if self._trainer else ()
        for spec in attacks:
            plain = self.state.evaluations[epoch, ""]
            with on_host(optimizers):
                results = [*results_under(spec, self.space, *self._panel, model, plain, epoch)]
            for made in results:
                self.state = self.state.evaluated(*made)
            self._save()

    def _save(self) -> None:
        if is_main_process():
            self.state.save(self._folder, self._stored, self._kept)
            self.space.storage.push(self._folder, changes=True)

    def _finish(self, status: Any, error: str | None, ended: str | None) -> None:
        """Write the record. Collective."""
        made = _provenance(self.spec, self.space, self.state.started)
        made["processes"] = world_size()
        if torch.cuda.is_available():
            made["peak_memory_mib"] = round(torch.cuda.max_memory_allocated() / 2**20)
            made["peak_memory_of"] = "allocated on the GPU"
        if self._oom_retry.seen:
            made["out_of_memory"] = self._oom_retry.seen  # batches that were halved
        if self._trainer is not None:
            made["estimated_memory_mib"] = estimated_peak(self.spec, self._trainer)
            if self._trainer.passes.budget is not None:
                made["micro_batch"] = asdict(self._trainer.passes.budget)
        # Texts stay in memory until the end, because answers are drafts for the next evaluation.
        stored = {key: self._kept(seen) for key, seen in self.state.evaluations.items()}
        kept = replace(self.state, evaluations=stored).of_record()
        record = run_record(
            self.spec, status=status, provenance=made, error=error, ended=ended, **kept
        )
        if is_main_process():
            record = self.space.with_inputs(record, self.state.rules_key)
            self.space.storage.push(write_record(record, self.space.folder))
        barrier()
