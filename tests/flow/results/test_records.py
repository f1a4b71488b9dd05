"""Records: written whole or not at all, read back exactly, damage named."""

import dataclasses
import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from unlearnbench.api.observations import SETS, Evaluation, SetEvaluation
from unlearnbench.base.errors import RecordError
from unlearnbench.base.provenance import commit_of
from unlearnbench.config.profiles import TOFU
from unlearnbench.results.records import (
    EpochResult,
    Record,
    parse_record,
    read_record,
    read_records,
    record_document,
    write_record,
)
from unlearnbench.results.sweep_folder import lock_folder, remove_leftovers
from unlearnbench.training.step_result import StepResult


def a_set(n: int = 2, k: int = 3) -> SetEvaluation:
    ones = np.ones(n)
    return SetEvaluation(
        questions=tuple(f"Who is {i}?" for i in range(n)),
        generated=tuple(f"An answer {i}." for i in range(n)),
        references=tuple(f"The answer {i}." for i in range(n)),
        answer_loss=ones * 0.5,
        answer_tokens=np.full(n, 7),
        base_loss=ones * 0.25,
        base_tokens=np.full(n, 5),
        perturbed_loss=np.ones((n, k)),
        perturbed_tokens=np.full((n, k), 6),
        rouge1_recall=ones * 0.5,
        rouge_l_recall=ones * 0.25,
    )


def an_evaluation() -> Evaluation:
    return Evaluation(profile=TOFU.id, sets={name: a_set() for name in SETS})


def a_record(record_id: str = "0123456789abcdef", **changes: Any) -> Record:
    record = Record(
        id=record_id,
        kind="run",
        model="tiny",
        forget_fraction=0.1,
        method="npo+nll",
        learning_rate=1e-4,
        seed=0,
        spec={"method": {"name": "npo", "hyperparameters": {"beta": 0.1, "score": -math.inf}}},
        status="finished",
        profile=TOFU.id,
        epochs=(EpochResult(1, {"model_utility": 0.7, "forget_quality": None}, 1.5, 0.5),),
        steps=(StepResult(1, 1, 1e-4, math.nan, {"forget": math.inf, "retain": 0.1}, 2.0),),
        provenance={"git": None, "host": "here"},
        evaluations={1: an_evaluation()},
    )
    return dataclasses.replace(record, **changes)


def test_a_record_reads_back_exactly_with_numbers_that_are_not_finite(tmp_path: Path) -> None:
    place = write_record(a_record(), tmp_path)
    assert place == tmp_path / "records" / "0123456789abcdef"
    back = read_record(place)
    assert math.isnan(back.steps[0].loss)
    assert back.steps[0].terms == {"forget": math.inf, "retain": 0.1}
    assert back.spec["method"]["hyperparameters"] == {"beta": 0.1, "score": -math.inf}
    finite = dataclasses.replace(back, steps=())
    assert finite == a_record(steps=())


def test_the_first_record_of_an_id_stays(tmp_path: Path) -> None:
    write_record(a_record(), tmp_path)
    write_record(a_record(seed=5), tmp_path)
    assert [r.seed for r in read_records(tmp_path)] == [0]


def test_a_failed_run_is_unfinished_until_it_succeeds(tmp_path: Path) -> None:
    failed = a_record(status="failed", error="TrainingError: boom", evaluations={})
    write_record(failed, tmp_path)
    write_record(dataclasses.replace(failed, error="again"), tmp_path)
    assert [r.error for r in read_records(tmp_path)] == ["again"]
    assert {r.status for r in read_records(tmp_path)} == {"failed"}
    write_record(a_record(), tmp_path)
    assert [r.status for r in read_records(tmp_path)] == ["finished"]
    assert [(r.id, r.status) for r in read_records(tmp_path)] == [("0123456789abcdef", "finished")]
    assert not list((tmp_path / "records").glob("*.failed"))


def test_a_stopped_run_gives_way_to_one_that_goes_to_its_end(tmp_path: Path) -> None:
    stopped = a_record(status="stopped")
    place = write_record(stopped, tmp_path)
    assert place.name == "0123456789abcdef.stopped"
    assert read_record(place).status == "stopped"
    assert read_record(place).evaluations[1].sets
    write_record(a_record(status="failed", error="boom", evaluations={}), tmp_path)
    assert [r.status for r in read_records(tmp_path)] == ["failed"], "one record of a run"
    write_record(stopped, tmp_path)
    assert [r.status for r in read_records(tmp_path)] == ["stopped"]
    write_record(a_record(), tmp_path)
    assert [p.name for p in (tmp_path / "records").iterdir()] == ["0123456789abcdef"]


