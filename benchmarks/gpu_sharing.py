"""Time runs that share a GPU against one run alone: python -m benchmarks.gpu_sharing MODEL

Each run is a process of its own, without Ray. First one run is alone on the GPU, and is measured
like the first run of a sweep with `resources.gpu: auto`. Then several runs begin at the same time,
each with its part of the memory. A run must end with the same numbers, however many run beside it.
Kernels are deterministic for this reason. Imports are not in the times, but each process loads its
model.
"""

import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from unlearnbench.base.gpu_share import WHOLE, GpuUse, set_gpu_share
from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.device import cuda_variables, device_count
from unlearnbench.models.gpu_probe import TorchProbe
from unlearnbench.models.quiet_libraries import quiet_transformers
from unlearnbench.results.records import read_record
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import run_epochs
from unlearnbench.sweep.gpu_sharing import Room, decide, share_of

from .evaluation import difference
from .timer import end, options_of

AGREE = 0.0
"""Largest difference of a metric of the same run beside other numbers of runs."""
NAME = "gpu-sharing"


def config_of(options: Any, folder: Path) -> SweepConfig:
    """Runs of NPO that differ in their rates, one for each process."""
    model = json.dumps(str(options.model))
    rates = [1e-5 * (1 + i) for i in range(max(options.processes))]
    overrides = [
        *("methods=[npo]", f"epochs={options.epochs}", "epochs_as=checkpoints"),
        *(f"learning_rates={rates}", "training.schedule=constant"),
        *(f"models.0.base={model}", f"models.0.fine_tuned={model}", "models.0.template=plain"),
        f"models.0.retain={{retain{round(100 * (1 - options.forget))}: {model}}}",
        *("training.deterministic=true", "models.0.gradient_checkpointing=false"),
        f"forget_fractions=[{options.forget}]",
        *(f"data.path={options.data}", f"evaluation.rows={options.rows or 'null'}"),
        *("tracking.enabled=false", f"resources.gpu={'auto' if device_count() else 0}"),
        *(f"name={NAME}", f"output={folder}", f"cache={options.folder / 'cache'}"),
    ]
    return load_config("tofu_llama2_7b", overrides)


def child(options: Any) -> int:
    """Carry out one run when a line comes; print its seconds and what it used of the GPU."""
    os.environ.update(cuda_variables(deterministic=True))
    set_gpu_share(options.share)
    quiet_transformers()
    folder = options.folder / options.child
    config = config_of(options, folder)
    run = plan_sweep(config)[0].runs[options.select]
    for task in preparation_tasks(config, [run], folder / NAME):
        if not task.done:
            execute_task(task, config, folder / NAME)
    tell("ready")
    sys.stdin.readline()
    begin = perf_counter()
    probe = TorchProbe()
    probe.start()
    for _ in run_epochs(run, config, folder / NAME):
        pass
    use = probe.finish()
    seconds = perf_counter() - begin
    record = read_record(folder / NAME / "records" / run.id)
    report = {
        "run": run.id,
        "seconds": seconds,
        "use": use._asdict(),
        "metrics": dict(record.epochs[-1].metrics),
        "out_of_memory": record.provenance.get("out_of_memory"),
    }
    tell(json.dumps(report))
    return 0


def tell(line: str) -> None:
    """Write a line to the process that has started this one."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def together(count: int, words: Sequence[str], options: Any) -> dict[str, Any]:
    """Carry out the first `count` runs at the same time, and return what they report."""
    share = WHOLE if count == 1 else share_of(count)
    command = [sys.executable, "-m", "benchmarks.gpu_sharing", *words]
    command += ["--folder", str(options.folder), "--share", str(share)]
    processes: list[subprocess.Popen[str]] = []
    for index in range(count):
        child_folder = f"{count}-{index}"
        copy_references(options, child_folder)
        chosen = ["--child", child_folder, "--select", str(index)]
        pipe = subprocess.PIPE
        processes.append(subprocess.Popen([*command, *chosen], stdin=pipe, stdout=pipe, text=True))
        wait_for_ready(processes[-1])
    begin = perf_counter()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    outputs = [process.communicate()[0] for process in processes]
    seconds = perf_counter() - begin
    reports = [json.loads(output.splitlines()[-1]) for output in outputs if output.strip()]
    failed = sum(process.returncode != 0 for process in processes)
    return {"processes": count, "seconds": seconds, "failed": failed, "runs": reports}


def copy_references(options: Any, child_folder: str) -> None:
    """Copy the evaluations of start and retain models, which the first process has made."""
    first = options.folder / "1-0" / NAME
    if not first.is_dir():
        return
    copied = options.folder / child_folder / NAME
    shutil.copytree(first, copied)
    for folder in (copied / "records").iterdir():
        if read_record(folder).kind == "run":
            shutil.rmtree(folder)


def wait_for_ready(process: "subprocess.Popen[str]") -> None:
    """Read a process's lines until it can begin its run."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.strip() == "ready":
            return
    raise RuntimeError(f"a run ended before it began: exit code {process.wait()}")


def largest_difference(rounds: Sequence[dict[str, Any]]) -> float:
    """Return how far the metrics of one run are apart beside different numbers of runs."""
    metrics_of_run: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for together_ in rounds:
        for report in together_["runs"]:
            metrics_of_run[report["run"]].append(report["metrics"])
    largest = 0.0
    for first, *others in metrics_of_run.values():
        for other in others:
            assert first.keys() == other.keys()
            largest = max([largest, *(difference(first[name], other[name]) for name in first)])
    return largest


def main(words: list[str] | None = None) -> int:
    """Measure one run alone, then the numbers of runs in turn."""
    parser = options_of(__doc__)
    parser.add_argument("model", help="a folder")
    parser.add_argument("--data", required=True, help="a folder of TOFU's files")
    parser.add_argument("--forget", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--rows", type=int, help="the most of a set that is evaluated")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2, 4, 6])
    for hidden in ("--child", "--folder", "--share", "--select"):
        parser.add_argument(hidden, help="of a process that this program starts")
    options = parser.parse_args(words)
    if options.child:
        options.folder, options.share = Path(options.folder), float(options.share)
        options.select = int(options.select)
        return child(options)
    passed_on = list(sys.argv[1:] if words is None else words)
    with tempfile.TemporaryDirectory() as name:
        options.folder = Path(name)
        rounds = [together(count, passed_on, options) for count in options.processes]
    alone = next(one for one in rounds if one["processes"] == 1)
    use = GpuUse.read(alone["runs"][0]["use"])
    decision = None
    if use is not None and use.memory > 0:
        cores = len(os.sched_getaffinity(0))
        decision = decide(use, 1.0, Room(1.0, float(cores), (), None))._asdict()
    for one in rounds:
        # How many times as many runs end in the same time.
        one["speed"] = len(one["runs"]) / one["seconds"] * alone["seconds"]
    apart = largest_difference(rounds)
    failed = any(one["failed"] for one in rounds)
    options.folder = None  # it is gone
    return end(
        options,
        apart <= AGREE and not failed and not math.isnan(apart),
        rounds=rounds,
        decision=decision,
        largest_difference=apart,
    )


if __name__ == "__main__":
    sys.exit(main())
