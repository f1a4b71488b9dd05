"""Interrupted work: cut anywhere, or robbed of files, it ends with the same numbers; and what
checkpoints may cost."""

import errno
import os
import re
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors import safe_open
from transformers import AutoTokenizer

from tests.made_up_benchmarks import lume
from unlearnbench.base import tensor_file
from unlearnbench.base.deferred_warnings import drain
from unlearnbench.base.signals import Stopped
from unlearnbench.benchmarks.lume import LUME
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import LoRA, SweepConfig
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.tiny import build_model
from unlearnbench.results.records import EpochResult, Record, read_record
from unlearnbench.runs import checkpoints as checkpoint
from unlearnbench.runs import workspace
from unlearnbench.runs.model_sources import ModelSources
from unlearnbench.runs.prepared_models import ModelPreparer
from unlearnbench.runs.run import Run, run_epochs, run_single
from unlearnbench.training import trainer as trainer_module
from unlearnbench.training.trainer import Trainer

from ...forked import start, wait
from ..small_run import config_of, runs_of, without_times

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
        return checkpoint.state_folders(self.folder, self.spec.id)[0]

    @property
    def trainer(self) -> Path:
        return checkpoint.state_folders(self.folder, self.spec.id)[1]


@pytest.fixture(scope="module")
def undisturbed(
    prepared_folder: Path,
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
    plain: Any = Run._evaluate  # pyright: ignore[reportPrivateUsage]

    def evaluate(self: Run, model: Any, epoch: int, begin: float) -> Any:
        made.append(epoch)
        return plain(self, model, epoch, begin)

    monkeypatch.setattr(Run, "_evaluate", evaluate)
    return made


def epoch_stored(case: Case) -> int:
    """The epoch of the only file in the folder of the trainer."""
    (path,) = case.trainer.iterdir()
    with safe_open(path, framework="pt") as file:
        return int(file.metadata()["epochs"])


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
    plain: Any = Run._evaluate  # pyright: ignore[reportPrivateUsage]

    def evaluate(self: Run, model: Any, epoch: int, begin: float) -> Any:
        if epoch == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return plain(self, model, epoch, begin)

    with monkeypatch.context() as patch:
        patch.setattr(Run, "_evaluate", evaluate)
        with pytest.raises(Stopped):
            whole.single()
    assert epoch_stored(whole) == 1
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


@pytest.mark.parametrize("which", ["trainer", "epoch-1"])
@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_what_is_damaged_gives_way_to_what_was_before(whole: Case, which: str) -> None:
    drain()
    interrupt(whole, 2)
    (path,) = (whole.trainer if which == "trainer" else whole.state).glob(f"{which}.*")
    path.write_bytes(path.read_bytes()[:-20])
    assert [result.epoch for result in whole.epochs()] == [1, 2, 3]
    shown = drain()
    # Without its state, a run does not go on from the trainer's checkpoint.
    assert len(shown) == (1 if which == "trainer" else 2)
    assert all("damaged" in line for line in shown)
    assert without_times(whole.record) == without_times(whole.through)


@pytest.mark.parametrize(
    ("epoch_seconds", "saves"),
    [(5.0, []), (3600.0, [1, 2, 3, 4]), (1000.0, [4])],
    ids=["seconds", "hours", "between"],
)
def test_checkpoints_are_written_where_they_cost_a_tenth_of_the_work(
    tmp_path: Path, epoch_seconds: float, saves: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """81 GB, for which 324 s are expected; they take 150 s."""
    clock, written = [0.0], list[int]()
    monkeypatch.setattr(checkpoint, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    kept = checkpoint.Checkpoints(tmp_path / "trainer")
    for epoch in range(1, 5):

        def save(path: Path, epoch: int = epoch) -> None:
            clock[0] += 150.0
            written.append(epoch)
            path.write_bytes(b"")

        trainer: Any = SimpleNamespace(size=lambda: 81_000_000_000, save=save)
        kept.epoch_ended(trainer, epoch, epoch_seconds)
    assert written == saves


@pytest.mark.usefixtures("checkpoint_every_epoch")
def test_a_disk_that_fills_while_it_is_written_costs_no_result(
    whole: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three checkpoints meets a full disk; then also the results do.

    Without its results the run could only go on for nothing, so it ends, and resumes with room.
    """
    plain = tensor_file.write_tensors

    def full(path: Path, tensors: Any, whole: Any, metadata: Any) -> None:
        if metadata["epochs"] == "1":
            plain(path, tensors, whole, metadata)
            return
        path.write_bytes(b"what there was room for")
        raise OSError(errno.ENOSPC, "No space left on device", str(path))

    def no_room(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    going = whole.epochs()
    drain()
    monkeypatch.setattr(trainer_module, "write_tensors", full)
    first, second = next(going), next(going)
    (line,) = drain()
    assert line.startswith(f"{whole.trainer}: a checkpoint is left out: No space left on device; ")
    assert epoch_stored(whole) == 1
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "write_text", no_room)
        with pytest.raises(OSError, match="No space left on device"):
            next(going)
    resumed = whole.epochs()
    assert [first, second, *resumed] == [first, second, *whole.record.epochs]
    assert without_times(whole.record) == without_times(whole.through)


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from unlearnbench.training import trainer
from unlearnbench.runs import checkpoints as checkpoint
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.runs.run import run_single
from unlearnbench.config.schema import SweepConfig
from unlearnbench.runs.workspace import workspace

torch.set_num_threads(1)
which, folder = sys.argv[1], Path(sys.argv[3])
config = SweepConfig.model_validate_json(Path(sys.argv[2]).read_text())
checkpoint.COST = 0.0
write = trainer.write_tensors

def half(path, tensors, whole, metadata):
    write(path, tensors, whole, metadata)
    if metadata["epochs"] == "2":
        os.truncate(path, path.stat().st_size // 2)
        os.kill(os.getpid(), signal.SIGKILL)

if which == "run":
    trainer.write_tensors = half
    run_single(RunSpec.model_validate_json(Path(sys.argv[4]).read_text()), config, folder, print)
else:
    step = trainer.Trainer._step
    def killed(self, *arguments):
        if self.step == int(sys.argv[4]):
            os.kill(os.getpid(), signal.SIGKILL)
        return step(self, *arguments)
    trainer.Trainer._step = killed
    workspace(config, folder).preparer("tiny").prepare("full")
"""


def test_what_a_kill_cuts_ends_with_the_same_numbers(
    whole: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of a run while it writes its second checkpoint, and of a preparation in epoch 3."""
    (settings,) = whole.config.models
    how = settings.preparation.model_copy(update={"epochs": 3, "seed": 5})
    longer = settings.model_copy(update={"preparation": how})
    data = load_benchmark(whole.config.data, whole.config.split_keys)
    models = ModelPreparer(ModelSources(longer, data, whole.config.cache_folder))
    place_of, made = models.sources.folder("full"), steps_made(monkeypatch, lambda _: None)
    models.prepare("full")
    weights = (place_of / "model.safetensors").read_bytes()
    shutil.rmtree(place_of)
    each = made[-1] // 3
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
    assert re.fullmatch(r"\.part-[0-9a-f]{8}-trainer\.safetensors", cut)
    assert saved == ["trainer.safetensors"]
    made.clear()
    assert without_times(whole.single()) == without_times(whole.through)
    assert made == [3, 4, 5, 6], "from the checkpoint before the one that was cut"
    made.clear()
    models.prepare("full")
    assert made == list(range(2 * each + 1, 3 * each + 1))
    assert (place_of / "model.safetensors").read_bytes() == weights


def test_a_tiny_base_has_random_weights_where_a_benchmark_has_no_other_rows(tmp_path: Path) -> None:
    data = load_benchmark(LUME.model_validate(lume(tmp_path)), ("all",))
    (settings,) = config_of(tmp_path).models
    models = ModelPreparer(ModelSources(settings, data, tmp_path / "cache"))
    models.prepare("full")
    base = models.sources.folder("base")
    tokenizer: Any = AutoTokenizer.from_pretrained(base)
    expected = build_model(settings.architecture, tokenizer, settings.preparation.seed)
    with safe_open(base / "model.safetensors", framework="pt") as made:
        for name, weight in expected.named_parameters():
            assert torch.equal(made.get_tensor(name), weight)
