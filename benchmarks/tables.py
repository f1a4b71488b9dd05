"""Time the table of a large finished sweep: python -m benchmarks.tables --runs 10000

The records are made in memory, and their files are only named: with all keys known, none is read.
"""

import hashlib
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from unlearnbench.analysis.best_settings import panels
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.results.finalize import finalize, inputs_entry
from unlearnbench.results.records import (
    EpochResult,
    Record,
    StoredEvaluations,
    StoredFile,
    run_record,
)
from unlearnbench.results.rules import rules_of
from unlearnbench.results.stored_table import TABLE_FILE, read_table, write_table
from unlearnbench.results.table import to_csv

from .timer import begin, end, options_of

_T = TypeVar("_T")
EPOCHS = 5
ATTACK = "relearning@1"
RATES = 10


def a_number(*parts: object) -> float:
    """Return a number from 0 to 1 that depends on the parts only."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "little") / 2**56


def planned_runs(count: int, folder: str) -> tuple[RunSpec, ...]:
    """Plan a sweep of so many runs, of 20 settings for each rate."""
    document = {
        "name": "large",
        "output": folder,
        "data": {"source": "synthetic", "authors": 10},
        "models": [{"name": "tiny", "base": "tiny"}],
        "forget_fractions": [0.2],
        "methods": [
            {"method": "npo", "beta": [0.02 * (i + 1) for i in range(10)]},
            {"method": "dpo", "beta": [0.02 * (i + 1) for i in range(10)]},
        ],
        "learning_rates": [1e-5 * (i + 1) for i in range(RATES)],
        "seeds": [*range(-(-count // (20 * RATES)))],
        "epochs": EPOCHS,
    }
    path = Path(folder) / "large.yaml"
    path.write_text(json.dumps(document), encoding="utf-8")
    return tuple(make_plan(load_config(str(path)), "rows").runs[:count])


def a_large_sweep(count: int) -> list[Record]:
    """Make the records of a finished sweep."""
    with TemporaryDirectory() as folder:
        runs = planned_runs(count, folder)
    first = runs[0]
    columns = [c.name for c in plan_of(profile_of(first.evaluation), first.data).columns]

    def results(record: str, epochs: list[int], variant: str = "") -> tuple[EpochResult, ...]:
        return tuple(
            EpochResult(
                epoch,
                {name: 0.5 + 0.5 * a_number(record, epoch, variant, name) for name in columns},
                1.0,
                1.0,
                variant,
            )
            for epoch in epochs
        )

    def with_files(record: Record) -> Record:
        place = Path("records") / record.id
        plain = {
            item.epoch: StoredFile(place / str(item.epoch), f"{record.id} {item.epoch}")
            for item in record.epochs
        }
        under = {
            (item.epoch, item.variant): StoredFile(place / item.variant, f"{record.id} attacked")
            for item in record.attacked
        }
        return replace(
            record,
            evaluations=StoredEvaluations(place, plain),
            attacked_evaluations=StoredEvaluations(place, under),
        )

    records: list[Record] = []
    for kind in ("fine-tuned", "retain"):
        record = run_record(first, status="finished", epochs=results(kind, [0]))
        changes: dict[str, Any] = {"id": kind, "kind": kind, "learning_rate": None, "method": kind}
        spec = {"data": record.spec["data"]}
        records.append(replace(record, **changes, spec=spec))
        under = results(kind, [0], ATTACK)
        changes |= {"id": f"{kind}-attacked", "epochs": (), "attacked": under}
        records.append(replace(record, **changes, spec=spec))
    for run in runs:
        epochs = results(run.id, [*range(1, EPOCHS + 1)])
        attacked = results(run.id, [EPOCHS], ATTACK)
        records.append(run_record(run, status="finished", epochs=epochs, attacked=attacked))
    return [with_files(record) for record in records]


def with_inputs(records: list[Record]) -> list[Record]:
    """Let records say that their numbers are by today's rules."""
    rules = rules_of(records)
    references = [record for record in records if record.kind != "run"]
    return [
        replace(record, provenance=inputs_entry(rules.of(record).key, record, references))
        for record in records
    ]


def timed(name: str, seconds: dict[str, float], function: Callable[[], _T]) -> _T:
    """Call a function, and note the seconds of the processor that it took."""
    started = time.process_time()
    value = function()
    seconds[name] = round(time.process_time() - started, 2)
    return value


def main(words: list[str] | None = None) -> int:
    """Make the records, and time the table by what records say, and by a stored table."""
    parser = options_of(__doc__)
    parser.add_argument("--runs", type=int, default=10_000)
    options = begin(parser, words)
    records = a_large_sweep(options.runs)
    current = with_inputs(records)
    seconds: dict[str, float] = {}
    table = timed("finalize, by records", seconds, lambda: finalize(current, rules_of(current)))
    with TemporaryDirectory() as place:
        folder = Path(place)
        timed("write table.json", seconds, lambda: write_table(table, folder))
        known = timed("read table.json", seconds, lambda: read_table(folder))
        size = (folder / TABLE_FILE).stat().st_size
    again = timed(
        "finalize, by table.json", seconds, lambda: finalize(records, rules_of(records), known)
    )
    timed("panels and best", seconds, lambda: [panel.best for panel in panels(again.rows)])
    timed("csv", seconds, lambda: to_csv(again.rows))
    rows = len(table.rows) + len(table.attacked)
    return end(
        options,
        (again.rows, again.attacked) == (table.rows, table.attacked),
        rows=rows,
        mib=round(size / 2**20, 1),
        cpu_seconds=seconds,
    )


if __name__ == "__main__":
    sys.exit(main())
