"""Everything that is logged is in docs/reference/mlflow.md."""

import re
import shutil
import sqlite3
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS

from unlearnbench.api.tracker import TrackedSweep
from unlearnbench.config.profiles import TOFU as PROFILE
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.report.mlflow import MlflowTracker
from unlearnbench.report.sweep_tracker import FILES, SweepTracker, replay

from ...forked import start, wait

SWEEP = Path(__file__).parents[2] / "data" / "small_sweep"
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "mlflow.md").read_text(encoding="utf-8")
ANY_WORD = {
    ("param", "<hyperparameter>"): {"beta"},
    ("metric", "train/<reported>"): {"train/reward"},
}
"""Names allowed for the schema's wildcards, which match anything."""
ELSEWHERE = {("best/lasting", "sweep")}
"""Logged if an attack gives something back: `test_review.py` shows it."""
OF_MLFLOW = {"mlflow.parentRunId", "mlflow.runName"}
"""Tags that MLflow cannot do without."""


@dataclass(frozen=True)
class Entry:
    """A line of the schema, of one name."""

    kind: str
    name: str
    of: frozenset[str]

    def matches(self, kind: str, of: str, name: str) -> bool:
        pattern = re.sub(r"<[^>]*>", "[^/]+", re.sub(r"[.]", r"\.", self.name))
        return kind == self.kind and of in self.of and re.fullmatch(pattern, name) is not None


def schema() -> list[Entry]:
    lines = re.findall(r"^\| (param|tag|metric|artifact|data set) \|(.*)\|$", PAGE, re.MULTILINE)
    cells = [(kind, [cell.strip() for cell in rest.split(" | ")]) for kind, rest in lines]
    return [
        Entry(kind, name, frozenset(row[1].split(", ")))
        for kind, row in cells
        for name in re.findall(r"`([^`]+)`", row[0])
    ]


def logged(store: Any) -> set[tuple[str, str, str]]:
    """(kind, of, name) of everything in a store."""
    found: set[tuple[str, str, str]] = set()
    for of, runs in (("sweep", store.parents), ("run", store.children.values())):
        for run in runs:
            names = {
                "param": run.data.params,
                "tag": [tag for tag in run.data.tags if tag not in OF_MLFLOW],
                "metric": run.data.metrics,
                "artifact": store.artifacts(run.info.run_id),
                "data set": [one.dataset.name for one in run.inputs.dataset_inputs],
            }
            found |= {(kind, of, name) for kind, many in names.items() for name in many}
    return found


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory, kit: Any, seen: Any) -> Any:
    """The store of a sweep that has everything that can be logged."""
    tmp_path = tmp_path_factory.mktemp("store")
    record = kit.record("aaaa")
    lora = {"rank": 8, "target_modules": "all-linear"}
    names = "optimizer weight_decay schedule warmup_steps max_grad_norm ignore_label deterministic"
    names += " decay_norms_and_biases dropout"
    training: dict[str, Any] = dict.fromkeys(names.split(), 1)
    training |= {"batch_size": 32, "micro_batch_size": 8, "max_length": 500, "precision": "fp32"}
    spec = dict(record.spec) | {"training": training}
    spec["model"] = {**record.spec["model"], "lora": lora}
    steps = tuple(replace(one, reported={"reward": 0.5}) for one in record.steps)
    every = {column.name: 0.5 for column in plan_of(PROFILE).columns}
    quality = [replace(one, metrics=every | kit.metrics(0.7, -1.0)) for one in record.epochs]
    attacked = (replace(quality[-1], variant="relearning@13"),)
    records = [
        kit.start_model(),
        kit.record("aaaa", spec=spec, steps=steps, epochs=tuple(quality), attacked=attacked),
        kit.record("bbbb", status="failed", error="boom\n\ntraceback", evaluations={}),
    ]
    folder = kit.stored(tmp_path / "small", *records)
    for name in FILES:
        (folder / name).write_text("{}", encoding="utf-8")
    replay(folder)
    config = kit.config()
    with SweepTracker(config.tracking, folder, config) as tracker:
        tracker.compare_with(records[:1])
        tracker.choose({"aaaa": 2})  # as in a sweep with `select`
        tracker.log(records[1])
        tracker.settle()
        tracker.log_files(())
    secret = config.model_copy(update={"keep_texts": False})
    with SweepTracker(secret.tracking, folder, secret) as tracker:
        tracker.log(records[2])
    return seen(f"sqlite:///{folder}/mlflow.db")


def test_the_schema_lists_exactly_what_is_logged(store: Any) -> None:
    entries, names = schema(), logged(store)
    assert len(entries) > 60
    undocumented = {one for one in names if not any(entry.matches(*one) for entry in entries)}
    assert not undocumented
    unlogged = [
        (entry, of)
        for entry in entries
        for of in entry.of
        if not any(entry.matches(kind, of, name) for kind, of, name in names)
        and (entry.name, of) not in ELSEWHERE
    ]
    assert not unlogged
    for (kind, wild), allowed in ANY_WORD.items():
        others = [entry for entry in entries if entry.name != wild]
        only = {
            n for k, of, n in names if k == kind and not any(e.matches(k, of, n) for e in others)
        }
        assert only == allowed, wild


TRACK = """
import sys
from unlearnbench.cli.main import main
raise SystemExit(main(["track", *sys.argv[1:]]))
"""


@pytest.mark.long
def test_commands_may_create_one_store_at_the_same_time(tmp_path: Path) -> None:
    folders = [tmp_path / f"sweep{i}" for i in range(3)]
    for folder in folders:
        shutil.copytree(SWEEP, folder)
    uri = f"sqlite:///{tmp_path / 'store.db'}"
    outputs = [tmp_path / f"{folder.name}.txt" for folder in folders]
    processes = [
        start(TRACK, [str(folder), "--uri", uri], output=output)
        for folder, output in zip(folders, outputs, strict=True)
    ]
    codes = wait(processes)
    texts = [output.read_text(encoding="utf-8") for output in outputs]
    assert codes == [0, 0, 0], texts
    # They are copies of one sweep: one of the commands logs it, and the others find it there.
    with sqlite3.connect(tmp_path / "store.db") as store:
        (experiments,) = store.execute("select count(*) from experiments where name != 'Default'")
        parents = store.execute("select count(*) from tags where key = 'kind' and value = 'sweep'")
    assert experiments == (1,)
    assert parents.fetchall() == [(1,)]


class RacingClient:
    """A store in which another process creates the experiment between question and creation."""

    def __init__(self, _: str) -> None:
        self.known: Any = None

    def get_experiment_by_name(self, _: str) -> Any:
        return self.known

    def create_experiment(self, *_: Any, **__: Any) -> str:
        self.known = SimpleNamespace(experiment_id="7", lifecycle_stage="active")
        raise MlflowException("it exists", error_code=RESOURCE_ALREADY_EXISTS)

    def search_runs(self, *_: Any, **__: Any) -> list[Any]:
        return []

    def create_run(self, *_: Any, **__: Any) -> Any:
        return SimpleNamespace(info=SimpleNamespace(run_id="run"))

    def set_experiment_tag(self, *_: Any) -> None: ...


def test_an_experiment_that_another_process_creates_meanwhile_is_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("mlflow.MlflowClient", RacingClient)
    tracker = MlflowTracker()
    tracker.start(TrackedSweep("1", "s", "mine", tmp_path, "http://localhost", best=["utility"]))
    link = tracker.link()
    assert link is not None
    assert "/experiments/7/runs" in link
