"""A run that trains: its trainer, and on disk what is finished of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from unlearnbench.checkpoint import NOTICE_SECONDS, Checkpoints
from unlearnbench.device import device_memory, usable
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.log import read_log, write_log
from unlearnbench.evaluation.precision import needs_stored_weights
from unlearnbench.evaluation.profiles import profile_of
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.group import leads, of_all, of_leader, world
from unlearnbench.judged import Run
from unlearnbench.method import Method
from unlearnbench.plan import RunSpec
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, Record, run_record
from unlearnbench.run_state import Pulse, RunProgress, remove_state, state_folders
from unlearnbench.settings import SweepConfig
from unlearnbench.sizing import budget_of, estimated_peak
from unlearnbench.step import StepResult
from unlearnbench.stopping import Stopped, asked, check, held
from unlearnbench.trainers import give_back, run_trainer
from unlearnbench.training import NonFiniteError, Trainer
from unlearnbench.workspace import Workspace, workspace


class TrainedRun(Run):
    """A run with its trainer, and on disk what is finished of it.

    Results are kept after every epoch, the trainer where a checkpoint pays. So an interrupted run
    may have to train some epochs again that have been evaluated. Each step of them is compared
    with the one stored: while loss, gradient norm and all else are equal to the last digit, as on
    a CPU, the model is the one that was evaluated, and its stored evaluation counts. From the first
    step that differs on, as GPUs may round, what was stored is dropped and evaluated anew: a record
    never mixes two courses of training.
    """

    def __init__(self, spec: RunSpec, space: Workspace, method: Method) -> None:
        super().__init__(spec, space)
        self.method = method
        state, trainer = state_folders(space.folder, spec.id)
        self.progress, self.pulse = RunProgress(state), Pulse(state)
        self.checkpoints = Checkpoints(trainer, space.storage)
        self.reached = 0
        """The last epoch that is trained, evaluated where it is to be, and stored."""
        self._take_up_results()
        self.trainer, self.epoch = self.checkpoints.resumed(self._made, self.reached)
        """`epoch`: the last one that the trainer has trained."""
        self.pulse.resumed(self.trainer.step)
        self.interruptions = self.pulse.interruptions

    def _made(self) -> Trainer:
        trainer = run_trainer(self.spec, self.space, self.method)
        self.shortages = trainer.shortages
        self.shortages.keep(self.progress.folder)
        resources = self.space.config.resources_of(self.spec.model.name)
        trainer.budget = budget_of(self.spec, trainer, usable(device_memory(), resources))
        if self.shortages.batch_tokens is not None:
            self.evaluator.batch_tokens = self.shortages.batch_tokens
        return trainer

    def _memory(self) -> dict[str, Any]:
        found: dict[str, Any] = {"estimated_memory_mib": estimated_peak(self.spec, self.trainer)}
        if self.trainer.budget is not None:
            found["micro_batch"] = asdict(self.trainer.budget)
        return super()._memory() | found

    def go_on(self) -> Iterator[EpochResult]:
        """The epochs that are still to do, then the record."""
        error, ended = self._collapse(), self._out_of_patience()
        try:
            while self.reached < self.spec.epochs and error is None and ended is None:
                result = self._next_epoch()
                if result is not None:
                    yield result
                    error, ended = self._collapse(), self._out_of_patience()
        except NonFiniteError as collapse:
            error = str(collapse)
            self._drop(self.trainer.step, self.epoch + 1)
        except BaseException as cut:
            self._beat("SIGTERM" if isinstance(cut, Stopped) else _line(cut))
            hurried = isinstance(cut, Stopped | GeneratorExit)
            self.checkpoints.wait(NOTICE_SECONDS if hurried else None)
            if isinstance(cut, Stopped):
                raise Stopped(self._cost()) from None
            raise
        with held():
            self._finish("finished" if error is None else "collapsed", error, ended)
            self.checkpoints.end()
            if leads():
                remove_state(self.space.folder, self.spec.id, self.space.storage)
        give_back(self.trainer, self.spec, self.space)

    def _collapse(self) -> str | None:
        """Why the last evaluation is the end of the run, or None."""
        if not self.results:
            return None
        epoch, utility = self.results[-1].epoch, self.results[-1].metrics["model_utility"]
        if utility is None:
            return self._not_finite(epoch)
        share = self.spec.evaluation.stop_below
        start = None if share is None else self._start_utility()
        if share is None or start is None or utility >= share * start:
            return None
        return (
            f"epoch {epoch}: Model Utility {utility:.4g} is below {share * start:.4g}, which is "
            f"{share:g} of the fine-tuned model's {start:.4g} (evaluation.stop_below)"
        )

    def _out_of_patience(self) -> str | None:
        """Why the run ends before its last epoch, by its own rule; None: it goes on. Collective."""
        rule = self.spec.evaluation.patience
        if rule is None or self.reached >= self.spec.epochs:
            return None
        return of_leader(lambda: rule.ended((r.epoch, r.metrics) for r in self.results))

    def _next_epoch(self) -> EpochResult | None:
        """Train the next epoch; evaluate and store it unless that is done. Collective."""
        begin, number = time.monotonic(), self.epoch + 1
        with held():
            for step in self.trainer.epoch(number):
                self._note(step)
                self._beat()
                if any(of_all(asked())):
                    raise Stopped
        result = None
        if number > self.reached:
            if number in self.spec.evaluate_at:
                result = self._judge(number, begin)
            self.reached = number
            with held():
                self._store()
        self.epoch = number
        if number < self.spec.epochs:
            with held():
                self.checkpoints.epoch_ended(self.trainer, number, time.monotonic() - begin)
        return result

    def _judge(self, number: int, begin: float) -> EpochResult:
        # One of several cannot leave the others in the middle: the next step will see to it.
        exact = needs_stored_weights(self.trainer.model, self.spec.evaluation.precision)
        judged = self.trainer.evaluated(exact=exact)
        with judged as model, held() if world() > 1 else nullcontext():
            if world() == 1:
                check()
            return self._evaluate(model, number, begin)

    def _note(self, step: StepResult) -> None:
        """Append a step, or see whether a repeated one came out as it did before. Collective."""
        if step.step <= len(self.steps):
            if of_leader(lambda: self.steps[step.step - 1] == step):
                return
            self._drop(step.step - 1, step.epoch)
        self.steps.append(step)

    def _drop(self, step: int, epoch: int) -> None:
        """Forget what is stored of an earlier course after `step`, which is in `epoch`."""
        del self.steps[step:]
        dropped = [e for e in self.evaluations if e >= epoch]
        self.results = [result for result in self.results if result.epoch < epoch]
        for number in dropped:
            del self.evaluations[number]
        self.reached = min(self.reached, epoch - 1)
        if leads():
            self.progress.drop(step, map(_log, dropped))

    def _beat(self, what: str | None = None) -> None:
        if leads():
            self.pulse.beat(self.trainer.step, self.epoch + 1, self.checkpoints.current, what)

    def _cost(self) -> str:
        """What SIGTERM has cost, in a line."""
        lost = self.trainer.step - self.checkpoints.step
        steps = f"{lost} step{'s' if lost != 1 else ''} since the last checkpoint"
        kept = f"results are kept up to epoch {self.reached}" if self.reached else "none is kept"
        return f"stopped by SIGTERM in epoch {self.epoch + 1}; it costs {steps}; {kept}"

    def _store(self) -> None:
        """Put on disk what is known of the run."""
        if not leads():
            return
        files: dict[str, Callable[[Path], None]] = {
            _log(epoch): partial(write_log, evaluation)
            for epoch, evaluation in self.evaluations.items()
        }
        progress = {
            "epoch": self.reached,
            "started": self.started,
            "results": [asdict(result) for result in self.results],
            "steps": [asdict(step) for step in self.steps],
        }
        self.progress.save(self.trainer.step, progress, files)
        self.space.storage.push(self.progress.folder, changes=True, digests=self.progress.digests)

    def _take_up_results(self) -> None:
        """Take up what an interrupted process stored; all processes the same, or none."""
        state = self.progress.folder
        self.space.storage.fetch(state, changes=True)
        if leads():
            self.progress.adopt(self.checkpoints)
        found = self.progress.found()
        while (progress := of_leader(lambda: next(found, None))) is not None:
            known = _results(progress, state)
            if all(of_all(known is not None)) and known is not None:
                self.started, self.reached = progress["started"], progress["epoch"]
                self.results, self.steps, self.evaluations = known
                return


def _log(epoch: int) -> str:
    return f"epoch-{epoch}.json.gz"


Results = tuple[list[EpochResult], list[StepResult], dict[int, Evaluation]]


def _results(progress: Mapping[str, Any], state: Path) -> Results | None:
    """What a run stored, or None where it is of another version."""
    try:
        results = [EpochResult(**result) for result in progress["results"]]
        steps = [StepResult(**step) for step in progress["steps"]]
        float(progress["started"])
        int(progress["epoch"])
        return results, steps, {r.epoch: read_log(state / _log(r.epoch)) for r in results}
    except (EvaluationError, ValueError, KeyError, TypeError, OSError):
        return None


def _line(cut: BaseException) -> str:
    """The first line of what ended a run early."""
    return f"{type(cut).__name__}: {cut}".strip().partition("\n")[0]


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """The record of a run that was stopped between two epochs, of what it left; loads no model.

    None where that is damaged or not there: the run has not come to its first epoch's end.
    """
    state, _ = state_folders(folder, spec.id)
    space = workspace(config.model_dump_json(), folder)
    space.storage.fetch(state, changes=True)
    progress = next(RunProgress(state).found(), None)
    known = None if progress is None else _results(progress, state)
    if progress is None or known is None:
        return None
    results, steps, evaluations = known
    return run_record(
        spec,
        status="stopped",
        profile=profile_of(spec.evaluation).id,
        epochs=tuple(results),
        steps=tuple(steps),
        provenance=provenance(
            data=spec.data_fingerprint,
            weights=space.models(spec.model.name).full().identity(),
            commits=space.commits(spec.model.name, "full"),
            begin=progress["started"],
        ),
        evaluations=evaluations,
    )
