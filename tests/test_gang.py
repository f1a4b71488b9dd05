"""One run over several processes, from a configuration: the numbers of one process."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench import group, workspace
from unlearnbench.config import load_config
from unlearnbench.console import Console
from unlearnbench.errors import TrainingError
from unlearnbench.evaluation import evaluator
from unlearnbench.evaluation.prediction import Predictor
from unlearnbench.execution import Resources
from unlearnbench.folder import claim_folder
from unlearnbench.inputs import plan_sweep
from unlearnbench.ledger import default_runtime
from unlearnbench.minibatch import Minibatches
from unlearnbench.plan import Plan, RunSpec
from unlearnbench.records import EpochResult, Record, read_record, read_records
from unlearnbench.running import run_single
from unlearnbench.settings import SweepConfig
from unlearnbench.sweep import run_sweep
from unlearnbench.sweep.cluster import joined
from unlearnbench.sweep.gang import bundles, first_of, together
from unlearnbench.tasks import execute_task, preparation_tasks

MODEL = """
  - name: {name}
    base: tiny
    architecture:
      {{vocabulary: 400, hidden_size: 32, layers: 2, heads: 2, intermediate_size: 32, context: 256}}
    preparation: {{optimizer: adamw, schedule: linear, warmup: 0.05, rehearse_facts: false,
      epochs: 1, base_epochs: 1, learning_rate: 3.0e-3, batch_size: 16}}
    resources: {{{resources}}}
