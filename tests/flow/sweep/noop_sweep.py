"""A sweep of runs that do nothing, through the real path: plan, Ray, records, MLflow, report."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path
from typing import Any

from unlearnbench.base.console import Console
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.evaluation.benchmark_schema import default_schema
from unlearnbench.report.mlflow_store import STORE
from unlearnbench.report.report import finish
from unlearnbench.results.records import EpochResult, read_records, run_record, write_record
from unlearnbench.sweep.pipeline import Pipeline


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
    metrics: dict[str, float | None] = {**dict.fromkeys(default_schema().columns, value), **special}
    result = EpochResult(1, metrics, 0.0, 0.0)
    yield result
    write_record(run_record(run, status="finished", epochs=(result,)), folder)


NOOP = Pipeline(_plan, _tasks, _execute, _run_epochs, finish)


def noop_sweep(folder: Path, runs: int) -> dict[str, int]:
    """Run it; returns counts of runs, of what was lost or duplicated, and the page's bytes."""
    from unlearnbench.sweep.driver import run_sweep

    config = noop_config(folder, runs)
    result = run_sweep(config, Console(err=StringIO()), NOOP)
    planned = [run.id for run in _plan(config).runs]
    recorded = [record.id for record in read_records(result.folder)]
    with closing(sqlite3.connect(result.folder / STORE)) as store:
        query = "SELECT value FROM tags WHERE key = 'unlearnbench.run_id'"
        logged = [value for (value,) in store.execute(query)]
    return {
        "runs": len(planned),
        "records_lost": len({*planned} - {*recorded}),
        "records_double": len(recorded) - len({*recorded}),
        "mlflow_lost": len({*planned} - {*logged}),
        "mlflow_double": len(logged) - len({*logged}),
        "page_bytes": result.report.stat().st_size,
    }
