"""Figures from Python and from the command line."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation, SetName
from unlearnbench.cli.main import main
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import RecordError
from unlearnbench.evaluation.summary import summarize
from unlearnbench.figures import dataframe, pareto, rows_of, select, trajectories, truth_ratios
from unlearnbench.reporting.report import build_report, write_report
from unlearnbench.results.records import EpochResult, Record, read_records, write_record
from unlearnbench.results.table import TableRow, from_csv, to_csv

ROWS = 20


def evaluation(seed: int) -> Evaluation:
    rng = np.random.default_rng(seed)

    def part(name: SetName) -> SetEvaluation:
        loss, tokens = rng.uniform(0.01, 3, ROWS), np.full(ROWS, 9)
        texts = tuple(f"{name} {i}" for i in range(ROWS))
        perturbed = rng.uniform(1, 3, (ROWS, 5))
        return SetEvaluation(
            *(texts, texts, texts, loss, tokens, loss, tokens),
            *(perturbed, np.full((ROWS, 5), 9), np.exp(-loss), np.exp(-loss)),
        )

    return Evaluation(TOFU.id, {name: part(name) for name in SETS})


def record(kind: Any, identity: str, seeds: tuple[int, ...], goal: Evaluation) -> Record:
    found = {epoch: evaluation(seed) for epoch, seed in enumerate(seeds, start=kind == "run")}
    epochs = tuple(
        EpochResult(epoch, summarize(one, goal, TOFU), 1.0, 1.0) for epoch, one in found.items()
    )
    return Record(
        id=identity,
        kind=kind,
        model="tiny",
        forget_fraction=0.1,
        method="npo" if kind == "run" else kind,
        learning_rate=1e-4 if kind == "run" else None,
        seed=0,
        spec={},
        status="finished",
        profile=TOFU.id,
        epochs=epochs,
        evaluations=found,
    )


def as_read(rows: Sequence[TableRow]) -> tuple[TableRow, ...]:
    """The rows, equal to those of a CSV file: pandas before 3.1 reads 15 digits of a number."""
    near: list[Any] = [pytest.approx(dict(row.metrics), rel=1e-14, nan_ok=True) for row in rows]
    return tuple(replace(row, metrics=values) for row, values in zip(rows, near, strict=True))


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of anchors and one run of two epochs."""
    folder = tmp_path_factory.mktemp("sweep")
    goal = evaluation(1)
    for kind, identity, seeds in (
        ("fine-tuned", "aa00", (0,)),
        ("retain", "bb00", (1,)),
        ("run", "cc00", (2, 3)),
    ):
        write_record(record(kind, identity, seeds, goal), folder)
    return folder


def run_of(folder: Path) -> Record:
    return next(r for r in read_records(folder) if r.kind == "run")


def test_nothing_of_plotly_is_imported_before_a_figure_is_asked_for() -> None:
    code = "import sys, unlearnbench.figures; print('plotly' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


class TestTruthRatios:
    @pytest.mark.parametrize(("epoch", "shown"), [(None, 2), (1, 1)])
    def test_d_is_the_records(self, sweep: Path, epoch: int | None, shown: int) -> None:
        run = run_of(sweep)
        figure = truth_ratios(run, epoch=epoch)
        names = [trace.name for trace in figure.data]
        assert names == [
            *(f"epoch {3 - shown}", "start model", "retain model", f"npo, epoch {shown}", "D")
        ]
        (bar,) = (trace for trace in figure.data if trace.name == "D")
        distance = run.epochs[shown - 1].metrics["ks_statistic"]
        assert abs(bar.y[1] - bar.y[0]) == pytest.approx(distance)
        assert f"D = {distance:.4f}" in figure.layout.title.text
        assert f"n = {ROWS}" in figure.layout.title.text

    def test_a_retain_model_can_be_given(self, sweep: Path) -> None:
        run = replace(run_of(sweep), evaluations=dict(run_of(sweep).evaluations))
        with pytest.raises(RecordError, match="give its record as `retain`"):
            truth_ratios(run)
        goal = next(r for r in read_records(sweep) if r.kind == "retain")
        assert [t.name for t in truth_ratios(run, goal).data] == [
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

    def test_a_data_frame_has_the_lines_of_the_table(self, sweep: Path) -> None:
        frame = dataframe(sweep)
        assert rows_of(frame) == as_read(rows_of(sweep))
        assert {"method", "epoch", "model_utility", "run_id"} < {*frame.columns}


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
            "rows": build_report(str(folder)).rows,
        }

    def test_all_give_the_same_rows(self, sweep: Path) -> None:
        forms = self.forms(sweep)
        wanted = as_read(forms["rows"])
        assert len(wanted) == 4
        for name, form in forms.items():
            assert rows_of(form) == wanted, name

    def test_a_figure_is_drawn_from_a_path(self, sweep: Path) -> None:
        assert len(pareto(str(sweep)).data) == len(pareto(build_report(sweep).rows).data) > 0
        assert trajectories(sweep).data

    def test_a_label_with_hyper_parameters_keeps_its_family(self, sweep: Path) -> None:
        (row,) = [r for r in build_report(sweep).rows if r.kind == "run" and r.epoch == 1]
        many = replace(row, method="npo (beta=0.5)", hyperparameters={"beta": 0.5})
        lines = csv.DictReader(to_csv([many]).splitlines())
        assert rows_of(from_csv(lines)) == (many,)
