"""A run's evaluations, timings and record; and the run that trains nothing."""

import ctypes
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api.inference_method import Prompts, Wrapper
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.distributed import barrier, is_main_process, world_size
from unlearnbench.base.out_of_memory import OomRetry
from unlearnbench.base.provenance import provenance
from unlearnbench.config.entries import AttackSpec
from unlearnbench.config.plan import RunSpec
from unlearnbench.evaluation.benchmark_schema import version_entry
from unlearnbench.models.loading import check_vocabulary, load_model, pad_id
from unlearnbench.models.prompt_shift import ShiftedModel, mean_states
from unlearnbench.results.records import EpochResult, read_record, run_record, write_record
from unlearnbench.runs.attack_model import results_under, variants_of
from unlearnbench.runs.run_state import RunState
from unlearnbench.runs.workspace import Workspace


def run_provenance(spec: RunSpec, space: Workspace, begin: float) -> dict[str, Any]:
    """Provenance of the record of a run that began at `begin`."""
    made = provenance(
        data=spec.data_fingerprint,
        weights=space.models(spec.model.name).full().weights(),
        commits=space.commits(spec.model.name, "full"),
        begin=begin,
    )
    made |= space.evaluator(spec.model.name, spec.forget_fraction).padding_entry
    return made | version_entry(space.config.data, space.profile, space.config.evaluation.metrics)


class EvaluatedRun:
    """Results of a run so far, its evaluator, and its record."""

    def __init__(self, spec: RunSpec, space: Workspace) -> None:
        self.spec, self.space = spec, space
        self.state = RunState()
        self.peak = Peak()
        self.oom_retry = OomRetry()
        self.retain = space.evaluation(spec.model.name, "retain", spec.forget_fraction)
        self.start = space.evaluation(spec.model.name, "full", spec.forget_fraction)
        self.evaluator = space.evaluator(spec.model.name, spec.forget_fraction)

    def _evaluate(self, model: Any, epoch: int, training: float) -> EpochResult:
        """Evaluate `model` after `epoch`; `training`: seconds of it since the last evaluation."""
        begin = time.monotonic()
        before = self.evaluator.batch_tokens
        evaluation = self.evaluator(model, self._last_evaluation())
        self.oom_retry.evaluation(epoch, before, self.evaluator.batch_tokens)
        reference = self.spec.model.name, self.spec.forget_fraction
        evaluation = self.space.with_start_losses(*reference, evaluation)
        metrics = self.space.summary(evaluation, self.retain, self.start)
        result = EpochResult(epoch, metrics, training, time.monotonic() - begin)
        self.state = self.state.evaluated(result, evaluation)
        return result

    def _due(self, epoch: int, *, last: bool) -> list[AttackSpec]:
        """The attacks of an epoch that are not stored yet.

        last  those of the run's last epoch; else those of each epoch, and of each best one so far
        """
        moments = ["last"] if last else ["every"]
        if not last and self._is_best(epoch):
            moments.append("best")
        due = [spec for spec in self.spec.attacks if spec.settings["at"] in moments]
        done = {result.variant for result in self.state.attacked if result.epoch == epoch}
        return [spec for spec in due if not done.issuperset(variants_of(spec))]

    def _is_best(self, epoch: int) -> bool:
        """Return whether no epoch up to this one has forgotten more."""
        forgotten = self.space.headline.forgotten
        values = {
            result.epoch: forgotten.oriented(value)
            for result in self.state.results
            if result.epoch <= epoch and (value := result.metrics.get(forgotten.column)) is not None
        }
        return epoch in values and values[epoch] == max(values.values())

    def _attack(self, model: Any, epoch: int, attacks: Iterable[AttackSpec]) -> None:
        """Evaluate `model` under attacks; each is stored when it is done. Collective."""
        reference = self.spec.model.name, self.spec.forget_fraction
        for spec in attacks:
            plain = self.state.evaluations[epoch, ""]
            for made in [*results_under(spec, self.space, *reference, model, plain, epoch)]:
                self.state = self.state.evaluated(*made)
            self._save()

    def _save(self) -> None:
        """Store the state; a run that is evaluated once stores none."""

    def _last_evaluation(self) -> Evaluation | None:
        """Evaluation whose answers serve as drafts for the next one."""
        if self.state.results:
            return self.state.evaluations[self.state.results[-1].epoch, ""]
        return self.start

    def _start_utility(self) -> float | None:
        start = self.space.evaluation_record(
            self.spec.model.name, "full", self.spec.forget_fraction
        )
        return read_record(start).epochs[0].metrics.get(self.space.headline.kept.column)

    def _not_finite(self, epoch: int) -> str:
        statistics = self.state.evaluations[epoch, ""].statistics
        first = None if statistics is None else statistics.not_finite
        where = "" if first is None else f", first at the question {first[:60]!r}"
        return f"epoch {epoch}: the model's outputs are no longer finite{where}"

    def _memory(self) -> dict[str, Any]:
        """Measured memory, and the batches that were halved after running out of it."""
        halved = {"out_of_memory": self.oom_retry.seen} if self.oom_retry.seen else {}
        return self.peak.to_json() | halved

    def _finish(self, status: Any, error: str | None, ended: str | None = None) -> None:
        """Write the record. Collective."""
        spec, space = self.spec, self.space
        record = run_record(
            spec,
            status=status,
            provenance=run_provenance(spec, space, self.state.started)
            | {"processes": world_size(), **self._memory()},
            error=error,
            ended=ended,
            **self.state.of_record(),
        )
        if is_main_process():
            space.storage.push(write_record(record, space.folder))
        barrier()


