"""A run that has not ended, as it is stored.

    state/<id>/epoch-<k>.safetensors   an evaluation, as in a record
    state/<id>/state.json              all other results, written last
    state/<id>-trainer/                the trainer, if a checkpoint is worth its time

Results are stored after every epoch. In a run by steps, they are also stored after each step that
is evaluated. A *moment* is the number of the epoch or, in a run by steps, the number of steps.

An interrupted run continues from the trainer's last checkpoint, with the results up to that moment.
A checkpoint is replaced if the work since the last one took more than `COST` times as long as a
save. The time of a save is measured, or estimated from the size for the first one. Therefore an
interruption costs at most the time of ten saves, or the current epoch. If the disk is full, a
checkpoint is left out. The run fails only if the results of an epoch find no room either.

A checkpoint has no random state: randomness in a step comes from the seed and the step's number.
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
"""Smallest ratio of the time of the work to the time of its checkpoint."""
BYTES_PER_SECOND = 250e6
"""Assumed speed of a save before one is measured. It is that of a network disk, because with too
high a speed checkpoints would be written too often."""
_STATE_FILE = "state.json"


class Checkpoints:
    """The newest checkpoint of one training, in a folder of its own.

    Attributes:
        folder: The folder.
        seconds: Seconds of the last save, with its copy elsewhere. None before the first save.
        epoch: Moment of the checkpoint. 0 if there is none.
    """

    def __init__(
        self, folder: Path, storage: Storage = NO_STORAGE, unit: Unit = Unit.EPOCH
    ) -> None:
        """Look at nothing yet.

        Args:
            folder: The folder, which need not exist.
            storage: Receives copies.
            unit: Unit of moments.
        """
        self.folder = folder
        self.seconds: float | None = None
        self.epoch = 0
        self._storage = storage
        self._unit = unit
        self._path = folder / "trainer.safetensors"
        self._seconds_of_work = 0.0
        """Seconds of work since the checkpoint."""

    def resumed(self, make: Callable[[], Trainer], most: int) -> tuple[Trainer, int]:
        """Return a trainer with the state of the checkpoint, or at its start. Collective.

        Args:
            make: Makes a trainer at its start. It is called twice if the checkpoint does not fit.
            most: Last moment that the checkpoint may be of.

        Returns:
            The trainer and its moment, which is 0 at the start.
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
        fits_in_all_processes = all(all_gather(fits))
        if fits_in_all_processes:
            self.epoch = trainer.done(self._unit)
            return trainer, self.epoch
        if is_main_process():
            warn_later(
                f"{self._path}: this checkpoint is damaged, of another version, or without the "
                f"results of its {self._unit}; the training begins again"
            )
            self._path.unlink(missing_ok=True)
        # Some of its weights may be loaded. It goes first, so that there is memory for a new one.
        del trainer
        return make(), 0

    def epoch_ended(self, trainer: Trainer, epoch: int, seconds: float) -> None:
        """Count the work of an epoch or step, and save the trainer if that pays. Collective.

        Args:
            trainer: The trainer.
            epoch: The moment.
            seconds: Seconds of the work since the last call.

        Raises:
            StorageError: The checkpoint cannot be copied elsewhere.
        """
        self._seconds_of_work += seconds
        size = trainer.size()
        if not broadcast_from_main(lambda: self._pays(size)):
            return
        self._seconds_of_work = 0.0
        if not is_main_process():
            # The main process gathers parts of the state from all processes, and writes.
            trainer.save(self._path)
            return
        begin = time.monotonic()
        try:
            # `save` waits until the bytes are on the disk.
            with atomic_path(self._path) as part:
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
        """Whether a checkpoint of `size` bytes pays. If so, its folder is made ready."""
        seconds_of_save = size / BYTES_PER_SECOND if self.seconds is None else self.seconds
        if self._seconds_of_work <= COST * seconds_of_save:
            return False
        self.folder.mkdir(parents=True, exist_ok=True)
        # A process that was killed may have left a part of a file.
        for part in self.folder.glob(f"{PART}*"):
            part.unlink()
        return True


