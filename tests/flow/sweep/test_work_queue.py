"""The order of tasks and runs: a run begins as soon as it has what it needs, the longest first."""

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast

import pytest

from unlearnbench.api.benchmark import SplitKey, split_name
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings, SweepConfig
from unlearnbench.results.time_to_go import order_runs
from unlearnbench.sweep.early_bases import EarlyBases
from unlearnbench.sweep.preparation import Preparation
from unlearnbench.sweep.work_queue import Pause, PlannedRuns, WorkQueue

SPLITS = (0.1, 0.2)
MODELS = ("one", "two")


def runs_of(models: Sequence[str] = MODELS) -> list[RunSpec]:
    config = SweepConfig(
        name="small",
        models=tuple(ModelSettings(name=name, base="tiny") for name in models),
        forget_fractions=SPLITS,
        methods=tuple(MethodGrid(specs=(method_spec(name, {}),)) for name in ("npo", "ce-u")),
        learning_rates=(1e-5,),
        epochs=2,
    )
    return order_runs(models, make_plan(config, "data").runs)


def tasks_of(
    models: Sequence[str] = MODELS, *, attack: str = "", done: Callable[[str], bool] | None = None
) -> list[PreparationTask]:
    """What `preparation_tasks` returns: a base, a start model, and for each split the rest."""
    tasks: list[PreparationTask] = []

    def add(model: str, target: str, after: Sequence[str], **more: Any) -> str:
        task = PreparationTask("", tuple(after), model, target, **more)
        is_done = done is not None and done(task.id)
        tasks.append(replace(task, label=task.id, done=is_done))
        return task.id

    for model in models:
        base = add(model, "base", (), rows=100)
        start = add(model, "full", (base,), rows=80)
        for split in SPLITS:
            name = split_name("retain", split)
            retain = add(model, name, (base,), rows=70)
            evaluated = add(model, name, (retain,), fraction=split)
            ahead = add(model, "full", (start,), fraction=split, is_ahead=True)
            compared = add(model, "full", (start, evaluated, ahead), fraction=split)
            if attack:
                of_retain = add(model, name, (evaluated, compared), fraction=split, attack=attack)
                add(model, "full", (compared, of_retain), fraction=split, attack=attack)
    return tasks


class Progress:
    def __init__(self) -> None:
        self.lines: list[str] = []

    def preparing(self, labels: Sequence[str]) -> None:
        self.lines += [f"preparing {label}" for label in labels]

    def prepared(self, label: str, _seconds: float) -> None:
        self.lines.append(f"prepared {label}")


class State:
    def __init__(self) -> None:
        self.progress = Progress()


class Checks:
    """Judges start models by name, and writes down what it is asked."""

    def __init__(self, events: list[str], failing: Sequence[tuple[str, SplitKey]] = ()) -> None:
        self.events = events
        self.failing = failing
        self.have_failed = False

    def judge(self, panels: Sequence[tuple[str, SplitKey]]) -> None:
        self.events += [f"judged {model}@{split}" for model, split in panels]
        self.have_failed |= any(panel in self.failing for panel in panels)

    def track(self, panels: Sequence[tuple[str, SplitKey]]) -> None:
        self.events += [f"complete {model}@{split}" for model, split in panels]

    def stop(self) -> None:
        raise UnlearnbenchError("nothing was swept")


class Machine:
    """Slots that do the work of a queue, in an order that a seed decides."""

    def __init__(
        self,
        tasks: Sequence[PreparationTask],
        runs: Sequence[RunSpec],
        slots: int,
        *,
        failing: Sequence[tuple[str, SplitKey]] = (),
        **more: Any,
    ) -> None:
        self.events: list[str] = []
        self.state = State()
        self.checks = Checks(self.events, failing)
        self.preparation = Preparation(
            tasks, runs, cast("Any", self.state), cast("Any", self.checks), **more
        )
        planned = PlannedRuns(runs, self.preparation)
        self.queue = WorkQueue(
            self.preparation, planned.next, lambda: self.events.append("begin"), slots
        )
        self.slots = slots
        self.at_work: dict[str, PreparationTask | RunSpec] = {}
        self.number = 0

    def fill(self) -> bool:
        """Give work to the slots that are free; returns whether there may be more later."""
        while len(self.at_work) < self.slots:
            self.number += 1
            trial = str(self.number)
            work = self.queue.next(trial)
            if work is None:
                return False
            if isinstance(work, Pause):
                return True
            name = work.id if isinstance(work, PreparationTask) else name_of(work)
            self.events.append(f"begin {name}")
            self.at_work[trial] = work
        return True

    def end(self, trial: str) -> None:
        work = self.at_work.pop(trial)
        self.queue.ended(trial)
        if isinstance(work, PreparationTask):
            self.preparation.ended(work.id, 1.0)
            self.events.append(f"end {work.id}")
        else:
            self.events.append(f"end {name_of(work)}")

    def run(self, seed: int | None = 0) -> list[str]:
        """Do all work; without a seed, what has begun first ends first."""
        choice = random.Random(seed)
        while self.fill() or self.at_work:
            assert self.at_work, "nobody works, and there is work left"
            trials = [*self.at_work]
            self.end(trials[0] if seed is None else choice.choice(trials))
        return self.events


