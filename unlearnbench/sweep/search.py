"""Searches that learn from results: Optuna asks for settings, Tune runs them.

A setting is run on all its seeds, and the study hears of their mean after the last epoch. Failed
runs tell it nothing; collapsed ones count as the worst that was seen. Every study is of one method
entry on one model and forget fraction.
"""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from unlearnbench.ledger import Ledger
from unlearnbench.plan import RunSpec, content_hash
from unlearnbench.records import Record, read_records
from unlearnbench.searching import Metric, Range, SearchSettings, weighted
from unlearnbench.spaces import Point, Space
from unlearnbench.stages import Stages, Study

ATTEMPTS = 20
"""Times that Optuna is asked for a setting that was not tried yet, before one is drawn."""


class Search:
    """What is to run next, decided when a slot is free."""

    def __init__(self, stages: Stages, waiting: Sequence[RunSpec], ledger: Ledger) -> None:
        self.stages, self.ledger = stages, ledger
        self.runs = {run.id: run for run in waiting}
        """Every run that was decided on, by its id."""
        self._queue = deque(waiting)
        self._records = {r.id: r for r in read_records(stages.folder) if r.kind == "run"}
        known = {i: r for i, r in self._records.items() if i not in self.runs}
        how = stages.plan.config.search
        self.studies = [OpenStudy(study, how, known) for study in stages.studies]
        self._stand_ins = {id(one): deque(one.study.stand_ins()) for one in self.studies}
        self.total = len(waiting) + sum(len(many) for many in self._stand_ins.values())
        """How many runs there are at most."""

    @property
    def stand_ins(self) -> list[RunSpec]:
        """One for each run that is not decided on yet."""
        return [run for many in self._stand_ins.values() for run in many]

    def next(self) -> RunSpec | None:
        """The next run; None where there is no more."""
        while not self._queue:
            left = [one for one in self.studies if one.study.left]
            if not left:
                return None
            place = left[0].place
            # In turns: a study that has waited for the others knows more when it is asked again.
            self._ask(min((o for o in left if o.place == place), key=lambda o: -o.study.left))
        return self._queue.popleft()

    def _ask(self, one: OpenStudy) -> None:
        for run in self.stages.ask(one.study, one.ask()):
            stand_ins = self._stand_ins[id(one)]
            if stand_ins:
                self.ledger.progress.decided(stand_ins.popleft(), run)
            done = self._records.get(run.id)
            if done is not None:
                one.tell(done)
            elif run.id not in self.runs:
                self.runs[run.id] = run
                self._queue.append(run)

    def tell(self, record: Record) -> None:
        """A run has ended."""
        self._records[record.id] = record
        for one in self.studies:
            one.tell(record)


