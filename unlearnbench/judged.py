"""A run whose model is judged: what is known of it so far, and the record that it ends with."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from unlearnbench.evaluation.metrics import summarize
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.group import leads, wait, world
from unlearnbench.method import Wrapper
from unlearnbench.peak import Peak
from unlearnbench.plan import RunSpec
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, read_record, run_record, write_record
from unlearnbench.shortage import Shortages
from unlearnbench.step import StepResult
from unlearnbench.workspace import Workspace
from unlearnbench.wrapping import wrapped_model


class Run:
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

    def _start_utility(self) -> float | None:
        anchor = self.space.anchor_id(self.spec.model.name, "full", self.spec.forget_fraction)
        return read_record(self.space.record(anchor)).epochs[0].metrics["model_utility"]

    def _not_finite(self, epoch: int) -> str:
        statistics = self.evaluations[epoch].statistics
        first = None if statistics is None else statistics.not_finite
        where = "" if first is None else f", first at the question {first[:60]!r}"
        return f"epoch {epoch}: the model's outputs are no longer finite{where}"

    def _memory(self) -> dict[str, Any]:
        """What was measured of the run's memory, and what had to be done for it to do."""
        short = {"out_of_memory": self.shortages.seen} if self.shortages.seen else {}
        return self.peak.to_json() | short

    def _finish(self, status: Any, error: str | None, ended: str | None = None) -> None:
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
                commits=space.commits(spec.model.name, "full"),
                begin=self.started,
            )
            | {"processes": world(), "interruptions": self.interruptions, **self._memory()},
            error=error,
            ended=ended,
            evaluations=self.evaluations,
        )
        if leads():
            space.storage.push(write_record(record, space.folder))
        wait()


class WrappedRun(Run):
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