def name_of(run: RunSpec) -> str:
    return f"run {run.method.name} {run.model.name}@{run.forget_fraction}"


def place(events: Sequence[str], begin: str) -> int:
    return next(number for number, event in enumerate(events) if event.startswith(begin))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("slots", [1, 2, 3, 8])
def test_a_run_waits_for_all_that_it_needs_and_for_nothing_else(slots: int, seed: int) -> None:
    tasks = tasks_of(attack="noise")
    random.Random(seed).shuffle(tasks)
    events = Machine(tasks, runs_of(), slots).run(seed)
    for task in tasks:
        for earlier in task.after:
            assert events.index(f"end {earlier}") < events.index(f"begin {task.id}")
    for run in runs_of():
        begin = events.index(f"begin {name_of(run)}")
        assert f"end {name_of(run)}" in events
        model, split = run.model.name, run.forget_fraction
        retain = split_name("retain", split)
        for needed in (
            f"end {model}/base",
            f"end {model}/full",
            f"end {model}/{retain}",
            f"end {model}/{retain}@{split}",
            f"end {model}/full@{split} ahead",
            f"end {model}/full@{split}",
            f"end {model}/{retain}@{split} under noise",
            f"end {model}/full@{split} under noise",
            f"judged {model}@{split}",
            f"complete {model}@{split}",
        ):
            assert events.index(needed) < begin, needed
    assert events.index("begin") == place(events, "begin run") - 1


@pytest.mark.parametrize("slots", [2, 3])
def test_runs_of_a_model_begin_while_another_model_is_prepared(slots: int) -> None:
    events = Machine(tasks_of(attack="noise"), runs_of(), slots).run(seed=None)
    # The last task of the first model leaves a slot free, and no other task has to end before.
    begin = place(events, "begin run npo one")
    assert begin < events.index("begin two/full@0.1")
    assert begin < events.index("end two/full@0.1")
    assert place(events, "begin run ce-u one") < events.index("end two/full@0.2 under noise")


def test_the_longest_comes_first_among_what_can_begin() -> None:
    tasks = [
        PreparationTask("", (), "one", "full", 0.1, "noise"),
        PreparationTask("", (), "one", "full", 0.1),
        PreparationTask("", (), "one", "retain80", rows=80),
        PreparationTask("", (), "one", "retain90", rows=90),
    ]
    runs = runs_of(["one"])
    events = Machine(tasks, runs, 1).run()
    begun = [event.removeprefix("begin ") for event in events if event.startswith("begin ")]
    assert begun == [
        *("one/retain90", "one/retain80", "one/full@0.1", "one/full@0.1 under noise"),
        *map(name_of, runs),
    ]


def test_one_slot_of_two_is_left_to_runs_while_models_are_prepared() -> None:
    ready = tasks_of(done=lambda task: task.startswith("one/"))
    machine = Machine(ready, runs_of(), 2)
    machine.fill()
    assert [type(work).__name__ for work in machine.at_work.values()] == [
        "RunSpec",
        "PreparationTask",
    ]
    first_run, first_task = machine.at_work
    machine.end(first_task)
    machine.fill()
    assert [type(work).__name__ for work in machine.at_work.values()] == [
        "RunSpec",
        "PreparationTask",
    ]
    machine.end(first_run)
    machine.fill()
    assert isinstance([*machine.at_work.values()][-1], RunSpec)


def test_a_slot_that_pauses_is_called_when_there_is_work_and_only_once() -> None:
    machine = Machine(tasks_of(["one"]), runs_of(["one"]), 3)
    assert machine.fill()
    assert [work.id for work in machine.at_work.values()] == ["one/base"]
    assert not machine.queue.has_work()
    machine.end("1")
    machine.preparation.advance()
    assert machine.queue.has_work()
    assert not machine.queue.has_work(), "the first one has been called, and has not come yet"
    machine.fill()
    assert {work.id for work in machine.at_work.values()} == {
        *("one/full", "one/retain90", "one/retain80")
    }


