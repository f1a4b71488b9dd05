"""Searches that learn from results: Optuna suggests settings, Tune runs them.

A study searches the settings of one method entry on one model and split. A setting is run on all
its seeds. When all of these runs have ended, Optuna gets the mean of their values after the last
epoch. A setting with a failed run has no value, and a setting with a collapsed run gets the worst
value so far.

All means are computed from numbers in the sweep's table. If the settings or the code of a metric
change during a search, numbers of two definitions would otherwise be compared.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from unlearnbench.base.hashing import content_hash
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.search import Metric, Range, SearchSettings, weighted
from unlearnbench.config.search_space import Point, Space
from unlearnbench.config.unit import budget_of_spec
from unlearnbench.results.finalize import finalize, table_of
from unlearnbench.results.records import Record, read_records
from unlearnbench.results.rules import named_metrics, rules_of
from unlearnbench.results.stored_table import read_table
from unlearnbench.results.table_records import with_numbers
from unlearnbench.sweep.follow_up_runs import FollowUpRuns, Study
from unlearnbench.sweep.sweep_state import SweepState

ATTEMPTS = 20
"""Suggestions of Optuna without a new setting, after which one is drawn at random."""


class Search:
    """The queue of runs, filled by Optuna's suggestions when a slot is free."""

    def __init__(
        self, follow_up: FollowUpRuns, planned: Sequence[RunSpec], state: SweepState
    ) -> None:
        self.follow_up = follow_up
        self.state = state
        self.runs = {run.id: run for run in planned}
        """Every run that has been in the queue, by its id."""
        self._queue = deque(planned)
        self._metrics = named_metrics(follow_up.config.model_dump(mode="json"))
        self._records: dict[str, Record] = {}
        """Records of runs by id, those of earlier commands too."""
        for record in read_records(follow_up.folder):
            if record.kind == "run":
                self._records[record.id] = record
        ended = self._ended_runs()
        settings = follow_up.config.search
        self.studies = [OptunaStudy(study, settings, ended) for study in follow_up.studies]
        self._placeholders = {
            id(study): deque(study.study.placeholders()) for study in self.studies
        }
        """By `id` of a study: a placeholder for each run that it will suggest."""

    @property
    def placeholders(self) -> list[RunSpec]:
        """Stand-ins for the runs that are not suggested yet, with the same cost."""
        return [run for of_study in self._placeholders.values() for run in of_study]

    def next(self) -> RunSpec | None:
        """Return the next run, or None at the end of the search."""
        while not self._queue:
            open_studies = [study for study in self.studies if study.study.left]
            if not open_studies:
                return None
            # The studies of a model and split take turns. While one of them waits for the others,
            # its own runs end, and its next suggestion can learn from them.
            place = open_studies[0].place
            current = [study for study in open_studies if study.place == place]
            self._suggest(max(current, key=lambda study: study.study.left))
        return self._queue.popleft()

    def _suggest(self, study: OptunaStudy) -> None:
        """Let a study suggest a setting, and queue the runs of it that have no record."""
        for run in self.follow_up.add(study.study, study.suggest()):
            placeholders = self._placeholders[id(study)]
            if placeholders:
                self.state.progress.forecast.replace(placeholders.popleft(), run)
            record = self._records.get(run.id)
            if record is not None:
                study.add_record(self._as_in_table(record))
            elif run.id not in self.runs:
                self.runs[run.id] = run
                self._queue.append(run)

    def add_record(self, record: Record) -> None:
        """Pass the record of a run that has ended to the studies."""
        self._records[record.id] = record
        current = self._as_in_table(record)
        for study in self.studies:
            study.add_record(current)

    def _as_in_table(self, record: Record) -> Record:
        """Return a record with the numbers that the table has for it."""
        compared = [other for other in self.state.references if other.panel == record.panel]
        table = table_of([*compared, record], self._metrics)
        (current,) = with_numbers([record], table)
        return current

    def _ended_runs(self) -> dict[str, Record]:
        """Return the plan's runs that earlier commands have recorded, with the table's numbers."""
        planned = {run.id for run in self.follow_up.current_plan().runs}
        ended = [
            record
            for id_, record in self._records.items()
            if id_ in planned and id_ not in self.runs
        ]
        records = [*self.state.references, *ended]
        known = read_table(self.follow_up.folder)
        table = finalize(records, rules_of(records, self._metrics), known)
        return {record.id: record for record in with_numbers(ended, table)}


