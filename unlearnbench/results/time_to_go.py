"""The order of runs, the work of a plan, its time on this machine, and what is left of a sweep.

At first a run's share of the work is guessed from its rows. Measured times replace the guess, first
for runs of the same kind, and through them for all others.

Before the first run, the time on the CPUs of this machine follows from a measurement of what a core
does with matrices of a model's widths. Of attacks the evaluations are counted, and not what they
train.
"""

import heapq
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import fmean

from unlearnbench.api.attack import SamplingAttack
from unlearnbench.api.benchmark import Dataset
from unlearnbench.api.method import Method
from unlearnbench.config.entries import attack_from_spec
from unlearnbench.config.method_specs import method_from_spec
from unlearnbench.config.plan import Plan, RunSpec
from unlearnbench.config.profiles import profile_of
from unlearnbench.config.resources import LOCAL_RUNS
from unlearnbench.config.schema import ModelSettings
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.models.loading import Source
from unlearnbench.results.model_shape import Shape, config_of, shape_of
from unlearnbench.results.run_estimate import effort_of, row_tokens
from unlearnbench.training.objective import Objective

Clock = Callable[[], float]
Kind = tuple[str | float, ...]

FORWARD_AND_BACK = 3.0
"""Cost of a trained row, in forward passes."""
SAMPLED = 8.0
"""Cost of an answer that is sampled token by token."""
NAMED = 0.1
"""Share of the rows that a named split forgets; its size is no part of a run's specification."""
EVALUATED = 1.0
"""Cost of an evaluation: about as many rows as the full set, scored and answered once."""
FACTOR = 2
"""The estimate may be off by this factor."""
_MEASURED = 0.3  # seconds of a measurement
_TOKENS = 1024  # of a pass of it: a batch of short rows
_WIDTH = 64  # tokens of a row, of which activations are counted that nobody reads here
_REACHED = 0.8  # share of the measured rate: attention, norms and the optimiser are no products
_SAMPLED_ALONE = 4.0  # cost of a token that is sampled alone, in tokens that are scored in a batch
_STARTED = 20.0  # seconds to start Ray and its processes, and to write the page
_LOADED = 3.5  # seconds of a run that are no work on tokens: the quickstart's on two cores


def cost(run: RunSpec) -> float:
    """Guess the work of a run, in passes over the full set, to order runs of one model."""
    trained, sampled = rows_per_item(run)
    split = run.forget_fraction
    share = NAMED if isinstance(split, str) else split
    training = share * (trained * FORWARD_AND_BACK + sampled * SAMPLED)
    return run.epochs * training + len(run.evaluate_at) * EVALUATED


def rows_per_item(run: RunSpec) -> tuple[int, int]:
    """Trained rows, and sampled answers, for each forget row; none of what trains nothing."""
    method = method_from_spec(run.method)
    if not isinstance(method, Method):
        return 0, 0
    needs = Objective(method, run.method.retain).needs
    sampled = needs.samples.count if needs.samples and "sample" in needs.parts else 0
    return needs.rows_per_item, sampled


def order_runs(models: Sequence[str], runs: Sequence[RunSpec]) -> list[RunSpec]:
    """Order runs by model, as in `models`, and longest first, so that no slot is idle at the end.

    One run of each kind comes before all others, so that the remaining time is known soon.
    """
    location = {name: index for index, name in enumerate(models)}
    longest = sorted(runs, key=lambda run: (location[run.model.name], -cost(run)))
    first, others, seen = list[RunSpec](), list[RunSpec](), set[Kind]()
    for run in longest:
        (others if _kinds(run)[0] in seen else first).append(run)
        seen.add(_kinds(run)[0])
    return sorted([*first, *others], key=lambda run: location[run.model.name])