def test_an_edited_record_is_refused(tmp_path: Path) -> None:
    file = write_record(a_record(), tmp_path) / "record.json"
    document = json.loads(file.read_text(encoding="utf-8"))
    assert len(document["sha256"]) == 64
    file.write_text(json.dumps(document, sort_keys=True), encoding="utf-8")
    assert read_record(file.parent).spec == a_record().spec, "order and spaces change nothing"
    document["epochs"][0]["metrics"]["model_utility"] = 0.9
    file.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(RecordError, match="its content is not what was written; delete the folder"):
        read_record(file.parent)
    with pytest.raises(RecordError, match="its content is not what was written"):
        read_records(tmp_path)


def test_missing_files_and_changed_evaluations_are_found(tmp_path: Path) -> None:
    place = write_record(a_record(), tmp_path)
    log = place / "epoch-1.safetensors"
    content = log.read_bytes()
    log.write_bytes(content[:-1])
    with pytest.raises(RecordError, match="its content is not what was written"):
        _ = read_record(place).evaluations[1]
    log.unlink()
    with pytest.raises(RecordError, match=r"epoch-1\.safetensors: damaged: it is missing"):
        read_record(place)
    (place / "record.json").unlink()
    with pytest.raises(RecordError, match=r"record\.json: damaged: it is missing"):
        read_records(tmp_path)


def test_a_full_disk_leaves_nothing_half_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_text = Path.write_text

    def full(path: Path, *args: Any, **kwargs: Any) -> int:
        if path.name == "record.json":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write_text(path, *args, **kwargs)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(RecordError, match="No space left on device; fix that and start"):
        write_record(a_record(), tmp_path)
    assert list((tmp_path / "records").iterdir()) == []


def test_leftovers_of_dead_writers_are_ignored_and_removed(tmp_path: Path) -> None:
    write_record(a_record(), tmp_path)
    part = tmp_path / "records" / ".part-host-1-00"
    part.mkdir()
    (part / "record.json").write_text("{", encoding="utf-8")
    assert len(read_records(tmp_path)) == 1
    remove_leftovers(tmp_path)
    assert not part.exists()


def test_a_folder_has_one_holder_and_the_next_is_told_who(tmp_path: Path) -> None:
    waiting = (
        "import sys\nfrom pathlib import Path\nfrom unlearnbench.results.sweep_folder import "
        "lock_folder\nwith lock_folder(Path(sys.argv[1])):\n    print('held', flush=True)\n"
        "    sys.stdin.read()"
    )
    holder = subprocess.Popen([sys.executable, "-c", waiting, str(tmp_path)],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)  # fmt: skip
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(RecordError, match=f"process {holder.pid} on"), lock_folder(tmp_path):
            pass
        holder.kill()
    with lock_folder(tmp_path):  # the kernel has taken the lock from the dead
        pass


@pytest.mark.parametrize("dirty", [True, False])
def test_a_commit_is_that_of_the_working_folder_or_none(tmp_path: Path, *, dirty: bool) -> None:
    place = tmp_path / "repository"
    place.mkdir()
    (place / "a").write_text("1", encoding="utf-8")
    git = ["git", "-C", str(place), "-c", "user.name=x", "-c", "user.email=x@y"]
    for step in (["init", "-q"], ["add", "a"], ["commit", "-qm", "one"]):
        subprocess.run([*git, *step], check=True)
    if dirty:
        (place / "a").write_text("2", encoding="utf-8")
    found = commit_of(place, "working folder")
    assert found is not None
    assert (len(found["commit"]), found["dirty"]) == (40, dirty)
    assert commit_of(tmp_path, "working folder") is None


def test_no_secret_of_a_record_is_written_or_read(tmp_path: Path) -> None:
    address = "postgresql://me:topsecret@host/db"
    record = a_record(provenance={"tracking": address}, spec={"storage": [address]}, error=address)
    place = write_record(record, tmp_path)
    assert "topsecret" not in (place / "record.json").read_text()

    written_elsewhere = record_document(record) | {
        "error": address,
        "evaluations": {},
        "attacked_evaluations": {},
    }
    back = parse_record(place, written_elsewhere)
    assert back.error == "postgresql://host/db"
    assert back.spec == {"storage": ["postgresql://host/db"]}
