"""One run, from its spec to its record.

Nothing here knows of Ray or MLflow: a sweep hands these functions to its workers, and
`unlearnbench run` calls them in its own process.
"""

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
from unlearnbench.evaluation.metrics import summarize
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.group import leads, of_all, of_leader, wait, world
from unlearnbench.method import Method, Wrapper
from unlearnbench.models.loading import quiet_transformers
from unlearnbench.notices import taken
from unlearnbench.peak import Peak
from unlearnbench.plan import RunSpec
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, Record, read_record, run_record, write_record
from unlearnbench.registry import method_from_spec
from unlearnbench.settings import SweepConfig
from unlearnbench.shortage import Shortages
from unlearnbench.sizing import estimated_peak
from unlearnbench.step import StepResult
from unlearnbench.stopping import Stopped, asked, caught, check, held
from unlearnbench.tasks import execute_task, preparation_tasks
from unlearnbench.trainers import give_back, run_trainer
from unlearnbench.training import NonFiniteError, Trainer
from unlearnbench.workspace import Workspace, workspace
from unlearnbench.wrapping import wrapped_model


def run_epochs(spec: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
    """Train and evaluate; yields after each evaluated epoch and writes the record at the end.

    An interrupted run goes on after the last epoch that it finished, with the same numbers.
    """
    quiet_transformers()
    space, method = workspace(config.model_dump_json(), folder), method_from_spec(spec.method)
    done = space.record(spec.id)
    if space.storage.url and of_leader(lambda: space.storage.fetch(done)):
        if leads():
            space.storage.push(done)  # it may be all that the last try could not do
        return
    space.fetch_models(spec.model.name, "full")
    if isinstance(method, Wrapper):
        yield from _WrappedRun(spec, space).carry_out(method)
        return
    run = _TrainedRun(spec, space, method)
    yield from run.results
    yield from run.go_on()


def run_single(
    spec: RunSpec, config: SweepConfig, folder: Path, told: Callable[[str], None]
) -> Record:
    """Prepare and carry out one run in this process, without Ray; `told` gets a line at a time."""
    with caught():
        return _carried_out(spec, config, folder, told)


def _carried_out(
    spec: RunSpec, config: SweepConfig, folder: Path, told: Callable[[str], None]
) -> Record:
    for task in of_leader(lambda: preparation_tasks(config, [spec], folder)):
        if not task.done:
            told(task.label)
            execute_task(task, config, folder)
    place = folder / "records" / spec.id
    if not of_leader(place.is_dir):
        for result in run_epochs(spec, config, folder):
            for line in taken():
                told(f"warning: {line}")
            utility, quality = (
                result.metrics[k] for k in ("model_utility", "log10_forget_quality")
            )
            told(f"epoch {result.epoch}: Model Utility {utility}, log10 Forget Quality {quality}")
    return read_record(place)


class _Run:
    """What is known of a run so far, and how a model is judged in it."""

    def __init__(self, spec: RunSpec, space: Workspace) -> None:
        self.spec, self.space = spec, space
        self.results: list[EpochResult] = []
        self.steps: list[StepResult] = []
        self.started = time.time()
        self.peak = Peak()
        self.shortages = Shortages()
        self.evaluations: dict[int, Evaluation] = {}
        self.interruptions: list[dict[str, Any]] = []
        self.retain = space.retain_evaluation(spec.model.name, spec.forget_fraction)
        self.evaluator = space.evaluator(spec.model.name, spec.forget_fraction)

    def _evaluate(self, model: Any, epoch: int, begin: float) -> EpochResult:
        """Judge `model` after `epoch`, whose training has begun at `begin`."""
        trained = time.monotonic()
        before = self.evaluator.batch_tokens
        evaluation = self.evaluator(model, self._last_evaluation())
        self.shortages.evaluation(epoch, before, self.evaluator.batch_tokens)
        self.evaluations[epoch] = evaluation
        metrics = summarize(evaluation, self.retain, self.space.profile)
        seconds = time.monotonic() - trained
        result = EpochResult(epoch, metrics, trained - begin, seconds)
        self.results.append(result)
        return result

    def _last_evaluation(self) -> Evaluation | None:
        """The one whose answers are likely to be near the model's: drafts for the next."""
        if self.evaluations:
            return self.evaluations[max(self.evaluations)]
        return self.space.full_evaluation(self.spec.model.name, self.spec.forget_fraction)

    def _not_finite(self, epoch: int) -> str:
        statistics = self.evaluations[epoch].statistics
        first = None if statistics is None else statistics.not_finite
        where = "" if first is None else f", first at the question {first[:60]!r}"
        return f"epoch {epoch}: the model's outputs are no longer finite{where}"

    def _memory(self) -> dict[str, Any]:
        """What was measured of the run's memory, and what had to be done for it to do."""
        short = {"out_of_memory": self.shortages.seen} if self.shortages.seen else {}
        return self.peak.to_json() | short

    def _finish(self, status: Any, error: str | None) -> None:
        spec, space = self.spec, self.space
        record = run_record(
            spec,
            status=status,
            profile=space.profile.id,
            epochs=tuple(self.results),
            steps=tuple(self.steps),
            provenance=provenance(
                data=spec.data_fingerprint,
                weights=space.models(spec.model.name).full().identity(),
                begin=self.started,
            )
            | {"processes": world(), "interruptions": self.interruptions, **self._memory()},
            error=error,
            evaluations=self.evaluations,
        )
        if leads():
            space.storage.push(write_record(record, space.folder))
        wait()


class _WrappedRun(_Run):
    """A run that trains nothing: the start model with something in front of it, judged once."""

    def carry_out(self, method: Wrapper) -> Iterator[EpochResult]:
        """The one evaluation, then the record."""
        begin = time.monotonic()
        (epoch,) = self.spec.evaluate_at
        result = self._evaluate(wrapped_model(self.spec, self.space, method), epoch, begin)
        yield result
        collapsed = result.metrics["model_utility"] is None
        status = "collapsed" if collapsed else "finished"
        self._finish(status, self._not_finite(epoch) if collapsed else None)


class _TrainedRun(_Run):
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
        status, error = "finished", None
        try:
            while self.epoch < self.spec.epochs and status == "finished":
                result = self._train_epoch()
                if result is not None:
                    yield result
                    if result.metrics["model_utility"] is None:
                        status, error = "collapsed", self._not_finite(result.epoch)
        except NonFiniteError as collapse:
            status, error = "collapsed", str(collapse)
        except BaseException as cut:
            if leads():
                self.pulse.beat(self.trainer.step, self.epoch + 1, _said(cut))
            raise
        with held():
            self._finish(status, error)
            if leads():
                self.checkpoints.remove()
                self.space.storage.remove(self.checkpoints.folder)
        give_back(self.trainer, self.spec, self.space)

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
