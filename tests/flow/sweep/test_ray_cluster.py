"""Clusters, simulated: several raylets on one machine with logical GPUs, in a process of their own,
and a driver that joins them by address."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.console import Console
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.provenance import git_state
from unlearnbench.config.plan import make_plan
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.resources import RaySettings, Resources, TrackingSettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.report.report import Report
from unlearnbench.results.records import EpochResult, Record, read_records, run_record, write_record
from unlearnbench.sweep.driver import run_sweep
from unlearnbench.sweep.pipeline import Pipeline

pytestmark = [pytest.mark.slow, pytest.mark.long]

LOOPBACK = {
    # Of Ray's processes and of the driver alike: no address but loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    # No workers in advance, one for each CPU: they lack the job's environment, so no run uses one.
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}


def clean_environment() -> dict[str, str]:
    """Without the variables of a Ray in this process."""
    return {k: v for k, v in os.environ.items() if not k.startswith(("RAY_", "TUNE_"))}


CLUSTER = """
import json, sys
from ray.cluster_utils import Cluster
nodes = json.loads(sys.argv[1])
common = dict(object_store_memory=80 * 2**20, include_dashboard=False)
cluster = Cluster(initialize_head=True, head_node_args=common | nodes[0])
others = [cluster.add_node(wait=False, **common | n) for n in nodes[1:]]
cluster.wait_for_nodes()
made = [cluster.head_node, *others]
pids = [node.all_processes["raylet"][0].process.pid for node in made]
print(json.dumps({"address": cluster.address, "raylets": pids}), flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@dataclass
class Nodes:
    """A cluster that runs."""

    address: str
    raylets: list[int]
    """Process ids, the head's first."""


@contextmanager
def cluster(*nodes: dict[str, Any]) -> Generator[Nodes, None, None]:
    """A cluster for the time of the `with`; each of `nodes` as Ray's `add_node` takes it."""
    command = [sys.executable, "-W", "ignore", "-c", CLUSTER, json.dumps(nodes)]
    pipe = subprocess.PIPE
    # Its GPUs are numbers; Ray would look for them among those that the tests hide.
    env = clean_environment() | LOOPBACK
    env.pop("CUDA_VISIBLE_DEVICES", None)
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=env)
    try:
        assert process.stdout is not None
        output = next((line for line in process.stdout if line.startswith("{")), "{}")
        yield Nodes(**json.loads(output))
    finally:
        process.communicate("", timeout=60)


DRIVER = """
import runpy, sys
if __name__ == "__main__":
    names = runpy.run_path(sys.argv[1])
    names["drive"](sys.argv[2])
"""


def a_config(out: Path, address: str, **changes: Any) -> SweepConfig:
    return SweepConfig(
        name="small",
        models=(ModelSettings(name="tiny", base="tiny"),),
        forget_fractions=(0.2,),
        methods=(MethodGrid(specs=(MethodSpec(name="npo"),)),),
        epochs=2,
        ray=RaySettings(address=address),
        tracking=TrackingSettings(enabled=False),
        output=str(out),
    ).model_copy(update=changes)


