"""What `select` and `tune` choose and report, recomputed in a plain way over random sweeps."""

from __future__ import annotations

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any, get_args

import pytest

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.choice_plan import ChoicePlan, PlannedRun
from unlearnbench.analysis.ended_early import early_ends
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.settings import average_seeds
from unlearnbench.config.search import RuleName, SelectSettings
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.training.step_result import StepResult

from .conftest import record as make_record

KEPT, FORGOTTEN = "model_utility", "log10_forget_quality"
START = (0.6, -12.0)
"""Kept and forgotten of the start model."""
SWEEPS = range(120)

Point = tuple[float | None, float | None]
"""Kept and forgotten after an epoch."""


@dataclass(frozen=True)
class Trial:
    """A setting that some entries try."""

    method: str
    beta: float
    rate: float
    panel: tuple[str, float]
    entries: Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Sweep:
    """A random sweep that chooses."""

    select: SelectSettings
    seeds: tuple[int, ...]
    is_searched: bool
    trials: tuple[Trial, ...]
    trial_of_run: Mapping[str, Trial]
    records: tuple[Record, ...]
    planned: frozenset[str]
    """Ids of the runs in the plan."""

    @property
    def reporting(self) -> list[int]:
        return [seed for seed in self.seeds if seed not in self.select.seeds]

    @property
    def runs(self) -> list[Record]:
        return [record for record in self.records if record.kind == "run"]

    def results(self) -> Results:
        """Results as they are read from a folder of this sweep."""
        planned = [
            PlannedRun(
                run.id,
                run.spec,
                {"entries": self.trial_of_run[run.id].entries}
                if run.seed in self.select.seeds
                else {"reports": []},
            )
            for run in self.runs
            if run.id in self.planned
        ]
        plan = ChoicePlan(self.select, self.seeds, tuple(planned), self.is_searched, name="random")
        return Results.of(
            self.records, name="random", planned=[run.id for run in planned], choice_plan=plan
        )


RULE_NAMES: tuple[RuleName, ...] = get_args(RuleName)


def random_sweep(number: int) -> Sweep:
    """A sweep with failed, stopped and collapsed runs, missing numbers and missing seeds."""
    rng = random.Random(number)
    seeds = tuple(range(rng.randint(2, 5)))
    select = SelectSettings(
        rule=rng.choice(RULE_NAMES),
        utility=rng.choice([0.5, 0.8, 0.95]),
        reference=rng.choice([None, None, (0.3, -11.0)]),
        seeds=tuple(rng.sample(seeds, rng.randint(1, len(seeds) - 1))),
    )
    epochs = rng.randint(1, 4)
    epochs_as_runs = rng.random() < 0.3
    is_searched = rng.random() < 0.6
    panels = [("tiny", 0.1), ("tiny", 0.05)][: rng.randint(1, 2)]
    trials: list[Trial] = []
    trial_of_run: dict[str, Trial] = {}
    records: list[Record] = []
    for panel in panels:
        trials += _trials(rng, panel, is_searched=is_searched)
        start = [{KEPT: START[0], FORGOTTEN: START[1]}]
        place = {"model": panel[0], "forget_fraction": panel[1]}
        records.append(make_record(f"start {panel[1]}", start, "fine-tuned", **place))
    planned: set[str] = set()
    for index, trial in enumerate(trials):
        is_run_on_all_seeds = rng.random() < 0.6
        for seed in seeds:
            for evaluated in _evaluations(epochs, as_runs=epochs_as_runs):
                run = _run(rng, trial, index, seed, evaluated)
                is_planned = seed in select.seeds or is_run_on_all_seeds
                # A run of an earlier plan is in the folder, and takes no part.
                if not is_planned and rng.random() < 0.5:
                    continue
                if is_planned:
                    planned.add(run.id)
                if seed not in select.seeds and rng.random() < 0.15:
                    continue  # it has not begun
                records.append(run)
                trial_of_run[run.id] = trial
    return Sweep(
        select,
        seeds,
        is_searched,
        tuple(trials),
        trial_of_run,
        tuple(rng.sample(records, len(records))),
        frozenset(planned),
    )


def _trials(rng: random.Random, panel: tuple[str, float], *, is_searched: bool) -> Iterator[Trial]:
    for method in ("npo", "ce-u+nll")[: rng.randint(1, 2)]:
        names = [method]
        if is_searched and rng.random() < 0.5:
            names = [f"{method} (entry 1)", f"{method} (entry 2)"]
        settings = list(itertools.product((0.1, 0.5), (1e-5, 1e-4, 1e-3)))
        for beta, rate in rng.sample(settings, rng.randint(1, 5)):
            entries: dict[str, Mapping[str, Any]] = {}
            # A setting may be a trial of both.
            for name in rng.sample(names, rng.randint(1, len(names))):
                entry: dict[str, Any] = {"position": {"learning_rate": rng.random()}}
                if rng.random() < 0.3:
                    entry["untuned"] = True
                entries[name] = entry
            yield Trial(method, beta, rate, panel, entries)


