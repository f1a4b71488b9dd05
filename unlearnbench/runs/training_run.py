"""A run that trains: its trainer, and its results on disk."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from unlearnbench.api.method import Method
from unlearnbench.api.metric import Better
from unlearnbench.api.observations import Evaluation
from unlearnbench.config.schema import SweepConfig
from unlearnbench.errors import EvaluationError
from unlearnbench.estimates.run_estimate import budget_of, estimated_peak
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.evaluation.tofu_log import read_log
from unlearnbench.models.device import device_memory, usable_memory
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import EpochResult, Record, evaluation_name, run_record
from unlearnbench.runs.build_trainer import build_trainer, give_back
from unlearnbench.runs.checkpoints import NOTICE_SECONDS, Checkpoints
from unlearnbench.runs.evaluated_run import EvaluatedRun, run_provenance
from unlearnbench.runs.run_state import Heartbeat, RunProgress, remove_state, state_folders
from unlearnbench.runs.workspace import Workspace, workspace
from unlearnbench.runtime.distributed import (
    all_gather,
    broadcast_from_main,
    is_main_process,
    world_size,
)
from unlearnbench.runtime.signals import Stopped, defer_sigterm, raise_if_stopped, sigterm_received
from unlearnbench.training.step_result import StepResult
from unlearnbench.training.trainer import NonFiniteError, Trainer


class TrainingRun(EvaluatedRun):
    """A run with a trainer, whose results are stored after every epoch.

    The trainer is stored only where a checkpoint pays, so an interrupted run may have to train
    epochs again that were evaluated. Each of their steps is compared with the stored one. While
    loss, gradient norm and all else are equal to the last digit, as on a CPU, the model is the one
    that was evaluated, and its stored evaluation counts. From the first step that differs, as GPUs
    may round, the stored results are dropped and made again: a record never mixes two courses of
    training.
    """

    def __init__(self, spec: RunSpec, space: Workspace, method: Method) -> None:
        super().__init__(spec, space)
        self.method = method
        state, trainer = state_folders(space.folder, spec.id)
        self.progress, self.heartbeat = RunProgress(state), Heartbeat(state)
        self.checkpoints = Checkpoints(trainer, space.storage)
        self.reached = 0
        """Last epoch that is stored, with its evaluation if it is to have one."""
        self._load_results()
        self.trainer, self.epoch = self.checkpoints.resumed(self._make_trainer, self.reached)
        """`epoch`: last one that the trainer has trained."""
        self.heartbeat.resumed(self.trainer.step)
        self.interruptions = self.heartbeat.interruptions

    def _make_trainer(self) -> Trainer:
        trainer = build_trainer(self.spec, self.space, self.method)
        self.oom_retry = trainer.oom_retry
        self.oom_retry.persist(self.progress.folder)
        resources = self.space.config.resources_of(self.spec.model.name)
        trainer.budget = budget_of(self.spec, trainer, usable_memory(device_memory(), resources))
        if self.oom_retry.batch_tokens is not None:
            self.evaluator.batch_tokens = self.oom_retry.batch_tokens
        return trainer

    def _memory(self) -> dict[str, Any]:
        found: dict[str, Any] = {"estimated_memory_mib": estimated_peak(self.spec, self.trainer)}
        if self.trainer.budget is not None:
            found["micro_batch"] = asdict(self.trainer.budget)
        return super()._memory() | found

    def run(self) -> Iterator[EpochResult]:
        """Yield the results of the remaining epochs, then write the record."""
        error, ended = self._collapse(), self._out_of_patience()
        try:
            while error is None and self._has_epochs_to_train(ended):
                result = self._next_epoch()
                if result is not None:
                    yield result
                error, ended = self._collapse(), self._out_of_patience()
            if error is None and (attacks := self._due(self.reached, last=True)):
                with self._evaluated_model(exact=True) as model:
                    self._attack(model, self.reached, attacks)
        except NonFiniteError as collapse:
            error = str(collapse)
            self._drop(self.trainer.step, self.epoch + 1)
        except BaseException as cut:
            self._write_heartbeat("SIGTERM" if isinstance(cut, Stopped) else _line(cut))
            hurry = isinstance(cut, Stopped | GeneratorExit)
            self.checkpoints.wait(NOTICE_SECONDS if hurry else None)
            if isinstance(cut, Stopped):
                raise Stopped(self._stop_message()) from None
            raise
        with defer_sigterm():
            self._finish("finished" if error is None else "collapsed", error, ended)
            self.checkpoints.end()
            if is_main_process():
                remove_state(self.space.folder, self.spec.id, self.space.storage)
        give_back(self.trainer, self.spec, self.space)

    def _has_epochs_to_train(self, ended: str | None) -> bool:
        """Return whether epochs are left: of the run, or to train again for its attacks."""
        if ended is None and self.reached < self.spec.epochs:
            return True
        return self.epoch < self.reached and bool(self._due(self.reached, last=True))

    def _collapse(self) -> str | None:
        """Return why the last evaluation ends the run, or None."""
        if not self.results:
            return None
        last, kept = self.results[-1], self.space.headline.kept
        epoch, utility = last.epoch, last.metrics.get(kept.column)
        if utility is None:
            return self._not_finite(epoch)
        share = self.spec.evaluation.stop_below
        start = None if share is None else self._start_utility()
        if share is None or start is None or utility >= share * start:
            return None
        return (
            f"epoch {epoch}: {kept.plain_label} {utility:.4g} is below {share * start:.4g}, which "
            f"is {share:g} of the fine-tuned model's {start:.4g} (evaluation.stop_below)"
        )

    def _out_of_patience(self) -> str | None:
        """Return why the run ends early by `evaluation.patience`, or None. Collective."""
        rule = self.spec.evaluation.patience
        if rule is None or self.reached >= self.spec.epochs:
            return None
        columns = self.space.metrics.columns
        better: Better | None = next(
            (one.better for one in columns if one.name == rule.metric), None
        )
        results = ((r.epoch, r.metrics) for r in self.results)
        return broadcast_from_main(lambda: rule.ended(results, better))

    def _next_epoch(self) -> EpochResult | None:
        """Train the next epoch; evaluate and store it unless that is done. Collective."""
        begin, number = time.monotonic(), self.epoch + 1
        with defer_sigterm():
            for step in self.trainer.epoch(number):
                self._add_step(step)
                self._write_heartbeat()
                if self._should_stop():
                    raise Stopped
        result = None
        if number > self.reached and number in self.spec.evaluate_at:
            result = self._evaluate_epoch(number, begin)
        with defer_sigterm():
            self._save(number, begin)
        return result

    @staticmethod
    def _should_stop() -> bool:
        """Return whether any process has received SIGTERM. Collective."""
        return any(all_gather(sigterm_received()))

    def _evaluate_epoch(self, number: int, begin: float) -> EpochResult:
        changed = any(spec.settings["at"] != "last" for spec in self.spec.attacks)
        exact = needs_stored_weights(self.trainer.model, self.spec.evaluation.precision)
        with self._evaluated_model(exact=exact or changed) as model:
            result = self._evaluate(model, number, begin)
            if result.metrics.get(self.space.headline.kept.column) is not None:
                self._attack(model, number, self._due(number, last=False))
            return result

    @contextmanager
    def _evaluated_model(self, *, exact: bool) -> Generator[Any, None, None]:
        """The model in evaluation mode."""
        # One of several processes must not leave the others in the middle: the next step stops all.
        deferred = defer_sigterm() if world_size() > 1 else nullcontext()
        with self.trainer.evaluation_model(exact=exact) as model, deferred:
            if world_size() == 1:
                raise_if_stopped()
            yield model

    def _save(self, number: int, begin: float) -> None:
        """Store the results, and the trainer where a checkpoint pays; nothing else of a run saves.

        begin  when epoch `number` began
        """
        if number > self.reached:
            self.reached = number
            self._save_results()
        self.epoch = number
        if number < self.spec.epochs:
            self.checkpoints.epoch_ended(self.trainer, number, time.monotonic() - begin)

    def _add_step(self, step: StepResult) -> None:
        """Append a step, or compare a repeated one with the stored one. Collective."""
        if step.step <= len(self.steps):
            if broadcast_from_main(lambda: self.steps[step.step - 1] == step):
                return
            self._drop(step.step - 1, step.epoch)
        self.steps.append(step)

    def _drop(self, step: int, epoch: int) -> None:
        """Drop stored steps after `step`, and stored results from `epoch` on."""
        del self.steps[step:]
        dropped = [e for e in self.evaluations if e >= epoch]
        self.results = [result for result in self.results if result.epoch < epoch]
        for number in dropped:
            del self.evaluations[number]
        self.attacked = [result for result in self.attacked if result.epoch < epoch]
        under = [key for key in self.attacked_evaluations if key[0] >= epoch]
        for key in under:
            del self.attacked_evaluations[key]
        self.reached = min(self.reached, epoch - 1)
        if is_main_process():
            names = [*map(evaluation_name, dropped), *(evaluation_name(*key) for key in under)]
            self.progress.drop(step, iter(names))

    def _write_heartbeat(self, what: str | None = None) -> None:
        if is_main_process():
            self.heartbeat.write(self.trainer.step, self.epoch + 1, self.checkpoints.current, what)

    def _stop_message(self) -> str:
        """One line on the steps that SIGTERM costs."""
        lost = self.trainer.step - self.checkpoints.step
        steps = f"{lost} step{'s' if lost != 1 else ''} since the last checkpoint"
        kept = f"results are kept up to epoch {self.reached}" if self.reached else "none is kept"
        return f"stopped by SIGTERM in epoch {self.epoch + 1}; it costs {steps}; {kept}"

    def _save_results(self) -> None:
        if not is_main_process():
            return
        files: dict[str, Callable[[Path], None]] = {
            evaluation_name(epoch): partial(write_observations, evaluation)
            for epoch, evaluation in self.evaluations.items()
        }
        files |= {
            evaluation_name(*key): partial(write_observations, evaluation)
            for key, evaluation in self.attacked_evaluations.items()
        }
        progress = {
            "epoch": self.reached,
            "started": self.started,
            "results": [result.to_json() for result in self.results],
            "attacked": [result.to_json() for result in self.attacked],
            "steps": [asdict(step) for step in self.steps],
        }
        self.progress.save(self.trainer.step, progress, files)
        self.space.storage.push(self.progress.folder, changes=True, digests=self.progress.digests)

    def _load_results(self) -> None:
        """Load what an interrupted process stored: all processes the same, or none. Collective."""
        state = self.progress.folder
        self.space.storage.fetch(state, changes=True)
        if is_main_process():
            self.progress.adopt(self.checkpoints)
        found = self.progress.found()
        while (progress := broadcast_from_main(lambda: next(found, None))) is not None:
            results = _results(progress, state)
            if all(all_gather(results is not None)) and results is not None:
                self.started, self.reached = progress["started"], progress["epoch"]
                self.results, self.steps, self.evaluations = results[:3]
                self.attacked, self.attacked_evaluations = results[3:]
                return


Results = tuple[
    list[EpochResult],
    list[StepResult],
    dict[int, Evaluation],
    list[EpochResult],
    dict[tuple[int, str], Evaluation],
]


def _results(progress: Mapping[str, Any], state: Path) -> Results | None:
    """Read what a run stored; None if another version wrote it."""
    try:
        results = [EpochResult(**result) for result in progress["results"]]
        steps = [StepResult(**step) for step in progress["steps"]]
        float(progress["started"])
        int(progress["epoch"])
        attacked = [EpochResult(**result) for result in progress.get("attacked", ())]
        files = progress["files"]
        # Earlier versions stored TOFU's logs.
        names = {r.epoch: (evaluation_name(r.epoch), f"epoch-{r.epoch}.json.gz") for r in results}
        logs = {
            epoch: read_log(state / next(name for name in own if name in files))
            for epoch, own in names.items()
        }
        under = {
            (r.epoch, r.variant): read_observations(state / evaluation_name(r.epoch, r.variant))
            for r in attacked
        }
        return results, steps, logs, attacked, under
    except (EvaluationError, ValueError, KeyError, TypeError, OSError, StopIteration):
        return None


def _line(cut: BaseException) -> str:
    """First line of the error that ended a run early."""
    return f"{type(cut).__name__}: {cut}".strip().partition("\n")[0]


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """Build the record of a run that was stopped between two epochs, from its stored results.

    None if there are none, since it was stopped in its first epoch, or if they are damaged.
    """
    state, _ = state_folders(folder, spec.id)
    space = workspace(config.model_dump_json(), folder)
    space.storage.fetch(state, changes=True)
    progress = next(RunProgress(state).found(), None)
    stored = None if progress is None else _results(progress, state)
    if progress is None or stored is None:
        return None
    results, steps, evaluations, attacked, under = stored
    return run_record(
        spec,
        status="stopped",
        epochs=tuple(results),
        steps=tuple(steps),
        provenance=run_provenance(spec, space, progress["started"]),
        evaluations=evaluations,
        attacked=tuple(attacked),
        attacked_evaluations=under,
    )
