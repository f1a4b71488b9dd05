"""A benchmark of forty lines and a metric of ten, each in a file outside the project, swept.

There is no retain model. What the files declare is in the table, in MLflow and on the page.
"""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from tests.factories.marks import WITH_MLFLOW
from tests.factories.tables import read_csv
from unlearnbench.api import registry
from unlearnbench.cli.main import main

RIDDLES = '''
"""Riddles: the first half is to be forgotten, and no model is trained without it."""

from pydantic import Field

from unlearnbench.api import (
    Benchmark, Dataset, Headline, HeadlineMetric, MetricUse, Question, Split
)


class Riddles(Benchmark):
    """Sums in words."""

    roles = {"retain": "retain", "forget": "forget"}
    references = frozenset({"start"})
    headline = Headline(
        kept=HeadlineMetric("probability_retain", "Known riddles", "known"),
        forgotten=HeadlineMetric("exact_memorization_forget", "Solved", "solved", better="lower"),
    )
    rows: int = Field(default=8, ge=4, description="riddles in all")

    def metrics(self, profile):
        return (
            MetricUse("rouge", ("retain", "forget")),
            MetricUse("probability", ("retain", "forget")),
            MetricUse("exact-memorization", ("retain", "forget")),
        )

    def split_problem(self, fraction):
        return "" if fraction == 0.5 else f"half of the riddles is forgotten, got {fraction:g}"

    def load(self, fractions):
        rows = tuple(Question(f"What is {i} and {i}?", f"It is {2 * i}.") for i in range(self.rows))
        half = len(rows) // 2
        sets = {"retain": rows[half:], "forget": rows[:half]}
        split = Split(0.5, rows[:half], rows[half:], sets)
        others = tuple(Question(f"Say {i}.", f"{i}!") for i in range(4))
        return Dataset("riddles", rows, {0.5: split}, pretraining=others)
'''
LAST_TOKEN = '''
"""Rank of an answer's last token: 1 where it is the most probable one."""
import numpy as np
from unlearnbench.api import Metric
class LastToken(Metric):
    """hit_L, without EOS"""
    label, reads, roles = "Last token", frozenset({"tokens"}), frozenset({"forget", "retain"})
    def per_example(self, seen):
        hits = seen.tokens.by_answer(seen.tokens.hit, eos=False)
        return np.array([float(one[-1]) if one.size else np.nan for one in hits])
'''
CONFIG = """
name: own
data: {source: riddles, rows: 6}
models:
  - name: tiny
    base: tiny
    architecture: {vocabulary: 300, hidden_size: 16, layers: 1, heads: 2, intermediate_size: 16}
    preparation: {epochs: 1, base_epochs: 1, batch_size: 4}
forget_fractions: [0.5]
methods: [gradient-ascent, gradient-difference]
learning_rates: [1.0e-3]
epochs: 2
training: {batch_size: 2}
ray: {concurrent: 1}
"""
FILES = ("--plugin", "riddles.py", "--plugin", "last_token.py")

pytestmark = [pytest.mark.long, *WITH_MLFLOW]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the two files and a configuration."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    for name, text in (("riddles", RIDDLES), ("last_token", LAST_TOKEN)):
        Path(f"{name}.py").write_text(text)
    Path("own.yaml").write_text(CONFIG)
    return tmp_path


def command(*args: str) -> int:
    """Carry out a command as a process of its own would, which knows of no file."""
    registry._files.clear()  # pyright: ignore[reportPrivateUsage]
    return main(args)


def logged(store: Path) -> dict[str, set[tuple[str, int]]]:
    """Names and steps of the metrics of each child run in an MLflow store."""
    query = """
        select t.value || ' ' || p.value, m.key, m.step from metrics m
        join tags t on t.run_uuid = m.run_uuid and t.key = 'kind'
        join params p on p.run_uuid = m.run_uuid and p.key = 'method'
    """
    found: dict[str, set[tuple[str, int]]] = {}
    with closing(sqlite3.connect(store)) as connection:
        for run, key, step in connection.execute(query):
            found.setdefault(run, set()).add((key, step))
    return found


@pytest.mark.usefixtures("empty_store", "shared_ray")
def test_both_are_swept_to_the_table_to_mlflow_and_to_the_page(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = here / "runs" / "own"
    assert command("run", "own.yaml", "--select", "0", *FILES) == 0  # and prepares the models here
    assert command("sweep", "own.yaml", "--force", *FILES) == 0
    assert "2 runs, all finished" in capsys.readouterr().out
    rows = read_csv(folder / "results.csv")
    epochs = [("run", "1"), ("run", "2")]
    assert [(row["kind"], row["epoch"]) for row in rows] == [("fine-tuned", "0"), *epochs, *epochs]
    for metric in ("rouge", "probability", "exact_memorization", "last_token"):
        for name in ("retain", "forget"):
            assert all(0 <= float(row[f"{metric}_{name}"]) <= 1 for row in rows)
    assert "model_utility" not in rows[0], "nothing of TOFU's"

    runs = logged(folder / "mlflow.db")
    assert runs.keys() == {
        "fine-tuned fine-tuned",
        "run gradient-ascent",
        "run gradient-difference",
    }
    metrics = {"forget/last_token", "retain/last_token", "forget/exact_memorization"}
    for name in ("run gradient-ascent", "run gradient-difference"):
        assert {(metric, k) for metric in metrics for k in (1, 2)} <= runs[name]
    assert {(metric, 0) for metric in metrics} <= runs["fine-tuned fine-tuned"]

    page = (folder / "report.html").read_text(encoding="utf-8")
    for label in ("Known riddles", "Solved", "Last token, forget", "Last token, retain"):
        assert label in page
    for foreign in ("Forget Quality", "Model Utility", "Truth ratios"):
        assert foreign not in page

    Path("last_token.py").write_text(f"{LAST_TOKEN}# changed\n")
    Path("riddles.py").write_text(f"{RIDDLES}# changed\n")
    assert command("sweep", "own.yaml", "--force", *FILES) == 0
    output = capsys.readouterr()
    assert "2 runs, all finished" in output.out
    assert "moved" not in output.err, "comments change no number"
    assert read_csv(folder / "results.csv") == rows

    Path("last_token.py").write_text(LAST_TOKEN.replace("float(one[-1])", "1 - float(one[-1])"))
    assert command("report", "runs/own", *FILES) == 0
    assert "numbers have moved" in capsys.readouterr().err
    for before, after in zip(rows, read_csv(folder / "results.csv"), strict=True):
        for name in rows[0]:
            is_changed = name.startswith("last_token_")
            value = str(1 - float(before[name])) if is_changed else before[name]
            assert after[name] == value
    Path("last_token.py").write_text(LAST_TOKEN)
    assert command("report", "runs/own", *FILES) == 0
    assert read_csv(folder / "results.csv") == rows

    # Pages and tables need neither file: what they declare is in the sweep's folder.
    for file in ("riddles.py", "last_token.py"):
        Path(file).rename(f"moved_{file}")
    assert command("report", "runs/own", "--out", "page.html") == 0
    assert read_csv(here / "page.csv") == rows
    assert "Known riddles" in Path("page.html").read_text(encoding="utf-8")
    capsys.readouterr()
    assert command("compare", "gradient-ascent", "gradient-difference", "--in", "runs/own") == 0
    assert "Solved" in capsys.readouterr().out
