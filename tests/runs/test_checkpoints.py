"""Interrupted work: cut anywhere, or robbed of files, it ends with the same numbers; and what
checkpoints may cost."""

from __future__ import annotations

import errno
import hashlib
import os
import re
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
import torch

from unlearnbench.config.entries import attack_specs
from unlearnbench.config.schema import LoRA, SweepConfig
from unlearnbench.data.loading import load_benchmark
from unlearnbench.errors import StorageError
from unlearnbench.files import tensor_file
from unlearnbench.files.hashing import file_hash
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.results.records import EpochResult, Record, read_record
from unlearnbench.results.remote_copies import Storage
from unlearnbench.runs import checkpoints as checkpoint
from unlearnbench.runs import evaluated_run as judged
from unlearnbench.runs import run_state, workspace
from unlearnbench.runs import training_run as trained
from unlearnbench.runs.checkpoints import Checkpoints
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.prepared_models import ModelPreparer
from unlearnbench.runs.prerequisites import execute_task, preparation_tasks
from unlearnbench.runs.run import run_epochs, run_single
from unlearnbench.runs.training_run import TrainingRun
from unlearnbench.runtime.deferred_warnings import drain
from unlearnbench.runtime.signals import Stopped
from unlearnbench.training.trainer import Trainer

from ..forked import start, wait
from .test_run import (  # fixtures are found by their names here
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


@pytest.fixture
def never(monkeypatch: pytest.MonkeyPatch) -> None:
    """None pays."""
    monkeypatch.setattr(checkpoint, "COST", 1e9)


def with_lora(config: SweepConfig) -> SweepConfig:
    """With adapters whose dropout is random."""
    (model,) = config.models
    adamw = model.preparation.model_copy(update={"optimizer": "adamw"})
    changes = {"lora": LoRA(rank=2, alpha=4, dropout=0.5), "preparation": adamw}
    return config.model_copy(update={"models": (model.model_copy(update=changes),)})


@dataclass(frozen=True)
class Case:
    """A run in a folder with all that it waits for, and its record where nothing disturbs it."""

    config: SweepConfig
    spec: RunSpec
    folder: Path
    through: Record

    def single(self, shown: Callable[[str], None] = lambda _: None) -> Record:
        return run_single(self.spec, self.config, self.folder, shown)

    def epochs(self) -> Iterator[EpochResult]:
        return run_epochs(self.spec, self.config, self.folder)

    @property
    def record(self) -> Record:
        return read_record(self.folder / "records" / self.spec.id)

    @property
    def state(self) -> Path:
        return run_state.state_folders(self.folder, self.spec.id)[0]

    @property
    def trainer(self) -> Path:
        return run_state.state_folders(self.folder, self.spec.id)[1]


@pytest.fixture(scope="module")
def undisturbed(
    prepared_folder: Path,  # noqa: F811
    tmp_path_factory: pytest.TempPathFactory,
) -> Callable[[bool], Case]:
    """A run, whole or with adapters, that nothing has disturbed; made once."""

    @cache
    def case(lora: bool) -> Case:
        folder = tmp_path_factory.mktemp("undisturbed")
        shutil.copytree(prepared_folder, folder, dirs_exist_ok=True)
        config = with_lora(config_of(folder)) if lora else config_of(folder)
        (spec,) = runs_of(config)
        record = run_single(spec, config, folder / "runs" / "small", lambda _: None)
        return Case(config, spec, folder / "runs" / "small", record)

    return case


def again(made: Case, folder: Path) -> Iterator[Case]:
    """The same run in a folder of its own, still to be carried out."""
    shutil.copytree(made.folder.parents[1], folder, dirs_exist_ok=True)
    sweep = folder / "runs" / "small"
    shutil.rmtree(sweep / "records" / made.spec.id)
    places = {"output": str(folder / "runs"), "cache": str(folder / "cache")}
    workspace.clear_workspaces()
    yield replace(made, config=made.config.model_copy(update=places), folder=sweep)
    workspace.clear_workspaces()


@pytest.fixture
def whole(undisturbed: Callable[[bool], Case], tmp_path: Path) -> Iterator[Case]:
    yield from again(undisturbed(False), tmp_path)


@pytest.fixture
def adapters(undisturbed: Callable[[bool], Case], tmp_path: Path) -> Iterator[Case]:
    """With LoRA, whose dropout is random."""
    yield from again(undisturbed(True), tmp_path)


def interrupt(case: Case, epochs: int) -> None:
    """Cut the run at the beginning of the epoch after so many."""
    going = case.epochs()
    for _ in range(epochs):
        next(going)

    def cut(*_: Any) -> Any:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", cut)
        with pytest.raises(KeyboardInterrupt):
            next(going)


def steps_made(monkeypatch: pytest.MonkeyPatch, on: Callable[[int], None]) -> list[int]:
    """The steps that trainers make from now on; `on` is called with how many before each."""
    made: list[int] = []
    plain: Any = Trainer._step  # pyright: ignore[reportPrivateUsage]

    def step(self: Trainer, *arguments: Any) -> Any:
        made.append(self.step + 1)
        on(len(made))
        return plain(self, *arguments)

    monkeypatch.setattr(Trainer, "_step", step)
    return made


def evaluations_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs that runs evaluate from now on."""
    made: list[int] = []
    plain: Any = TrainingRun._evaluate  # pyright: ignore[reportPrivateUsage]

    def evaluate(self: TrainingRun, model: Any, epoch: int, begin: float) -> Any:
        made.append(epoch)
        return plain(self, model, epoch, begin)

    monkeypatch.setattr(TrainingRun, "_evaluate", evaluate)
    return made


def damage(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # as long as it was
    path.write_bytes(content)


@pytest.mark.parametrize("at", [1, 4])
@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_sigterm_costs_the_epoch_in_flight(
    whole: Case, at: int, monkeypatch: pytest.MonkeyPatch
) -> None:

    def kill(count: int) -> None:
        if count == at:
            os.kill(os.getpid(), signal.SIGTERM)

    made = steps_made(monkeypatch, kill)
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped) as stop:
        whole.single()
    assert stop.value.code == 143
    assert signal.getsignal(signal.SIGTERM) is before
    assert made == list(range(1, at + 1)), "it ends at the step's end"
    done = (at - 1) // 2
    goes_on = f"goes on after epoch {done}" if done else "begins again"
    assert str(stop.value) == f"stopped by SIGTERM; the run {goes_on}"
    record = whole.single()
    assert made[at:] == list(range(2 * done + 1, STEPS + 1)), "the epoch is the unit of restart"
    assert without_times(record) == without_times(whole.through)


@pytest.mark.usefixtures("checkpoint_every_epoch")
# torch throws into generators under `no_grad` in a way that Python 3.12 deprecates.
@pytest.mark.filterwarnings("ignore:the .type, exc, tb. signature of throw:DeprecationWarning")
def test_sigterm_in_an_evaluation_saves_nothing(
    whole: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain: Any = TrainingRun._evaluate  # pyright: ignore[reportPrivateUsage]

    def evaluate(self: TrainingRun, model: Any, epoch: int, begin: float) -> Any:
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, model, epoch, begin)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingRun, "_evaluate", evaluate)
        with pytest.raises(Stopped):
            whole.single()
    assert [path.name for path in whole.trainer.glob("*.json")] == ["trainer-00000002.json"]
    record = whole.single()
    assert without_times(record) == without_times(whole.through)


@pytest.mark.usefixtures("never")
def test_epochs_without_a_checkpoint_are_trained_and_evaluated_again(
    adapters: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupt(adapters, 2)
    assert not adapters.trainer.exists()
    assert {path.name for path in adapters.state.iterdir()} == {
        *("state.json", "epoch-1.safetensors", "epoch-2.safetensors"),
    }
    evaluated = evaluations_made(monkeypatch)
    made = steps_made(monkeypatch, lambda _: None)
    assert [result.epoch for result in adapters.epochs()] == [1, 2, 3]
    assert (made, evaluated) == ([1, 2, 3, 4, 5, 6], [1, 2, 3])
    assert without_times(adapters.record) == without_times(adapters.through)
    assert not adapters.state.exists()


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_record_mixes_no_two_courses_of_training(whole: Case) -> None:
    """The second epoch's results are of a trainer whose checkpoint was lost, as GPUs round."""
    plain: Any = Trainer._step  # pyright: ignore[reportPrivateUsage]

    def rounded(self: Trainer, draws: Any, epoch: int) -> Any:
        step = plain(self, draws, epoch)
        return replace(step, loss=step.loss * (1 + 1e-7)) if step.step >= 4 else step

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_step", rounded)
        going = whole.epochs()
        next(going), next(going)
    del going
    for path in whole.trainer.glob("trainer-00000004.*"):
        path.unlink()
    assert [result.epoch for result in whole.epochs()] == [1, 2, 3]
    assert without_times(whole.record) == without_times(whole.through)


@pytest.mark.parametrize("which", ["trainer", "all", "state", "epoch-1"])
@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_what_is_damaged_gives_way_to_what_was_before(whole: Case, which: str) -> None:
    drain()
    interrupt(whole, 2)
    trainers = sorted(whole.trainer.glob("*.safetensors"))
    assert len(trainers) == 2
    for path in {"trainer": trainers[1:], "all": trainers}.get(which, ()):
        damage(path)
    if which in ("state", "epoch-1"):
        (path,) = whole.state.glob(f"{which}.*")
        path.write_bytes(path.read_bytes()[:-20])
    assert [result.epoch for result in whole.epochs()] == [1, 2, 3]
    shown = drain()
    assert len(shown) == (2 if which == "all" else 1)
    assert all("damaged" in line for line in shown)
    assert without_times(whole.record) == without_times(whole.through)


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_attacks_that_are_done_are_not_carried_out_again(
    whole: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut between two attacks on the last epoch."""
    attacks = attack_specs({"paraphrase": {}, "second-turn": {}})
    config = whole.config.model_copy(update={"attacks": attacks})
    (spec,) = runs_of(config)
    case = replace(whole, config=config, spec=spec)
    begun: list[str] = []
    plain: Any = vars(judged)["results_under"]

    def noted(attack: Any, *rest: Any) -> Any:
        begun.append(attack.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return plain(attack, *rest)

    for task in preparation_tasks(config, [spec], case.folder):
        execute_task(task, config, case.folder)
    monkeypatch.setattr(judged, "results_under", noted)
    with pytest.raises(KeyboardInterrupt):
        case.single()
    made = steps_made(monkeypatch, lambda _: None)
    record = case.single()
    assert (begun[2:], made) == ([begun[1]], [])
    assert len({result.variant.partition("@")[0] for result in record.attacked}) == 2
    shutil.rmtree(case.folder / "records" / spec.id)
    again = case.single()
    assert [one.metrics for one in again.attacked] == [one.metrics for one in record.attacked]


def test_damaged_models_and_references_are_made_again(whole: Case) -> None:
    cache = whole.config.cache_folder
    through = whole.single()
    shutil.rmtree(whole.folder / "records" / whole.spec.id)
    victims = [*cache.glob("models/full-*/model.safetensors"), *cache.glob("reference/*")]
    victims += cache.glob("models/base-*/model.safetensors")
    contents = [path.read_bytes() for path in victims]
    for path in victims:
        path.write_bytes(path.read_bytes()[:-4] + b"\x01\x02\x03\x04")
    workspace.clear_workspaces()
    drain()
    shown: list[str] = []
    record = whole.single(shown.append)
    assert without_times(record) == without_times(through)
    warned = [line for line in shown if line.startswith("warning: ")]
    assert len(warned) == len(victims)
    assert [path.read_bytes() for path in victims] == contents


class Clock:
    """Stands for the module `time`: it goes on when it is moved."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    time = monotonic


@pytest.mark.parametrize(
    ("epoch_seconds", "saves"),
    [(5.0, []), (3600.0, [2, 4, 6, 8]), (1000.0, [8])],
    ids=["seconds", "hours", "between"],
)
def test_checkpoints_are_written_where_they_cost_a_tenth_of_the_work(
    place: Path,  # noqa: F811
    epoch_seconds: float,
    saves: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """81 GB, for which 324 s are expected; they take 150 s."""
    config = config_of(place, epochs=5, epochs_as="runs")  # evaluated at the end alone
    *_, spec = runs_of(config)
    clock, written = Clock(), list[int]()
    for module in (checkpoint, trained, judged):
        monkeypatch.setattr(module, "time", clock)
    plain: Any = Trainer.epoch

    def epoch(self: Trainer, number: int) -> Any:
        yield from plain(self, number)
        clock.now += epoch_seconds

    def save(self: Trainer, path: Path) -> str:
        clock.now += 150.0
        written.append(self.step)
        path.write_bytes(b"")
        return file_hash(path)

    monkeypatch.setattr(Trainer, "epoch", epoch)
    monkeypatch.setattr(Trainer, "save", save)
    monkeypatch.setattr(Trainer, "size", Mock(return_value=81_000_000_000))
    memory = SimpleNamespace(available=100_000_000_000)  # no room for a copy
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    disk = SimpleNamespace(free=10**12)
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=disk))
    record = run_single(spec, config, place / "runs" / "small", lambda _: None)
    assert record.status == "finished"
    assert written == saves


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_disk_that_is_nearly_full_costs_checkpoints_and_not_the_run(
    whole: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = SimpleNamespace(free=1_000_000_000)
    monkeypatch.setattr(shutil, "disk_usage", Mock(return_value=disk))
    monkeypatch.setattr(Trainer, "size", Mock(return_value=400_000_000))
    shown: list[str] = []
    record = whole.single(shown.append)
    assert record.status == "finished"
    (line,) = (line for line in shown if line.startswith("warning: "))
    assert "left out: 1 GB are free, and 1.2 GB are needed; training continues" in line
    assert not whole.trainer.exists()


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_disk_that_fills_while_it_is_written_costs_no_result(
    whole: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of three epochs the second's checkpoint meets a full disk; then also the results do.

    Without its results the run could only go on for nothing, so it ends, and resumes with room.
    """
    plain = tensor_file.write_tensors

    def full(path: Path, tensors: Any, *rest: Any) -> str:
        if "00000004" not in path.name:
            return plain(path, tensors, *rest)
        path.write_bytes(b"what there was room for")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    going = whole.epochs()
    drain()
    monkeypatch.setattr(tensor_file, "write_tensors", full)
    first, second = next(going), next(going)
    (line,) = drain()
    assert line.startswith(f"{whole.trainer}: a checkpoint is left out: No space left on device; ")
    assert {path.name for path in whole.trainer.iterdir()} == {
        "trainer-00000002.json",
        "trainer-00000002.safetensors",
    }
    with monkeypatch.context() as patch:
        patch.setattr(run_state, "write_text", no_room)
        with pytest.raises(OSError, match="No space left on device"):
            next(going)
    resumed = whole.epochs()
    assert [first, second, *resumed] == [first, second, *whole.record.epochs]
    assert without_times(whole.record) == without_times(whole.through)


def test_a_file_may_be_no_larger_than_the_disk_lets_it(tmp_path: Path) -> None:
    """A real limit, of the kernel's, in a process of its own; the one before is left whole."""
    folder, warnings = tmp_path / "state", tmp_path / "warnings"
    folder.mkdir()
    assert wait([start(LIMITED, [str(folder)], output=warnings)]) == [0]
    assert warnings.read_text().count("a checkpoint is left out: File too large") == 1
    assert sorted(path.name for path in folder.iterdir()) == [
        "trainer-00000001.json",
        "trainer-00000001.safetensors",
    ]


LIMITED = """
import resource, signal, sys
from pathlib import Path
import torch
from unlearnbench.runs import checkpoints as checkpoint
from unlearnbench.runtime.deferred_warnings import drain
from unlearnbench.files.tensor_file import Snapshot

class Trainer:
    step = 1
    def size(self): return 1000
    def snapshot(self): return Snapshot({"weight": torch.ones(100_000 * self.step)}, {})

checkpoint.COST = 0.0
checkpoints, trainer = checkpoint.Checkpoints(Path(sys.argv[1])), Trainer()
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, 500_000))
for trainer.step in (1, 2, 3):
    checkpoints.epoch_ended(trainer, trainer.step, 1.0)
    checkpoints.wait()
print(*drain())
"""


class Hashed:
    """Counts what SHA-256 is computed of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.bytes = 0
        self.files = Counter[str]()
        made = hashlib.sha256

        def counting(content: Any = b"") -> Any:
            digest, plain = made(content), self

            class Digest:
                def update(self, more: Any) -> None:
                    plain.bytes += len(more)
                    digest.update(more)

                def hexdigest(self) -> str:
                    return digest.hexdigest()

            return Digest()

        def whole_file(path: Path) -> str:
            self.files[re.sub(r"^\.part-[0-9a-f]{8}-", "", path.name)] += 1
            return file_hash(path)

        fake = SimpleNamespace(sha256=counting)
        monkeypatch.setattr(tensor_file, "hashlib", fake)
        for module in ("runs.checkpoints", "results.remote_copies"):
            monkeypatch.setattr(f"unlearnbench.{module}.file_hash", whole_file)


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_every_byte_of_a_save_is_hashed_once(
    whole: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written to the disk and to a storage, after each of two epochs."""
    config = whole.config.model_copy(update={"storage": str(tmp_path / "stored")})
    hashed = Hashed(monkeypatch)
    interrupt(replace(whole, config=config), 2)
    sizes = {path.name: path.stat().st_size for path in whole.trainer.glob("*.safetensors")}
    assert len(sizes) == 2
    assert hashed.bytes == sum(sizes.values())
    assert hashed.files.keys().isdisjoint(sizes), "none is read again"
    stored = [path for path in (tmp_path / "stored").rglob("trainer-*.safetensors")]
    assert {path.name: path.stat().st_size for path in stored} == sizes


def test_the_last_save_is_waited_for_and_what_ended_it_is_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "COST", 0.0)
    begun: list[int] = []

    class Slow(Storage):
        def push(self, *_: Any, **__: Any) -> None:
            begun.append(len(begun))
            time.sleep(0.2)
            if len(begun) == 2:
                raise StorageError("storage s3://bucket: cannot write")

        def fetch(self, *_: Any, **__: Any) -> bool:
            return False

        def remove(self, *_: Any, **__: Any) -> None:
            begun.clear()

    class Small:
        step = 0

        def size(self) -> int:
            return 1000

        def snapshot(self) -> Any:
            self.step += 1
            return tensor_file.Snapshot({"weight": torch.ones(self.step)}, {})

    checkpoints, trainer = Checkpoints(tmp_path / "state", Slow(None, {})), Small()
    saved: Any = checkpoints.epoch_ended
    saved(trainer, 1, 1.0)
    assert checkpoints.seconds is None, "it is written while training goes on"
    saved(trainer, 2, 1.0)
    assert checkpoints.seconds is not None
    assert checkpoints.seconds >= 0.2
    with pytest.raises(StorageError, match="cannot write"):
        saved(trainer, 3, 1.0)
    checkpoints.remove()
    assert not begun
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("content", ["", "{}", '{"epoch": 1, "steps": [], "results": 3}'])
def test_a_state_that_cannot_be_read_begins_again(whole: Case, content: str) -> None:
    for folder in (whole.state, whole.trainer):
        folder.mkdir(parents=True)
    (whole.state / "state.json").write_text(content)
    (whole.trainer / "trainer-00000002.json").write_text(content)
    assert without_times(whole.single()) == without_times(whole.through)


@pytest.mark.parametrize("lora", [False, True], ids=["whole", "lora"])
@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_an_interrupted_preparation_goes_on_with_the_same_weights(
    place: Path,  # noqa: F811
    lora: bool,
) -> None:
    config = with_lora(config_of(place)) if lora else config_of(place)
    (settings,) = config.models
    how = settings.preparation.model_copy(update={"epochs": 3})
    settings = settings.model_copy(update={"preparation": how})
    data = load_benchmark(config.data, config.forget_fractions)
    models = ModelPreparer(ModelSources(settings, data, config.cache_folder))
    folder = models.sources.tuned_folder("full")
    shown: list[tuple[int, int]] = []
    models.ensure_prepared("base")
    models.prepare_tuned("full", lambda done, total: shown.append((done, total)))
    through = (folder / "model.safetensors").read_bytes()
    undisturbed_steps = list(shown)
    steps = shown[-1][1]
    each = steps // 3
    shutil.rmtree(folder)
    shown.clear()
    beside = folder.with_name(f".{folder.name}.training")

    def cut(done: int, total: int) -> None:
        shown.append((done, total))
        if done == 2 * each + 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        models.prepare_tuned("full", cut)
    assert len(list(beside.glob("*.safetensors"))) == 2
    begun = len(shown)
    models.prepare_tuned("full", lambda done, total: shown.append((done, total)))
    assert shown[begun:] == undisturbed_steps[2 * each :], "what is shown goes on as well"
    assert (folder / "model.safetensors").read_bytes() == through
    assert not beside.exists()


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from unlearnbench.files import tensor_file
from unlearnbench.runs import checkpoints as checkpoint
from unlearnbench.plan.run_spec import RunSpec
from unlearnbench.runs.run import run_single
from unlearnbench.config.schema import SweepConfig
from unlearnbench.runs.workspace import workspace

torch.set_num_threads(1)
which, folder = sys.argv[1], Path(sys.argv[3])
config = SweepConfig.model_validate_json(Path(sys.argv[2]).read_text())
checkpoint.COST = 0.0
ended, write = checkpoint.Checkpoints.epoch_ended, tensor_file.write_tensors

def epoch_ended(self, *arguments):
    ended(self, *arguments)
    self.wait()

def half(path, tensors, *rest):
    digest = write(path, tensors, *rest)
    if "00000004" in path.name:
        os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    return digest

checkpoint.Checkpoints.epoch_ended = epoch_ended
if which == "run":
    tensor_file.write_tensors = half
    run_single(RunSpec.model_validate_json(Path(sys.argv[4]).read_text()), config, folder, print)
else:
    def kill(done, _):
        if done == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
    workspace(config, folder).preparer("tiny").prepare_tuned("full", kill)
"""


def test_what_a_kill_cuts_ends_with_the_same_numbers(
    whole: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of a run while it writes its second checkpoint, and of a preparation in epoch 3."""
    (settings,) = whole.config.models
    how = settings.preparation.model_copy(update={"epochs": 3, "seed": 5})
    longer = settings.model_copy(update={"preparation": how})
    data = load_benchmark(whole.config.data, whole.config.forget_fractions)
    models = ModelPreparer(ModelSources(longer, data, whole.config.cache_folder))
    place_of, shown = models.sources.tuned_folder("full"), list[int]()
    models.prepare_tuned("full", lambda done, _: shown.append(done))
    weights = (place_of / "model.safetensors").read_bytes()
    shutil.rmtree(place_of)
    each = shown[-1] // 3
    files = {name: tmp_path / f"{name}.json" for name in ("config", "longer", "spec")}
    files["config"].write_text(whole.config.model_dump_json())
    changed = whole.config.model_copy(update={"models": (longer,)})
    files["longer"].write_text(changed.model_dump_json())
    files["spec"].write_text(whole.spec.model_dump_json())
    commands = (
        ("run", str(files["config"]), str(whole.folder), str(files["spec"])),
        ("model", str(files["longer"]), str(whole.folder), str(2 * each + 1)),
    )
    children = [start(KILLED, words) for words in commands]
    assert wait(children) == [-signal.SIGKILL] * 2
    cut, *saved = sorted(path.name for path in whole.trainer.iterdir())
    assert re.fullmatch(r"\.part-[0-9a-f]{8}-trainer-00000004\.safetensors", cut)
    assert saved == ["trainer-00000002.json", "trainer-00000002.safetensors"]
    made = steps_made(monkeypatch, lambda _: None)
    assert without_times(whole.single()) == without_times(whole.through)
    assert made == [3, 4, 5, 6], "from the checkpoint before the one that was cut"
    begun = len(shown)
    models.prepare_tuned("full", lambda done, _: shown.append(done))
    assert shown[begun:] == list(range(2 * each + 1, 3 * each + 1))
    assert (place_of / "model.safetensors").read_bytes() == weights
