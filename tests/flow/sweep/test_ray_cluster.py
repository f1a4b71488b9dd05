"""Clusters, simulated: several raylets on one machine with logical GPUs, in a process of their own,
and a driver that joins them by address."""

import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

from unlearnbench.base.console import Console
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.base.provenance import git_state
from unlearnbench.config.plan import RunSpec, make_plan
from unlearnbench.config.resources import RaySettings, Resources, TrackingSettings
from unlearnbench.config.schema import MethodGrid, MethodSpec, ModelSettings, SweepConfig
from unlearnbench.results.records import EpochResult, Record, read_records, run_record, write_record
from unlearnbench.sweep import run_sweep
from unlearnbench.sweep.pipeline import Pipeline

pytestmark = pytest.mark.slow

LOOPBACK = {
    # Of Ray's processes and of the driver alike: no address but loopback.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_timeout_ms": "2000",
    # No workers in advance, one for each CPU: they lack the job's environment, so no run uses one.
    "RAY_prestart_worker_first_driver": "0",
    "OMP_NUM_THREADS": "1",
}

JOINED = "joined.socket"
"""File with the socket of the raylet that the driver has joined."""


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

    The driver leaves there which raylet it has joined.

    together  runs wait until so many processes have started one
    """

    # All of it inside: what lies at the top of a test file cannot be imported by a worker.
    def run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        import importlib.util

        import unlearnbench
        from unlearnbench.api import registry
        from unlearnbench.base.provenance import git_state
        from unlearnbench.results.remote_copies import storage_of

        def mark(what: str) -> None:
            device = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            note = {"run": run.id, "at": time.time(), "raylet": os.getppid(), "gpu": device}
            note |= {"model": run.model.name, "method": code, "pid": os.getpid()}
            note |= {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "OF_THE_JOB")}
            file = marks / f"{what}.{run.id}.{os.getpid()}"
            file.with_suffix(".part").write_text(json.dumps(note))
            file.with_suffix(".part").rename(file)

        offer = registry.find("methods", run.method.name)
        found_at = importlib.util.find_spec(offer.target.partition(":")[0])  # imports no torch
        code = "" if found_at is None else str(found_at.origin)
        mark("begin")
        end = time.monotonic() + 100
        while len({path.suffix for path in marks.glob("begin.*[0-9]")}) < together:
            if time.monotonic() > end:
                raise TimeoutError(f"there are no {together} runs at a time")
            time.sleep(0.05)
        results: list[EpochResult] = []
        for epoch in range(1, run.epochs + 1):
            time.sleep(seconds)
            metrics = {"model_utility": run.seed / 100, "log10_forget_quality": -float(epoch)}
            results.append(EpochResult(epoch, metrics, seconds, 0.0))
            yield results[-1]
        place: dict[str, Any] = {"git": git_state()}
        place |= {"code": str(Path(unlearnbench.__file__)), "folder": str(Path.cwd())}
        found = {"status": "finished", "profile": "tofu", "provenance": place}
        record = write_record(run_record(run, epochs=tuple(results), **found), folder)
        storage_of(config, folder).push(record)
        mark("end")

    def report(folder: Path) -> Path:
        (folder / "results.csv").touch()
        (folder / "report.html").touch()
        return folder / "report.html"

    def no_tasks(*_: object) -> tuple[()]:
        from ray._private import worker

        joined: Any = worker.global_worker.node
        (marks / JOINED).write_text(joined.raylet_socket_name)
        return ()

    return Pipeline(
        plan=lambda config: make_plan(config, "data"),
        tasks=no_tasks,
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


def start(
    tmp_path: Path, config: SweepConfig, together: int, path: Path | None = None
) -> subprocess.Popen[str]:
    """A driver in a process of its own, in the folder `tmp_path`."""
    (tmp_path / "marks").mkdir(exist_ok=True)
    parsed: dict[str, Any] = {"config": config.model_dump_json(), "marks": str(tmp_path / "marks")}
    parsed |= {"seconds": 0.3, "together": together}
    # As `ray job submit` passes the runtime environment of a job.
    with_it = {"runtime_env": {"env_vars": {"OMP_NUM_THREADS": "7", "OF_THE_JOB": "yes"}}}
    job = {"RAY_JOB_CONFIG_JSON_ENV_VAR": json.dumps(with_it)}
    script = tmp_path / "driver.py"
    script.write_text(DRIVER, encoding="utf-8")
    return subprocess.Popen(
        [sys.executable, str(script), __file__, json.dumps(parsed)],
        cwd=tmp_path,
        env=clean_environment() | LOOPBACK | (job | {"PYTHONPATH": str(path)} if path else {}),
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


def wait_for(what: Callable[[], Any], driver: subprocess.Popen[str], seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not what():
        assert driver.poll() is None, output_of(driver)
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.05)


def joined_raylet(tmp_path: Path, nodes: Nodes) -> int:
    """The raylet that the last driver has joined: the head's with Ray 2.60, any with Ray 2.48."""
    option = f"--raylet_socket_name={(tmp_path / 'marks' / JOINED).read_text()}"
    (joined,) = (raylet for raylet in nodes.raylets if option in command_line(raylet))
    return joined


def command_line(process: int) -> list[str]:
    return Path(f"/proc/{process}/cmdline").read_text().split("\0")


def most_at_once(spans: list[tuple[float, float]]) -> int:
    events = sorted([(begin, 1) for begin, _ in spans] + [(end, -1) for _, end in spans])
    return max(itertools.accumulate(step for _, step in events))