def _evaluations(epochs: int, *, as_runs: bool) -> list[list[int]]:
    every = list(range(1, epochs + 1))
    return [[epoch] for epoch in every] if as_runs else [every]


def _run(
    rng: random.Random, trial: Trial, index: int, seed: int, evaluated: Sequence[int]
) -> Record:
    points: dict[int, Point] = {
        # Few different values, so that epochs of a setting tie; two settings never do.
        epoch: (
            rng.choice([0.2, 0.45, 0.5, 0.6, 0.62]) + 1e-4 * index,
            rng.choice([-12.5, -9.0, -5.0, -2.0]),
        )
        for epoch in evaluated
    }
    ends = ["finished", "collapsed", "stopped", "failed", "patience"]
    (how,) = rng.choices(ends, [9, 1, 1, 1, 1])
    if how != "finished":
        last = rng.randint(0, len(evaluated) - 1)
        points = {epoch: points[epoch] for epoch in evaluated[:last]}
    if points and rng.random() < 0.1:
        points[max(points)] = rng.choice([(None, -1.0), (0.5, None), (None, None)])
    hyperparameters = {"beta": trial.beta}
    spec = {
        "method": {"name": trial.method, "hyperparameters": hyperparameters},
        "learning_rate": trial.rate,
        "forget_fraction": trial.panel[1],
        "epochs": evaluated[-1],
        "evaluate_at": list(evaluated),
        "seed": seed,
    }
    results = tuple(
        EpochResult(epoch, {KEPT: kept, FORGOTTEN: forgotten}, 1.0, 1.0)
        for epoch, (kept, forgotten) in points.items()
    )
    reported = {"tokens_read": float(rng.randint(1, 9)), "tokens_back": float(rng.randint(1, 9))}
    step = StepResult(1, 1, trial.rate, 1.0, {}, 1.0, reported)
    return make_record(
        f"{index}-{seed}-{evaluated[-1]}",
        [],
        model=trial.panel[0],
        forget_fraction=trial.panel[1],
        method=trial.method,
        learning_rate=trial.rate,
        seed=seed,
        spec=spec,
        epochs=results,
        steps=(step,),
        status="finished" if how == "patience" else how,
        ended="its patience" if how == "patience" else None,
    )


# A plain recomputation, by settings and seeds.


def numbers_at(runs: Iterable[Record], epoch: int) -> dict[int, Point]:
    """Kept and forgotten by seed of the runs that have a row at an epoch.

    A run that failed says nothing about its setting, also at epochs that it had reached.
    """
    found: dict[int, Point] = {}
    for run in runs:
        for result in run.epochs:
            if result.epoch == epoch and run.status != "failed":
                found[run.seed] = (result.metrics[KEPT], result.metrics[FORGOTTEN])
    return found


def means(points: Iterable[Point]) -> Point:
    """Means of both; None if one of them is missing, or if there are none."""
    known = list(points)
    if not known:
        return None, None
    kept, forgotten = zip(*known, strict=True)
    return (
        None if None in kept else fmean(kept),
        None if None in forgotten else fmean(forgotten),
    )


def area(points: Iterable[tuple[float, float]], corner: tuple[float, float]) -> float:
    """The union of the rectangles above a corner, counted cell by cell."""
    above = [(x, y) for x, y in points if x > corner[0] and y > corner[1]]
    xs = sorted({corner[0], *(x for x, _ in above)})
    ys = sorted({corner[1], *(y for _, y in above)})
    total = 0.0
    for x, next_x in itertools.pairwise(xs):
        for y, next_y in itertools.pairwise(ys):
            if any(px >= next_x and py >= next_y for px, py in above):
                total += (next_x - x) * (next_y - y)
    return total


@dataclass(frozen=True)
class Expected:
    """A choice, recomputed."""

    candidates: int
    trial: Trial | None = None
    epoch: int | None = None
    numbers: Point = (None, None)
    area: float | None = None


