"""`unlearnbench bench sweep`: a sweep against one Python process per run, as in a shell loop.

Both start from the same prepared models, and must end with the same numbers. The loop's processes
use all cores, one run after another; the sweep has a run per core. Then comes a sweep of runs that
do nothing, whose time is all overhead.
"""

from __future__ import annotations

import json
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

from unlearnbench.bench.agreement import difference
from unlearnbench.bench.measurement import PrintLine, ResultTable, circumstances, size_of
from unlearnbench.bench.peak_in_process import output_of
from unlearnbench.config.loader import load_config
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.sweep_folder import claim_folder
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks

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


@dataclass(frozen=True)
class SweepBenchSettings:
    """The options of the benchmark, stored in its record."""

    repeats: int
    noop: int
    """Number of runs that do nothing."""
    quick: bool = False
    """Only two runs, as a smoke test."""

    @property
    def overrides(self) -> list[str]:
        """Overrides of the configuration."""
        few = ["methods=[ce-u]", "learning_rates=[1e-4,2e-4]", "epochs=1"]
        return few if self.quick else []


def bench_sweep(settings: SweepBenchSettings, print_line: PrintLine) -> dict[str, Any]:
    """Measure both ways in turn, then runs that do nothing; returns the result for JSON."""
    result: dict[str, Any] = {
        "benchmark": "sweep",
        "settings": {**asdict(settings), "data": "synthetic"},
        **circumstances(),
    }
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as name:
        folder = Path(name)
        (folder / "bench.yaml").write_text(CONFIG, encoding="utf-8")
        print_line("preparing the models that both ways start from")
        runs = _prepare(folder, settings)
        ways: dict[str, list[float]] = {"loop": [], "sweep": []}
        for number in range(settings.repeats):
            for way in ways:
                print_line(f"{way}, {number + 1} of {settings.repeats}: {runs} runs")
                seconds, detail = _timed(folder, way, runs, settings)
                ways[way].append(seconds)
                result[way] = detail
        loop, sweep = (
            [r for r in read_records(folder / way / "bench") if r.kind == "run"] for way in ways
        )
        result |= {
            "runs": runs,
            "seconds": ways,
            "apart": _apart(loop, sweep),
            "overheads": _overheads(sweep),
        }
        if settings.noop:
            print_line(f"{settings.noop} runs that do nothing")
            words = (str(folder / "noop"), str(settings.noop))
            output = output_of("the sweep of them", "unlearnbench.bench.noop_sweep", *words)
            result["noop"] = json.loads(output.splitlines()[-1])
    return result


def _prepare(folder: Path, settings: SweepBenchSettings) -> int:
    """Prepare the start and retain models once; returns the number of runs."""
    overrides = [*settings.overrides, f"output={folder / 'prepared'}"]
    config = load_config(str(folder / "bench.yaml"), overrides)
    plan, _ = plan_sweep(config)
    place = claim_folder(plan)
    for task in preparation_tasks(config, plan.runs, place):
        execute_task(task, config, place)
    return len(plan.runs)


def _timed(
    folder: Path, way: str, runs: int, settings: SweepBenchSettings
) -> tuple[float, dict[str, Any]]:
    """Seconds of one way from the prepared models to the report, and the sweep's own figures."""
    place = folder / way
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(folder / "prepared", place)
    common = [str(folder / "bench.yaml")]
    for override in (*settings.overrides, f"output={place}"):
        common += ["--set", override]
    begin = time.monotonic()
    if way == "sweep":
        detail = json.loads(_command("sweep", *common, "--json"))
        return time.monotonic() - begin, {"seconds": detail["seconds"], "busy": detail["busy"]}
    for index in range(runs):
        _command("run", *common, "--select", str(index), "--json")
    _command("report", str(place / "bench"))
    return time.monotonic() - begin, {}


def _command(*words: str) -> str:
    return output_of(f"`unlearnbench {words[0]}`", "unlearnbench.cli.main", *words)


def _apart(one: Sequence[Record], other: Sequence[Record]) -> float:
    """Largest difference of a metric between two ways; infinite if their runs differ."""
    here, there = (
        {(r.id, e.epoch, name): v for r in way for e in r.epochs for name, v in e.metrics.items()}
        for way in (one, other)
    )
    if here.keys() != there.keys():
        return float("inf")
    # Relative where it is a logarithm without bounds.
    gaps = (difference(v, there[key]) / max(1.0, abs(v or 0.0)) for key, v in here.items())
    return max(gaps, default=0.0)


def _overheads(records: Sequence[Record]) -> list[float]:
    """Seconds of each further run in a process beyond its training and evaluation."""
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


def tables(result: dict[str, Any]) -> list[ResultTable]:
    """The tables of a result."""
    runs, seconds = result["runs"], result["seconds"]
    loop, sweep = (statistics.median(seconds[way]) for way in ("loop", "sweep"))
    overheads = result["overheads"]
    rows = [
        ("one process per run", f"{loop:.1f}", f"{60 * runs / loop:.1f}", "1.0×"),
        ("sweep", f"{sweep:.1f}", f"{60 * runs / sweep:.1f}", f"{loop / sweep:.1f}×"),
    ]
    about = [("largest difference of a metric", f"{result['apart']:.1g}")]
    if overheads:
        summary = f"{statistics.median(overheads):.2f} s, at most {max(overheads):.2f} s"
        about.append(("overhead of a further run in a worker", summary))
    for device, share in result["sweep"]["busy"].items():
        about.append((f"busy: {device}", f"{100 * share:.0f} %"))
    found = [
        ResultTable(
            ("way", "seconds", "runs a minute", "faster"), rows, f"{runs} runs of a tiny model"
        ),
        ResultTable(("of the sweep", ""), about),
    ]
    if "noop" in result:
        found.append(_noop_table(result["noop"]))
    return found


def _noop_table(noop: dict[str, Any]) -> ResultTable:
    early, late = noop["memory_after_a_fifth"], noop["memory_at_the_end"]
    rows = [
        ("seconds in all, Ray's start and the report included", f"{noop['seconds']:.1f}"),
        ("milliseconds a run", f"{1000 * noop['seconds'] / noop['runs']:.0f}"),
        ("records lost, double", f"{noop['records_lost']}, {noop['records_double']}"),
        ("MLflow runs lost, double", f"{noop['mlflow_lost']}, {noop['mlflow_double']}"),
        ("driver's memory after a fifth, at the end", f"{size_of(early)}, {size_of(late)}"),
        ("page", size_of(noop["page_bytes"])),
    ]
    return ResultTable((f"{noop['runs']} runs that do nothing", ""), rows)


def sound(result: dict[str, Any]) -> bool:
    """True if both ways have the same numbers and nothing was lost or duplicated."""
    noop = result.get("noop", {})
    lost = sum(
        noop.get(f"{what}_{how}", 0) for what in ("records", "mlflow") for how in ("lost", "double")
    )
    return bool(result["apart"] < AGREE) and not lost
