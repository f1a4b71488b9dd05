"""A run that has not ended, as it is stored: its state after every epoch, its trainer if that pays.

A run by steps is stored at the end of each epoch, too, and after each step that is evaluated. Its
state then has the number of steps where that of a run by epochs has the number of epochs.

    state/<id>/epoch-<k>.safetensors   an evaluation, as in a record
    state/<id>/state.json              all else, written last
    state/<id>-trainer/                its trainer, where that pays

An interrupted run goes on from its trainer's last checkpoint, with the state as it was then. A
checkpoint is replaced after an epoch if the work since the last one took more than `COST` times as
long as a save, which is measured, or estimated from its size for the first one. So an interruption
costs at most the time of ten saves, or the current epoch. A full disk costs checkpoints, until the
results of an epoch find no room either. A checkpoint has no random state: randomness in a step
comes from the seed and the step's number.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from unlearnbench.api.observations import Evaluation
from unlearnbench.base.atomic import PART, atomic_path, write_text
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.distributed import all_gather, broadcast_from_main, is_main_process
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.results.records import EpochResult, evaluation_name
from unlearnbench.results.remote_copies import NO_STORAGE, Storage
from unlearnbench.training.step_result import StepResult
from unlearnbench.training.trainer import Trainer

COST = 10.0
"""Least ratio of the work's time to the time of its checkpoint."""
BYTES_PER_SECOND = 250e6
"""Rate of a save before one is measured: that of a network disk, to be on the safe side."""


