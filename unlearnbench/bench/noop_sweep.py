"""A sweep of runs that do nothing, through the real path: plan, Ray, records, MLflow, report.

    python -m unlearnbench.bench.noop_sweep FOLDER RUNS

In a process of its own, because the driver's memory is measured.
"""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

import psutil

from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.console import Console
from unlearnbench.evaluation.columns import known_columns
from unlearnbench.plan.plan import Plan, make_plan
from unlearnbench.plan.preparation_task import PreparationTask
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.reporting.report import write_report
from unlearnbench.results.records import EpochResult, read_records, run_record, write_record
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.tracking.mlflow.connection import STORE

SAMPLE_SECONDS = 0.2


def noop_config(folder: Path, runs: int) -> SweepConfig:
    """`runs` runs of four methods at a quarter as many rates."""
    methods = ("ce-u", "npo", "idk", "gradient-ascent")
    rates = tuple(1e-5 * (1 + i) for i in range(-(-runs // len(methods))))
    return SweepConfig(
        name="noop",
        models=(ModelSettings(name="none", base="tiny"),),
        forget_fractions=(0.1,),
        methods=tuple(MethodGrid(specs=(method_spec(name, {}),)) for name in methods),
        learning_rates=rates,
        epochs=1,
        output=str(folder),
    )


def _plan(config: SweepConfig) -> Plan:
    return make_plan(config, "none")


def _tasks(*_: Any) -> tuple[PreparationTask, ...]:
    return ()


def _execute(*_: Any) -> float:
    return 0.0


def _run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:  # noqa: ARG001
    """An epoch without training, with metrics derived from the run's id."""
    value = int(run.id[:4], 16) / 0xFFFF
    special = {"log10_forget_quality": -20 * value, "ks_n": 400.0}
    metrics: dict[str, float | None] = {**dict.fromkeys(known_columns(), value), **special}
    result = EpochResult(1, metrics, 0.0, 0.0)
    yield result
    write_record(run_record(run, status="finished", epochs=(result,)), folder)


NOOP = Pipeline(_plan, _tasks, _execute, _run_epochs, write_report)


class _Memory(threading.Thread):
    """Sample the process's resident memory against the number of records."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder / "noop" / "records"
        self.samples: list[tuple[int, int]] = []

    def run(self) -> None:
        while True:
            done = sum(1 for _ in self.folder.glob("*"))
            self.samples.append((done, psutil.Process().memory_info().rss))
            time.sleep(SAMPLE_SECONDS)

    def after(self, runs: float) -> int:
        """Bytes when `runs` were recorded."""
        return min(self.samples, key=lambda sample: abs(sample[0] - runs))[1]


def noop_sweep(folder: Path, runs: int) -> dict[str, Any]:
    """Run it; returns seconds, memory, and what was lost or duplicated, ready for JSON."""
    from unlearnbench.sweep import run_sweep

    memory = _Memory(folder)
    memory.start()
    begin = time.monotonic()
    config = noop_config(folder, runs)
    result = run_sweep(config, Console(err=StringIO()), NOOP)
    seconds = time.monotonic() - begin
    planned = [run.id for run in _plan(config).runs]
    recorded = [record.id for record in read_records(result.folder)]
    with closing(sqlite3.connect(result.folder / STORE)) as store:
        query = "SELECT value FROM tags WHERE key = 'unlearnbench.run_id'"
        logged = [value for (value,) in store.execute(query)]
    return {
        "runs": len(planned),
        "seconds": seconds,
        "records_lost": len({*planned} - {*recorded}),
        "records_double": len(recorded) - len({*recorded}),
        "mlflow_lost": len({*planned} - {*logged}),
        "mlflow_double": len(logged) - len({*logged}),
        "memory_after_a_fifth": memory.after(len(planned) / 5),
        "memory_at_the_end": memory.after(len(planned)),
        "page_bytes": result.report.stat().st_size,
    }


if __name__ == "__main__":
    sys.stdout.write(json.dumps(noop_sweep(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
