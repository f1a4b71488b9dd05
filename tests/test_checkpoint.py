"""Interrupted runs: stopped at any step, or robbed of files, they end with the same numbers."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from unlearnbench import preparation, workspace
from unlearnbench.checkpoint import Checkpoints
from unlearnbench.errors import RecordError
from unlearnbench.notices import taken
from unlearnbench.plan import RunSpec
from unlearnbench.records import Record, read_record
from unlearnbench.running import run_epochs, run_single
from unlearnbench.settings import LoRA, SweepConfig
from unlearnbench.stopping import Stopped
from unlearnbench.training import Trainer

from .test_running import (  # fixtures are found by their names here
    config_of,
    place,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    prepared_folder,  # noqa: F401  # pyright: ignore[reportUnusedImport]
    runs_of,
    without_times,
)

# peft asks transformers by a name that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated")

STEPS = 6
"""Two in each of three epochs."""


@pytest.fixture(params=[False, True], ids=["whole", "lora"])
def case(request: pytest.FixtureRequest, place: Path) -> tuple[SweepConfig, RunSpec, Path]:  # noqa: F811
    """Configuration, run and folder; with adapters whose dropout is random."""
    config = config_of(place)
    if request.param:
        (model,) = config.models
        adamw = model.preparation.model_copy(update={"optimizer": "adamw"})
        changes = {"lora": LoRA(rank=2, alpha=4, dropout=0.5), "preparation": adamw}
        config = config.model_copy(update={"models": (model.model_copy(update=changes),)})
    (spec,) = runs_of(config)
    return config, spec, place / "runs" / "small"


def undisturbed(config: SweepConfig, spec: RunSpec, folder: Path) -> Record:
    record = run_single(spec, config, folder, lambda _: None)
    shutil.rmtree(folder / "records" / spec.id)
    return record


@pytest.mark.parametrize("at", [1, 2, 3, STEPS])
def test_sigterm_keeps_the_step_in_flight(
    case: tuple[SweepConfig, RunSpec, Path], at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    through = undisturbed(*case)
    made: list[int] = []
    plain: Any = Trainer._step  # pyright: ignore[reportPrivateUsage]

    def step(self: Trainer, *arguments: Any) -> Any:
        made.append(self.step + 1)
        if len(made) == at:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step)
    before = signal.getsignal(signal.SIGTERM)
    config, spec, folder = case
    with pytest.raises(Stopped) as stop:
        run_single(spec, config, folder, lambda _: None)
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    record = run_single(spec, config, folder, lambda _: None)
    assert made == list(range(1, STEPS + 1)), "no step is made twice"
    assert without_times(record) == without_times(through)
    (cut,) = record.provenance["interruptions"]
    assert (cut["what"], cut["lost_steps"], cut["lost_seconds"]) == ("SIGTERM", 0, 0)
    assert through.provenance["interruptions"] == []


@pytest.mark.parametrize("which", ["trainer", "progress", "epoch-1", "epoch-2", "all"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    case: tuple[SweepConfig, RunSpec, Path], which: str
) -> None:
    through = undisturbed(*case)
    config, spec, folder = case
    taken()
    interrupted = run_epochs(spec, config, folder)
    next(interrupted)
    next(interrupted)
    next(interrupted)  # the second epoch's is kept when the third is asked for
    del interrupted
    state = folder / "state" / spec.id
    kept = {name: sorted(state.glob(f"{name}-*")) for name in ("trainer", "progress")}
    assert [len(paths) for paths in kept.values()] == [2, 2]
    logs = [state / f"{which}.json.gz"] if which.startswith("epoch") else []
    for path in [*kept["trainer"]] if which == "all" else logs or kept[which][1:]:
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 1  # as long as it was
        path.write_bytes(content)
    results = list(run_epochs(spec, config, folder))
    assert [result.epoch for result in results] == [1, 2, 3]
    told = taken()
    assert len(told) == (2 if which in ("all", "epoch-1") else 1)
    assert all("this checkpoint is damaged" in line for line in told)
    record = read_record(folder / "records" / spec.id)
    assert without_times(record) == without_times(through)
    (cut,) = record.provenance["interruptions"]
    assert cut["lost_steps"] == {2: STEPS, 1: STEPS - 2}[len(told)]


def test_damaged_models_and_references_are_made_again(place: Path) -> None:  # noqa: F811
    config = config_of(place)
    (spec,) = runs_of(config)
    folder, cache = place / "runs" / "small", place / "cache"
    through = undisturbed(config, spec, folder)
    victims = [*cache.glob("models/full-*/model.safetensors"), *cache.glob("reference/*")]
    victims += cache.glob("models/base-*/model.safetensors")
    whole = [path.read_bytes() for path in victims]
    for path in victims:
        path.write_bytes(path.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    workspace.workspace.cache_clear()
    preparation._WHOLE.clear()  # pyright: ignore[reportPrivateUsage]  # as in a new process
    taken()
    told: list[str] = []
    record = run_single(spec, config, folder, told.append)
    assert without_times(record) == without_times(through)
    warned = [line for line in told if line.startswith("warning: ")]
    assert len(warned) == len(victims)
    assert [path.read_bytes() for path in victims] == whole


def test_a_checkpoint_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path / "state")
    checkpoints.save(1, {"step": 1}, {"trainer-00000001.safetensors": lambda p: p.touch()})

    def full(_path: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(RecordError, match="checkpoint of step 2 cannot be written: No space left"):
        checkpoints.save(2, {"step": 2}, {"trainer-00000002.safetensors": full})
    found: Iterator[dict[str, Any]] = Checkpoints(tmp_path / "state").found()
    assert [progress["step"] for progress in found] == [1]
    assert sorted(path.name for path in (tmp_path / "state").iterdir()) == [
        "progress-00000001.json",
        "trainer-00000001.safetensors",
    ]