def fake_pipeline(marks: Path, seconds: float, together: int = 1) -> Pipeline:
    """Runs that sleep, and leave in `marks` when, in which process, and on which raylet.

    together  runs wait until so many processes have started one
    """

    # All of it inside: what lies at the top of a test file cannot be imported by a worker.
    def run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        from unlearnbench.base.provenance import git_state
        from unlearnbench.results.remote_copies import storage_of

        def mark(what: str) -> None:
            note = {"run": run.id, "raylet": os.getppid(), "pid": os.getpid()}
            note |= {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OF_THE_JOB")}
            file = marks / f"{what}.{run.id}.{os.getpid()}"
            file.with_suffix(".part").write_text(json.dumps(note))
            file.with_suffix(".part").rename(file)

        mark("begin")
        end = time.monotonic() + 100
        while len({path.suffix for path in marks.glob("begin.*[0-9]")}) < together:
            if time.monotonic() > end:
                raise TimeoutError(f"there are no {together} runs at a time")
            time.sleep(0.05)
        results: list[EpochResult] = []
        for epoch in range(1, run.budget + 1):
            time.sleep(seconds)
            metrics = {"model_utility": run.seed / 100, "log10_forget_quality": -float(epoch)}
            results.append(EpochResult(epoch, metrics, seconds, 0.0))
            yield results[-1]
        place = {"git": git_state(), "folder": str(Path.cwd())}
        found = {"status": "finished", "profile": TOFU.id, "provenance": place}
        record = write_record(run_record(run, epochs=tuple(results), **found), folder)
        storage_of(config, folder).push(record)
        mark("end")

    def report(folder: Path) -> Report:
        (folder / "results.csv").touch()
        (folder / "report.html").touch()
        return Report(folder / "report.html", Results.read(folder))

    return Pipeline(
        plan=lambda config: make_plan(config, "data"),
        tasks=lambda _config, _runs, _folder: (),
        execute=lambda _task, _config, _folder: 0.0,
        run_epochs=run_epochs,
        report=report,
    )


def drive(arguments: str) -> None:
    """Run a sweep in the driver's process; its result goes to standard output."""
    parsed = json.loads(arguments)
    config = SweepConfig.model_validate_json(parsed["config"])
    try:
        result = run_sweep(
            config,
            Console(),
            fake_pipeline(Path(parsed["marks"]), parsed["seconds"], parsed["together"]),
        )
    except UnlearnbenchError as error:
        sys.stdout.write(f"{error}\n")
        sys.exit(2)
    sys.stdout.write(f"{result.finished} of {result.total} finished, {result.failed} failed\n")


@pytest.fixture
def drivers() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes that end with the test."""
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def start(tmp_path: Path, config: SweepConfig, together: int) -> subprocess.Popen[str]:
    """A driver in a process of its own, in the folder `tmp_path`, as Ray starts it for a job."""
    (tmp_path / "marks").mkdir(exist_ok=True)
    parsed: dict[str, Any] = {"config": config.model_dump_json(), "marks": str(tmp_path / "marks")}
    parsed |= {"seconds": 0.3, "together": together}
    job = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "7", "OF_THE_JOB": "yes"}}}
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), __file__, json.dumps(parsed)],
        cwd=tmp_path,
        env=clean_environment() | LOOPBACK | {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(job)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def output_of(driver: subprocess.Popen[str]) -> str:
    """The output of a driver that has ended."""
    return driver.communicate(timeout=120)[0]


def notes(tmp_path: Path, what: str) -> list[dict[str, Any]]:
    """The notes of runs, at their end (`end`) or start (`begin`)."""
    return [json.loads(path.read_text()) for path in (tmp_path / "marks").glob(f"{what}.*[0-9]")]


def test_all_nodes_are_busy_and_their_records_arrive(
    tmp_path: Path, drivers: list[subprocess.Popen[str]]
) -> None:
    """The nodes have no folder in common but the storage, where a scratch folder is theirs."""
    scratch = {"env_vars": {"UNLEARNBENCH_SCRATCH": str(tmp_path / "scratch")}}
    with cluster(*[{"num_cpus": 1, "num_gpus": 1, **scratch}] * 2) as nodes:
        changes: dict[str, Any] = {
            "resources": Resources(gpu=1),
            "storage": str(tmp_path / "stored"),
        }
        config = a_config(tmp_path / "out", nodes.address, seeds=(0, 1), **changes)
        runs = make_plan(config, "data").runs
        driver = start(tmp_path, config, together=2)
        drivers.append(driver)
        output = output_of(driver)
    assert f"{len(runs)} of {len(runs)} finished, 0 failed" in output, output
    ended = notes(tmp_path, "end")
    assert sorted(note["raylet"] for note in ended) == sorted(nodes.raylets)
    assert sorted(note["run"] for note in ended) == sorted(run.id for run in runs)
    assert {(n["OMP_NUM_THREADS"], n["OF_THE_JOB"]) for n in ended} == {("1", "yes")}
    undisturbed = fake_pipeline(tmp_path / "marks", seconds=0)
    for run in runs:
        list(undisturbed.run_epochs(run, config, tmp_path / "alone"))
    for place in ("out", "stored"):
        records = read_records(tmp_path / place / "small")
        assert table(records) == table(read_records(tmp_path / "alone"))
    assert list((tmp_path / "scratch" / "small" / "records").iterdir())
    assert {record.provenance["folder"] for record in records} == {str(tmp_path)}
    assert [record.provenance["git"] for record in records] == [git_state()] * len(records)
    assert (tmp_path / "stored" / "small" / "report.html").is_file()


def table(records: Sequence[Record]) -> list[Any]:
    """The results of runs, without times and places."""
    return [
        (
            r.id,
            r.method,
            r.learning_rate,
            r.seed,
            r.status,
            [(e.epoch, e.metrics) for e in r.epochs],
        )
        for r in records
    ]