class Forecast:
    """The remaining time of a sweep.

    runs     in the order in which they begin
    slots    number of concurrent runs
    """

    def __init__(self, runs: Sequence[RunSpec], slots: int, clock: Clock = time.monotonic) -> None:
        self._runs = {run.id: run for run in runs}
        self._slots, self._clock = slots, clock
        self._cost = {run.id: cost(run) / run.epochs for run in runs}
        """Cost of an epoch."""
        self._epoch = dict.fromkeys(self._runs, 0)
        self._since: dict[str, float] = {}
        """Time at which an active run began, or ended its latest epoch."""
        self._seen: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])
        """Seconds and their cost by kind of run, from the closest to the most general."""

    def learn(self, run: RunSpec, seconds: float) -> None:
        """Use the seconds of all epochs of `run`, which an earlier command has finished."""
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += cost(run)

    def begin(self, run: RunSpec) -> None:
        """Note that `run` begins, or continues after an interruption."""
        self._epoch[run.id], self._since[run.id] = 0, self._clock()

    def observe(self, run: RunSpec, epoch: int, seconds: float) -> None:
        """Note that `run` has ended `epoch`, `seconds` of work after its last observation."""
        key = run.id
        new = max(0, epoch - self._epoch.get(key, 0))
        for kind in _kinds(run):
            self._seen[kind][0] += seconds
            self._seen[kind][1] += new * self._cost.get(key, 0.0)
        self._epoch[key], self._since[key] = epoch, self._clock()

    def restart(self, run: RunSpec) -> None:
        """Note that `run` begins again."""
        self._epoch[run.id] = 0
        self._since.pop(run.id, None)

    def replace(self, placeholder: RunSpec, run: RunSpec) -> None:
        """Replace a placeholder by its actual run."""
        if self._runs.pop(placeholder.id, None) is not None:
            self._runs[run.id], self._epoch[run.id] = run, 0
            self._cost[run.id] = self._cost.pop(placeholder.id)

    def end(self, run: RunSpec) -> None:
        """Note that `run` has ended."""
        self._runs.pop(run.id, None)

    def to_go(self) -> float | None:
        """Seconds until the last run ends; None before the first epoch."""
        left = {key: self._left(key, run) for key, run in self._runs.items()}
        known = {key: seconds for key, seconds in left.items() if seconds is not None}
        if len(known) < len(left):
            return None
        # Active runs first; then each free slot takes the next.
        free = [0.0] * self._slots
        for key in sorted(known, key=lambda key: key not in self._since):
            heapq.heapreplace(free, free[0] + known[key])
        return max(free)

    def _left(self, key: str, run: RunSpec) -> float | None:
        for kind in _kinds(run):
            seconds, work = self._seen.get(kind, (0.0, 0.0))
            if work:
                each = seconds / work * self._cost[key]
                now = self._clock()
                passed = min(now - self._since.get(key, now), each)
                return max(0.0, each * (run.epochs - self._epoch[key]) - passed)
        return None


def _kinds(run: RunSpec) -> tuple[Kind, ...]:
    model, fraction = run.model.name, run.forget_fraction
    return (model, fraction, run.method.label), (model, fraction), (model,), ()


@dataclass(frozen=True)
class PlannedWork:
    """The work of a plan as counts, which do not depend on the machine."""

    runs: int
    optimiser_steps: int
    training_rows: int
    """Rows that go through the model forward and back: forget, retain and refusal parts."""
    evaluations: int
    evaluated_questions: int
    attacked_evaluations: int
    """Evaluations of the runs under attacks, of the sets that each attack is about.

    After the best epoch so far (`at: best`) as if each were the best.
    """


def count_work(plan: Plan, benchmark: Dataset) -> PlannedWork:
    """Count the work of a plan on the rows of its splits."""
    profile = profile_of(plan.config.evaluation)
    evaluated = {
        split: sum(map(len, evaluation_sets(benchmark, split, profile).values()))
        for split in benchmark.splits
    }
    steps = training_rows = evaluations = questions = attacked = 0
    for run in plan.runs:
        trained, _ = rows_per_item(run)
        if trained:
            schedule = run.schedule(len(benchmark.splits[run.forget_fraction].forget))
            steps += schedule.steps
            training_rows += schedule.rows_drawn * trained
        evaluations += len(run.evaluate_at)
        questions += len(run.evaluate_at) * evaluated[run.forget_fraction]
        for attack in map(attack_from_spec, run.attacks):
            times = 1 if attack.at == "last" else len(run.evaluate_at)
            attacked += len(attack.points()) * times
    return PlannedWork(len(plan.runs), steps, training_rows, evaluations, questions, attacked)


