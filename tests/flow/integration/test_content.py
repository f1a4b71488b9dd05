"""Inputs of a run are known by content: other content is another run, another place is not."""

import json
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.factories.tables import read_csv
from unlearnbench.analysis.results import Results
from unlearnbench.base import hashing
from unlearnbench.base.errors import ModelError
from unlearnbench.cli.main import main
from unlearnbench.config.loader import load_config
from unlearnbench.results.records import read_records
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.run import run_single

CONFIG = """
name: local
data: {authors: 4, questions_per_author: 3, pretraining_authors: 1}
models:
  - {name: m, base: ./full, fine_tuned: ./full, retain: {retain50: ./retain}}
forget_fractions: [0.5]
methods: [ce-u]
learning_rates: [1.0e-3]
epochs: 1
training: {batch_size: 4}
evaluation: {rows: 4, max_length: 96}
tracking: {enabled: false}
ray: {concurrent: 1}
"""

PLUGIN = '''
import sys
from pathlib import Path
from unlearnbench import LossBatch, Method, Needs
sys.path.insert(0, str(Path(__file__).parent))
from unlearnbench_test_factor import K


class Scaled(Method):
    """L = K mean_t log p_t

    K  factor;  p_t  probability of an answer token
    """

    needs = Needs(parts=frozenset({"forget"}))

    def loss(self, batch: LossBatch):
        from unlearnbench_test_late import SHIFT
        return K * batch.forget.mean_tokens(batch.forget.token_logprob) + SHIFT
'''


Run = Callable[..., tuple[str, bool]]


