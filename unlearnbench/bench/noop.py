"""A sweep of runs that do nothing, through the real path: plan, Ray, records, MLflow, report.

    python -m unlearnbench.bench.noop FOLDER RUNS

In a process of its own, because the driver's memory is measured.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

from unlearnbench.console import Console
from unlearnbench.ledger import Runtime, Task
from unlearnbench.mlflow_store import STORE
from unlearnbench.plan import Plan, RunSpec, make_plan
from unlearnbench.provenance import provenance
from unlearnbench.records import EpochResult, read_records, run_record, write_record
from unlearnbench.registry import method_spec
from unlearnbench.report import write_report
from unlearnbench.settings import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.table import METRICS

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


def _tasks(config: SweepConfig, runs: Sequence[RunSpec], folder: Path) -> Sequence[Task]:  # noqa: ARG001
    return ()


def _execute(task: Any, config: SweepConfig, folder: Path) -> float:  # noqa: ARG001
    return 0.0


def _run_epochs(run: RunSpec, config: SweepConfig, folder: Path) -> Iterator[EpochResult]:  # noqa: ARG001
    """An epoch without training, judged by its id."""
    value = int(run.id[:4], 16) / 0xFFFF
    metrics = dict.fromkeys(METRICS, value) | {"log10_forget_quality": -20 * value, "ks_n": 400.0}
    result = EpochResult(1, metrics, 0.0, 0.0)
    yield result
    made = provenance(data=run.data_fingerprint)
    kept = run_record(
        run, status="finished", profile="tofu", epochs=(result,), provenance=made, evaluations={}
    )
    write_record(kept, folder)


NOOP = Runtime(_plan, _tasks, _execute, _run_epochs, write_report)


class _Memory(threading.Thread):
    """The process's resident memory, by how many runs have a record."""

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder = folder / "noop" / "records"
        self.samples: list[tuple[int, int]] = []

    def run(self) -> None:
        while True:
            try:
                done = sum(1 for _ in os.scandir(self.folder))
            except FileNotFoundError:
                done = 0
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.samples.append((done, pages * os.sysconf("SC_PAGE_SIZE")))
            time.sleep(SAMPLE_SECONDS)

    def after(self, runs: float) -> int:
        """Bytes when `runs` were recorded."""
        return min(self.samples, key=lambda sample: abs(sample[0] - runs))[1]


def noop_sweep(folder: Path, runs: int) -> dict[str, Any]:
    """Carry it out; what it took, and what was lost or double, ready for JSON."""
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
        asked = "SELECT value FROM tags WHERE key = 'unlearnbench.run_id'"
        logged = [value for (value,) in store.execute(asked)]
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
