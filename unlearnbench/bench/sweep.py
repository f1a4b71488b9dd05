"""`unlearnbench bench sweep`: a sweep against one Python process per run, as shell loops do it.

Both start from the same prepared models, and must end with the same numbers. The loop's processes
use all cores, one run after another; the sweep has a run per core. Then a sweep of runs that do
nothing, where all time is overhead.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from unlearnbench.bench.circumstances import circumstances
from unlearnbench.bench.tables import Table, size_of
from unlearnbench.config import load_config
from unlearnbench.errors import EvaluationError
from unlearnbench.folder import claim_folder
from unlearnbench.inputs import plan_sweep
from unlearnbench.records import Record, read_records
from unlearnbench.tasks import execute_task, preparation_tasks

AGREE = 1e-4
"""Difference of metrics that other numbers of threads explain."""
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

Told = Callable[[str], None]


@dataclass(frozen=True)
class SweepBenchSettings:
    """What is measured; goes into the record as it is."""

    repeats: int
    noop: int
    """Runs that do nothing; 0: none."""
    quick: bool = False
    """Only two runs: whether it works at all."""

    @property
    def overrides(self) -> list[str]:
        """Of the configuration."""
        few = ["methods=[ce-u]", "learning_rates=[1e-4,2e-4]", "epochs=1"]
        return [word for setting in few for word in ("--set", setting)] if self.quick else []


def bench_sweep(settings: SweepBenchSettings, told: Told) -> dict[str, Any]:
    """Measure both ways in turn, then runs that do nothing; returns the result for JSON."""
    result: dict[str, Any] = {
        "benchmark": "sweep",
        "settings": {**asdict(settings), "data": "synthetic"},
        **circumstances(),
    }
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as name:
        folder = Path(name)
        (folder / "bench.yaml").write_text(CONFIG, encoding="utf-8")
        told("preparing the models that both ways start from")
        runs = _prepare(folder, settings)
        ways: dict[str, list[float]] = {"loop": [], "sweep": []}
        for number in range(settings.repeats):
            for way in ways:
                told(f"{way}, {number + 1} of {settings.repeats}: {runs} runs")
                seconds, detail = _timed(folder, way, runs, settings)
                ways[way].append(seconds)
                result[way] = detail
        records = {way: _records(folder, way) for way in ways}
        result |= {
            "runs": runs,
            "seconds": ways,
            "apart": _apart(records["loop"], records["sweep"]),
            "overheads": _overheads(records["sweep"]),
        }
        if settings.noop:
            told(f"{settings.noop} runs that do nothing")
            result["noop"] = _noop(folder / "noop", settings.noop)
    return result


def _prepare(folder: Path, settings: SweepBenchSettings) -> int:
    """Models and anchors, made once; returns how many runs there are."""
    sets = [word for word in settings.overrides if word != "--set"]
    config = load_config(str(folder / "bench.yaml"), [*sets, f"output={folder / 'prepared'}"])
    plan, _ = plan_sweep(config)
    place = claim_folder(plan)
    for task in preparation_tasks(config, plan.runs, place):
        execute_task(task, config, place)
    return len(plan.runs)


def _timed(
    folder: Path, way: str, runs: int, settings: SweepBenchSettings
) -> tuple[float, dict[str, Any]]:
    """Seconds of one way from the prepared models to the report; what the sweep says of itself."""
    place = folder / way
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "prepared", place)
    common = [str(folder / "bench.yaml"), *settings.overrides, "--set", f"output={place}"]
    begin = time.monotonic()
    if way == "sweep":
        detail = json.loads(_command("sweep", *common, "--json"))
        return time.monotonic() - begin, {"seconds": detail["seconds"], "busy": detail["busy"]}
    for index in range(runs):
        _command("run", *common, "--select", str(index), "--json")
    _command("report", str(place / "bench"))
    return time.monotonic() - begin, {}


def _command(*words: str) -> str:
    return _output("unlearnbench.cli", *words)


def _noop(folder: Path, runs: int) -> dict[str, Any]:
    said = _output("unlearnbench.bench.noop", str(folder), str(runs))
    found: dict[str, Any] = json.loads(said.splitlines()[-1])
    return found


def _output(module: str, *words: str) -> str:
    """What a module prints, run in a process of its own."""
    command = [sys.executable, "-m", module, *words]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        told = f"python -m {module} {words[0]}"
        raise EvaluationError(f"`{told}` failed while it was measured: {reason[0]}")
    return done.stdout


def _records(folder: Path, way: str) -> list[Record]:
    return [r for r in read_records(folder / way / "bench") if r.kind == "run"]


def _apart(one: Sequence[Record], other: Sequence[Record]) -> float:
    """Largest difference of a metric between two ways; infinite where their runs differ."""
    if [record.id for record in one] != [record.id for record in other]:
        return float("inf")
    gaps = [0.0]
    for mine, its in zip(one, other, strict=True):
        for here, there in zip(mine.epochs, its.epochs, strict=True):
            for name, value in here.metrics.items():
                against = there.metrics[name]
                if (value is None) != (against is None):
                    return float("inf")
                # Relative where it is a logarithm without bounds.
                gaps.append(abs((value or 0.0) - (against or 0.0)) / max(1.0, abs(value or 0.0)))
    return max(gaps)


def _overheads(records: Sequence[Record]) -> list[float]:
    """Of each further run in a process, all seconds that it neither trained nor was judged."""
    by_process: dict[Any, list[Record]] = {}
    for record in records:
        by_process.setdefault(record.provenance["process"], []).append(record)
    found: list[float] = []
    for group in by_process.values():
        for before, record in pairwise(sorted(group, key=_end)):
            work = sum(e.training_seconds + e.evaluation_seconds for e in record.epochs)
            found.append(_end(record) - _end(before) - work)
    return found


def _end(record: Record) -> float:
    return datetime.fromisoformat(record.provenance["finished"]).timestamp()


def tables(result: dict[str, Any]) -> list[Table]:
    """The result for people."""
    runs, seconds = result["runs"], result["seconds"]
    loop, sweep = (statistics.median(seconds[way]) for way in ("loop", "sweep"))
    overheads = result["overheads"]
    rows = [
        ("one process per run", f"{loop:.1f}", f"{60 * runs / loop:.1f}", "1.0×"),
        ("sweep", f"{sweep:.1f}", f"{60 * runs / sweep:.1f}", f"{loop / sweep:.1f}×"),
    ]
    about = [("largest difference of a metric", f"{result['apart']:.1g}")]
    if overheads:
        told = f"{statistics.median(overheads):.2f} s, at most {max(overheads):.2f} s"
        about.append(("overhead of a further run in a worker", told))
    for device, share in result["sweep"]["busy"].items():
        about.append((f"busy: {device}", f"{100 * share:.0f} %"))
    found = [
        Table(("way", "seconds", "runs a minute", "faster"), rows, f"{runs} runs of a tiny model"),
        Table(("of the sweep", ""), about),
    ]
    if "noop" in result:
        found.append(_noop_table(result["noop"]))
    return found


def _noop_table(noop: dict[str, Any]) -> Table:
    early, late = noop["memory_after_a_fifth"], noop["memory_at_the_end"]
    rows = [
        ("seconds in all, Ray's start and the report included", f"{noop['seconds']:.1f}"),
        ("milliseconds a run", f"{1000 * noop['seconds'] / noop['runs']:.0f}"),
        ("records lost, double", f"{noop['records_lost']}, {noop['records_double']}"),
        ("MLflow runs lost, double", f"{noop['mlflow_lost']}, {noop['mlflow_double']}"),
        ("driver's memory after a fifth, at the end", f"{size_of(early)}, {size_of(late)}"),
        ("page", size_of(noop["page_bytes"])),
    ]
    return Table((f"{noop['runs']} runs that do nothing", ""), rows)


def sound(result: dict[str, Any]) -> bool:
    """Whether both ways have the same numbers, and nothing was lost or double."""
    noop = result.get("noop", {})
    lost = sum(
        noop.get(f"{what}_{how}", 0) for what in ("records", "mlflow") for how in ("lost", "double")
    )
    return bool(result["apart"] < AGREE) and not lost