def machine_seconds(
    plan: Plan,
    benchmark: Dataset,
    runs: Sequence[RunSpec],
    prepared: Iterable[tuple[str, int, bool]],
) -> float:
    """Seconds of a sweep of `runs` on the CPUs of this machine, from its command to its end.

    prepared  models to train first: the name of their settings, their rows in all epochs, and
              whether all others wait for it

    Raises: ModelError where a model's shape is not known.
    """
    slots = min(plan.config.ray.concurrent or LOCAL_RUNS, os.cpu_count() or 1)
    before = 0.0
    first = {run.model.name: run for run in runs}
    for model, rows, alone in prepared:
        if model in first:
            run = first[model]
            weights, speed = _size_and_speed(run.model)
            seconds = _LOADED + 6 * weights * rows * _row_length(run, benchmark) / speed
            before += seconds if alone else seconds / slots
    for name, run in first.items():  # evaluations of the start model and the retain models
        weights, speed = _size_and_speed(run.model)
        splits = len({item.forget_fraction for item in runs if item.model.name == name})
        work = _evaluation(run, benchmark, weights) * (1 + _attacked(run, benchmark))
        before += 2 * splits * work / speed
    return _STARTED + before + sum(_run_seconds(run, benchmark) for run in runs) / slots


def _run_seconds(run: RunSpec, benchmark: Dataset) -> float:
    weights, speed = _size_and_speed(run.model)
    rows = len(benchmark.splits[run.forget_fraction].forget) * run.epochs
    each, sampled = rows_per_item(run)
    trains = isinstance(method_from_spec(run.method), Method)
    length = _row_length(run, benchmark) if trains else 0.0
    training = rows * length * weights * (6 * each + 2 * _SAMPLED_ALONE * sampled)
    times = len(run.evaluate_at) + _attacked(run, benchmark)
    evaluations = times * _evaluation(run, benchmark, weights)
    return _LOADED + (training + evaluations) / speed


def _evaluation(run: RunSpec, benchmark: Dataset, weights: int) -> float:
    """FLOP of one evaluation."""
    effort = effort_of(run, benchmark, 0.0, 0)
    # Most decoded tokens are verified drafts, and cost what scored ones do.
    return 2 * weights * (effort.scored + effort.answers * effort.decoded)


def _attacked(run: RunSpec, benchmark: Dataset) -> float:
    """The evaluations of a run under its attacks, as a number of whole plain evaluations."""
    result, roles = 0.0, run.data.roles
    sets = evaluation_sets(benchmark, run.forget_fraction, profile_of(run.evaluation))
    questions = sum(map(len, sets.values()))
    for attack in map(attack_from_spec, run.attacks):
        about = sum(len(its) for name, its in sets.items() if roles[name] in attack.roles)
        epochs = 1 if attack.at == "last" else len(run.evaluate_at)
        answers = attack.samples if isinstance(attack, SamplingAttack) else 1
        result += epochs * len(attack.points()) * answers * about / questions
    return result


def _row_length(run: RunSpec, benchmark: Dataset) -> float:
    """Mean tokens of a trained row."""
    split = benchmark.splits[run.forget_fraction]
    most = run.training.max_length
    return fmean(row_tokens(row, most)[0] for row in (*split.forget, *split.retain))


@lru_cache(maxsize=64)
def _shape(text: str) -> Shape:
    model = ModelSettings.model_validate_json(text)
    location = model.fine_tuned or model.base
    source = Source.parse(location, None if model.fine_tuned else model.revision)
    return shape_of(config_of(model, source), model, _all, autocast=False, width=_WIDTH)


def _all(_name: str, _layers: int) -> bool:
    return True


def weights_of(model: ModelSettings) -> int:
    """Weights of a model. Raises: ModelError where they are not known."""
    return _shape(model.model_dump_json(exclude={"preparation"})).weights


def _size_and_speed(model: ModelSettings) -> tuple[int, float]:
    """Weights that a token is multiplied with, and FLOP/s that a core reaches with them."""
    shape = _shape(model.model_dump_json(exclude={"preparation"}))
    return shape.matrices, _REACHED * measured_flops(shape.hidden, 4 * shape.hidden)


@lru_cache(maxsize=8)
def measured_flops(hidden: int, inner: int) -> float:
    """Measure the FLOP/s of one thread with matrices of a model's widths, forward and back."""
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        rows = torch.ones(_TOKENS, hidden)
        up = torch.ones(hidden, inner, requires_grad=True)
        down = torch.ones(inner, hidden, requires_grad=True)
        passes, begin = -1, time.perf_counter()
        while passes < 1 or time.perf_counter() - begin < _MEASURED:
            torch.autograd.grad(((rows @ up).relu() @ down).sum(), (up, down))
            passes += 1
            if not passes:  # the first allocates
                begin = time.perf_counter()
        spent = time.perf_counter() - begin
    finally:
        torch.set_num_threads(threads)
    # Two products forward, and for each two back, but none for the gradient of the rows.
    return passes * 10 * _TOKENS * hidden * inner / spent
