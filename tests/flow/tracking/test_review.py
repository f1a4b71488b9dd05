"""What a reviewer finds in MLflow: answers, data, origin, the conclusion, views, and artifacts."""

import json
import shutil
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from unlearnbench.analysis.results import Results
from unlearnbench.api.tracker import AnswerTable
from unlearnbench.report.answer_page import answer_page
from unlearnbench.report.mlflow import show_in_mlflow
from unlearnbench.report.mlflow_store import correct_artifact_addresses
from unlearnbench.report.sweep_summary import summary_of
from unlearnbench.report.sweep_tracker import replay, sweep_config

SWEEP = Path(__file__).parents[2] / "data" / "small_sweep"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished sweep that is logged in its folder."""
    folder = tmp_path_factory.mktemp("review") / "small"
    shutil.copytree(SWEEP, folder)
    (folder / "tradeoff.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    replay(folder)
    return folder


@pytest.fixture(scope="module")
def store(folder: Path, seen: Any) -> Any:
    """What MLflow has of it."""
    return seen(f"sqlite:///{folder}/mlflow.db")


def text_of(store: Any, run: Any, name: str) -> str:
    return Path(store.client.download_artifacts(run.info.run_id, name)).read_text("utf-8")


def test_a_run_has_a_table_of_answers_that_mlflow_compares(store: Any, folder: Path) -> None:
    """The form of the file and the tag are what `mlflow.log_table` writes."""
    results = Results.read(folder)
    run = next(record for record in results.records if record.kind == "run" and record.epochs)
    start = next(r for r in results.records if r.kind == "fine-tuned" and r.evaluations)
    child = store.children[run.id]
    assert json.loads(child.data.tags["mlflow.loggedArtifacts"]) == [
        {"path": "answers.json", "type": "table"}
    ]
    table = json.loads(text_of(store, child, "answers.json"))
    assert table["columns"][:2] == ["question", "answer"]
    first = dict(zip(table["columns"], table["data"][0], strict=True))
    epoch = first["when"]
    forget = run.evaluations[epoch].sets["forget"]
    before = start.evaluations[max(start.evaluations)].sets["forget"]
    assert first["set"] == "forget", "rows to forget come first"
    assert first["question"] == forget.questions[0]
    assert first["answer"] == forget.generated[0]
    assert first["true answer"] == forget.references[0]
    assert first["start model"] == before.generated[before.questions.index(first["question"])]
    assert first["ROUGE-L"] == pytest.approx(forget.rouge_l_recall[0], abs=5e-4)
    best = child.data.metrics.get("best/epoch")
    assert epoch == (max(run.evaluations) if best is None else best)


def test_a_run_has_a_page_of_its_answers_which_wraps_them(store: Any, folder: Path) -> None:
    """MLflow's view of a table cuts every cell at 150 pixels."""
    run = next(r for r in Results.read(folder).records if r.kind == "run" and r.epochs)
    child = store.children[run.id]
    table = json.loads(text_of(store, child, "answers.json"))
    assert text_of(store, child, "answers.html") == answer_page(
        child.info.run_name, AnswerTable(table["columns"], table["data"], ("forget",))
    )


def test_every_run_says_who_ran_it_from_what_on_which_rows(store: Any, folder: Path) -> None:
    records = {record.id: record for record in Results.read(folder).records}
    for id_, run in store.children.items():
        made = records[id_].provenance
        tags = run.data.tags
        assert tags["mlflow.user"]
        assert tags["mlflow.source.name"] == "unlearnbench"
        assert tags.get("mlflow.source.git.commit") == (made["git"] or {}).get("commit")
        (data,) = run.inputs.dataset_inputs
        assert data.dataset.digest == tags["data"]
        assert data.dataset.name.endswith(" forget 0.2") or "forget" in data.dataset.name
        assert "question" not in (data.dataset.profile or "")
    (parent,) = store.parents
    assert parent.data.tags["mlflow.user"]
    assert parent.inputs.dataset_inputs


def test_the_sweep_has_its_configuration(store: Any, folder: Path) -> None:
    (parent,) = store.parents
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    assert yaml.safe_load(text_of(store, parent, "config.yaml")) == plan["config"]


def test_the_sweep_has_the_conclusion_and_the_numbers_of_the_recommended_setting(
    store: Any, folder: Path
) -> None:
    results = Results.read(folder)
    (parent,) = store.parents
    description = parent.data.tags["mlflow.note.content"]
    for conclusion in results.conclusions:
        for sentence in conclusion.sentences:
            assert sentence in description.replace("\\", "")
    (conclusion,) = results.conclusions
    known = {k: v for k, v in parent.data.metrics.items() if k.startswith("best/")}
    assert bool(known) == conclusion.has_best


