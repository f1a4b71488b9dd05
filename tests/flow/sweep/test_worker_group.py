"""One run over several processes, from a configuration: the numbers of one process."""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from unlearnbench.base.console import Console
from unlearnbench.base.errors import TrainingError
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import SweepConfig
from unlearnbench.results.records import EpochResult, Record, read_record, read_records
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs import workspace
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import run_single
from unlearnbench.sweep.driver import run_sweep
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.worker_group import in_bundle, run_on_workers

from ...forked import launch

pytestmark = pytest.mark.long

MODEL = """
  - name: {name}
    base: tiny
    architecture:
      {{vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 256}}
    preparation: {{optimizer: adamw, schedule: linear, warmup: 0.05, rehearse_facts: false,
      epochs: 1, base_epochs: 1, learning_rate: 3.0e-3, batch_size: 16}}
    resources: {{{resources}}}
"""
RESOURCES = {
    "one": "cpu: 1",
    "ddp": "processes: 2, cpu: 0.5, parallel: ddp",
    "fsdp": "processes: 2, cpu: 0.5",
}
FAILING = "gradient-ascent"
"""The method that fails in the sweep, whatever it is."""
CONFIG = """
name: small
data: {source: synthetic, authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
{models}forget_fractions: [0.5]
methods: [npo, task-vector, gradient-ascent]
learning_rates: [1.0e-3]
epochs: 2
training: {batch_size: 4}
evaluation: {rows: 4, max_length: 96}
ray: {concurrent: 1}
tracking: {enabled: false}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the configuration, for all tests."""
    folder = tmp_path_factory.mktemp("small")
    models = "".join(MODEL.format(name=n, resources=r) for n, r in RESOURCES.items())
    (folder / "small.yaml").write_text(CONFIG.replace("{models}", models))
    return folder


@pytest.fixture
def small(place: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SweepConfig]:
    """The configuration, in its folder."""
    monkeypatch.chdir(place)
    workspace.clear_workspaces()
    yield load_config("small.yaml", [f"cache={place / 'cache'}"])
    workspace.clear_workspaces()


SEARCH = """
attacks:
  relearning:
    learning_rate: 1.0e-3
    steps: [2]
    at: every
    search: {learning_rate: {low: 5.0e-4, high: 5.0e-3, log: true}, lora_rank: [null, 4]}
    trials: 3
"""


def plan_of(config: SweepConfig) -> Plan:
    return plan_sweep(config)[0]


def check_same(mine: Record, truth: Record) -> None:
    """The numbers of both runs are equal to rounding."""
    results = [*mine.epochs, *mine.attacked]
    true_results = [*truth.epochs, *truth.attacked]
    assert [(e.epoch, e.variant) for e in results] == [(e.epoch, e.variant) for e in true_results]
    for result, other in zip(results, true_results, strict=True):
        got, expected = (
            {name: np.nan if value is None else value for name, value in one.metrics.items()}
            for one in (result, other)
        )
        what = (mine.model, result.epoch, result.variant)
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5, nan_ok=True), what
    assert len(mine.steps) == len(truth.steps)
    for step, other_step in zip(mine.steps, truth.steps, strict=True):
        got, expected = (
            {**s.terms, "norm": s.grad_norm, "loss": s.loss} for s in (step, other_step)
        )
        assert got == pytest.approx(expected, rel=1e-4, abs=1e-5), mine.model


@pytest.fixture
def alone(small: SweepConfig, place: Path) -> dict[str, Record]:
    """The records of the runs in one process, by method; the first test runs them."""
    config = small.model_copy(update={"name": "alone"})
    folder = claim_folder(plan_of(config)).resolve()
    assert folder == place / "runs" / "alone"
    runs = [run for run in plan_of(config).runs if run.model.name == "one"]
    runs = [run for run in runs if run.method.name != FAILING]
    done = {r.id: r for r in read_records(folder)}
    return {
        run.method.name: done.get(run.id) or run_single(run, config, folder, lambda _: None)
        for run in runs
    }


