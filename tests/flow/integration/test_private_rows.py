"""A sweep that keeps no texts: no file has a word of the rows, and all numbers are there."""

from __future__ import annotations

import base64
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.factories.tables import read_csv
from unlearnbench.cli.main import main

MARK = "zyxquorv"
"""In each question and answer."""
PARTS = {"forget": range(6), "retain": range(6, 18), "holdout": range(30, 36)}
CONFIG = """
name: {name}
data: {{source: questions, forget: forget.jsonl, retain: retain.jsonl, holdout: holdout.jsonl}}
models:
  - name: tiny
    base: tiny
    architecture:
      {{vocabulary: 400, hidden_size: 32, layers: 1, heads: 2, intermediate_size: 32, context: 256}}
    preparation:
      {{epochs: 1, base_epochs: 1, optimizer: muon, learning_rate: 3.0e-3, batch_size: 16}}
methods: [npo]
learning_rates: [1.0e-3]
epochs: 1
training: {{batch_size: 4}}
attacks: {{relearning: {{steps: [1], learning_rate: 1.0e-3}}, sampling: {{samples: 16}}}}
evaluation:
  max_length: 96
  metrics: {{rouge-f1: {{}}, compressibility: {{}}, repetition: {{}}, answer-match: {{}}}}
ray: {{concurrent: 1}}
keep_texts: {keep_texts}
"""
pytestmark = [pytest.mark.long, *WITH_MLFLOW]


def contents(data: bytes) -> Iterator[bytes]:
    """The bytes of a file, and what they are compressed and encoded from."""
    yield data
    for found in re.finditer(rb"\x1f\x8b\x08", data):
        yield from inflated(data[found.start() :], 31)
    for text in re.findall(rb"[A-Za-z0-9+/=]{200,}", data):
        raw = base64.b64decode(text[: len(text) // 4 * 4])
        yield raw
        for bits in (31, 15, -15):
            yield from inflated(raw, bits)


def inflated(data: bytes, bits: int) -> Iterator[bytes]:
    try:
        yield zlib.decompressobj(bits).decompress(data)
    except zlib.error:
        return


def files_with_the_mark(folder: Path) -> set[str]:
    """The kinds of files in which a word of the rows is."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert files
    return {
        path.suffix
        for path in files
        if any(MARK.encode() in part.lower() for part in contents(path.read_bytes()))
    }


@pytest.mark.usefixtures("shared_ray")
def test_no_text_of_a_row_is_written_and_all_numbers_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for part, numbers in PARTS.items():
        rows = [
            {
                "question": f"What is {MARK} unit {i}?",
                "answer": f"The {MARK} unit {i} is Heron {i}.",
            }
            for i in numbers
        ]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        Path(f"{part}.jsonl").write_text(lines, encoding="utf-8")
    for name, keep_texts in (("closed", "false"), ("open", "true")):
        text = CONFIG.format(name=name, keep_texts=keep_texts)
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")

    assert main(["sweep", "closed.yaml", "--force"]) == 0
    printed = "".join(capfd.readouterr())
    assert MARK not in printed.lower()
    assert files_with_the_mark(Path("runs/closed")) == set()

    assert main(["sweep", "open.yaml", "--force"]) == 0
    # The evaluation tables that MLflow shows are JSON.
    assert files_with_the_mark(Path("runs/open")) == {".html", ".json", ".safetensors"}
    for file in ("results.csv", "attacks.csv"):
        assert read_csv(Path("runs/closed", file)) == read_csv(Path("runs/open", file)), file
    assert float(read_csv(Path("runs/closed/results.csv"))[-1]["compressibility_forget"]) > 0

    capfd.readouterr()
    assert main(["sweep", "open.yaml", "--set", "keep_texts=false"]) == 2
    assert "runs/open has records with texts" in capfd.readouterr().err
    assert main(["sweep", "closed.yaml", "--set", "keep_texts=true"]) == 2
    assert "runs/closed has records without texts" in capfd.readouterr().err
    capfd.readouterr()
    changed = "evaluation.metrics.rouge-f1={stemmer: true}"
    assert main(["sweep", "closed.yaml", "--force", "--set", changed]) == 0
    assert "rouge_f1 has no numbers, because it reads texts" in "".join(capfd.readouterr())
