"""A benchmark whose splits have names: configured, run, reported, compared and tracked by them."""

import json
from pathlib import Path

import pytest

from tests.factories.marks import with_mlflow
from tests.factories.tables import read_csv
from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.report.figures import rows_of

SHELVES = '''
"""Shelves: generated authors on two shelves, one of which is to be forgotten."""

from dataclasses import replace

from unlearnbench.benchmarks.synthetic import Synthetic

SHARES = {"news": 0.5, "books": 0.25}


class Shelves(Synthetic):
    """Synthetic authors, forgotten by the shelf."""

    splits = ("news", "books")

    def load(self, splits):
        rows = super().load([SHARES[name] for name in splits])
        found = {name: replace(rows.splits[SHARES[name]], key=name) for name in splits}
        return replace(rows, name="shelves", splits=found)
'''
CONFIG = """\
name: shelves
data: {source: shelves, authors: 4, questions_per_author: 2, pretraining_authors: 1}
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 1000, hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16}
    preparation: {epochs: 1, base_epochs: 1, batch_size: 8, rehearse_facts: false}
methods: [gradient-ascent, ce-u]
learning_rates: [1.0e-4]
epochs: 1
training: {batch_size: 8}
evaluation: {rows: 2, max_length: 72}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with the benchmark and its configuration."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shelves.py").write_text(SHELVES)
    (tmp_path / "shelves.yaml").write_text(CONFIG)
    registry.register_file("shelves.py")
    return tmp_path


@with_mlflow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_named_splits_are_planned_run_reported_compared_and_tracked(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["plan", "shelves.yaml"]) == 0
    for position in range(4):
        assert main(["run", "shelves.yaml", "--select", str(position)]) == 0
    printed = capsys.readouterr()
    assert "tiny: evaluate the start model on news" in printed.err
    assert "tiny: evaluate books-retain" in printed.err
    assert "ce-u · tiny · books · lr 0.0001 · 1 epoch · seed 0" in printed.err
    sweep = folder / "runs" / "shelves"
    monkeypatch.setattr(registry, "_files", {})  # the folder is enough from here
    assert main(["report", str(sweep)]) == 0
    assert main(["compare", "ce-u", "gradient-ascent", "--in", str(sweep)]) == 0
    compared = capsys.readouterr().out
    assert "tiny, books:" in compared
    assert "tiny, news:" in compared

    documents = [json.loads(p.read_text()) for p in sweep.glob("records/*/record.json")]
    assert sorted((one["forget_fraction"], one["kind"]) for one in documents) == [
        (split, kind)
        for split in ("books", "news")
        for kind in ("fine-tuned", "retain", "run", "run")
    ]
    splits = [line["forget_fraction"] for line in read_csv(sweep / "results.csv")]
    assert splits == ["books"] * 4 + ["news"] * 4
    assert {row.forget_fraction for row in rows_of(sweep)} == {"books", "news"}
    plan = json.loads((sweep / "plan.json").read_text())
    assert list(plan["data"]) == list(plan["rows"]) == ["news", "books"]
    assert plan["config"]["splits"] == ["news", "books"], "all, where none are listed"
    assert "forget_fractions" not in plan["config"]
    page = (sweep / "report.html").read_text()
    assert "tiny, books" in page
    assert "forget books" not in page

    assert main(["track", str(sweep), "--plugin", "shelves.py"]) == 0
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{sweep / 'mlflow.db'}")
    runs = client.search_runs(
        [one.experiment_id for one in client.search_experiments()],
        "params.forget_fraction = 'books' and params.method = 'ce-u'",
    )
    assert [run.info.run_name for run in runs] == ["1e-4 s0 ce-u books"]


def test_retain_models_are_given_by_the_name_of_a_split(folder: Path) -> None:
    for name, wrong in (("books-retain", []), ("retain75", ["models.0.retain.retain75"])):
        retain = f"retain: {{{name}: ./retained}}\n    base: tiny"
        (folder / "shelves.yaml").write_text(CONFIG.replace("base: tiny", retain))
        try:
            load_config("shelves.yaml")
            found: list[str] = []
        except ConfigError as error:
            found = [one.key for one in error.problems]
        assert found == wrong
