"""Figures from Python and from the command line."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.base.errors import RecordError
from unlearnbench.cli.main import main
from unlearnbench.report.figures import rows_of, select, truth_ratios
from unlearnbench.results.records import Record, read_records, write_record

from .numbers.analysis.conftest import GOAL, off, reference, run


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


@pytest.mark.parametrize(("epoch", "shown"), [(None, 2), (1, 1)])
def test_d_is_the_records(sweep: Path, epoch: int | None, shown: int) -> None:
    figure = truth_ratios(sweep, "cc", epoch)
    names = [trace.name for trace in figure.data]
    assert names == [
        *(f"epoch {3 - shown}", "start model", "retain model", f"npo, epoch {shown}", "D")
    ]
    (bar,) = (trace for trace in figure.data if trace.name == "D")
    distance = run_of(sweep).epochs[shown - 1].metrics["ks_statistic"]
    assert abs(bar.y[1] - bar.y[0]) == pytest.approx(distance)
    with pytest.raises(RecordError, match="no runs have an id that begins with 'aa'"):
        truth_ratios(sweep, "aa")


def test_d_is_to_the_retain_model_of_the_plan(sweep: Path, tmp_path: Path) -> None:
    """Another one is in the folder from an earlier plan, as after its model was replaced."""
    folder = tmp_path / "sweep"
    shutil.copytree(sweep, folder)
    write_record(reference("retain", 0.9, off(1.0), id="a000"), folder)
    plan = {"name": "s", "config": {}, "runs": [{"id": "cc00"}], "references": ["aa00", "bb00"]}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    both = [truth_ratios(place, "cc") for place in (sweep, folder)]
    shown, expected = ([trace.y for trace in figure.data] for figure in both)
    assert shown == expected


class TestCommands:
    @pytest.mark.parametrize(
        "words",
        [
            ("pareto", "FOLDER"),
            ("trajectories", "FOLDER", "--metrics", "model_utility"),
            ("truth-ratios", "FOLDER", "cc", "--epoch", "1"),
            ("paper",),
            ("pareto", "FOLDER", "--methods", "npo", "--width", "column"),
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
        text = out.read_text(encoding="utf-8")
        assert "plotly.js v" in text
        assert not re.search(r"<script[^>]+src=", text), "it needs no network"


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

    def test_a_rate_that_looks_like_another_one_is_not_chosen_with_it(self, sweep: Path) -> None:
        rows = rows_of(sweep)
        near = tuple(
            replace(row, run_id="dd00", learning_rate=1.0000001e-4)
            for row in rows
            if row.kind == "run"
        )
        assert select((*rows, *near), rate=1e-4) == rows
        assert select(rows, rate=1.0000001e-4) == rows, "six digits are enough without another"

    def test_a_folder_and_its_records_give_the_same_rows(self, sweep: Path) -> None:
        rows = rows_of(sweep)
        assert len(rows) == 4
        assert rows == rows_of(str(sweep)) == rows_of(read_records(sweep)) == rows_of(rows)