@dataclass(frozen=True)
class RunState:
    """Results of a run up to a moment.

    Attributes:
        started: Seconds since 1970 at which the run began.
        epoch: The moment: last epoch, or number of steps.
        seconds: Seconds of training by moment, each since the moment before.
        steps: Results of all optimiser steps.
        results: Results of evaluations without an attack.
        attacked: Results of evaluations under attacks.
        evaluations: All evaluations by moment and variant. The variant is empty without an attack,
            as in `(5, "")`, and names the attack and its point otherwise: `(5, "relearning@13")`.
        rules_key: Key of the rules by which the results were computed. Empty if it is not known.
        unit: Unit of moments.
    """

    started: float = field(default_factory=time.time)
    epoch: int = 0
    seconds: Mapping[int, float] = field(default_factory=dict[int, float])
    steps: tuple[StepResult, ...] = ()
    results: tuple[EpochResult, ...] = ()
    attacked: tuple[EpochResult, ...] = ()
    evaluations: Mapping[tuple[int, str], Evaluation] = field(
        default_factory=dict[tuple[int, str], Evaluation]
    )
    rules_key: str = ""
    unit: Unit = Unit.EPOCH

    def up_to(self, epoch: int) -> RunState:
        """Return the state as it was at an earlier moment."""
        evaluations: dict[tuple[int, str], Evaluation] = {}
        for (moment, variant), evaluation in self.evaluations.items():
            if moment <= epoch:
                evaluations[moment, variant] = evaluation
        return replace(
            self,
            epoch=epoch,
            seconds={moment: spent for moment, spent in self.seconds.items() if moment <= epoch},
            steps=tuple(step for step in self.steps if step.moment(self.unit) <= epoch),
            results=tuple(result for result in self.results if result.epoch <= epoch),
            attacked=tuple(result for result in self.attacked if result.epoch <= epoch),
            evaluations=evaluations,
        )

    def seconds_between(self, first: int, last: int) -> float:
        """Return the seconds of training after one moment and up to another."""
        return sum(spent for moment, spent in self.seconds.items() if first < moment <= last)

    def evaluated(self, result: EpochResult, evaluation: Evaluation) -> RunState:
        """Return the state with one more result, under an attack or without one."""
        evaluations = {**self.evaluations, (result.epoch, result.variant): evaluation}
        if result.variant:
            return replace(self, evaluations=evaluations, attacked=(*self.attacked, result))
        return replace(self, evaluations=evaluations, results=(*self.results, result))

    def of_record(self) -> dict[str, Any]:
        """Return the fields of the run's record."""
        plain: dict[int, Evaluation] = {}
        attacked: dict[tuple[int, str], Evaluation] = {}
        for (moment, variant), evaluation in self.evaluations.items():
            if variant:
                attacked[moment, variant] = evaluation
            else:
                plain[moment] = evaluation
        return {
            "epochs": self.results,
            "steps": self.steps,
            "evaluations": plain,
            "attacked": self.attacked,
            "attacked_evaluations": attacked,
        }

    def save(
        self,
        folder: Path,
        stored: set[tuple[int, str]],
        kept: Callable[[Evaluation], Evaluation] = lambda evaluation: evaluation,
    ) -> None:
        """Store the state.

        Args:
            folder: The folder.
            stored: Keys of the evaluations that the folder has. New ones are added.
            kept: Returns an evaluation without the parts that are not stored, such as texts.

        Raises:
            OSError: The disk is full. The folder then has the state from before.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for key in self.evaluations.keys() - stored:
            write_observations(kept(self.evaluations[key]), folder / evaluation_name(*key))
            stored.add(key)
        values = dict(vars(self))
        del values["evaluations"]
        # Keys of a JSON object would be texts.
        values["seconds"] = [*self.seconds.items()]
        write_text(folder / _STATE_FILE, json.dumps(values, default=vars), durable=True)

    @classmethod
    def load(cls, folder: Path, unit: Unit = Unit.EPOCH) -> RunState:
        """Load the stored state of a run.

        Args:
            folder: The folder.
            unit: Unit of the run's moments.

        Returns:
            The state. If none is stored, or a damaged one, it is the state of a run that has not
            begun. A damaged state is warned of.
        """
        try:
            values = json.loads((folder / _STATE_FILE).read_text(encoding="utf-8"))
            values["steps"] = tuple(StepResult(**step) for step in values["steps"])
            for name in ("results", "attacked"):
                values[name] = tuple(EpochResult(**result) for result in values[name])
            values["seconds"] = _seconds_by_moment(values["seconds"])
            values["unit"] = unit
            evaluations: dict[tuple[int, str], Evaluation] = {}
            for result in (*values["results"], *values["attacked"]):
                key = (result.epoch, result.variant)
                evaluations[key] = read_observations(folder / evaluation_name(*key))
            return cls(**values, evaluations=evaluations)
        except FileNotFoundError:
            return cls(unit=unit)
        except (EvaluationError, ValueError, KeyError, TypeError, OSError) as error:
            warn_later(f"{folder}: these results are damaged ({error}); the run begins again")
            return cls(unit=unit)


def _seconds_by_moment(stored: Sequence[float | Sequence[float]]) -> dict[int, float]:
    """Return stored seconds of training by moment.

    Args:
        stored: Pairs of a moment and its seconds. Version 0.2 stored the seconds of each epoch,
            without its number.
    """
    by_moment: dict[int, float] = {}
    for epoch, entry in enumerate(stored, start=1):
        moment, spent = (epoch, entry) if isinstance(entry, int | float) else entry
        by_moment[int(moment)] = spent
    return by_moment


def state_folders(folder: Path, run: str) -> tuple[Path, Path]:
    """Return the folders of the results and of the trainer of a run that has not ended.

    Args:
        folder: The sweep's folder.
        run: Id of the run.
    """
    return folder / "state" / run, folder / "state" / f"{run}-trainer"


def remove_state(folder: Path, run: str, storage: Storage) -> None:
    """Remove both folders of a run, here and in the storage."""
    for path in state_folders(folder, run):
        shutil.rmtree(path, ignore_errors=True)
        storage.remove(path)
