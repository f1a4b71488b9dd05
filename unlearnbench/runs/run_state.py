"""The state of a run that has not ended, stored after every epoch, which is the unit of restart.

    state/<id>/epoch-<k>.safetensors   an evaluation, as in a record
    state/<id>/state.json              all else, written last
    state/<id>-trainer/                its trainer, where that pays: `checkpoints`

An interrupted run goes on from its trainer's last checkpoint, with the state as it was then.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from unlearnbench.api.observations import Evaluation
from unlearnbench.base.atomic import write_text
from unlearnbench.base.deferred_warnings import warn_later
from unlearnbench.base.errors import EvaluationError
from unlearnbench.evaluation.observation_file import read_observations, write_observations
from unlearnbench.results.records import EpochResult, evaluation_name
from unlearnbench.results.remote_copies import Storage
from unlearnbench.training.objective import StepResult

_FILE = "state.json"


@dataclass(frozen=True)
class RunState:
    """State of a run after an epoch."""

    started: float = field(default_factory=time.time)
    epoch: int = 0
    """Last one that is trained."""
    seconds: tuple[float, ...] = ()
    """Seconds of training, by epoch."""
    steps: tuple[StepResult, ...] = ()
    results: tuple[EpochResult, ...] = ()
    attacked: tuple[EpochResult, ...] = ()
    evaluations: Mapping[tuple[int, str], Evaluation] = field(
        default_factory=dict[tuple[int, str], Evaluation]
    )
    """By epoch and variant, which is empty without an attack."""

    def up_to(self, epoch: int) -> RunState:
        """The state as it was after `epoch`."""
        return RunState(
            self.started,
            epoch,
            self.seconds[:epoch],
            tuple(step for step in self.steps if step.epoch <= epoch),
            tuple(result for result in self.results if result.epoch <= epoch),
            tuple(result for result in self.attacked if result.epoch <= epoch),
            {key: seen for key, seen in self.evaluations.items() if key[0] <= epoch},
        )

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

    def save(self, folder: Path, stored: set[tuple[int, str]]) -> None:
        """Store the state; a full disk raises OSError, and the state before stays.

        stored  evaluations that are in the folder; those that this call writes are added
        """
        folder.mkdir(parents=True, exist_ok=True)
        for key in self.evaluations.keys() - stored:
            write_observations(self.evaluations[key], folder / evaluation_name(*key))
            stored.add(key)
        values = {key: value for key, value in vars(self).items() if key != "evaluations"}
        write_text(folder / _FILE, json.dumps(values, default=vars), durable=True)

    @classmethod
    def load(cls, folder: Path) -> RunState:
        """The stored state; that of a run that has not begun where there is none, or a damaged one,
        with a warning.
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
            fields["seconds"] = tuple(values["seconds"])
            return cls(**fields)
        except FileNotFoundError:
            return cls()
        except (EvaluationError, ValueError, KeyError, TypeError, OSError) as error:
            warn_later(f"{folder}: these results are damaged ({error}); the run begins again")
            return cls()


def state_folders(folder: Path, run: str) -> tuple[Path, Path]:
    """Folders of the results and the trainer of a run until it ends, in a sweep's `folder`."""
    return folder / "state" / run, folder / "state" / f"{run}-trainer"


def remove_state(folder: Path, run: str, storage: Storage) -> None:
    """Remove both folders of a run, here and in the storage."""
    for path in state_folders(folder, run):
        shutil.rmtree(path, ignore_errors=True)
        storage.remove(path)
