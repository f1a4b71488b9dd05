"""Figures from Python and from the command line."""

import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.main import main
from unlearnbench.report.figures import rows_of, select, truth_ratios
from unlearnbench.report.report import write_report
from unlearnbench.results.records import Record, read_records, write_record
from unlearnbench.results.table import TableRow, from_csv, to_csv

from .numbers.analysis.conftest import GOAL, N, off, reference, run


def as_read(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """The rows, equal to those of a CSV file: pandas before 3.1 reads 15 digits of a number."""
    near: list[Any] = [pytest.approx(dict(row.metrics), rel=1e-14, nan_ok=True) for row in rows]
    return tuple(replace(row, metrics=values) for row, values in zip(rows, near, strict=True))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of both references and one run of two epochs."""
    folder = tmp_path_factory.mktemp("sweep")
    for one in (
        reference("fine-tuned", 0.9, off(3.0), id="aa00"),
        reference("retain", 0.9, GOAL, id="bb00"),
        run("npo", [(0.8, off(2.0)), (0.7, off(1.0))], id="cc00", learning_rate=1e-4),
    ):
        write_record(one, folder)
    return folder


def run_of(folder: Path) -> Record:
    return next(r for r in read_records(folder) if r.kind == "run")


def test_nothing_of_plotly_is_imported_before_a_figure_is_asked_for() -> None:
    code = "import sys, unlearnbench.report.figures; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class TestTruthRatios:
    @pytest.mark.parametrize(("epoch", "shown"), [(None, 2), (1, 1)])
    def test_d_is_the_records(self, sweep: Path, epoch: int | None, shown: int) -> None:
        record = run_of(sweep)
        figure = truth_ratios(record, epoch=epoch)
        names = [trace.name for trace in figure.data]
        assert names == [
            *(f"epoch {3 - shown}", "start model", "retain model", f"npo, epoch {shown}", "D")
        ]
        (bar,) = (trace for trace in figure.data if trace.name == "D")
        distance = record.epochs[shown - 1].metrics["ks_statistic"]
        assert abs(bar.y[1] - bar.y[0]) == pytest.approx(distance)
        assert f"D = {distance:.4f}" in figure.layout.title.text
        assert f"n = {N}" in figure.layout.title.text

    def test_a_retain_model_can_be_given(self, sweep: Path) -> None:
        alone = replace(run_of(sweep), evaluations=dict(run_of(sweep).evaluations))
        with pytest.raises(RecordError, match="give its record as `retain`"):
            truth_ratios(alone)
        goal = next(r for r in read_records(sweep) if r.kind == "retain")
        assert [t.name for t in truth_ratios(alone, goal).data] == [
            *("epoch 1", "retain model", "npo, epoch 2", "D")
        ]


class TestCommands:
    @pytest.mark.parametrize(
        "words",
        [
            ("pareto", "FOLDER"),
            ("trajectories", "FOLDER", "--metrics", "model_utility"),
            ("truth-ratios", "FOLDER", "cc", "--epoch", "1"),
            ("paper",),
            ("pareto", "FOLDER", "--methods", "npo", "--width", "column", "--font-size", "8"),
        ],
        ids=lambda words: f"{words[0]} {len(words)}",
    )
    def test_each_writes_its_file_and_says_so(
        self,
        words: tuple[str, ...],
        sweep: Path,
        tmp_path: Path,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        out = tmp_path / "figure.html"
        told = [str(sweep) if word == "FOLDER" else word for word in words]
        assert main(["figures", *told, "--out", str(out)]) == 0
        assert capsys.readouterr().out == f"figure  {out}\n"
        assert "plotly" in out.read_text(encoding="utf-8")


class TestSelection:
    """The part of a sweep that a figure shows."""

    def test_methods_and_rates_are_chosen_and_references_stay(self, sweep: Path) -> None:
        rows = rows_of(sweep)
        other = tuple(
            replace(row, run_id="dd00", method="ce-u", family="ce-u", learning_rate=2e-4)
            for row in rows
            if row.kind == "run"
        )
        both = (*rows, *other)
        for chosen in (
            *(select(both, ["npo"]), select(both, "npo"), select(both, rate=1e-4)),
            select(both, ["npo"], fraction=0.1, rate=1e-4),
        ):
            assert chosen == rows
        assert {r.kind for r in select(both, [])} == {"fine-tuned", "retain"}
        with_term = [replace(row, family="npo+nll", method="npo+nll") for row in other]
        assert [r.family for r in select([*with_term], ["npo"])] == ["npo+nll"] * 2

    def test_truth_ratios_of_a_folder_are_those_of_its_run(self, sweep: Path) -> None:
        figure = truth_ratios(sweep, method="npo", epoch=1)
        assert figure.to_json() == truth_ratios(run_of(sweep), epoch=1).to_json()


class TestTables:
    """A figure takes a sweep in every form in which a reader has it."""

    def forms(self, folder: Path) -> dict[str, Any]:
        import pandas

        write_report(folder)
        file = folder / "results.csv"
        return {
            "path": folder,
            "text": str(folder),
            "csv": file,
            "frame": pandas.read_csv(file),
            "records": read_records(str(folder)),
            "rows": Results.read(str(folder)).rows,
        }

    def test_all_give_the_same_rows(self, sweep: Path) -> None:
        forms = self.forms(sweep)
        wanted = as_read(forms["rows"])
        assert len(wanted) == 4
        for name, form in forms.items():
            assert rows_of(form) == wanted, name

    def test_a_label_with_hyper_parameters_keeps_its_family(self, sweep: Path) -> None:
        (row,) = [r for r in Results.read(sweep).rows if r.kind == "run" and r.epoch == 1]
        many = replace(row, method="npo (beta=0.5)", hyperparameters={"beta": 0.5})
        lines = csv.DictReader(to_csv([many]).splitlines())
        assert rows_of(from_csv(lines)) == (many,)
