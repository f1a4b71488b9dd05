"""Time a sweep against one Python process per run, as in a shell loop: python -m benchmarks.sweep

Both start from the same prepared models, and must end with the same numbers. The loop's processes
use all cores, one run after another; the sweep has a run per core. Then comes a sweep of runs that
do nothing, whose time is all overhead; with --repeats 0, it alone.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from tests.flow.sweep.noop_sweep import noop_sweep
from unlearnbench.config.loader import load_config
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks

from .evaluation import difference
from .timer import begin, end, in_turn, now, options_of, spread

AGREE = 1e-4
"""Largest difference of metrics that another number of threads explains."""
CONFIG = """\
name: bench
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 2048, hidden_size: 160, layers: 3, heads: 4, intermediate_size: 480}
    preparation: {optimizer: muon, learning_rate: 3.0e-3, epochs: 2, base_epochs: 1}
forget_fractions: [0.1]
methods: [ce-u, general-ce-u, {method: npo, retain: {term: nll}}, kl-minimization]
learning_rates: [1.0e-4, 1.5e-4, 2.0e-4, 2.5e-4, 3.0e-4, 3.5e-4]
epochs: 2
evaluation: {max_length: 64, rows: 20}
ray: {concurrent: 2}
"""
QUICK = (
    *("methods=[ce-u]", "learning_rates=[1e-4]", "epochs=1"),
    *("tracking.enabled=false", "evaluation.rows=4"),
    "data={source: synthetic, authors: 10, pretraining_authors: 1}",
    "models.0.architecture={vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, "
    "intermediate_size: 48}",
)


class Case:
    """A configuration, and a folder with its prepared models."""

    def __init__(self, folder: Path, overrides: Sequence[str]) -> None:
        self.folder, self.overrides = folder, overrides
        (folder / "bench.yaml").write_text(CONFIG, encoding="utf-8")
        output = f"output={folder / 'prepared'}"
        config = load_config(str(folder / "bench.yaml"), [*overrides, output])
        plan, _ = plan_sweep(config)
        place = claim_folder(plan)
        for task in preparation_tasks(config, plan.runs, place):
            execute_task(task, config, place)
        self.runs = len(plan.runs)

    def loop(self) -> None:
        """A process for each run, then the report."""
        words = self._fresh("loop")
        for index in range(self.runs):
            _command("run", *words, "--select", str(index), "--json")
        _command("report", str(self.folder / "loop" / "bench"))

    def sweep(self) -> None:
        """The same runs in one command."""
        _command("sweep", *self._fresh("sweep"), "--force", "--json")

    def records(self, way: str) -> list[Record]:
        """The runs that a way has recorded."""
        return [r for r in read_records(self.folder / way / "bench") if r.kind == "run"]

    def _fresh(self, way: str) -> list[str]:
        place = self.folder / way
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(self.folder / "prepared", place)
        settings = [*self.overrides, f"output={place}"]
        return [str(self.folder / "bench.yaml"), *(f"--set={one}" for one in settings)]


def _command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "unlearnbench", *words], check=True, capture_output=True)


def apart(first: Sequence[Record], second: Sequence[Record]) -> float:
    """Largest difference of a metric between two ways; infinite if their runs differ."""
    left, right = (
        {(r.id, e.epoch, name): v for r in way for e in r.epochs for name, v in e.metrics.items()}
        for way in (first, second)
    )
    if left.keys() != right.keys():
        return float("inf")
    # Relative where it is a logarithm without bounds.
    gaps = (difference(v, right[key]) / max(1.0, abs(v or 0.0)) for key, v in left.items())
    return max(gaps, default=0.0)


def overheads(records: Sequence[Record]) -> list[float]:
    """Seconds of each further run in a process beyond its training and evaluation."""
    by_process: dict[Any, list[Record]] = {}
    for record in records:
        by_process.setdefault(record.provenance["process"], []).append(record)
    seconds: list[float] = []
    for group in by_process.values():
        for before, record in pairwise(sorted(group, key=_end)):
            work = sum(e.training_seconds + e.evaluation_seconds for e in record.epochs)
            seconds.append(_end(record) - _end(before) - work)
    return seconds


def _end(record: Record) -> float:
    return datetime.fromisoformat(record.provenance["finished"]).timestamp()


def idle(folder: Path, runs: int) -> dict[str, Any]:
    """A sweep of runs that do nothing: its seconds, the driver's memory, what was lost."""
    start = now()
    counts = noop_sweep(folder, runs)
    seconds = now() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {**counts, "seconds": seconds, "driver_peak_bytes": peak}


def main(words: list[str] | None = None) -> int:
    """Measure both ways, then runs that do nothing."""
    parser = options_of(__doc__)
    parser.add_argument("--noop", type=int, default=1000, help="runs that do nothing")
    parser.add_argument("--quick", action="store_true", help="one run, as a smoke test")
    options = begin(parser, words)
    result: dict[str, Any] = {}
    agree = True
    with tempfile.TemporaryDirectory() as name:
        if options.repeats:
            case = Case(Path(name), QUICK if options.quick else ())
            ways = {"loop": case.loop, "sweep": case.sweep}
            result = {"runs": case.runs, "seconds": in_turn(ways, options.repeats, warm_up=0)}
            sweep = case.records("sweep")
            result["apart"] = apart(case.records("loop"), sweep)
            if further := overheads(sweep):
                result["overhead_of_a_further_run"] = spread(further)
            agree = result["apart"] < AGREE
        if options.noop:
            result["noop"] = idle(Path(name) / "noop", options.noop)
            agree &= not any(v for k, v in result["noop"].items() if k.endswith(("lost", "double")))
    return end(options, agree, **result)


if __name__ == "__main__":
    sys.exit(main())
