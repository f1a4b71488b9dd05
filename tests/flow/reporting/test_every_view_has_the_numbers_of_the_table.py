"""Every view of a sweep shows the numbers of its table: no other number, and none is missing.

The folders are random ones, with attacks, choices, and records that lack metrics or have them by
earlier settings.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.factories.marks import WITH_MLFLOW, some_in_make_test
from tests.factories.random_folders import RandomFolder, draw, write
from unlearnbench.analysis.results import Results
from unlearnbench.base.console import Console
from unlearnbench.report.leaderboard import boards, exported, merge
from unlearnbench.report.report import finish
from unlearnbench.report.sweep_tracker import SweepTracker, replay
from unlearnbench.report.tracked_runs import variant_group
from unlearnbench.results.records import read_records
from unlearnbench.results.remote_copies import Storage
from unlearnbench.results.rules import COMPUTED_BY, mixed_code
from unlearnbench.results.table import FIRST, LAST, VARIANT, TableRow
from unlearnbench.sweep.progress import Progress
from unlearnbench.sweep.sweep_state import SweepState

from ..dashboards.test_page import Page

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

pytestmark = [*WITH_MLFLOW]

Numbers = Mapping[tuple[str, int, str, str], float]
"""By run, epoch, variant and column."""
FOLDERS = {
    15: "three attacks, a metric that was switched on later, a run of an earlier plan",
    18: "tune, sampling, a metric that was switched on later",
    19: "two attacks, numbers of an older metric, a stopped run",
    20: "three seeds, sampling, numbers of an older metric, a failed run",
    44: "select, sampling, changed settings of a metric, NaN for a question",
}
"""Numbers of random folders, and what they have."""
SLOW = (20, 44)
"""Those that are logged to a store, which takes seconds."""


@pytest.fixture(scope="module", params=list(FOLDERS), ids=lambda number: f"folder {number}")
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RandomFolder:
    number = request.param
    return write(draw(number), tmp_path_factory.mktemp(f"folder{number}"))


@pytest.fixture(scope="module")
def table(made: RandomFolder) -> Numbers:
    results = Results.read(made.folder)
    return numbers_of((*results.rows, *results.attacked))


def numbers_of(rows: Iterable[TableRow]) -> Numbers:
    return {
        (row.run_id, row.epoch, row.variant, column): value
        for row in rows
        for column, value in row.metrics.items()
        if value is not None
    }


def test_csv_files(made: RandomFolder, table: Numbers, tmp_path: Path) -> None:
    page = finish(made.folder, tmp_path / "page.html").page
    found: dict[tuple[str, int, str, str], float] = {}
    for path in (page.with_suffix(".csv"), page.with_suffix(".attacks.csv")):
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        for line in csv.DictReader(io.StringIO(text)):
            moment = made.config.unit.value
            place = line["run_id"], int(line[moment]), line.get(VARIANT, "")
            for column in line.keys() - {*FIRST, *LAST, VARIANT, moment}:
                if line[column]:
                    found[*place, column] = float(line[column])
    assert found == table


def test_the_page(made: RandomFolder, table: Numbers, tmp_path: Path) -> None:
    page = Page(finish(made.folder, tmp_path / "page.html").page.read_text(encoding="utf-8"))
    columns = page.data["columns"]
    further = page.lazy_data("numbers")
    found: dict[tuple[str, int, str, str], float] = {}
    for position, cells in enumerate(page.data["rows"]):
        row = dict(zip(columns, cells, strict=True))
        values = {name: row[name] for name in page.data["metrics"] if name in row}
        values |= {name: of_column[position] for name, of_column in further.items()}
        for column, value in values.items():
            if value is not None:
                found[row["run_id"], row["epoch"], "", column] = value
    plain = {key: value for key, value in table.items() if not key[2]}
    # Six or four significant digits are embedded.
    assert found == pytest.approx(plain, rel=1e-3, abs=1e-12)


def test_leaderboard_lines(made: RandomFolder, table: Numbers) -> None:
    results = Results.read(made.folder)
    failed = {record.id for record in results.records if record.status == "failed"}
    expected = {key: value for key, value in table.items() if key[0] not in failed}
    board = merge(
        (f"f:{n}", line) for n, line in enumerate(exported(made.folder).text.splitlines())
    )
    assert board.refused == ()
    recorded = {
        (record.id, result.epoch, result.variant, column): value
        for record in board.records
        for result in (*record.epochs, *record.attacked)
        for column, value in result.metrics.items()
        if value is not None
    }
    assert recorded == expected
    (shown,) = boards(board.records).values()
    assert numbers_of((*shown.rows, *shown.attacked)) == expected
    columns = {column for *_, column in expected}
    of_page, of_board = (
        {name: of.schema.column(name) for name in columns} for of in (results, shown)
    )
    assert of_board == of_page, "also of metrics that were named after the records were made"
    codes = {record.provenance[COMPUTED_BY] for record in board.records}
    assert len(codes) == 1
    assert mixed_code(board.records) == ""


@pytest.mark.parametrize("made", some_in_make_test(SLOW, 2), indirect=True)
def test_mlflow_from_the_folder(made: RandomFolder, table: Numbers, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/store.db"
    replay(made.folder, uri)
    assert numbers_in_store(uri, table) == table
    assert_best_epochs(uri, Results.read(made.folder))
    assert replay(made.folder, uri).logged == 0


@pytest.mark.parametrize("made", some_in_make_test(reversed(SLOW), 2), indirect=True)
def test_mlflow_while_the_sweep_runs(made: RandomFolder, table: Numbers, tmp_path: Path) -> None:
    """Records are logged as they are made, a retain model's before there is a start model."""
    uri = f"sqlite:///{tmp_path}/store.db"
    settings = made.config.tracking.model_copy(update={"uri": uri})
    records = sorted(read_records(made.folder), key=_as_made)
    hidden = made.folder.with_name("records-to-come")
    (made.folder / "records").rename(hidden)
    progress = Progress(Console(err=io.StringIO()), made.config.headline)
    try:
        (made.folder / "records").mkdir()
        with SweepTracker(settings, made.folder, made.config) as tracker:
            state = SweepState(made.folder, progress, tracker, Storage(None, {}))
            for record in records:
                (hidden / record.place).rename(made.folder / "records" / record.place)
                state.track_finished(made.plan, unfinished=())
            tracker.settle()
    finally:
        for place in hidden.iterdir():
            place.rename(made.folder / "records" / place.name)
        hidden.rmdir()
    assert tracker.trouble is None
    assert numbers_in_store(uri, table) == table
    assert_best_epochs(uri, Results.read(made.folder))
    assert replay(made.folder, uri).logged == 0, "the same numbers"


