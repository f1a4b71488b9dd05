"""Searches that learn from results: Optuna suggests settings, Tune runs them.

A setting is run on all its seeds, and Optuna gets their mean after the last epoch. Failed runs give
it no value; collapsed ones count as the worst seen. Each study is of one method entry on one model
and split.

All means are of numbers in the sweep's table. A search that goes on after the settings or the code
of a metric have changed would otherwise compare numbers of two definitions.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from unlearnbench.base.hashing import content_hash
from unlearnbench.config.plan import RunSpec
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
        self.follow_up, self.state = follow_up, state
        self.runs = {run.id: run for run in planned}
        """Every run that has been in the queue, by its id."""
        self._queue = deque(planned)
        self._metrics = named_metrics(follow_up.config.model_dump(mode="json"))
        self._records = {r.id: r for r in read_records(follow_up.folder) if r.kind == "run"}
        ended = self._ended_runs()
        settings = follow_up.config.search
        self.studies = [OptunaStudy(study, settings, ended) for study in follow_up.studies]
        self._placeholders = {id(item): deque(item.study.placeholders()) for item in self.studies}
        self.total = len(planned) + len(self.placeholders)
        """Number of runs at most."""

    @property
    def placeholders(self) -> list[RunSpec]:
        """One for each run that is not suggested yet."""
        return [run for many in self._placeholders.values() for run in many]

    def next(self) -> RunSpec | None:
        """The next run; None at the end of the search."""
        while not self._queue:
            open_studies = [study for study in self.studies if study.study.left]
            if not open_studies:
                return None
            # In turns: a study that waits for the others gets the results of its own runs.
            current = [study for study in open_studies if study.place == open_studies[0].place]
            self._suggest(max(current, key=lambda item: item.study.left))
        return self._queue.popleft()

    def _suggest(self, study: OptunaStudy) -> None:
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
        headline = study.plan.config.headline
        self.study, self.metrics = study, settings.objectives(headline)
        self.place = (study.model.name, study.fraction)
        self._axes = _distributions(study.space)
        self._trials: dict[str, Any] = {}
        self._results: dict[str, dict[str, Record | None]] = {}
        """Settings with runs that have not ended: the records of their runs, by id."""
        self._worst: list[float] | None = None
        seed = content_hash([settings.seed, self.place, study.space.key, len(study.points)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                # A third at random, and no more than usual: TPE has nothing to learn from before.
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
            point = self.study.space.point(
                {k: _value(self.study.space.axes[k], v) for k, v in trial.params.items()}
            )
            if point not in self.study.points:
                self._expect(point, trial)
                return point
            self.optuna.tell(trial, state=TrialState.FAIL)
        tried = self.study.points
        drawn = self.study.space.sample(len(tried) + 1, len(tried))
        point = next(point for point in drawn if point not in tried)
        self._enqueue(point)
        return point

    def _enqueue(self, point: Point) -> None:
        """Add a setting to the study that Optuna did not suggest."""
        values = self.study.space.values(point) or {}
        params = {k: _parameter(self.study.space.axes[k], v) for k, v in values.items()}
        self.optuna.enqueue_trial(params)
        self._expect(point, self.optuna.ask(self._axes))

    def _expect(self, point: Point, trial: Any) -> None:
        key = repr(point)
        self._trials[key] = trial
        self._results[key] = {run.id: None for run in self.study.runs(point)}

    def add_record(self, record: Record) -> None:
        """Add the record of a run; Optuna gets the value of a setting whose runs have all ended."""
        for key, runs in list(self._results.items()):
            if record.id in runs:
                runs[record.id] = record
                ended = [run for run in runs.values() if run is not None]
                if len(ended) == len(runs):
                    del self._results[key]
                    self._conclude(self._trials.pop(key), ended)

    def _conclude(self, trial: Any, records: Sequence[Record]) -> None:
        from optuna.trial import TrialState

        values = None
        if not any(record.status == "failed" for record in records):
            values = mean_values(records, self.metrics) or self._worst
        if values is None:
            self.optuna.tell(trial, state=TrialState.FAIL)
            return
        self._worst = [min(pair) for pair in zip(values, self._worst or values, strict=True)]
        self.optuna.tell(trial, values)


def mean_values(records: Sequence[Record], metrics: Sequence[Metric]) -> list[float] | None:
    """The values of a setting: means over its seeds after the last epoch; None where undefined.

    They are undefined for a collapsed run, even if it had values before.
    """
    # With `epochs_as: runs` a seed has a run for each count of epochs or steps: the longest counts.
    longest = max(budget_of_spec(record.spec) for record in records)
    last = [record for record in records if budget_of_spec(record.spec) == longest]
    if any(record.status == "collapsed" or not record.epochs for record in last):
        return None
    values: list[float] = []
    for metric in metrics:
        result = [weighted(metric, dict(record.epochs[-1].metrics)) for record in last]
        known = [value for value in result if value is not None]
        if len(known) < len(result):
            return None
        values.append(fmean(known))
    return values


def _distributions(space: Space) -> dict[str, Any]:
    """The axes as Optuna's distributions; axes with steps and lists as positions."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    result: dict[str, Any] = {}
    for name, axis in space.axes.items():
        if not isinstance(axis, Range):
            result[name] = CategoricalDistribution(tuple(range(len(axis))))
        elif axis.step is not None:
            result[name] = IntDistribution(0, (axis.count or 1) - 1)
        elif axis.whole:
            result[name] = IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        else:
            result[name] = FloatDistribution(axis.low, axis.high, log=axis.log)
    return result


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