def expected_choice(
    sweep: Sweep, trials: Sequence[Trial], select: SelectSettings
) -> Expected | None:
    """The choice among some trials by the definition; None if none of them has a row."""
    runs_of = {
        index: [
            run
            for run in sweep.runs
            if run.id in sweep.planned
            and sweep.trial_of_run[run.id] is trial
            and run.seed in select.seeds
        ]
        for index, trial in enumerate(trials)
    }
    every_run = [run for runs in runs_of.values() for run in runs]
    if not any(run.epochs and run.status != "failed" for run in every_run):
        return None
    complete: dict[tuple[int, int], tuple[float, float]] = {}
    for index, runs in runs_of.items():
        for epoch in {result.epoch for run in runs for result in run.epochs}:
            points = numbers_at(runs, epoch)
            kept, forgotten = means(points.values())
            if set(points) == set(select.seeds) and kept is not None and forgotten is not None:
                complete[index, epoch] = kept, forgotten
    tried = len({index for index, _ in complete})
    if not complete:
        return Expected(0)
    if select.rule == "forget-quality":
        able = {
            key: point for key, point in complete.items() if point[0] >= select.utility * START[0]
        }
        if not able:
            return Expected(tried)
        index, epoch = max(able, key=lambda key: (able[key][1], able[key][0], -key[1]))
        return Expected(tried, trials[index], epoch, able[index, epoch])
    corner = select.reference or (0.0, START[1])
    areas = {
        index: area([point for (other, _), point in complete.items() if other == index], corner)
        for index, _ in complete
    }
    index, epoch = max(
        complete,
        key=lambda key: (
            areas[key[0]],
            area([complete[key]], corner),
            complete[key][1],
            complete[key][0],
            -key[1],
        ),
    )
    if areas[index] <= 0:
        return Expected(tried)
    return Expected(tried, trials[index], epoch, complete[index, epoch], areas[index])


def reported_numbers(sweep: Sweep, trial: Trial, epoch: int) -> dict[str, Any]:
    """What the reporting seeds have at an epoch, by the definition."""
    runs = [
        run
        for run in sweep.runs
        if run.id in sweep.planned
        and sweep.trial_of_run[run.id] is trial
        and run.seed in sweep.reporting
    ]
    points = numbers_at(runs, epoch)
    ended_early = any(
        (run.status in ("collapsed", "stopped") or run.ended)
        and run.seed not in points
        and epoch in run.spec["evaluate_at"]
        for run in runs
    )
    found: dict[str, Any] = {"seeds": sorted(points)}
    for place, column in enumerate((KEPT, FORGOTTEN)):
        values = [point[place] for point in points.values()]
        numbers = [value for value in values if value is not None]
        is_defined = bool(values) and len(numbers) == len(values) and not ended_early
        found[column] = {
            "mean": fmean(numbers) if is_defined else None,
            "standard_deviation": stdev(numbers) if is_defined and len(numbers) > 1 else None,
        }
    return found


def best_of(worths: Sequence[float]) -> list[float]:
    """The mean best of every subset of 1, 2, … trials."""
    return [
        fmean(max(subset) for subset in itertools.combinations(worths, count))
        for count in range(1, len(worths) + 1)
    ]


def trial_worths(sweep: Sweep, trials: Sequence[Trial]) -> list[float]:
    """What each trial has forgotten at its best epoch that keeps enough; the start's otherwise."""
    by_quality = sweep.select.model_copy(update={"rule": "forget-quality"})
    worths: list[float] = []
    for trial in trials:
        best = expected_choice(sweep, [trial], by_quality)
        has_best = best is not None and best.numbers[1] is not None
        worths.append(best.numbers[1] if has_best else START[1])  # type: ignore[union-attr,arg-type]
    return worths


def approx(value: Any) -> Any:
    """Compare numbers within rounding, in nested values."""
    if isinstance(value, Mapping):
        return {key: approx(item) for key, item in value.items()}
    return value if value is None or isinstance(value, str) else pytest.approx(value)


def entries_of(sweep: Sweep) -> dict[tuple[Any, ...], list[Trial]]:
    """Trials by panel, method and entry."""
    found: dict[tuple[Any, ...], list[Trial]] = defaultdict(list)
    for trial in sweep.trials:
        names = trial.entries if sweep.is_searched else [trial.method]
        for name in names:
            found[*trial.panel, trial.method, name].append(trial)
    return found


