"""A run that trains: its trainer, and on disk what is finished of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unlearnbench.checkpoint import Checkpoints, Pulse
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.log import read_log, write_log
from unlearnbench.evaluation.profiles import profile_of
from unlearnbench.group import leads, of_all, of_leader, world
from unlearnbench.judged import Run
from unlearnbench.method import Method
from unlearnbench.plan import RunSpec
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, Record, run_record
from unlearnbench.settings import SweepConfig
from unlearnbench.sizing import estimated_peak
from unlearnbench.step import StepResult
from unlearnbench.stopping import Stopped, asked, check, held
from unlearnbench.trainers import give_back, run_trainer
from unlearnbench.training import NonFiniteError, Trainer
from unlearnbench.workspace import Workspace, workspace


class TrainedRun(Run):
    """A run with its trainer, and on disk what is finished of it."""

    def __init__(self, spec: RunSpec, space: Workspace, method: Method) -> None:
        super().__init__(spec, space)
        self.method = method
        state = space.folder / "state" / spec.id
        self.checkpoints, self.pulse = Checkpoints(state), Pulse(state)
        self.epoch = 0
        """Trained, and evaluated where it is to be."""
        self.spent = 0.0
        """Seconds of training in the next epoch, before an interruption."""
        self.trainer = self._made()
        self._resume()

    def _made(self) -> Trainer:
        trainer = run_trainer(self.spec, self.space, self.method)
        self.shortages = trainer.shortages
        self.shortages.keep(self.checkpoints.folder)
        if self.shortages.batch_tokens is not None:
            self.evaluator.batch_tokens = self.shortages.batch_tokens
        return trainer

    def _memory(self) -> dict[str, Any]:
        return super()._memory() | {"estimated_memory_mib": estimated_peak(self.spec, self.trainer)}

    def go_on(self) -> Iterator[EpochResult]:
        """The epochs that are still to do, then the record."""
        error, ended = self._collapse(), self._out_of_patience()
        try:
            while self.epoch < self.spec.epochs and error is None and ended is None:
                result = self._train_epoch()
                if result is not None:
                    yield result
                    error, ended = self._collapse(), self._out_of_patience()
        except NonFiniteError as collapse:
            error = str(collapse)
        except BaseException as cut:
            if leads():
                self.pulse.beat(self.trainer.step, self.epoch + 1, _said(cut))
            raise
        with held():
            self._finish("finished" if error is None else "collapsed", error, ended)
            if leads():
                self.checkpoints.remove()
                self.space.storage.remove(self.checkpoints.folder)
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
        if rule is None or self.epoch >= self.spec.epochs:
            return None
        return of_leader(lambda: rule.ended((r.epoch, r.metrics) for r in self.results))

    def _train_epoch(self) -> EpochResult | None:
        """Go on with the epoch after `self.epoch`, at whichever of its steps the trainer is."""
        begin, number = time.monotonic() - self.spent, self.epoch + 1
        last, judged = number == self.spec.epochs, number in self.spec.evaluate_at
        with held():
            for step in self.trainer.epoch(number):
                self.steps.append(step)
                if leads():
                    self.pulse.beat(step.step, number)
                if any(of_all(asked())):
                    self._save(time.monotonic() - begin)
                    raise Stopped
            if judged and not last:  # a death during the evaluation costs no training
                self._save(time.monotonic() - begin)
        result = self._judge(number, begin) if judged else None
        self.epoch, self.spent = number, 0.0
        if not last:
            with held():
                self._save()
        return result

    def _judge(self, number: int, begin: float) -> EpochResult:
        trained = time.monotonic() - begin
        try:
            # One of several cannot leave the others in the middle: the next step will see to it.
            with self.trainer.evaluated() as model, held() if world() > 1 else nullcontext():
                if world() == 1:
                    check()
                return self._evaluate(model, number, begin)
        except Stopped:
            with held():
                self._save(trained)
            raise

    def _save(self, spent: float = 0.0) -> None:
        """Put the run on disk as it is; `spent` seconds of the next epoch are done. Collective."""
        trainer, step = self.trainer, self.trainer.step
        weights = _trainer(step)
        written = of_leader(lambda: self.checkpoints.has(weights))
        if not leads():
            if not written:
                trainer.save(self.checkpoints.folder)  # its part of what the leader writes
            return
        files: dict[str, Callable[[Path], None]] = {
            _log(epoch): partial(write_log, evaluation)
            for epoch, evaluation in self.evaluations.items()
        }
        progress = {
            "epoch": self.epoch,
            "step": step,
            "spent": spent,
            "started": self.started,
            "results": [asdict(result) for result in self.results],
            "steps": [asdict(step) for step in self.steps],
        }
        self.checkpoints.save(step, progress, {weights: trainer.save, **files})
        self.space.storage.push(self.checkpoints.folder, changes=True)
        self.pulse.kept()

    def _resume(self) -> None:
        """Take up what an interrupted process left; all processes the same, or none."""
        self.space.storage.fetch(self.checkpoints.folder, changes=True)
        found = self.checkpoints.found()
        while (progress := of_leader(lambda: next(found, None))) is not None:
            if all(of_all(self._takes_up(progress))):
                break
            # Whole, but of another version; the trainer's weights may be half loaded.
            self.trainer = self._made()
        self.pulse.resumed(self.trainer.step)
        self.interruptions = self.pulse.interruptions

    def _takes_up(self, progress: Mapping[str, Any]) -> bool:
        folder = self.checkpoints.folder
        try:
            results = [EpochResult(**result) for result in progress["results"]]
            steps = [StepResult(**step) for step in progress["steps"]]
            evaluations = {r.epoch: read_log(folder / _log(r.epoch)) for r in results}
            self.trainer.load(folder / _trainer(progress["step"]))
            self.epoch, self.spent = progress["epoch"], progress["spent"]
        except (SafetensorError, EvaluationError, ValueError, KeyError, TypeError, OSError):
            return False
        self.started = progress["started"]
        self.results, self.steps, self.evaluations = results, steps, evaluations
        return True


def _trainer(step: int) -> str:
    return f"trainer-{step:08d}.safetensors"


def _log(epoch: int) -> str:
    return f"epoch-{epoch}.json.gz"


def _said(cut: BaseException) -> str:
    """What ended a run early, in a line."""
    if isinstance(cut, Stopped):
        return "SIGTERM"
    return f"{type(cut).__name__}: {cut}".strip().partition("\n")[0]


def stopped_record(spec: RunSpec, config: SweepConfig, folder: Path) -> Record | None:
    """The record of a run that was stopped between two epochs, of what it left; loads no model.

    None where that is damaged or not there: the run has not come to its first epoch's end.
    """
    state, space = folder / "state" / spec.id, workspace(config.model_dump_json(), folder)
    space.storage.fetch(state, changes=True)
    progress = next(Checkpoints(state).found(), None)
    if progress is None:
        return None
    try:
        results = [EpochResult(**result) for result in progress["results"]]
        found = run_record(
            spec,
            status="stopped",
            profile=profile_of(spec.evaluation).id,
            epochs=tuple(results),
            steps=tuple(StepResult(**step) for step in progress["steps"]),
            provenance=provenance(
                data=spec.data_fingerprint,
                weights=space.models(spec.model.name).full().identity(),
                commits=space.commits(spec.model.name, "full"),
                begin=progress["started"],
            ),
            evaluations={r.epoch: read_log(state / _log(r.epoch)) for r in results},
        )
    except (EvaluationError, ValueError, KeyError, TypeError, OSError):
        return None
    return found