class OptunaStudy:
    """A study in Optuna: the trials of earlier commands, then its own suggestions."""

    def __init__(
        self, study: Study, settings: SearchSettings, records: Mapping[str, Record]
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study = study
        self.metrics = settings.objectives(study.plan.config.headline)
        self.place = (study.model.name, study.fraction)
        self._axes = _distributions(study.space)
        # Both have an entry for each setting with a run that has not ended, by the setting's repr.
        self._trials: dict[str, Any] = {}
        """Trials of Optuna."""
        self._results: dict[str, dict[str, Record | None]] = {}
        """Records of the setting's runs by id; None for a run that has not ended."""
        self._worst: list[float] | None = None
        """Lowest value of each metric so far; None before the first value."""
        seed = content_hash([settings.seed, self.place, study.space.key, len(study.points)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                # TPE needs some trials to learn from: a third of them, and at most the usual ten,
                # are drawn at random.
                n_startup_trials=min(10, math.ceil(study.trials / 3)),
                multivariate=True,
                constant_liar=True,  # suggests nothing near the settings that are running
                seed=int(seed[:8], 16),
            )
        upwards = [optuna.study.StudyDirection.MAXIMIZE] * len(self.metrics)
        self.optuna = optuna.create_study(sampler=sampler, directions=upwards)
        for point in study.points:
            self._enqueue(point)
            for run in study.runs(point):
                if run.id in records:
                    self.add_record(records[run.id])

    def suggest(self) -> Point:
        """Suggest a new setting."""
        from optuna.trial import TrialState

        for _ in range(ATTEMPTS):
            trial = self.optuna.ask(self._axes)
            values: dict[str, Any] = {}
            for name, parameter in trial.params.items():
                values[name] = _value(self.study.space.axes[name], parameter)
            point = self.study.space.point(values)
            if point not in self.study.points:
                self._expect(point, trial)
                return point
            self.optuna.tell(trial, state=TrialState.FAIL)
        # All that Optuna suggests has been tried, which happens in small spaces.
        tried = self.study.points
        drawn = self.study.space.sample(len(tried) + 1, len(tried))
        point = next(point for point in drawn if point not in tried)
        self._enqueue(point)
        return point

    def _enqueue(self, point: Point) -> None:
        """Add a setting to the study that Optuna did not suggest."""
        values = self.study.space.values(point) or {}
        parameters: dict[str, Any] = {}
        for name, value in values.items():
            parameters[name] = _parameter(self.study.space.axes[name], value)
        self.optuna.enqueue_trial(parameters)
        self._expect(point, self.optuna.ask(self._axes))

    def _expect(self, point: Point, trial: Any) -> None:
        """Wait for the records of a setting's runs."""
        key = repr(point)
        self._trials[key] = trial
        self._results[key] = {run.id: None for run in self.study.runs(point)}

    def add_record(self, record: Record) -> None:
        """Add the record of a run. Tell Optuna the values of a setting when its runs have ended."""
        for key, records_by_run in list(self._results.items()):
            if record.id not in records_by_run:
                continue
            records_by_run[record.id] = record
            ended = [known for known in records_by_run.values() if known is not None]
            if len(ended) == len(records_by_run):
                del self._results[key]
                self._conclude(self._trials.pop(key), ended)

    def _conclude(self, trial: Any, records: Sequence[Record]) -> None:
        """Tell Optuna the values of a setting, or that it has none."""
        from optuna.trial import TrialState

        values = None
        has_failed = any(record.status == "failed" for record in records)
        if not has_failed:
            values = mean_values(records, self.metrics) or self._worst
        if values is None:
            self.optuna.tell(trial, state=TrialState.FAIL)
            return
        self._worst = [min(pair) for pair in zip(values, self._worst or values, strict=True)]
        self.optuna.tell(trial, values)


def mean_values(records: Sequence[Record], metrics: Sequence[Metric]) -> list[float] | None:
    """Return the values of a setting: the means over its seeds after the last epoch.

    Returns:
        A value for each metric, where higher is better. None if a run has collapsed, even if it had
        values before, or if a run lacks one of the metrics.
    """
    # With `epochs_as: runs` a seed has a run for each count of epochs or steps: the longest counts.
    longest = max(budget_of_spec(record.spec) for record in records)
    last = [record for record in records if budget_of_spec(record.spec) == longest]
    if any(record.status == "collapsed" or not record.epochs for record in last):
        return None
    values: list[float] = []
    for metric in metrics:
        by_seed: list[float] = []
        for record in last:
            value = weighted(metric, dict(record.epochs[-1].metrics))
            if value is None:
                return None
            by_seed.append(value)
        values.append(fmean(by_seed))
    return values


def _distributions(space: Space) -> dict[str, Any]:
    """Return the axes of a space as Optuna's distributions, by name.

    For a list of values and for a range with steps, Optuna chooses a position.
    """
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    distributions: dict[str, Any] = {}
    for name, axis in space.axes.items():
        if not isinstance(axis, Range):
            distributions[name] = CategoricalDistribution(tuple(range(len(axis))))
        elif axis.step is not None:
            distributions[name] = IntDistribution(0, (axis.count or 1) - 1)
        elif axis.whole:
            distributions[name] = IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        else:
            distributions[name] = FloatDistribution(axis.low, axis.high, log=axis.log)
    return distributions


def _value(axis: Any, parameter: Any) -> Any:
    """Convert Optuna's parameter to the axis's value."""
    if not isinstance(axis, Range):
        return axis[parameter]
    if axis.step is not None:
        return axis.at(parameter)
    return axis.clipped(parameter)


def _parameter(axis: Any, value: Any) -> Any:
    """Convert the axis's value to Optuna's parameter."""
    if not isinstance(axis, Range):
        return axis.index(value)
    return value if axis.step is None else axis.index(value)
