"""A sweep by steps says step wherever one by epochs says epoch, and its numbers are found by it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories.random_folders import RandomFolder, draw, write
from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.cli.main import main
from unlearnbench.config.unit import Unit
from unlearnbench.report.best_table import best_table
from unlearnbench.report.exported_model import choose
from unlearnbench.report.figures import trajectories
from unlearnbench.report.report import finish
from unlearnbench.report.tracked_runs import RowsByRun, SweepFacts, chosen_epochs, tracked_run
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import read_records

STEPS = 5
ALLOWED = re.compile(
    r"Prepare it with more epochs|data-epoch|epoch-\d+|\"?answer-epoch|train/epoch"
    r"|preparation|^ *(base_)?epochs: |epochs_as: "
)
"""Models are prepared by epochs; keys of the configuration, names in code, and names of files."""
KINDS = {
    "a grid under attacks": {"grid", "several epochs", "1 attacks"},
    "a choice": {"select", "several epochs", "1 attacks"},
    "a tuned sweep": {"tune", "several epochs"},
    "a run that collapsed": {"a run diverged", "several epochs", "grid"},
}


def folder_with(features: set[str], root: Path) -> RandomFolder:
    """The first random folder by steps with some features."""
    wanted = features | {"by steps"}
    number = next(n for n in range(5000) if wanted <= draw(n).features)
    return write(draw(number), root)


def visible(page: str) -> str:
    """What a person reads of a page without its scripts."""
    return re.sub(r"<(script|style).*?</\1>", "", page, flags=re.DOTALL)


def assert_says_steps(name: str, text: str) -> None:
    lines = [line for line in text.splitlines() if "epoch" in ALLOWED.sub("", line).lower()]
    assert not lines, f"{name}: {lines[:3]}"


@pytest.mark.parametrize("kind", KINDS)
def test_every_view_says_step(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = folder_with(KINDS[kind], tmp_path)
    finish(made.folder)
    for name in ("results.csv", "attacks.csv", "tuning.csv"):
        if (made.folder / name).is_file():
            first, *_ = (made.folder / name).read_text(encoding="utf-8").splitlines()
            columns = first.split(",")
            assert "step" in columns
            assert "epoch" not in columns
    page = (made.folder / "report.html").read_text(encoding="utf-8")
    assert '"unit":"step"' in page
    assert_says_steps("page", visible(page))
    assert_says_steps("conclusion", (made.folder / "conclusion.json").read_text(encoding="utf-8"))
    results = Results.read(made.folder)
    assert results.unit is Unit.STEP
    if any(panel.best for panel in results.panels):
        for form in ("latex", "markdown", "csv"):
            assert_says_steps(form, best_table(results, form))
    assert main(["report", str(made.folder)]) == 0
    assert_says_steps("terminal", capsys.readouterr().out)
    rows = RowsByRun(results.table, chosen_epochs(results))
    sweep = SweepFacts.of(made.config, made.folder)
    for record in results.records:
        line = tracked_run(record, rows.of(record), sweep)
        names = {point.name for point in line.points} | {*line.parameters} | {*line.tags}
        trained = record.kind == "run" and record.learning_rate is not None
        assert not {name for name in names if "epoch" in name} - {"train/epoch"} or not trained
        assert ("steps" in line.parameters) == trained


def test_the_scripts_of_the_page_take_the_word_from_its_data() -> None:
    root = Path(__file__).parents[3] / "dashboards"
    literal = re.compile(r"epochs? \$\{|[Ee]pochs? up to|\"Epochs?\"(?! : )")
    found = {
        path.name: literal.findall(text)
        for path in root.rglob("*.js")
        if literal.search(text := path.read_text(encoding="utf-8"))
    }
    assert set(found) <= {"filters.js"}, found
    assert 'data.unit === "step" ? "Steps" : "Epochs"' in (
        root / "templates" / "filters.js"
    ).read_text(encoding="utf-8")


def test_records_of_both_units_do_not_stand_in_one_table(tmp_path: Path) -> None:
    by_steps = folder_with({"grid", "several epochs", "no attack", "plain"}, tmp_path / "a")
    number = next(
        n
        for n in range(5000)
        if {"grid", "plain", "synthetic"} <= (drawn := draw(n)).features
        and "by steps" not in drawn.features
        and "another profile" not in drawn.features
    )
    by_epochs = write(draw(number), tmp_path / "b")
    records = [*read_records(by_steps.folder), *read_records(by_epochs.folder)]
    with pytest.raises(RecordError, match=r"runs by epochs \(record \w+\) and steps"):
        table_of(records)


def test_a_step_is_exported_and_compared_by_its_number(tmp_path: Path) -> None:
    made = folder_with({"grid", "several epochs", "no attack", "plain", "one seed"}, tmp_path)
    results = Results.read(made.folder)
    row = next(
        row
        for row in results.rows
        if row.kind == "run" and row.status == "finished" and row.epoch == STEPS
    )
    chosen = choose(made.folder, row.run_id, step=STEPS)
    assert (chosen.row.epoch, chosen.row.run_id) == (STEPS, row.run_id)
    assert chosen.title.endswith(f"· step {STEPS}")
    with pytest.raises(RecordError, match="was not evaluated after step 3; choose best, last, 5"):
        choose(made.folder, row.run_id, step=3)
    with pytest.raises(RecordError, match=f"are evaluated by steps; use --step {STEPS}"):
        choose(made.folder, row.run_id, str(STEPS))
    figure = trajectories(made.folder)
    assert figure.layout.title.text.startswith("Forgetting, step by step")


def test_a_sweep_by_epochs_refuses_a_step(tmp_path: Path) -> None:
    number = next(n for n in range(500) if "by steps" not in draw(n).features)
    made = write(draw(number), tmp_path)
    run = next(record for record in read_records(made.folder) if record.kind == "run")
    with pytest.raises(RecordError, match="are evaluated by epochs; use --epoch 1"):
        choose(made.folder, run.id, step=1)


def test_compare_names_the_moments_of_two_units(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One sweep twice, by steps and by epochs."""
    wanted = {"grid", "plain", "synthetic", "several epochs", "by steps"}
    others = {"two models", "two splits", "patience", "requests in sequence", "epochs as runs"}
    drawn = next(
        d for n in range(5000) if wanted <= (d := draw(n)).features and not others & d.features
    )
    document = {**drawn.document}
    document["epochs"] = document.pop("steps") // STEPS
    document["evaluation"] = {**document["evaluation"]}
    del document["evaluation"]["every_steps"]
    features = drawn.features - {"by steps"}
    by_steps = write(drawn, tmp_path / "steps").folder
    by_epochs = write(replace(drawn, document=document, features=features), tmp_path / "epochs")
    sides = [f"{by_steps}:npo", f"{by_epochs.folder}:npo"]
    assert main(["compare", *sides]) == 0
    table = capsys.readouterr().out
    assert "hyperparameters × epochs or steps)" in " ".join(table.split())
    assert re.search(r"learning rate +after ", table)
    assert re.search(r"2e-05 +step \d+ ", table)
    assert re.search(r"2e-05 +epoch \d+ ", table)
    assert main(["compare", *sides, "--json"]) == 0
    (panel,) = json.loads(capsys.readouterr().out)["panels"]
    assert panel["a"]["unit"] == "step"
    assert "unit" not in panel["b"], "as from versions without steps"
