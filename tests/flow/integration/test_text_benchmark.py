"""Passages from a configuration to the table and the page: text rows, and no retain model."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.factories.tables import read_csv
from unlearnbench.cli.main import main

CONFIG = """
name: text
data:
  {source: passages, authors: 4, chapters: 1, sentences: 2, exchanges: 1, pretraining_authors: 1}
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 320, hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16}
    preparation: {epochs: 1, base_epochs: 1, batch_size: 8}
forget_fractions: [0.5]
methods: [gradient-ascent, {method: npo, retain: {term: nll}}]
learning_rates: [1.0e-3]
epochs: 1
training: {batch_size: 3}
evaluation: {rows: 4}
tracking: {enabled: false}
"""
FORGOTTEN, KEPT = "rouge_continuation", "rouge_retain"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a sweep of two runs of two steps, carried out one by one."""
    place = tmp_path_factory.mktemp("text")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        Path("text.yaml").write_text(CONFIG)
        for number in "01":
            assert main(["run", "text.yaml", "--select", number]) == 0
        assert main(["report", "runs/text"]) == 0
    return place / "runs" / "text"


def test_the_table_has_both_numbers_of_the_headline_and_no_retain_model(folder: Path) -> None:
    rows = read_csv(folder / "results.csv")
    assert [row["kind"] for row in rows] == ["fine-tuned", "run", "run"]
    for row in rows:
        for column in (KEPT, FORGOTTEN, "rouge_forget", "choice_accuracy_world_facts", "mia_loss"):
            assert 0 <= float(row[column]) <= 1
        assert not {"private", "forget_quality", "model_utility"} & row.keys()
    assert rows[1]["extraction_strength_forget_text"]


def test_plain_text_is_scored_and_not_answered(folder: Path) -> None:
    from unlearnbench.results.records import read_records

    for record in read_records(folder):
        sets = record.evaluations[max(record.evaluations)].sets
        for name in ("forget_text", "retain_text", "holdout"):
            assert sets[name].generated == ()
            assert set(sets[name].questions) == {""}
        assert len(sets["continuation"].generated) == 2


def record_of(folder: Path) -> str:
    return next(row["run_id"] for row in read_csv(folder / "results.csv") if row["kind"] == "run")


def test_a_record_is_scored_as_its_run_was(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = folder / "records" / record_of(folder) / "epoch-1.safetensors"
    assert main(["score", str(record)]) == 2
    assert "--data" in capsys.readouterr().err
    assert main(["score", str(record), "--data", "passages", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    row = next(
        row for row in read_csv(folder / "results.csv") if row["run_id"] == record_of(folder)
    )
    for column in (KEPT, FORGOTTEN, "mia_loss"):
        assert found[column] == pytest.approx(float(row[column]))
    assert found["private"] is None
    assert main(["score", str(record), "--data", "passages"]) == 0
    text = capsys.readouterr()
    assert "not measured: " in text.err
