"""`unlearnbench sweep`, `quickstart` and `run` carry out runs and print what was made."""

import json
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.console import Console
from unlearnbench.cli import sweep
from unlearnbench.report.sweep_tracker import sweep_config
from unlearnbench.results.outcomes import RunOutcome
from unlearnbench.sweep.sweep_state import SweepResult

from ...factories.command_line import Run

pytestmark = pytest.mark.usefixtures("wide_terminal")


def fake(monkeypatch: pytest.MonkeyPatch, failed: int) -> list[Any]:
    calls: list[Any] = []

    def run_sweep(config: Any, _: Console, *, force: bool) -> Any:
        calls.append((config, force))
        folder = Path("runs") / config.name
        ends = [RunOutcome(f"npo {i}", "failed", "no memory") for i in range(failed)]
        ends += [RunOutcome("ce-u at 0.001", "collapsed", "NaN loss at step 1 (epoch 1)")]
        ends += [RunOutcome(f"idk {i}", "finished") for i in range(3)]
        return SweepResult(
            folder=folder,
            total=len(ends),
            ends=tuple(ends),
            found=2,
            report=folder / "report.html",
            csv=folder / "results.csv",
            mlflow_command=f"unlearnbench ui {folder}",
            seconds=2.0,
        )

    module = ModuleType("unlearnbench.sweep.driver")
    module.run_sweep = run_sweep  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "unlearnbench.sweep.driver", module)
    return calls


def test_sweep_prints_the_selection_with_its_rule(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake(monkeypatch, failed=0)
    numbers = {"mean": 0.5, "standard_deviation": None}
    place = {"model": "tiny", "forget_fraction": 0.1, "learning_rate": 1e-5, "epoch": 2}
    reported = {"seeds": [1], "model_utility": numbers, "log10_forget_quality": numbers}
    known = {"setting": "npo (beta=0.1)", "method": "npo", "why_not": "", "reported": reported}
    none = {"setting": "", "method": "ce-u", "why_not": "no setting keeps 0.8"}
    choices = [place | known, place | known | none]
    folder = Path("runs/small")
    folder.mkdir(parents=True)
    selection = {"rule": "the best", "chosen_on_seeds": [0], "choices": choices}
    (folder / "selection.json").write_text(json.dumps(selection), encoding="utf-8")
    both = ("--set", "seeds=[0, 1]", "--set", "select={seeds: [0]}")
    _, out, _ = run("sweep", "small.yaml", *both)
    title, _, npo, ceu, rule, *_ = out.splitlines()
    assert title == "best of each method, chosen on seed 0, reported on others"
    assert " ".join(npo.split()) == "tiny 0.1 npo (beta=0.1) 1e-05 2 0.5 - 0.5 - 1"
    assert " ".join(ceu.split()).endswith(" - - - - no setting keeps 0.8")
    assert rule == "rule: the best"
    _, out, _ = run("sweep", "small.yaml", "--json", *both)
    assert json.loads(out)["selection"] == selection
    of_entry = place | known | {"entry": "npo (beta=0.1)"}
    several = json.dumps(selection | {"choices": [of_entry, of_entry]})
    (folder / "selection.json").write_text(several, encoding="utf-8")
    _, out, _ = run("sweep", "small.yaml", *both)
    assert out.startswith("best of each entry, chosen on seed 0")
    _, out, _ = run("sweep", "small.yaml", "--json")
    assert "selection" not in json.loads(out), "this sweep selects nothing"


def test_failed_runs_give_exit_code_1(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, failed=1)
    code, out, _ = run("sweep", "small.yaml", "--json")
    assert code == 1
    summary = json.loads(out)
    counts = {name: summary[name] for name in ("finished", "collapsed", "stopped", "failed")}
    assert counts == {"finished": 3, "collapsed": 1, "stopped": 0, "failed": 1}
    assert [one["status"] for one in summary["without_result"]] == ["failed", "collapsed"]


def test_run_prints_the_numbers_that_the_table_has_now(tmp_path: Path) -> None:
    """A metric was named after the run had been trained."""
    folder = tmp_path / "sweep"
    shutil.copytree(Path(__file__).parents[2] / "data" / "small_sweep", folder)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    plan["config"]["evaluation"]["metrics"] = {"rouge-f1": {}}
    (folder / "plan.json").write_text(json.dumps(plan), encoding="utf-8")
    results = Results.read(folder)
    record = next(one for one in results.records if one.kind == "run" and one.epochs)
    planned: Any = SimpleNamespace(references=plan.get("references"), config=sweep_config(folder))
    rows = sweep._rows_of(record, planned, folder)  # pyright: ignore[reportPrivateUsage]
    expected = [row.metrics for row in results.rows if row.run_id == record.id]
    assert [row.metrics for row in rows] == expected
    assert all("rouge_f1_forget" in metrics for metrics in expected)
    assert not any("rouge_f1_forget" in result.metrics for result in record.epochs)