@pytest.mark.slow
@pytest.mark.usefixtures("shared_ray")
def test_a_sweep_over_two_processes_has_the_numbers_of_one(
    small: SweepConfig, alone: dict[str, Record], tmp_path: Path
) -> None:
    """One of the two is killed in the second epoch, and the run goes on from the first.

    Another run fails in one process, as it would each time, while the other one waits for it.
    """
    models = tuple(m for m in small.models if m.name == "fsdp")
    config = small.model_copy(update={"name": "two", "models": models})
    folder = claim_folder(plan_of(config)).resolve()
    for task in preparation_tasks(config, plan_of(config).runs, folder):
        if task.id != "fsdp/full@0.5":  # left to two processes
            execute_task(task, config, folder)
    marker = tmp_path / "killed"
    pipeline = Pipeline()

    def run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:
        # Imported here: the coordinator, which gets this function as well, needs no torch.
        from unlearnbench.base import distributed as group

        if run.method.name == FAILING:
            (tmp_path / f"attempt-{os.getpid()}").touch()
            if group.rank() == 1:
                raise TrainingError("nothing to train on")
            group.barrier()
        for result in pipeline.run_epochs(run, config, folder):
            yield result
            if os.environ["RANK"] == "1" and run.method.name == "npo" and not marker.exists():
                marker.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    err = StringIO()
    watched = replace(pipeline, run_epochs=run_epochs)
    # The start model has hardly been trained, which would stop the sweep before its runs.
    result = run_sweep(config, Console(err=err), watched, force=True)
    assert (result.finished, result.failed) == (2, 1), err.getvalue()
    assert len(list(tmp_path.glob("attempt-*"))) == 2, "one attempt of two processes"
    assert marker.exists()
    assert "one of the run's processes: its process died without an exception (" in err.getvalue()
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


COMMAND = """
import sys
from pathlib import Path
from unlearnbench.cli.main import main
*words, file = sys.argv[1:]
with Path(file).open("w") as sys.stdout:
    code = main(words)
sys.exit(code)
"""


@pytest.mark.slow
def test_two_processes_carry_out_one_run_with_all_that_it_waits_for(
    small: SweepConfig, alone: dict[str, Record], place: Path, tmp_path: Path
) -> None:
    """With the variables that torchrun sets."""
    (run,) = (r for r in plan_of(small).runs if (r.model.name, r.method.name) == ("ddp", "npo"))
    settings = ["--set", f"cache={place / 'cache'}", "--json"]
    words = ["run", "small.yaml", "--select", run.id, *settings]
    printed = [file.read_text() for file in launch(COMMAND, words, tmp_path, 2)]
    assert json.loads("".join(printed))["id"] == run.id, "printed once"
    record = read_record(place / "runs" / "small" / "records" / run.id)
    check_same(record, alone["npo"])
    assert record.provenance["processes"] == 2