class OpenStudy:
    """A study in Optuna: its trials are those of earlier commands, then what it asks for."""

    def __init__(self, study: Study, how: SearchSettings, known: Mapping[str, Record]) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.study, self.metrics = study, how.metrics
        self.place = (study.model.name, study.fraction)
        self._axes = _distributions(study.space)
        self._trials: dict[str, Any] = {}
        self._results: dict[str, dict[str, Record | None]] = {}
        """Of settings that have not ended: the records of their runs, by id."""
        self._worst: list[float] | None = None
        seed = content_hash([how.seed, self.place, study.space.told, len(study.points)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                # A third at random, and no more than usual: TPE has nothing to learn from before.
                n_startup_trials=min(10, math.ceil(study.trials / 3)),
                multivariate=True,
                constant_liar=True,  # what is running is not asked for again
                seed=int(seed[:8], 16),
            )
        upwards = [optuna.study.StudyDirection.MAXIMIZE] * len(self.metrics)
        self._optuna = optuna.create_study(sampler=sampler, directions=upwards)
        for point in study.points:
            self._begin(point)
            for run in study.runs(point):
                if run.id in known:
                    self.tell(known[run.id])

    def ask(self) -> Point:
        """A setting that was not asked for before."""
        from optuna.trial import TrialState

        for _ in range(ATTEMPTS):
            trial = self._optuna.ask(self._axes)
            point = self.study.space.point(
                {k: _value(self.study.space.axes[k], v) for k, v in trial.params.items()}
            )
            if point not in self.study.points:
                self._expect(point, trial)
                return point
            self._optuna.tell(trial, state=TrialState.FAIL)
        tried = self.study.points
        drawn = self.study.space.sample(len(tried) + 1, len(tried))
        point = next(point for point in drawn if point not in tried)
        self._begin(point)
        return point

    def _begin(self, point: Point) -> None:
        """Make the study run a setting that it has not asked for."""
        values = self.study.space.values(point) or {}
        params = {k: _parameter(self.study.space.axes[k], v) for k, v in values.items()}
        self._optuna.enqueue_trial(params)
        self._expect(point, self._optuna.ask(self._axes))

    def _expect(self, point: Point, trial: Any) -> None:
        key = repr(point)
        self._trials[key] = trial
        self._results[key] = {run.id: None for run in self.study.runs(point)}

    def tell(self, record: Record) -> None:
        """A run has ended; the study hears of a setting when all its runs have."""
        for key, runs in list(self._results.items()):
            if record.id in runs:
                runs[record.id] = record
                ended = [one for one in runs.values() if one is not None]
                if len(ended) == len(runs):
                    del self._results[key]
                    self._conclude(self._trials.pop(key), ended)

    def _conclude(self, trial: Any, records: Sequence[Record]) -> None:
        from optuna.trial import TrialState

        values = None
        if not any(record.status == "failed" for record in records):
            values = mean_values(records, self.metrics) or self._worst
        if values is None:
            self._optuna.tell(trial, state=TrialState.FAIL)
            return
        self._worst = [min(pair) for pair in zip(values, self._worst or values, strict=True)]
        self._optuna.tell(trial, values)

    @property
    def told(self) -> list[tuple[str, list[float] | None]]:
        """State and values of the study's trials, in their order."""
        return [(trial.state.name, trial.values) for trial in self._optuna.trials]


def mean_values(records: Sequence[Record], metrics: Sequence[Metric]) -> list[float] | None:
    """What a setting is worth: means over its seeds after the last epoch; None where undefined.

    A collapsed run has no worth, whatever it had before.
    """
    # With `epochs_as: runs` a seed has a run for each count of epochs: the longest counts.
    longest = max(record.spec["epochs"] for record in records)
    last = [record for record in records if record.spec["epochs"] == longest]
    if any(record.status == "collapsed" or not record.epochs for record in last):
        return None
    values: list[float] = []
    for metric in metrics:
        found = [weighted(metric, dict(record.epochs[-1].metrics)) for record in last]
        known = [value for value in found if value is not None]
        if len(known) < len(found):
            return None
        values.append(fmean(known))
    return values


def _distributions(space: Space) -> dict[str, Any]:
    """The axes as Optuna's: what has steps, and what is a list, by its position in it."""
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    found: dict[str, Any] = {}
    for name, axis in space.axes.items():
        if not isinstance(axis, Range):
            found[name] = CategoricalDistribution(tuple(range(len(axis))))
        elif axis.step is not None:
            found[name] = IntDistribution(0, (axis.count or 1) - 1)
        elif axis.whole:
            found[name] = IntDistribution(int(axis.low), int(axis.high), log=axis.log)
        else:
            found[name] = FloatDistribution(axis.low, axis.high, log=axis.log)
    return found


def _value(axis: Any, parameter: Any) -> Any:
    """Optuna's parameter as the axis's value."""
    if not isinstance(axis, Range):
        return axis[parameter]
    if axis.step is not None:
        return axis.clipped(axis.low + axis.step * parameter)
    return axis.clipped(parameter)


def _parameter(axis: Any, value: Any) -> Any:
    """The axis's value as Optuna's parameter."""
    if not isinstance(axis, Range):
        return axis.index(value)
    return value if axis.step is None else round((value - axis.low) / axis.step)


def searcher(search: Search, parameters: Any) -> Any:
    """`search` as Tune asks for it."""
    from ray.tune.search import Searcher

    class Asked(Searcher):
        """Results come by the watcher's way, with their records."""

        def __reduce__(self) -> tuple[Any, ...]:
            # As with its callbacks: Tune stores it for a resumption, which is never asked of it.
            return Searcher, ()

        def suggest(self, trial_id: str) -> Any:  # noqa: ARG002
            run = search.next()
            return Searcher.FINISHED if run is None else {"run": parameters(run)}

        def on_trial_complete(
            self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
        ) -> None:
            pass

        def save(self, checkpoint_path: str) -> None:
            """Nothing: what was asked for is in the sweep's folder."""

        def restore(self, checkpoint_path: str) -> None:
            """Nothing: Tune resumes no sweep."""

    return Asked()