def test_all_nodes_are_busy_and_the_loss_of_one_costs_no_run(
    tmp_path: Path, drivers: list[subprocess.Popen[str]]
) -> None:
    with cluster(*[{"num_cpus": 1, "num_gpus": 1}] * 2) as nodes:
        resources = Resources(gpu=1)
        config = a_config(
            tmp_path / "out", nodes.address, seeds=tuple(range(4)), resources=resources
        )
        runs = make_plan(config, "data").runs
        driver = start(tmp_path, config, together=2)
        drivers.append(driver)

        def busy() -> set[int]:
            return {note["raylet"] for note in notes(tmp_path, "begin")}

        wait_for(lambda: busy() == set(nodes.raylets), driver)  # no run continues before
        # A driver does not outlive its own raylet.
        (lost,) = {*nodes.raylets} - {joined_raylet(tmp_path, nodes)}

        def on_lost() -> list[dict[str, Any]]:
            return [note for note in notes(tmp_path, "begin") if note["raylet"] == lost]

        # A machine that is lost: a worker may outlive its raylet by a second.
        for process in {lost, *(note["pid"] for note in on_lost())}:
            os.kill(process, signal.SIGKILL)
        output = output_of(driver)
    assert f"{len(runs)} of {len(runs)} finished, 0 failed" in output, output
    started, ended = notes(tmp_path, "begin"), notes(tmp_path, "end")
    assert sorted(note["run"] for note in ended) == sorted(run.id for run in runs)
    again = {note["run"] for note in on_lost()} - {
        note["run"] for note in ended if note["raylet"] == lost
    }
    assert len(again) == 1, "what was on the lost node"
    assert len(started) == len(runs) + 1, "is done once more, and nothing else is"
    undisturbed = fake_pipeline(tmp_path / "marks", seconds=0)
    for run in runs:
        list(undisturbed.run_epochs(run, config, tmp_path / "alone"))
    records = read_records(tmp_path / "out" / "small")
    assert table(records) == table(read_records(tmp_path / "alone"))
    assert {record.provenance["folder"] for record in records} == {str(tmp_path)}
    assert [record.provenance["git"] for record in records] == [git_state()] * len(records)


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


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if not path.name.startswith(".")}


OUTSIDER = """
from typing import ClassVar
from unlearnbench.api.method import LossBatch, Method, Needs
class Outsider(Method):
    "L = cross-entropy."
    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    def loss(self, batch: LossBatch):
        return batch.forget.cross_entropy().sum()
"""


def install(folder: Path, name: str, version: str, points: str = "") -> None:
    """A distribution in `folder`, as far as `importlib.metadata` looks at it."""
    info = folder / f"{name}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(points)


def test_nodes_that_differ_are_named_and_those_that_do_not_share_a_gpu_and_a_storage(
    tmp_path: Path, drivers: list[subprocess.Popen[str]]
) -> None:
    other, own = tmp_path / "other", tmp_path / "own"
    install(other, "scipy", "0.0.1")
    install(own, "outsiders", "3.0", "[unlearnbench.methods]\noutsider = outsider:Outsider\n")
    (own / "outsider.py").write_text(OUTSIDER)
    head = {"num_cpus": 0, "env_vars": {"PYTHONPATH": str(tmp_path / "nothing")}}
    scratch = {"PYTHONPATH": f"{other}:{own}", "UNLEARNBENCH_SCRATCH": str(tmp_path / "scratch")}
    node = {"num_cpus": 8, "num_gpus": 1, "env_vars": scratch}
    with cluster(head, node) as nodes:
        methods = tuple(MethodGrid(specs=(MethodSpec(name=n),)) for n in ("npo", "outsider"))
        models = (
            ModelSettings(name="small", base="tiny"),
            ModelSettings(name="large", base="tiny", resources=Resources(gpu=1)),
        )
        changes = {"methods": methods, "models": models, "resources": Resources(gpu=0.5)}
        changes |= {"storage": str(tmp_path / "stored")}
        config = a_config(tmp_path / "out", nodes.address, **changes, seeds=(1, 2))
        refused = start(tmp_path, config, together=2, path=own)
        drivers.append(refused)
        output = output_of(refused)
        assert "0 of 8 finished, 8 failed" in output, output
        named = rf"node \S+ differs from .*: scipy 0\.0\.1 there, {version('scipy')} here; install"
        assert re.search(named, output), output
        assert not notes(tmp_path, "begin")
        shutil.rmtree(other)
        drivers.append(start(tmp_path, config, together=2, path=own))
        output = output_of(drivers[-1])
        at_head = joined_raylet(tmp_path, nodes) == nodes.raylets[0]
    assert at_head or Version(version("ray")) < Version("2.60"), "else less is checked below"
    assert "8 of 8 finished, 0 failed" in output, output
    # The node has no folder in common with the driver's but the storage.
    ids = {note["run"] for note in notes(tmp_path, "end")}
    assert len(ids) == 8
    for folder in ("out", "stored", *(["scratch"] if at_head else [])):
        recorded = names_in(tmp_path / folder / "small" / "records")
        assert {name for name in recorded if not name.endswith(".failed")} == ids
    assert {"plan.json", "report.html", "results.csv"} <= names_in(tmp_path / "stored" / "small")
    spans: dict[str, list[tuple[float, float]]] = {"small": [], "large": []}
    begin = {note["run"]: note["at"] for note in notes(tmp_path, "begin")}
    for note in notes(tmp_path, "end"):
        spans[note["model"]].append((begin[note["run"]], note["at"]))
        assert note["gpu"] == "0"
        assert (note["OMP_NUM_THREADS"], note["OF_THE_JOB"]) == ("1", "yes")
        assert note["method"] == str(own / "outsider.py") or "outsider" not in note["method"]
    assert {name: most_at_once(times) for name, times in spans.items()} == {"small": 2, "large": 1}