def made_up(folder: Path, kit: Any) -> Path:
    """A sweep in which one method forgets: the mean of its seeds has p = 0.1."""
    from unlearnbench.results.records import EpochResult

    def run(id_: str, seed: int, utility: float, quality: float) -> Any:
        epochs = (EpochResult(2, kit.metrics(utility, quality), 1.0, 2.0),)
        return kit.record(id_, seed=seed, epochs=epochs, learning_rate=1e-3)

    runs = [run("aaaa", 0, 0.7, -0.5), run("bbbb", 1, 0.62, -1.5), run("cccc", 2, 0.68, -1.0)]
    stored: Path = kit.stored(folder, kit.start_model(utility=0.75), *runs)
    return stored


def test_the_summary_has_the_means_of_the_recommended_setting(tmp_path: Path, kit: Any) -> None:
    results = Results.read(made_up(tmp_path / "small", kit))
    summary = summary_of(results, "An introduction.")
    assert summary.tags == {"recommended": "npo+nll 1e-3 epoch 2"}
    assert summary.averaged == "mean of 3 seeds"
    first, *others = summary.description.split("\n\n")
    assert first == (
        "**tiny, forget 10 %.** Recommended setting: **npo+nll, learning rate 1e-3, epoch 2**, "
        "with Model Utility 0.667."
    )
    assert "An introduction." in others
    assert summary.metrics["best/model_utility"] == pytest.approx(fmean([0.7, 0.62, 0.68]))
    assert summary.metrics["best/log10_forget_quality"] == pytest.approx(-1.0)
    assert summary.metrics["best/utility_kept"] == pytest.approx(fmean([0.7, 0.62, 0.68]) / 0.75)
    assert summary.metrics["best/epoch"] == 2.0