@pytest.mark.slow
def test_two_processes_search_for_an_attacker_as_one_does(
    place: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """After each attacker, the weights are those before it, in both processes.

    One of the attackers has LoRA. The training goes on after the attack at the first epoch.
    """
    monkeypatch.chdir(place)
    models = "".join(MODEL.format(name=name, resources=RESOURCES[name]) for name in ("one", "ddp"))
    text = CONFIG.replace("{models}", models) + SEARCH
    # A search halves the rows that the attack leaves over.
    text = text.replace("name: small", "name: searched").replace("rows: 4", "rows: 6")
    Path("searched.yaml").write_text(text)
    settings = ["--set", f"cache={place / 'cache'}"]
    config = load_config("searched.yaml", settings[1:])
    runs = {r.model.name: r for r in plan_of(config).runs if r.method.name == "npo"}
    records: dict[str, Record] = {}
    for model, processes in (("one", 1), ("ddp", 2)):
        run = runs[model]
        words = ["run", "searched.yaml", "--select", run.id, *settings, "--json"]
        launch(COMMAND, words, tmp_path, processes)
        records[model] = read_record(place / "runs" / "searched" / "records" / run.id)
    variants = [result.variant for result in records["one"].attacked]
    assert len(variants) == len({*variants}) * 2 == 2 * 2 * (1 + 3), "two epochs, two parts"
    check_same(records["ddp"], records["one"])


def coordinate(ray: Any, coordinator: Callable[[], list[Any]]) -> list[Any]:
    """The result of `coordinator`, whose process ends with it, as a task of two processes."""
    bundle = Resources(processes=2, cpu=0.5).per_process
    placed = ray.util.placement_group([bundle] * 2, strategy="STRICT_PACK")
    options = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": in_bundle(placed, 0)}
    task: Any = ray.remote(max_calls=1)(coordinator).options(**options)
    try:
        return list(ray.get(task.remote(), timeout=200))
    finally:
        ray.util.remove_placement_group(placed)


@pytest.mark.slow
def test_workers_stay_from_work_to_work_and_agree_on_what_fits_until_one_fails(
    small: SweepConfig, alone: dict[str, Record], shared_ray: Any, tmp_path: Path
) -> None:
    """Two groups of two workers, each ended by a failure of one; the coordinator outlives them.

    They share no folder. One of the first is out of memory in its first forward pass, one of the
    second in a batch of an evaluation.
    """
    two = Resources(processes=2, cpu=0.5)
    models = [m for m in small.models if m.name == "one"]
    models = [models[0].model_copy(update={"resources": two})]
    config = small.model_copy(update={"name": "alone", "models": tuple(models)})
    (run,) = (r for r in plan_of(config).runs if r.method.name == "npo")
    folders = [tmp_path / "nodes" / str(rank) for rank in range(2)]
    for folder in folders:
        shutil.copytree(Path("runs/alone").resolve(), folder)
        shutil.rmtree(folder / "records" / run.id)
    marks = tmp_path / "marks"
    marks.mkdir()

    def work(broken: int | None) -> Iterator[list[int]]:
        # Imported here: the coordinator, which gets this function as well, needs no torch.
        from unlearnbench.base import distributed as group

        (marks / f"{broken}.{group.rank()}.{os.getpid()}").touch()
        for step in (1, 2, 3):
            if (step, group.rank()) == (3, broken):
                raise ValueError(f"process {broken} does not like it")
            yield group.all_gather(step * 10 + group.rank())

    def short_of_memory() -> Iterator[EpochResult]:
        import torch

        from unlearnbench.base import distributed as group
        from unlearnbench.evaluation import evaluator
        from unlearnbench.evaluation.predictor import Predictor
        from unlearnbench.training.micro_batches import MicroBatches

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

        batch = run_out_of_memory("forward", MicroBatches.batch)
        setattr(MicroBatches, "batch", batch)  # noqa: B010  # in this process alone
        states = run_out_of_memory("evaluation", Predictor.tree_states)
        setattr(Predictor, "tree_states", states)  # noqa: B010
        setattr(evaluator, "fast_batch_tokens", few_tokens)  # noqa: B010  # several batches
        yield from Pipeline().run_epochs(run, config, folders[group.rank()])

    def coordinator() -> list[Any]:
        # Its process is forked from one that has torch: here an import of what needs that fails.
        for name, module in [*sys.modules.items()]:
            ours = name.startswith("unlearnbench.") and "torch" in vars(module)
            if ours or name.partition(".")[0] in ("accelerate", "torch", "transformers"):
                sys.modules[name] = cast("Any", None)
        # Abandoned work leaves nothing in the way of the next one.
        assert next(run_on_workers(partial(work, None), two)) == [10, 11]
        epochs = [*run_on_workers(short_of_memory, two)]
        # And all of one is carried out, also by the processes that follow a failure.
        assert [*run_on_workers(partial(work, None), two)][1:] == [[20, 21], [30, 31]]
        steps = run_on_workers(partial(work, 0), two)
        assert [next(steps), next(steps)] == [[10, 11], [20, 21]]
        with pytest.raises(ValueError, match="process 0 does not like it"):
            next(steps)
        return epochs

    epochs = coordinate(shared_ray, coordinator)
    pids = {
        broken: {path.name.split(".")[2] for path in marks.glob(f"{broken}.*")}
        for broken in ("None", "0")
    }
    assert len(pids["0"]) == 2
    assert pids["0"] < pids["None"], "the same two for one work after another"
    assert len(pids["None"]) == 4, "and others after a failure"

    assert [result.epoch for result in epochs] == [1, 2]
    record = read_record(folders[0] / "records" / run.id)
    check_same(record, alone["npo"])
    seen = record.provenance["out_of_memory"]
    assert [list(what) for what in seen] == [["step", "from", "to"], ["evaluation", "from", "to"]]
    assert (seen[0]["from"], seen[0]["to"]) == (2, 1)
    (note,) = (folders[1] / "state" / run.id).glob("memory.json")
    known = json.loads(note.read_text())
    assert (known["rows"], known["batch_tokens"]) == (1, seen[1]["to"])
    assert known["seen"] == seen