"""
RESOURCES = {
    "one": "cpu: 1",
    "ddp": "processes: 2, cpu: 0.5, parallel: ddp",
    "fsdp": "processes: 2, cpu: 0.5",
}
FAILING = "gradient-difference"
"""The method that fails in the sweep, whatever it is."""
CONFIG = """
name: small
data: {source: synthetic, authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
{models}forget_fractions: [0.5]
methods: [npo, task-vector, gradient-difference]
learning_rates: [1.0e-3]
epochs: 3
training: {batch_size: 4}
evaluation: {rows: 4, max_length: 96}
ray: {concurrent: 1}
tracking: {enabled: false}
"""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepConfig]:
    """The configuration, in a folder of its own."""
    models = "".join(MODEL.format(name=n, resources=r) for n, r in RESOURCES.items())
    (tmp_path / "small.yaml").write_text(CONFIG.replace("{models}", models))
    monkeypatch.chdir(tmp_path)
    workspace.workspace.cache_clear()
    yield load_config("small.yaml", [f"cache={tmp_path / 'cache'}"])
    workspace.workspace.cache_clear()


def plan_of(config: SweepConfig) -> Plan:
    return plan_sweep(config)[0]


def check_same(mine: Record, truth: Record) -> None:
    """The numbers of both runs are equal to rounding."""
    assert [e.epoch for e in mine.epochs] == [e.epoch for e in truth.epochs]
    for epoch, other in zip(mine.epochs, truth.epochs, strict=True):
        assert epoch.metrics == pytest.approx(other.metrics, rel=1e-4, abs=1e-5), mine.model
    assert len(mine.steps) == len(truth.steps)
    for step, other_step in zip(mine.steps, truth.steps, strict=True):
        got, expected = (
            {**s.terms, "norm": s.grad_norm, "loss": s.loss} for s in (step, other_step)
        )
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5), mine.model


@pytest.fixture
def alone(small: SweepConfig) -> dict[str, Record]:
    """The records of the runs in one process, by method."""
    config = small.model_copy(update={"name": "alone"})
    folder = claim_folder(plan_of(config)).resolve()
    runs = [run for run in plan_of(config).runs if run.model.name == "one"]
    runs = [run for run in runs if run.method.name != FAILING]
    return {run.method.name: run_single(run, config, folder, lambda _: None) for run in runs}


@pytest.mark.slow
def test_a_sweep_over_two_processes_has_the_numbers_of_one(
    small: SweepConfig, alone: dict[str, Record], tmp_path: Path
) -> None:
    """One of the two is killed in the second epoch, and the run goes on from the first.

    Another run fails in one process, as it would each time, while the other one waits for it.
    """
    models = tuple(m for m in small.models if m.name == "fsdp")
    config = small.model_copy(update={"models": models})
    folder = claim_folder(plan_of(config)).resolve()
    for task in preparation_tasks(config, plan_of(config).runs, folder):
        if task.id != "fsdp/full@0.5":  # left to two processes
            execute_task(task, config, folder)
    marker = tmp_path / "killed"
    runtime = default_runtime()

    def run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        if run.method.name == FAILING:
            (tmp_path / f"attempt-{os.getpid()}").touch()
            if group.rank() == 1:
                raise TrainingError("nothing to train on")
            group.wait()
        for result in runtime.run_epochs(run, config, folder):
            yield result
            if os.environ["RANK"] == "1" and run.method.name == "npo" and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    said = StringIO()
    result = run_sweep(config, Console(err=said), replace(runtime, run_epochs=run_epochs))
    assert (result.finished, result.failed) == (2, 1), said.getvalue()
    assert len(list(tmp_path.glob("attempt-*"))) == 2, "one attempt of two processes"
    assert marker.exists()
    assert "one of the run's processes died: killed, or out of memory; trying" in said.getvalue()
    records = {r.method: r for r in read_records(folder)}
    for method, truth in alone.items():
        check_same(records[method], truth)
        assert records[method].provenance["processes"] == 2
    failed = records[FAILING]
    assert failed.status == "failed"
    assert str(failed.error).splitlines()[0] == "TrainingError: nothing to train on"
    (full,) = (r for r in read_records(folder.with_name("alone")) if r.kind == "fine-tuned")
    assert records["fine-tuned"].epochs[0].metrics == full.epochs[0].metrics
    assert not list((folder / "state").glob("*/")), "nothing is left of finished runs"


@pytest.mark.slow
def test_torchrun_carries_out_one_run_with_all_that_it_waits_for(
    small: SweepConfig, alone: dict[str, Record], tmp_path: Path
) -> None:
    (run,) = (r for r in plan_of(small).runs if (r.model.name, r.method.name) == ("ddp", "npo"))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    settings = ["--set", f"cache={tmp_path / 'cache'}", "--json"]
    done = subprocess.run(
        [*torchrun, "-m", "unlearnbench", "run", "small.yaml", "--select", run.id, *settings],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["id"] == run.id, "told once"
    record = read_record(tmp_path / "runs" / "small" / "records" / run.id)
    check_same(record, alone["npo"])
    assert record.provenance["processes"] == 2


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray, for the tests that start workers themselves."""
    config = load_config("quickstart", ["resources.cpu=0.5", "ray.concurrent=2"])
    with joined(config, pytest.fail):
        import ray

        yield ray


def coordinate(ray: Any, work: Any, folder: Path, timeout: float) -> list[Any]:
    """What `work` yields in two processes, from a task that coordinates them."""
    resources = Resources(processes=2, cpu=0.5)

    def coordinator() -> list[Any]:
        return list(together(work, resources, folder))

    placed = bundles(resources)
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": first_of(placed)}
    task: Any = ray.remote(coordinator).options(**options)
    try:
        return list(ray.get(task.remote(), timeout=timeout))
    finally:
        ray.util.remove_placement_group(placed)


@pytest.mark.slow
def test_a_failure_of_one_process_ends_all_and_not_the_coordinator(
    cluster: Any, tmp_path: Path
) -> None:
    resources, ray = Resources(processes=2, cpu=0.5), cluster
    marks = tmp_path / "marks"
    marks.mkdir()

    def work(broken: int | None) -> Iterator[list[int]]:
        (marks / f"{broken}.{group.rank()}.{os.getpid()}").touch()
        for step in (1, 2, 3):
            if (step, group.rank()) == (3, broken):
                raise ValueError(f"process {broken} does not like it")
            yield group.of_all(step * 10 + group.rank())

    def lead() -> list[list[int]]:
        # One that is given up leaves nothing in the way of the next one.
        assert next(together(partial(work, None), resources, tmp_path)) == [10, 11]
        for broken in (0, 1):
            steps = together(partial(work, broken), resources, tmp_path)
            assert [next(steps), next(steps)] == [[10, 11], [20, 21]]
            with pytest.raises(ValueError, match=f"process {broken} does not like it"):
                next(steps)
        return list(together(partial(work, None), resources, tmp_path))

    placed = bundles(resources)
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": first_of(placed)}
    task: Any = ray.remote(lead).options(**options)
    assert ray.get(task.remote(), timeout=200) == [[10, 11], [20, 21], [30, 31]]
    ray.util.remove_placement_group(placed)
    pids = {
        broken: {path.name.split(".")[2] for path in marks.glob(f"{broken}.*")}
        for broken in ("None", "0", "1")
    }
    assert len(pids["0"]) == len(pids["1"]) == 2
    assert pids["0"] < pids["None"], "the same two processes for one work after another"
    assert not pids["0"] & pids["1"], "and others after a failure"


@pytest.mark.slow
def test_processes_that_share_no_folder_agree_on_what_fits(
    small: SweepConfig, alone: dict[str, Record], cluster: Any, tmp_path: Path
) -> None:
    """One is out of memory in its first forward pass, then in a batch of an evaluation."""
    two = Resources(processes=2, cpu=0.5)
    models = [m for m in small.models if m.name == "one"]
    models = [models[0].model_copy(update={"resources": two})]
    config = small.model_copy(update={"name": "alone", "models": tuple(models)})
    (run,) = (r for r in plan_of(config).runs if r.method.name == "npo")
    folders = [tmp_path / "nodes" / str(rank) for rank in range(2)]
    for folder in folders:
        shutil.copytree(Path("runs/alone").resolve(), folder)
        shutil.rmtree(folder / "records" / run.id)

    def run_out_of_memory(place: str, function: Any) -> Any:
        def once(*args: Any, **kwargs: Any) -> Any:
            marker = tmp_path / place
            if group.rank() == 1 and not marker.exists():
                marker.touch()
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 7 GiB")
            return function(*args, **kwargs)

        return once

    def few_tokens(_: torch.device) -> int:
        return 256

    def work() -> Iterator[EpochResult]:
        batch = run_out_of_memory("forward", Minibatches.batch)
        setattr(Minibatches, "batch", batch)  # noqa: B010  # in this process alone
        states = run_out_of_memory("evaluation", Predictor.tree_states)
        setattr(Predictor, "tree_states", states)  # noqa: B010
        setattr(evaluator, "fast_batch_tokens", few_tokens)  # noqa: B010  # several batches
        yield from default_runtime().run_epochs(run, config, folders[group.rank()])

    results = coordinate(cluster, work, tmp_path, timeout=200)
    assert [result.epoch for result in results] == [1, 2, 3]
    record = read_record(folders[0] / "records" / run.id)
    check_same(record, alone["npo"])
    seen = record.provenance["out_of_memory"]
    assert [list(what) for what in seen] == [["step", "from", "to"], ["evaluation", "from", "to"]]
    assert (seen[0]["from"], seen[0]["to"]) == (2, 1)
    (note,) = (folders[1] / "state" / run.id).glob("memory.json")
    known = json.loads(note.read_text())
    assert (known["rows"], known["batch_tokens"]) == (1, seen[1]["to"])
    assert known["seen"] == seen
