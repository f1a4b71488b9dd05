"""Sweeps of which runs, settings or panels have no evaluation: every view ends, and says so."""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import Plan, make_plan
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.search import SearchSettings, SelectSettings
from unlearnbench.results.records import Record, run_record, write_record
from unlearnbench.sweep.follow_up_runs import FollowUpRuns
from unlearnbench.training.step_result import StepResult

from ...made_up_numbers import write_with_made_up_numbers
from ...numbers.analysis.conftest import REFERENCES, off, run
from ..sweep.test_follow_up_runs import a_config, a_record

STEPS = (StepResult(1, 1, 1e-4, 3.0, {"forget": 3.0}, 1.0),)
REASON = "NaN loss at step 2 (epoch 1)"
PANELS: dict[str, Callable[[RunSpec], bool]] = {
    "none": lambda _: False,
    "all": lambda _: True,
    "not a number": lambda _: True,
    "one": lambda spec: (spec.method.name, spec.learning_rate, spec.seed) == ("ce-u", 1e-4, 0),
    "one rate": lambda spec: spec.learning_rate == 1e-4,
    "one method": lambda spec: spec.method.name == "ce-u",
}
"""Whether a run has evaluations."""


def ended(spec: RunSpec, panel: str) -> Record:
    """The record of a run."""
    lost = run_record(spec, status="collapsed", error=REASON, steps=STEPS)
    if not PANELS[panel](spec):
        return lost
    source = run(spec.method.label, [(0.85, off(1.0)), (0.84, off(0.3 + spec.seed))])
    epochs = source.epochs
    if panel == "not a number":
        undefined = [dict.fromkeys(result.metrics, math.nan) for result in epochs]
        epochs = tuple(replace(e, metrics=m) for e, m in zip(epochs, undefined, strict=True))
    evaluations = {k: replace(e, profile=lost.profile) for k, e in source.evaluations.items()}
    evaluated = replace(lost, epochs=epochs, evaluations=evaluations)
    return evaluated if panel == "not a number" else replace(evaluated, status="finished")


def sweep(folder: Path, *panels: str) -> Plan:
    """Write the records of a sweep whose panels are of these kinds."""
    fractions = (0.1, 0.2)[: len(panels)]
    config = load_config("quickstart", ["methods=[ce-u, general-ce-u]"]).model_copy(
        update={"forget_fractions": fractions, "learning_rates": (1e-4, 1e-2), "seeds": (0, 1)}
    )
    config = config.model_copy(update={"name": folder.name})
    plan = make_plan(config, "rows")
    records = [ended(spec, panels[fractions.index(spec.forget_fraction)]) for spec in plan.runs]
    for fraction in fractions:
        for number, source in enumerate(REFERENCES):
            records.append(
                replace(
                    source,
                    id=f"{number}{round(100 * fraction)}",
                    forget_fraction=fraction,
                    profile=records[0].profile,
                    evaluations={
                        k: replace(e, profile=records[0].profile)
                        for k, e in source.evaluations.items()
                    },
                )
            )
    write_with_made_up_numbers(records, folder)
    references = tuple(record.id for record in records if record.kind != "run")
    (folder / "plan.json").write_text(json.dumps(replace(plan, references=references).to_json()))
    return plan


def commands(folder: Path, plan: Plan) -> Iterator[list[str]]:
    first, board = plan.runs[0].id, str(folder.with_suffix(".jsonl"))
    page = str(folder.with_suffix(".html"))
    yield ["report", str(folder)]
    yield from (["report", str(folder), "--table", kind] for kind in ("latex", "markdown", "csv"))
    yield ["report", str(folder), "--latex", str(folder.with_suffix(".tex"))]
    yield ["compare", "ce-u", "general-ce-u", "--in", str(folder)]
    yield ["compare", "ce-u lr 0.0001", "ce-u lr 0.01", "--in", str(folder)]
    yield ["leaderboard", "export", str(folder), "--out", board]
    yield ["leaderboard", "show", board, "--page", page]
    yield ["figures", "pareto", str(folder), "--out", page]
    yield ["figures", "trajectories", str(folder), "--out", page]
    yield from (
        ["figures", "truth-ratios", str(folder), spec.id, "--out", page]
        for spec in (plan.runs[0], plan.runs[-1])
    )
    yield from (
        ["export", name, "--in", str(folder), "--to", str(folder.with_suffix(".model"))]
        for name in (first, "ce-u", "general-ce-u")
    )
    yield ["analysis", "meta", str(folder)]
    yield ["report", str(folder.parent)]