class Checkpoints:
    """The newest checkpoint of one training, in a folder of its own."""

    def __init__(
        self, folder: Path, storage: Storage = NO_STORAGE, unit: Unit = Unit.EPOCH
    ) -> None:
        self.folder, self._storage, self._unit = folder, storage, unit
        self._path = folder / "trainer.safetensors"
        self.seconds: float | None = None
        """Seconds of the last save, with its copy elsewhere."""
        self.epoch = 0
        """Epoch, or step, of the checkpoint; 0 without one."""
        self._work = 0.0

    def resumed(self, make: Callable[[], Trainer], most: int) -> tuple[Trainer, int]:
        """Load the checkpoint, or begin; returns trainer and epoch, or step. Collective.

        Args:
            make: Makes a trainer at its start. Called again after a checkpoint that does not fit.
            most: Last epoch, or step, that the checkpoint may be of.
        """
        self._storage.fetch(self.folder, changes=True)
        trainer = make()
        if not broadcast_from_main(self._path.is_file):
            return trainer, 0
        try:
            trainer.load(self._path)
            fits = trainer.done(self._unit) <= most
        except (SafetensorError, ValueError, KeyError, TypeError, OSError):
            fits = False
        if all(all_gather(fits)):
            self.epoch = trainer.done(self._unit)
            return trainer, self.epoch
        if is_main_process():
            warn_later(
                f"{self._path}: this checkpoint is damaged, of another version, or without the "
                f"results of its {self._unit}; the training begins again"
            )
            self._path.unlink(missing_ok=True)
        del trainer  # its weights may be half loaded
        return make(), 0

    def epoch_ended(self, trainer: Trainer, epoch: int, seconds: float) -> None:
        """Count `seconds` of work, and save the trainer if they are worth it; collective.

        Raises: StorageError where it cannot be copied elsewhere.
        """
        self._work += seconds
        size = trainer.size()
        if not broadcast_from_main(lambda: self._pays(size)):
            return
        self._work = 0.0
        if not is_main_process():
            trainer.save(self._path)  # its part of what the main process writes
            return
        begin = time.monotonic()
        try:
            with atomic_path(self._path) as part:  # `save` forces it onto the disk
                trainer.save(part)
        except OSError as error:
            warn_later(
                f"{self.folder}: a checkpoint is left out: {error.strerror or error}; training "
                "continues, and after an interruption it begins again at the checkpoint before, or "
                "at its start"
            )
            return
        self.epoch = epoch
        self._storage.push(self.folder, changes=True)
        self.seconds = time.monotonic() - begin

    def remove(self) -> None:
        """Remove the checkpoint."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._storage.remove(self.folder)

    def _pays(self, size: int) -> bool:
        """True if a checkpoint of `size` bytes is worth its time; there is a folder for it then."""
        expected = size / BYTES_PER_SECOND if self.seconds is None else self.seconds
        if self._work <= COST * expected:
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        for part in self.folder.glob(f"{PART}*"):  # cut by a kill
            part.unlink()
        return True


_FILE = "state.json"


@dataclass(frozen=True)
class RunState:
    """State of a run after an epoch, or after a step."""

    started: float = field(default_factory=time.time)
    epoch: int = 0
    """Last one that is trained."""
    seconds: Mapping[int, float] = field(default_factory=dict[int, float])
    """Seconds of training since the state before, by epoch or step."""
    steps: tuple[StepResult, ...] = ()
    results: tuple[EpochResult, ...] = ()
    attacked: tuple[EpochResult, ...] = ()
    evaluations: Mapping[tuple[int, str], Evaluation] = field(
        default_factory=dict[tuple[int, str], Evaluation]
    )
    """By epoch and variant, which is empty without an attack."""
    rules_key: str = ""
    """Key of the rules by which the results were computed; empty if it is not known."""
    unit: Unit = Unit.EPOCH
    """What its moments are counted in."""

    def up_to(self, epoch: int) -> RunState:
        """The state as it was after `epoch`."""
        return RunState(
            self.started,
            epoch,
            {moment: spent for moment, spent in self.seconds.items() if moment <= epoch},
            tuple(step for step in self.steps if step.moment(self.unit) <= epoch),
            tuple(result for result in self.results if result.epoch <= epoch),
            tuple(result for result in self.attacked if result.epoch <= epoch),
            {key: seen for key, seen in self.evaluations.items() if key[0] <= epoch},
            self.rules_key,
            self.unit,
        )

    def seconds_between(self, first: int, last: int) -> float:
        """Return the seconds of training after one moment and up to another."""
        return sum(spent for moment, spent in self.seconds.items() if first < moment <= last)

    def evaluated(self, result: EpochResult, evaluation: Evaluation) -> RunState:
        """The state with a result, under an attack or without one."""
        seen = {**self.evaluations, (result.epoch, result.variant): evaluation}
        if result.variant:
            return replace(self, evaluations=seen, attacked=(*self.attacked, result))
        return replace(self, evaluations=seen, results=(*self.results, result))

    def of_record(self) -> dict[str, Any]:
        """The fields of the run's record."""
        seen = self.evaluations.items()
        return {
            "epochs": self.results,
            "steps": self.steps,
            "evaluations": {epoch: item for (epoch, variant), item in seen if not variant},
            "attacked": self.attacked,
            "attacked_evaluations": {key: item for key, item in seen if key[1]},
        }

    def save(
        self,
        folder: Path,
        stored: set[tuple[int, str]],
        kept: Callable[[Evaluation], Evaluation] = lambda evaluation: evaluation,
    ) -> None:
        """Store the state; a full disk raises OSError, and the state before stays.

        stored  evaluations that are in the folder; those that this call writes are added
        kept    returns what is stored of an evaluation
        """
        folder.mkdir(parents=True, exist_ok=True)
        for key in self.evaluations.keys() - stored:
            write_observations(kept(self.evaluations[key]), folder / evaluation_name(*key))
            stored.add(key)
        values = {key: value for key, value in vars(self).items() if key != "evaluations"}
        values["seconds"] = [*self.seconds.items()]
        write_text(folder / _FILE, json.dumps(values, default=vars), durable=True)

    @classmethod
    def load(cls, folder: Path, unit: Unit = Unit.EPOCH) -> RunState:
        """Return the stored state of a run whose moments are counted in `unit`.

        Without one, or with a damaged one and a warning, it is that of a run that has not begun.
        """
        try:
            values = json.loads((folder / _FILE).read_text(encoding="utf-8"))
            values["steps"] = tuple(StepResult(**step) for step in values["steps"])
            for name in ("results", "attacked"):
                values[name] = tuple(EpochResult(**result) for result in values[name])
            keys = [
                (value.epoch, value.variant) for value in values["results"] + values["attacked"]
            ]
            seen = {key: read_observations(folder / evaluation_name(*key)) for key in keys}
            fields: dict[str, Any] = values | {"evaluations": seen}
            fields["seconds"] = _seconds_by_moment(values["seconds"])
            fields["unit"] = unit
            return cls(**fields)
        except FileNotFoundError:
            return cls(unit=unit)
        except (EvaluationError, ValueError, KeyError, TypeError, OSError) as error:
            warn_later(f"{folder}: these results are damaged ({error}); the run begins again")
            return cls(unit=unit)


def _seconds_by_moment(stored: Sequence[float | Sequence[float]]) -> dict[int, float]:
    """Return stored seconds of training by epoch or step."""
    by_moment: dict[int, float] = {}
    for place, entry in enumerate(stored, start=1):
        # Version 0.2 stored the seconds of each epoch, without its number.
        moment, spent = (place, entry) if isinstance(entry, int | float) else entry
        by_moment[int(moment)] = spent
    return by_moment


def state_folders(folder: Path, run: str) -> tuple[Path, Path]:
    """Folders of the results and the trainer of a run until it ends, in a sweep's `folder`."""
    return folder / "state" / run, folder / "state" / f"{run}-trainer"


def remove_state(folder: Path, run: str, storage: Storage) -> None:
    """Remove both folders of a run, here and in the storage."""
    for path in state_folders(folder, run):
        shutil.rmtree(path, ignore_errors=True)
        storage.remove(path)