@pytest.mark.parametrize("slots", [1, 2, 4])
def test_no_run_begins_after_a_start_model_has_failed(slots: int) -> None:
    failing = [("two", 0.1), ("two", 0.2)]
    machine = Machine(tasks_of(attack="noise"), runs_of(), slots, failing=failing)
    with pytest.raises(UnlearnbenchError, match="nothing was swept"):
        machine.run()
    judged = [event for event in machine.events if event.startswith("judged")]
    assert len(judged) == 4, "all that fail are named"
    first = min(machine.events.index(f"judged {model}@{split}") for model, split in failing)
    assert not [text for text in machine.events[first:] if text.startswith("begin run")]
    assert not [text for text in machine.events if text.startswith("begin run") and "two" in text]


def test_runs_in_sequence_wait_for_all_splits_of_their_model() -> None:
    events = Machine(tasks_of(), runs_of(), 2, in_sequence=True).run()
    for model in MODELS:
        first = place(events, f"begin run npo {model}")
        assert all(events.index(f"complete {model}@{split}") < first for split in SPLITS)


def test_without_evaluations_runs_wait_for_the_models() -> None:
    tasks = [
        PreparationTask("", (), "one", "base"),
        PreparationTask("", ("one/base",), "one", "full"),
        PreparationTask("", (), "two", "base"),
    ]
    events = Machine(tasks, runs_of(), 2).run()
    assert events.index("end one/full") < place(events, "begin run npo one")
    assert events.index("end two/base") < place(events, "begin run npo two")


def test_a_task_is_tried_again_only_if_that_may_help() -> None:
    machine = Machine(tasks_of(["one"]), runs_of(["one"]), 1, retries=1)
    for attempt in (1, 2):
        machine.fill()
        machine.preparation.failed("one/base", "the disk is away", is_transient=True)
        machine.at_work.clear()
        if attempt == 1:
            machine.preparation.advance()
    with pytest.raises(UnlearnbenchError, match=r"^one/base: the disk is away; fix that and run"):
        machine.preparation.advance()

    machine = Machine(tasks_of(["one"]), runs_of(["one"]), 1, retries=1)
    machine.fill()
    machine.preparation.failed("one/base", "no tokenizer")
    with pytest.raises(UnlearnbenchError, match=r"^one/base: no tokenizer; fix that and run"):
        machine.preparation.advance()


class Bases(EarlyBases):
    """A process that trains the bases of two models, one after the other."""

    def __init__(self) -> None:
        super().__init__(MODELS, seconds=[0.0, 0.0])
        self.is_at_work = True
        self.is_stopped = False

    def has_ended(self) -> bool:
        return not self.is_at_work

    def stop(self) -> None:
        self.is_stopped = True
        self.is_at_work = False

    def trained(self, index: int) -> None:
        cast("list[float]", self._seconds)[index] = 2.0


def test_slots_wait_only_for_the_base_model_that_is_trained_now() -> None:
    bases = Bases()
    machine = Machine(tasks_of(), runs_of(), 8, bases=bases)
    machine.fill()
    first_model = {"one/full", "one/retain90", "one/retain80"}
    assert {work.id for work in machine.at_work.values()} == first_model
    bases.trained(0)
    machine.fill()
    second_model = {"two/full", "two/retain90", "two/retain80"}
    assert {work.id for work in machine.at_work.values()} == first_model | second_model
    assert "prepared one/base" in machine.state.progress.lines
    bases.trained(1)
    bases.is_at_work = False
    machine.run()
    assert machine.state.progress.lines.count("prepared two/base") == 1
    assert "begin one/base" not in machine.events
    assert "begin two/base" not in machine.events


def test_a_process_that_fails_or_hangs_leaves_its_base_models_to_slots() -> None:
    bases = Bases()
    machine = Machine(tasks_of(), runs_of(), 2, bases=bases)
    machine.fill()
    machine.end("1")  # it had to prepare the base model itself
    assert bases.is_stopped
    events = machine.run()
    assert {"begin one/base", "begin two/base"} <= {*events}
    lines = machine.state.progress.lines
    assert sorted(line for line in lines if line.endswith("base")) == [
        *("prepared one/base", "prepared two/base", "preparing one/base", "preparing two/base")
    ]