@pytest.mark.parametrize("number", SWEEPS)
def test_a_choice_is_that_of_the_definition(number: int) -> None:
    sweep = random_sweep(number)
    results = sweep.results()
    selection = results.selection
    assert selection is not None
    choices = {
        (choice["model"], choice["forget_fraction"], choice["method"], choice["entry"]): choice
        for choice in selection["choices"]
    }
    expected = {
        place: found
        for place, trials in entries_of(sweep).items()
        if (found := expected_choice(sweep, trials, sweep.select)) is not None
    }
    assert choices.keys() == expected.keys()
    assert selection["reported_on_seeds"] == sweep.reporting
    for place, choice in choices.items():
        wanted = expected[place]
        trials = entries_of(sweep)[place]
        assert choice["candidates"] == wanted.candidates
        assert bool(choice["why_not"]) is (wanted.trial is None)
        assert choice["epoch"] == wanted.epoch
        assert (choice[KEPT], choice[FORGOTTEN]) == approx(wanted.numbers)
        assert choice["hypervolume"] == approx(wanted.area)
        if wanted.trial is not None:
            assert wanted.epoch is not None
            assert choice["learning_rate"] == wanted.trial.rate
            assert choice["hyperparameters"]["beta"] == wanted.trial.beta
            assert choice["reported"] == approx(reported_numbers(sweep, wanted.trial, wanted.epoch))
        tuning = choice["tuning"]
        assert tuning["trials"] == len(trials)
        assert tuning["best_of"] == approx(best_of(trial_worths(sweep, trials)))
        ran = [
            run
            for run in sweep.runs
            if run.id in sweep.planned
            and sweep.trial_of_run[run.id] in trials
            and run.seed in sweep.select.seeds
        ]
        lost = {
            id(sweep.trial_of_run[run.id]) for run in ran if run.status in ("failed", "collapsed")
        }
        assert tuning["failed"] == len(lost)
        assert tuning["tokens_back"] == sum(run.steps[0].reported["tokens_back"] for run in ran)
        if wanted.trial is not None and sweep.is_searched:
            assert tuning["edges"] == wanted.trial.entries[place[-1]]["position"]


@pytest.mark.parametrize("number", SWEEPS)
def test_a_panel_shows_the_choices_and_nothing_else(number: int) -> None:
    sweep = random_sweep(number)
    results = sweep.results()
    expected = {
        place: found
        for place, trials in entries_of(sweep).items()
        if (found := expected_choice(sweep, trials, sweep.select)) is not None
    }
    shown = {
        (*best.panel, best.family, best.name): best
        for panel in results.panels
        for best in panel.best
    }
    assert shown.keys() >= expected.keys()
    for place, best in shown.items():
        # A method may have rows on the reporting seeds only.
        wanted = expected.get(place, Expected(0))
        if wanted.trial is None or wanted.epoch is None:
            assert best.setting is None
            assert best.why_not
            continue
        numbers = reported_numbers(sweep, wanted.trial, wanted.epoch)
        if best.setting is None:
            assert numbers["seeds"] == []
            assert best.why_not
            continue
        assert best.setting.epoch == wanted.epoch
        assert sorted(row.seed for row in best.setting.rows) == numbers["seeds"]
        kept, forgotten = numbers[KEPT]["mean"], numbers[FORGOTTEN]["mean"]
        assert (best.setting.kept, best.setting.forgotten) == approx((kept, forgotten))
        is_able = kept is not None and kept >= UTILITY_SHARE * START[0]
        assert (best.ranked is not None) is is_able
        assert bool(best.why_not) is not is_able
    for panel in results.panels:
        ranked = [best.ranked.forgotten for best in panel.best if best.ranked is not None]
        known = [-float("inf") if value is None else value for value in ranked]
        assert known == sorted(known, reverse=True)


@pytest.mark.parametrize("number", SWEEPS)
def test_no_seed_disappears_from_a_mean(number: int) -> None:
    """Means over all seeds of a setting, by the definition."""
    sweep = random_sweep(number)
    table = table_of(sweep.records)
    settings = average_seeds(table.rows, early_ends(sweep.records, table.rows))
    assert settings or not any(run.epochs and run.status != "failed" for run in sweep.runs)
    for setting in settings:
        trial = sweep.trial_of_run[setting.rows[0].run_id]
        runs = [run for run in sweep.runs if sweep.trial_of_run[run.id] is trial]
        points = numbers_at(runs, setting.epoch)
        lost = [
            run
            for run in runs
            if (run.status in ("collapsed", "stopped") or run.ended)
            and run.seed not in points
            and setting.epoch in run.spec["evaluate_at"]
        ]
        assert {row.seed for row in setting.rows} == points.keys()
        assert bool(setting.why_not) is bool(lost)
        assert all(f"seed {run.seed} " in setting.why_not for run in lost)
        wanted = (None, None) if lost else means(points.values())
        assert (setting.kept, setting.forgotten) == approx(wanted)
        if lost:
            assert setting.interval(KEPT) is None
            assert setting.spread(KEPT) is None
