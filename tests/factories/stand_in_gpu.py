"""A machine with one GPU, as Ray and the sweep see it, whose runs compute on the CPU."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.base.gpu_share import GpuProbe, GpuUse, gpu_share
from unlearnbench.config.plan import Plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.records import EpochResult
from unlearnbench.sweep.pipeline import Pipeline

from ..warm_ray import warm_workers

GIB = 2**30


@contextmanager
def ray_with_a_gpu(config: SweepConfig, cores: int) -> Generator[None, None, None]:
    """Start Ray on a machine that seems to have one GPU, for all sweeps inside the `with`."""
    from unlearnbench.sweep import driver, ray_cluster

    from ..warm_ray import running_ray

    real_local_ray = ray_cluster.local_ray

    def with_a_gpu(config: SweepConfig) -> dict[str, Any]:
        return real_local_ray(config) | {"num_gpus": 1, "num_cpus": cores}

    with warm_workers(), pytest.MonkeyPatch.context() as patch:
        # Ray would look for its GPU among those that the tests hide.
        patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        patch.setattr(ray_cluster, "local_ray", with_a_gpu)
        with ray_cluster.ray_session(config):
            patch.setattr(driver, "ray_session", running_ray)
            yield


@dataclass(frozen=True)
class StandInProbe:
    """Reports what it was told."""

    use: GpuUse

    def start(self) -> None:
        """Measure nothing."""

    def finish(self) -> GpuUse:
        """Return what it was told."""
        return self.use


def probe_of(use: GpuUse) -> Callable[[], GpuProbe]:
    """Return the stage of a pipeline that makes stand-ins for probes."""

    def make() -> GpuProbe:
        return StandInProbe(use)

    return make


def stand_in_pipeline(marks: Path, together: int, use: GpuUse) -> Pipeline:
    """Return the stages of a sweep that seems to have a GPU, and computes on the CPU.

    Args:
        marks: Folder in which runs note their stays.
        together: See `_on_cpu`.
        use: What the probe reports.
    """
    real = Pipeline()

    def plan(config: SweepConfig) -> Plan:
        from unlearnbench.runs.plan_sweep import plan_sweep

        return plan_sweep(config)[0]

    def tasks(
        config: SweepConfig, runs: Sequence[RunSpec], folder: Path
    ) -> Sequence[PreparationTask]:
        return real.tasks(_without_gpu(config), runs, folder)

    return replace(
        real, plan=plan, tasks=tasks, run_epochs=_on_cpu(marks, together), gpu_probe=probe_of(use)
    )


def _without_gpu(config: SweepConfig) -> SweepConfig:
    return config.model_copy(update={"resources": Resources()})


@dataclass(frozen=True)
class Stay:
    """A run's stay on the GPU, as its process saw it."""

    run: str
    share: float
    begin: float
    end: float


def _on_cpu(
    marks: Path, together: int
) -> Callable[[RunSpec, SweepConfig, Path], Iterator[EpochResult]]:
    """Return the stage of a pipeline that carries out runs on the CPU, and notes their stays.

    Args:
        marks: Folder of the notes.
        together: Runs that share the GPU wait until so many of them have begun, for up to 20 s.
    """

    def run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        from unlearnbench.runs.run import run_epochs as real

        begin = time.monotonic()
        share = gpu_share()
        if share < 1:
            (marks / f"shared.{run.id}").touch()
            while len([*marks.glob("shared.*")]) < together and time.monotonic() < begin + 20:
                time.sleep(0.05)
        yield from real(run, config.model_copy(update={"resources": Resources()}), folder)
        note = {"run": run.id, "share": share, "begin": begin, "end": time.monotonic()}
        (marks / f"stay.{run.id}.{os.getpid()}").write_text(json.dumps(note))

    return run_epochs


def stays(marks: Path) -> list[Stay]:
    """Read the notes of `_on_cpu`, by begin."""
    notes = [Stay(**json.loads(path.read_text())) for path in marks.glob("stay.*")]
    return sorted(notes, key=lambda stay: stay.begin)


def most_at_once(of: list[Stay]) -> int:
    """Return the largest number of stays at one time."""
    return max(sum(one.begin <= other.begin < one.end for one in of) for other in of)
