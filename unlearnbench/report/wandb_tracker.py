"""Weights & Biases as a tracker: a W&B run for each record, in a group of the sweep's name.

`WANDB_MODE=offline` writes files and needs no account; `wandb sync` uploads them later. Runs have
the ids of their records, so that a run that is logged again replaces the earlier one.
"""

import importlib
import importlib.util
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from unlearnbench.api.tracker import SweepSummary, TrackedRun, TrackedSweep, Tracker
from unlearnbench.base.errors import PluginError

_ID_LENGTH = 8
"""Characters of the sweep's id that begin the id of a run. W&B ids must be unique in a project."""
_STEP_GROUPS = ("train/", "at_a_glance/loss")
"""Beginnings of metrics whose axis is the optimizer step. The axis of all others is the epoch."""


class WandbTracker(Tracker):
    """The runs of a sweep in a project of Weights & Biases."""

    @classmethod
    def check(cls) -> None:
        if importlib.util.find_spec("wandb") is None:
            raise PluginError(
                "tracking.tracker: wandb needs the package wandb: "
                "pip install 'unlearnbench[wandb]', or leave the key out for mlflow"
            )

    def __init__(self) -> None:
        self.check()
        # Imported here, in the sweep's thread: two threads that import at the same time can see
        # each other's half-imported modules.
        self._wandb: Any = importlib.import_module("wandb")
        self._links: dict[str, str | None] = {}

    def start(self, sweep: TrackedSweep) -> None:
        self._sweep = sweep
        config = {"configuration": sweep.configuration, **sweep.tags}
        self._whole: Any = self._run("sweep", sweep.title(), "sweep", config)
        self._whole.notes = sweep.description

    def log(self, run: TrackedRun) -> bool:
        config: dict[str, Any] = {**run.parameters, "tags": dict(run.tags)}
        if run.data is not None:
            config["data"] = run.data._asdict()
        with self._run(run.id, run.name, run.tags.get("kind", "run"), config) as logged:
            logged.define_metric("*", step_metric="epoch", step_sync=False)
            for group in ("train/*", "at_a_glance/loss"):
                logged.define_metric(group, step_metric="step", step_sync=False)
            for values in _lines(run):
                logged.log(values)
            self._log_answers(logged, run)
            logged.summary["status"] = run.status
            self._links[run.id] = logged.url
        # Whether an account has the run already is not known, so each run is logged again.
        return True

    def artefact(self, file: Path) -> None:
        self._whole.save(file, base_path=file.parent, policy="now")

    def summarize(self, summary: SweepSummary) -> None:
        self._whole.notes = summary.description
        self._whole.name = self._sweep.title(summary.averaged)
        for name, value in {**summary.metrics, **summary.tags}.items():
            self._whole.summary[name] = value

    def link(self, run: str | None = None) -> str | None:
        return self._links.get(run) if run else self._whole.url

    def finish(self, status: Literal["finished", "stopped"]) -> None:
        self._whole.finish(exit_code=0 if status == "finished" else 1)

    def _run(self, name: str, title: str, kind: str, config: Mapping[str, Any]) -> Any:
        """Begin a W&B run.

        Args:
            name: Id of the record, or `sweep`.
            title: Name for people.
            kind: `run`, `fine-tuned`, `retain` or `sweep`.
            config: Settings and tags.
        """
        return self._wandb.init(
            project=self._sweep.experiment,
            group=self._sweep.name,
            dir=self._sweep.uri or self._sweep.folder,
            id=f"{self._sweep.id[:_ID_LENGTH]}-{name}",
            name=title,
            job_type=kind,
            config=dict(config),
            # A run of the same id is overwritten, because its numbers may have changed.
            resume="allow" if kind == "sweep" else None,
            settings=self._wandb.Settings(silent=True),
            reinit="create_new",
        )

    def _log_answers(self, logged: Any, run: TrackedRun) -> None:
        """Log the table of answers, if texts are stored."""
        answers = None if run.answers is None else run.answers()
        if answers is not None and answers.rows:
            rows = [list(row) for row in answers.rows]
            table = self._wandb.Table(columns=list(answers.columns), data=rows)
            logged.log({"answers": table})


def _lines(run: TrackedRun) -> list[dict[str, float]]:
    """Collect the points of a run at each epoch and at each optimizer step.

    Returns:
        A dictionary for each epoch and each step, such as `{"epoch": 3, "forget/rouge": 0.4}`.
    """
    values_at: defaultdict[tuple[str, int], dict[str, float]] = defaultdict(dict)
    for point in run.points:
        axis = "step" if point.name.startswith(_STEP_GROUPS) else "epoch"
        values_at[axis, point.step][point.name] = point.value
    return [{axis: number, **values} for (axis, number), values in sorted(values_at.items())]