def test_the_summary_has_what_lasts_of_the_recommended_setting(
    tmp_path: Path, kit: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = Results.read(made_up(tmp_path / "small", kit))
    (panel,) = results.panels
    asked: list[Any] = []

    def under_attack(setting: Any) -> Any:
        asked.append((setting.method, setting.epoch))
        return SimpleNamespace(lasting=0.75)

    attacked = SimpleNamespace(panel=panel.panel, of=under_attack)
    before = summary_of(results).metrics
    monkeypatch.setitem(vars(results), "lasting", (attacked,))
    assert summary_of(results).metrics == {**before, "best/lasting": 0.75}
    assert asked == [("npo+nll", 2)]
    other = SimpleNamespace(panel=("another", 0.1), of=under_attack)
    monkeypatch.setitem(vars(results), "lasting", (other,))
    assert summary_of(results).metrics == before


def test_a_sweep_of_several_splits_names_the_split_of_each_number(tmp_path: Path, kit: Any) -> None:
    folder = made_up(tmp_path / "small", kit)
    other = replace(kit.start_model(utility=0.75), id="6b6b", forget_fraction=0.05)
    runs = [
        replace(record, id=f"{record.id}5", forget_fraction=0.05)
        for record in Results.read(folder).records
        if record.kind == "run"
    ]
    records = [*Results.read(folder).records, other, *runs]
    summary = summary_of(Results.read(kit.stored(tmp_path / "two", *records)))
    assert summary.tags["recommended"] == (
        "npo+nll 1e-3 epoch 2 (tiny, forget 5 %); npo+nll 1e-3 epoch 2 (tiny, forget 10 %)"
    )
    assert summary.metrics["best/tiny-forget-5/epoch"] == 2.0
    assert summary.metrics["best/tiny-forget-10/log10_forget_quality"] == pytest.approx(-1.0)
    assert all(name.count("/") == 2 for name in summary.metrics)
    assert summary.averaged == "", "its numbers stand in columns of their own"


def test_a_setting_of_one_seed_is_no_mean(tmp_path: Path, kit: Any) -> None:
    folder = made_up(tmp_path / "small", kit)
    records = [r for r in Results.read(folder).records if r.id not in ("bbbb", "cccc")]
    summary = summary_of(Results.read(kit.stored(tmp_path / "one", *records)))
    assert summary.averaged == "the recommended run"


def test_the_sweep_stands_among_its_best_runs(tmp_path: Path, kit: Any, seen: Any) -> None:
    folder = made_up(tmp_path / "small", kit)
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    (parent,) = store.parents
    # Its name says that its numbers are no single run's.
    assert parent.info.run_name == "sweep small (mean of 3 seeds)"
    assert parent.data.tags["recommended"] == "npo+nll 1e-3 epoch 2"
    view = views_of(store)[0]
    runs = store.client.search_runs(
        [parent.info.experiment_id], view["searchFilter"], order_by=[f"{view['orderByKey']} DESC"]
    )
    names = [run.info.run_name for run in runs]
    assert names == [
        *("1e-3 s0 npo+nll", "sweep small (mean of 3 seeds)"),
        *("1e-3 s2 npo+nll", "1e-3 s1 npo+nll", START),
    ]


START = "start model"


def views_of(store: Any) -> list[Mapping[str, Any]]:
    """The view of the link, then that of the menu."""
    (experiment,) = store.experiments
    found = {
        tag: json.loads(text)
        for tag, text in experiment.tags.items()
        if tag.startswith("mlflow.sharedViewState.")
    }
    assert all(len(text) < 5000 for text in experiment.tags.values()), "MLflow 3.9 takes no more"
    return [found[tag] for tag in sorted(found)]


def test_the_view_opens_with_columns_and_charts_that_the_runs_have(
    tmp_path: Path, kit: Any, seen: Any
) -> None:
    folder = made_up(tmp_path / "small", kit)
    replay(folder)
    store = seen(f"sqlite:///{folder}/mlflow.db")
    view, by_method = views_of(store)
    best = store.children["aaaa"].data
    logged = {
        "metrics": best.metrics,
        "params": best.params,
        "tags": {**best.tags, **store.parents[0].data.tags},
    }
    for column in view["selectedColumns"]:
        kind, _, name = column.replace("`", "").partition(".")
        assert kind == "attributes" or name in logged[kind], column
    assert {"attributes.`User`", "attributes.`Version`", "attributes.`Dataset`"} <= {
        *view["selectedColumns"]
    }
    # MLflow ignores the width of a column that the order does not name.
    assert {*view["columnWidths"]} <= {*view["columnOrder"]}
    for chart in view["compareRunCharts"]:
        keys = [chart[axis]["key"] for axis in ("xaxis", "yaxis") if axis in chart]
        assert {*keys, chart.get("metricKey", keys and keys[0])} <= {*best.metrics}
    grouped = json.loads(by_method["state"])
    assert by_method["name"] == "small by method"
    assert grouped["groupBy"]["groupByKeys"] == [{"mode": "param", "groupByData": "method"}]
    assert "method" in best.params


def test_artifacts_are_found_after_the_folder_was_moved(
    tmp_path: Path, kit: Any, seen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made_up(tmp_path / "small", kit)
    replay(folder)
    moved = tmp_path / "elsewhere" / "my sweep"
    moved.parent.mkdir()
    folder.rename(moved)
    uri = f"sqlite:///{moved}/mlflow.db"
    with pytest.raises(Exception, match="Failed to download artifacts"):
        text_of(seen(uri), seen(uri).parents[0], "plan.json")
    monkeypatch.setattr("os.execve", lambda *_: None)  # pyright: ignore
    show_in_mlflow(moved, 5077, lambda _: None)
    store = seen(uri)
    assert json.loads(text_of(store, store.parents[0], "plan.json"))["name"] == "small"
    assert json.loads(text_of(store, store.children["aaaa"], "record.json"))["id"] == "aaaa"
    assert correct_artifact_addresses(moved) == 0, "they are right now"
    # A run that is logged after a move is where the others are.
    again = moved.rename(tmp_path / "third")
    replay(again)
    store = seen(f"sqlite:///{again}/mlflow.db")
    assert store.parents[0].info.artifact_uri.startswith(again.as_uri())


def test_addresses_of_other_experiments_stay(tmp_path: Path, kit: Any) -> None:
    folder = made_up(tmp_path / "small", kit)
    other = made_up(tmp_path / "other", kit)
    replay(folder)
    config = sweep_config(other)
    plan = json.loads((other / "plan.json").read_text())
    plan["config"]["tracking"] = {**config.tracking.model_dump(), "experiment": "another"}
    (other / "plan.json").write_text(json.dumps(plan))
    replay(other, f"sqlite:///{folder}/mlflow.db")
    moved = folder.rename(tmp_path / "moved")
    assert correct_artifact_addresses(moved) == 1
    with closing(sqlite3.connect(moved / "mlflow.db")) as store:
        known = dict(store.execute("select name, artifact_location from experiments").fetchall())
    assert known["another"] == (other / "mlartifacts").as_uri()
    assert known["unlearnbench-synthetic"] == (moved / "mlartifacts").as_uri()


def test_a_folder_without_a_store_needs_no_correction(tmp_path: Path) -> None:
    assert correct_artifact_addresses(tmp_path) == 0
    (tmp_path / "mlartifacts").mkdir()
    (tmp_path / "mlflow.db").write_text("no store")
    assert correct_artifact_addresses(tmp_path) == 0