@pytest.fixture
def place(prepared_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with `local.yaml` and the checkpoints and logs that it may name."""
    models = prepared_folder / "cache" / "models"
    for name, pattern in (("full", "full-*"), ("retain", "retain50-*")):
        shutil.copytree(next(models.glob(pattern)), tmp_path / name)
    for record in read_records(prepared_folder / "runs" / "small"):
        stored = prepared_folder / "runs" / "small" / "records" / record.id
        shutil.copy(stored / "epoch-0.safetensors", tmp_path / f"{record.kind}.safetensors")
    (tmp_path / "local.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("factor", "late"):  # of another test's folder
        sys.modules.pop(f"unlearnbench_test_{name}", None)
    return tmp_path


@pytest.fixture
def run(place: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs the first run of a configuration: its id, and whether it was found."""

    def ran(*args: str) -> tuple[str, bool]:
        capsys.readouterr()
        code = main(["run", str(place / "local.yaml"), "--select", "0", "--json", *args])
        printed = capsys.readouterr()
        assert code == 0, printed.err
        shown = json.loads(printed.out)
        return shown["id"], shown["found"]

    return ran


def rows(folder: Path) -> list[dict[str, str]]:
    """The table of a sweep's folder, written again."""
    assert main(["report", str(folder)]) == 0
    return read_csv(folder / "results.csv")


def kinds(folder: Path) -> list[str]:
    return sorted(row["kind"] for row in rows(folder))


ONE_OF_EACH = ["fine-tuned", "retain", "run"]


def test_a_checkpoint_that_is_overwritten_is_another_one_and_a_moved_one_is_not(
    place: Path, run: Run
) -> None:
    folder, weights = place / "runs" / "local", place / "full" / "model.safetensors"
    first = run()
    assert run() == (first[0], True)
    before, old = rows(folder), weights.read_bytes()
    shutil.copy(place / "retain" / "model.safetensors", weights)
    second = run()
    assert second[0] != first[0]
    assert not second[1]
    records = {record.id: record for record in read_records(folder)}
    assert records[first[0]].provenance["weights"] != records[second[0]].provenance["weights"]
    assert records[first[0]].steps[0].loss != records[second[0]].steps[0].loss
    assert kinds(folder) == ONE_OF_EACH, "the old start model is not in the table"
    weights.write_bytes(old)
    assert run() == (first[0], True)
    assert rows(folder) == before
    (place / "full").rename(place / "moved")
    text = (place / "local.yaml").read_text().replace("./full", "./moved")
    (place / "local.yaml").write_text(text)
    assert run() == (first[0], True)
    assert rows(folder) == before
    with (place / "moved" / "tokenizer_config.json").open("a") as file:
        file.write("\n")
    assert run()[0] not in {first[0], second[0]}, "the tokenizer is content, too"


def test_a_retain_models_log_that_is_replaced_is_another_one(place: Path, run: Run) -> None:
    log, key = place / "log.safetensors", "models.0.retain.retain50=log.safetensors"
    (place / "retain.safetensors").rename(log)
    first = run("--set", key)
    assert run("--set", key) == (first[0], True)
    old = rows(place / "runs" / "local")
    shutil.copy(place / "fine-tuned.safetensors", log)
    second = run("--set", key)
    assert (second[0] != first[0], second[1]) == (True, False)
    new = rows(place / "runs" / "local")
    assert [row["kind"] for row in new] == [row["kind"] for row in old]
    assert {row["run_id"] for row in new}.isdisjoint({row["run_id"] for row in old})
    weights = {
        r.provenance["weights"] for r in read_records(place / "runs/local") if r.kind == "retain"
    }
    assert len(weights) == 2


def test_a_module_that_a_plugin_imports_is_a_part_of_it(place: Path, run: Run) -> None:
    (place / "scaled.py").write_text(PLUGIN)
    factor, late = place / "unlearnbench_test_factor.py", place / "unlearnbench_test_late.py"
    factor.write_text("K = 1\n")
    late.write_text("SHIFT = 0\n")
    how = ("--plugin", "scaled.py", "--set", "methods=[scaled]")
    seen = [run(*how)]
    assert run(*how) == (seen[0][0], True)
    factor.write_text("K = -7\n")
    seen.append(run(*how))
    late.write_text("SHIFT = 0.125\n")
    seen.append(run(*how))
    assert len({id for id, _ in seen}) == 3
    assert not any(found for _, found in seen)
    records = {record.id: record for record in read_records(place / "runs" / "local")}
    losses = [records[id].steps[0].loss for id, _ in seen]
    assert losses[1] == pytest.approx(-7 * losses[0], rel=1e-3)
    assert losses[2] == pytest.approx(losses[1] + 0.125, rel=1e-3)


def test_a_folder_stays_open_where_the_rules_of_evaluation_change(place: Path, run: Run) -> None:
    folder = place / "runs" / "local"
    first = run()
    before = rows(folder)
    assert not run("--set", "evaluation.rows=3")[1]
    assert kinds(folder) == ONE_OF_EACH
    assert run() == (first[0], True)
    assert rows(folder) == before


def test_a_model_that_changes_after_the_plan_is_refused(place: Path) -> None:
    config = load_config("local.yaml")
    plan, _ = plan_sweep(config)
    shutil.copy(place / "retain" / "model.safetensors", place / "full")
    with pytest.raises(ModelError, match=r"models.m: a folder or log has changed since the runs"):
        run_single(plan.runs[0], config, plan.folder, lambda _: None)


def test_the_plan_has_the_ids_of_every_reference(place: Path) -> None:
    config = load_config(str(place / "local.yaml"), ["attacks={relearning: {steps: [1]}}"])
    plan, _ = plan_sweep(config)
    assert plan.references is not None
    run_single(plan.runs[0], config, plan.folder, lambda _: None)
    records = {r.id for r in read_records(plan.folder) if r.kind != "run"}
    assert records == {*plan.references}
    assert len(records) == 4


def test_several_start_models_of_one_model_are_told(place: Path) -> None:
    config = load_config(str(place / "local.yaml"))
    plan, _ = plan_sweep(config)
    run_single(plan.runs[0], config, plan.folder, lambda _: None)
    records = read_records(plan.folder)
    (start,) = (r for r in records if r.kind == "fine-tuned")
    assert not any("start models" in line for line in Results.of(records, name="x").warnings)
    copy = replace(start, id="another")
    same = Results.of([*records, copy], name="x").warnings
    assert not any("start models" in line for line in same), "it was observed alike"
    (run,) = (record for record in records if record.kind == "run")
    other = replace(copy, evaluations={0: run.evaluations[max(run.evaluations)]})
    both = Results.of([*records, other], name="x").warnings
    assert any(line.startswith("m, forget 50 %: 2 start models") for line in both), both


def test_the_hash_of_a_big_file_is_kept_until_the_file_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(hashing, "BIG", 4)
    read: list[Path] = []
    plain = hashing.file_hash

    def counted(path: Path) -> str:
        read.append(path)
        return plain(path)

    def kept() -> str:
        hashing._hash_of_state.cache_clear()  # pyright: ignore[reportPrivateUsage]
        return hashing.kept_hash(file)

    monkeypatch.setattr(hashing, "file_hash", counted)
    file = tmp_path / "weights.safetensors"
    file.write_bytes(b"12345")
    assert kept() == kept() == plain(file)
    assert len(read) == 1
    times = file.stat()
    file.write_bytes(b"54321")
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert kept() == plain(file), "its time of change cannot be set back"
    file.rename(tmp_path / "other")
    shutil.copy2(tmp_path / "other", file)
    assert kept() == plain(file)
    assert len(read) == 3
    (tmp_path / "cache").chmod(0o500)
    (tmp_path / "cache" / "unlearnbench" / "hashes").rename(tmp_path / "gone")
    assert kept() == plain(file), "the cache need not be writable"