class InferenceRun(EvaluatedRun):
    """A run that trains nothing: a wrapping method in front of the start model, evaluated once."""

    def run(self, method: Wrapper) -> Iterator[EpochResult]:
        """Yield the evaluation, then write the record."""
        begin = time.monotonic()
        (epoch,) = self.spec.evaluate_at
        model = wrapped_model(self.spec, self.space, method)
        result = self._evaluate(model, epoch, time.monotonic() - begin)
        yield result
        collapsed = result.metrics.get(self.space.headline.kept.column) is None
        if not collapsed:
            self._attack(model, epoch, self.spec.attacks)
        status = "collapsed" if collapsed else "finished"
        self._finish(status, self._not_finite(epoch) if collapsed else None)


def wrapped_model(spec: RunSpec, space: Workspace, method: Wrapper) -> ShiftedModel:
    """Fit `method` on the questions to forget and to retain; an adapter is not trained."""
    # The evaluator's encoder makes the prompts that the model will be evaluated on.
    encoder = space.evaluator(spec.model.name, spec.forget_fraction).encoder
    split, pad = space.benchmark.splits[spec.forget_fraction], pad_id(encoder.tokenizer)
    space.preparer(spec.model.name).ensure_prepared("full")
    model = load_model(space.models(spec.model.name).full(), spec.model)
    check_vocabulary(model, encoder.tokenizer)
    forget, retain = (
        [encoder.prompt(question) for question in side] for side in (split.forget, split.retain)
    )
    prompts = Prompts(forget, retain, spec.seed, partial(mean_states, model, pad=pad))
    with plugin_code(f"`fit` of {type(method).__name__}"):
        shift = method.fit(model, prompts)
    return ShiftedModel(model, shift)


_STATUS = Path("/proc/self/status")
_RESET = Path("/proc/self/clear_refs")


def memory_bytes(key: str) -> int:
    """Bytes of `VmRSS` (now) or `VmHWM` (the most so far) of this process."""
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(f"{key}:"))
    return int(line.split()[1]) * 1024


def reset_peak() -> bool:
    """Reset `VmHWM`; returns whether this system can."""
    # Freed memory that the allocator keeps would hide what is allocated next. glibc only.
    with suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)
    try:
        _RESET.write_text("5")  # VmHWM becomes VmRSS
    except OSError:
        return False
    return True


class Peak:
    """Peak memory since this object was made."""

    def __init__(self) -> None:
        self.on_gpu = torch.cuda.is_available()
        self._begin: int | None = None
        if self.on_gpu:
            torch.cuda.reset_peak_memory_stats()
        elif reset_peak():
            self._begin = memory_bytes("VmRSS")

    def to_json(self) -> dict[str, Any]:
        """The peak in MiB and what it measures; None where the system has no measure."""
        if self.on_gpu:
            result: int | None = torch.cuda.max_memory_allocated()
            of = "allocated on the GPU"
        else:
            result = None if self._begin is None else memory_bytes("VmHWM") - self._begin
            of = "resident, above the run's start"
        mib = None if result is None else round(result / 2**20)
        return {"peak_memory_mib": mib, "peak_memory_of": of}