def _as_made(record: Record) -> tuple[bool, bool, bool]:
    """Sort key of records, in the order in which a sweep makes them."""
    return record.kind == "run", record.kind != "retain", bool(record.attacked)


def numbers_in_store(uri: str, table: Numbers) -> Numbers:
    """Return the numbers of models in MLflow, by the names of the table."""
    from mlflow import MlflowClient

    variants = {variant_group(variant): variant for _, _, variant, _ in table if variant}
    client: Any = MlflowClient(uri)
    found: dict[tuple[str, int, str, str], float] = {}
    for run in client.search_runs([e.experiment_id for e in client.search_experiments()]):
        for name in run.data.metrics:
            group, _, column = name.rpartition("/")
            if re.match("at_a_glance|best|system|train", group):
                continue
            if group in variants:
                variant = variants[group]
            else:
                variant, column = "", f"{column}_{group}" if group else column
            for point in client.get_metric_history(run.info.run_id, name):
                key = run.data.tags["unlearnbench.run_id"], point.step, variant, column
                assert key not in found, "a number is there once"
                found[key] = point.value
    return found


def assert_best_epochs(uri: str, results: Results) -> None:
    """In a sweep that chooses, only the runs of the page's best settings have a best epoch."""
    from mlflow import MlflowClient

    client: Any = MlflowClient(uri)
    runs = {
        run.data.tags["unlearnbench.run_id"]: run.data
        for run in client.search_runs([e.experiment_id for e in client.search_experiments()])
        if run.data.tags["kind"] == "run"
    }
    if results.choice_plan is None:
        assert not any("chosen" in data.tags for data in runs.values())
        return
    reported = {
        row.run_id: row
        for panel in results.panels
        for best in panel.best
        if best.setting is not None
        for row in best.setting.rows
    }
    assert {id_ for id_, data in runs.items() if data.tags.get("chosen") == "yes"} == {*reported}
    for id_, data in runs.items():
        found = {name: value for name, value in data.metrics.items() if name.startswith("best/")}
        assert bool(found) == (id_ in reported)
        if id_ in reported:
            row = reported[id_]
            assert found[f"best/{row.unit}"] == row.epoch
            kept = row.headline.kept.column
            assert found.get(f"best/{kept}") == row.kept


def test_folders_have_what_the_tests_need(made: RandomFolder, table: Numbers) -> None:
    results = Results.read(made.folder)
    assert {record.kind for record in results.records} == {"run", "fine-tuned", "retain"}
    assert any(variant for _, _, variant, _ in table)
    unlike = [
        replace(row, metrics=result.metrics)
        for record in results.records
        for result in (*record.epochs, *record.attacked)
        for row in (*results.rows, *results.attacked)
        if (row.run_id, row.epoch, row.variant) == (record.id, result.epoch, result.variant)
        and numbers_of([row]) != numbers_of([replace(row, metrics=result.metrics)])
    ]
    assert unlike, "numbers in records differ from those of the table"
