"""A user's own data in every view: with and without a retain model, and holdout rows."""

import io
import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.factories.marks import with_mlflow
from tests.factories.own_data import OwnFolder, write_own_data
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.scorecard import Scorer
from unlearnbench.analysis.wording import missing_for_privacy, without_retain_model
from unlearnbench.base.console import Console
from unlearnbench.cli.main import main
from unlearnbench.report.best_table import best_table
from unlearnbench.report.report import finish
from unlearnbench.report.sweep_tracker import replay
from unlearnbench.sweep.progress import Progress

OPEN = "1 is not the aim, and over-forgetting cannot be seen"
NOT_PRIVATE = "Whether what is left is private is not known"


@pytest.fixture(scope="module", params=[True, False], ids=["retain", "no retain"])
def has_retain(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module", params=[True, False], ids=["holdout", "no holdout"])
def has_holdout(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(scope="module")
def made(
    tmp_path_factory: pytest.TempPathFactory, *, has_retain: bool, has_holdout: bool
) -> OwnFolder:
    root = tmp_path_factory.mktemp("own")
    return write_own_data(root, has_retain=has_retain, has_holdout=has_holdout)


@pytest.fixture(scope="module")
def results(made: OwnFolder) -> Results:
    return finish(made.folder).results


@pytest.fixture(scope="module")
def page(made: OwnFolder, results: Results) -> str:
    assert results.rows
    return re.sub(r"\s+", " ", (made.folder / "report.html").read_text())


def table_of(page: str, label: str) -> list[list[str]]:
    """The cells of the table with a label, by row."""
    body = page.partition(f'aria-label="{label}')[2].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", body)
    return [
        [re.sub(r"<.*?>", "", cell).strip() for cell in re.findall(r"<t[dh].*?</t[dh]>", row)]
        for row in rows
    ]


def test_methods_are_ranked_by_what_exists(results: Results, *, has_retain: bool) -> None:
    column = "forgotten" if has_retain else "removed"
    assert results.headline.columns == ("utility", column)
    columns = {name for row in results.rows for name in row.metrics}
    assert ("forgotten" in columns) is has_retain
    assert ("removed" in columns) is not has_retain
    (conclusion,) = results.conclusions
    assert f"the highest {column.title()} (" in conclusion.found


def test_the_page_says_what_is_open(page: str, *, has_retain: bool, has_holdout: bool) -> None:
    text = re.sub(r"<.*?>", "", page)
    assert (OPEN in text) is not has_retain
    assert ("Name a base model to close this gap (base in YAML" in text) is not has_retain
    assert (NOT_PRIVATE in text) is not (has_retain and has_holdout)
    assert ("this needs rows like the forget rows that no model has seen" in text) is (
        not has_holdout
    )


def test_the_scorecard_answers_with_numbers(
    page: str, *, has_retain: bool, has_holdout: bool
) -> None:
    heading, *lines = table_of(page, "Scorecard, mine")
    private = ["Private"] * (has_retain and has_holdout)
    assert heading == [
        "Method",
        "Forgotten" if has_retain else "Removed",
        *private,
        "Kept",
        "Lasting",
    ]
    names = [line[0].split(" ")[0] for line in lines]
    assert names[2:] == ["retain", "start"] if has_retain else ["start"]
    of_methods = [cell for line in lines[:2] for cell in line[1:]]
    assert all(re.match(r"(⚠ )?\d", cell) for cell in of_methods), of_methods
    of_models = [cell for line in lines[2:] for cell in line[1:-1]]
    assert all(re.match(r"\d", cell) for cell in of_models), of_models


def test_best_settings_have_the_other_models(page: str, *, has_retain: bool) -> None:
    head, *lines = table_of(page, "Best setting of each method")
    forgotten = head.index("Forgotten" if has_retain else "Removed")
    others = [line for line in lines if line[0].endswith(" model")]
    assert [line[0] for line in others] == ["retain model"] * has_retain + ["start model"]
    if has_retain:
        assert others[0][forgotten] == "1.000"
    assert others[-1][forgotten] == "0.000"
    assert {line[head.index("Place")] for line in others} == {""}, "they are no methods"


def test_the_terminal_at_eighty_columns(
    made: OwnFolder, results: Results, monkeypatch: pytest.MonkeyPatch, *, has_retain: bool
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    shown = io.StringIO()
    progress = Progress(Console(err=shown), made.config.headline)
    progress.concluded(results.panels, results.conclusions, 1.0)
    text = re.sub(r"\s+", " ", shown.getvalue())
    assert (OPEN in text) is not has_retain
    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    first = next(i for i, line in enumerate(lines) if line.startswith("  method "))
    # Columns are at least two blanks apart, and names of models contain one.
    table = [re.split(r" {2,}", line.strip()) for line in lines[first : first + 4 + has_retain]]
    names = [line[0] for line in table]
    assert names[0] == "method"
    assert sorted(names[1:3]) == ["ce-u", "npo"]
    assert names[3:] == ["start model", *["retain model"] * has_retain]
    if has_retain:
        (line,) = (line for line in table if line[0] == "retain model")
        retain = results.panels[0].row("retain")
        assert retain is not None
        assert line[3:5] == [f"{retain.kept:.3f}", "1.000"]


@pytest.mark.parametrize("kind", ["markdown", "latex"])
def test_a_table_for_a_paper_has_the_other_models(
    results: Results, kind: Any, *, has_retain: bool
) -> None:
    table = best_table(results, kind)
    assert ("retain model" in table) is has_retain
    assert "start model" in table


def test_compare_says_what_is_open(
    made: OwnFolder, capsys: pytest.CaptureFixture[str], *, has_retain: bool
) -> None:
    assert main(["compare", "npo", "ce-u", "--in", str(made.folder)]) == 0
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert (OPEN in text) is not has_retain
    assert ("Forgotten:" if has_retain else "Removed:") in text
    assert main(["compare", "npo", "ce-u", "--in", str(made.folder), "--json"]) == 0
    open_questions = json.loads(capsys.readouterr().out)["open"]
    assert len(open_questions) == (not has_retain)


@with_mlflow
def test_mlflow_describes_what_is_open(
    made: OwnFolder, tmp_path: Path, *, has_retain: bool
) -> None:
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/store.db"
    replay(made.folder, uri)
    client: Any = MlflowClient(uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    (sweep,) = (run for run in runs if run.data.tags.get("kind") == "sweep")
    description = sweep.data.tags.get("mlflow.note.content", "")
    assert (OPEN in description) is not has_retain
    known = {name for run in runs for name in run.data.metrics}
    assert ("best/forgotten" in known, "best/removed" in known) == (has_retain, not has_retain)


def test_over_forgetting_is_never_claimed_without_a_retain_model(
    results: Results, *, has_retain: bool
) -> None:
    panel = results.panels[0]
    retain, start = panel.row("retain"), panel.row("fine-tuned")
    scorer = Scorer(results.schema, retain, start, results.observed)
    kinds = {
        kind
        for best in panel.best
        if best.setting is not None
        for score in scorer.scores(best.setting.rows)
        for kind in score.warnings
    }
    assert kinds == set() or has_retain


def test_lasting_is_scored_in_both_cases(results: Results, page: str, *, has_retain: bool) -> None:
    (panel,) = results.lasting
    assert all(item.lasting is not None for item in panel.best)
    for item in panel.best:
        worst = item.worst
        assert worst is not None
        start, before = worst.start.before, worst.before
        assert start is not None
        assert before is not None
        assert worst.gain is not None
        taught = max(0.0, worst.retain.gain or 0.0) if has_retain else 0.0
        assert item.lasting == pytest.approx(1 - (worst.gain - taught) / (start - before))
    text = re.sub(r"<.*?>", "", page)
    sentence = "the whole gain counts as given back"
    assert (sentence in text) is not has_retain


def test_sentences_stand_in_one_place(
    results: Results, *, has_retain: bool, has_holdout: bool
) -> None:
    assert bool(without_retain_model(results.schema)) is not has_retain
    assert bool(missing_for_privacy(results.schema)) is not (has_retain and has_holdout)


def test_the_page_needs_no_rows_and_no_model(made: OwnFolder, results: Results) -> None:
    """What the plan stores says what the benchmark says."""
    stored = Results.read(made.folder)
    assert stored.schema.references == results.schema.references
    assert stored.headline == results.headline


@pytest.mark.parametrize("has_retain_beside", [False])
def test_sweeps_with_and_without_a_retain_model_do_not_compare(
    made: OwnFolder,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    *,
    has_retain: bool,
    has_holdout: bool,
    has_retain_beside: bool,
) -> None:
    if not has_retain:
        pytest.skip("one pair of folders shows it")
    other = write_own_data(tmp_path, has_retain=has_retain_beside, has_holdout=has_holdout)
    assert main(["compare", f"{made.folder}:npo", f"{other.folder}:ce-u"]) == 2
    assert "ranked by utility and forgotten" in capsys.readouterr().err