@pytest.mark.parametrize(
    "panels",
    [
        ("none",),
        pytest.param(("all",), marks=pytest.mark.long),
        pytest.param(("not a number",), marks=pytest.mark.long),
        ("one",),
        pytest.param(("one rate",), marks=pytest.mark.long),
        ("one method",),
        pytest.param(("none", "all"), marks=pytest.mark.long),
        ("one rate", "none"),
        ("not a number", "one"),
    ],
    ids=" and ".join,
)
def test_every_view_ends_with_a_result_or_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], panels: tuple[str, ...]
) -> None:
    plan = sweep(tmp_path / "sweeps" / "mine", *panels)
    for command in commands(tmp_path / "sweeps" / "mine", plan):
        status = main(command)
        shown = capsys.readouterr()
        told = shown.out + shown.err
        assert status in (0, 1, 2), command
        assert "Error" not in told, told
        assert "unexpected" not in told, told
        assert "none has" not in told, told
        assert "epoch None" not in told, told
        if command[0] == "report":
            assert status == 0 or "no run was evaluated" in told, told
        elif command[0] == "figures" and command[1] != "truth-ratios":
            assert status == 0, told


def test_a_panel_in_which_all_runs_collapsed_says_so(tmp_path: Path) -> None:
    sweep(tmp_path / "mine", "none", "all")
    first, second = Results.read(tmp_path / "mine").conclusions
    assert first.found.startswith(
        "No result: no run has reached its first evaluation (8 collapsed). "
        "The first: ce-u at 0.0001"
    )
    assert REASON in first.found
    assert not second.found.startswith("No result")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        (["compare", "general-ce-u", "ce-u"], "general-ce-u: no run of 'general-ce-u' was evaluat"),
        (["compare", "ce-u", "general-ce-u lr 0.01"], "no run of 'general-ce-u lr 0.01' was evalu"),
        (["export", "general-ce-u", "--to", "model"], "no run of 'general-ce-u' was evaluated: "),
    ],
)
def test_a_method_without_an_evaluation_is_named_with_its_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str], reason: str
) -> None:
    sweep(tmp_path / "mine", "one method")
    assert main([*command, "--in", str(tmp_path / "mine")]) == 2
    told = capsys.readouterr().err
    assert reason in told
    assert REASON in told


def test_the_training_of_runs_without_an_evaluation_is_drawn(tmp_path: Path) -> None:
    """Colours and dashes of the other methods and rates stay as they are without these runs."""
    from unlearnbench.api.registry import load

    sweep(tmp_path / "mine", "one method")
    page = load("dashboards", "page")(Results.read(tmp_path / "mine"))
    families = json.loads(page.partition('"families":')[2].partition("}")[0] + "}")
    assert families == {"ce-u": 0, "general-ce-u": 1}


@pytest.mark.parametrize("kind", ["random", "quasi-random"])
@pytest.mark.parametrize("evaluated", [0, 1])
def test_a_choice_among_runs_without_evaluations_is_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Any, evaluated: int
) -> None:
    config = a_config(
        tmp_path,
        seeds=(0, 1),
        select=SelectSettings(seeds=(0,)),
        search=SearchSettings(kind=kind, trials=2),
    )
    folder = tmp_path / "small"
    folder.mkdir()
    follow_up = FollowUpRuns(make_plan(config, "rows"), folder)
    runs = follow_up.current_plan().runs
    for number, spec in enumerate(runs):
        lost = replace(a_record(spec, "collapsed", points=()), error=REASON, steps=STEPS)
        write_record(a_record(spec) if number < evaluated else lost, folder)
    follow_up.select()
    (folder / "plan.json").write_text(json.dumps(follow_up.current_plan().to_json()))
    for command in (["--latex", str(tmp_path / "a.tex")], ["--table", "latex"], []):
        status = main(["report", str(folder), *command])
        told = capsys.readouterr()
        assert status == 0 or "no run was evaluated" in told.err or "no scorecard" in told.err
        assert "Error" not in told.err
    selection = Results.read(folder).selection
    assert selection is not None
    assert all(choice["why_not"] for choice in selection["choices"])
