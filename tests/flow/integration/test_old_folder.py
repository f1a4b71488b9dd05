"""A sweep folder of 0.2, the first release, opens: nothing is run again, views give its numbers.

`tests/data/sweep_0_2` was made at commit ca26606 by `unlearnbench sweep old.yaml`; its page and
MLflow's files, which are written again, are left out.
"""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.factories.tables import read_csv
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.runs.prerequisites import start_check

pytestmark = [*WITH_MLFLOW]

MADE = Path(__file__).parents[2] / "data" / "sweep_0_2"
RECORDS = 3


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder after today's `unlearnbench sweep` with its configuration."""
    place = tmp_path_factory.mktemp("old")
    folder = place / "runs" / "old"
    shutil.copytree(MADE, folder)
    (folder / "old.yaml").rename(place / "old.yaml")
    (folder / "results.csv").unlink()
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        assert main(["sweep", "old.yaml", "--set", "tracking.enabled=false"]) == 0
        yield folder


def test_no_run_is_started_again_and_the_table_is_the_same(opened: Path) -> None:
    for record in (MADE / "records").glob("*/*"):
        there = opened / "records" / record.parent.name / record.name
        assert there.read_bytes() == record.read_bytes()
    assert len(list((opened / "records").iterdir())) == RECORDS
    assert not (opened.parent / "cache").exists(), "no model is prepared"
    plans = (json.loads((folder / "plan.json").read_text()) for folder in (MADE, opened))
    before, after = ([run["id"] for run in plan["runs"]] for plan in plans)
    assert before == after
    assert (opened / "results.csv").read_bytes() == (MADE / "results.csv").read_bytes()


def test_report_writes_page_and_table(opened: Path) -> None:
    page, table = opened / "report.html", opened / "results.csv"
    page.unlink()
    table.unlink()
    assert main(["report", str(opened)]) == 0
    assert "npo" in page.read_text(encoding="utf-8")
    assert table.read_bytes() == (MADE / "results.csv").read_bytes()


def test_its_start_model_is_measured_without_a_change_of_its_record(opened: Path) -> None:
    records = {path: path.read_bytes() for path in (opened / "records").glob("*/*")}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(opened.parents[1])
        check = start_check(load_config("old.yaml"), opened, "tiny", 0.25)
    assert check is not None
    assert check.answered is not None
    # ROUGE on the retain rows, as results.csv has it.
    (row,) = (row for row in read_csv(MADE / "results.csv") if row["kind"] == "fine-tuned")
    assert check.answered.start == pytest.approx(float(row["rouge_retain"]))
    assert {path: path.read_bytes() for path in (opened / "records").glob("*/*")} == records
