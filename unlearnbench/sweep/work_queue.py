"""The queue of a sweep: a task of its preparation, or a run, for each slot that is free."""

from collections.abc import Callable, Sequence
from enum import Enum

from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.sweep.optuna_search import Search
from unlearnbench.sweep.preparation import Preparation


class Pause(Enum):
    """The answer of a queue that has work, but none that can begin now."""

    PAUSE = "pause"


Work = PreparationTask | RunSpec | Pause | None
"""What a slot gets. None: all work has begun."""
NextRun = Callable[[], RunSpec | Pause | None]


class WorkQueue:
    """Gives work to free slots.

    Tasks come before runs, because runs wait for them. One slot of several is left to runs if some
    can begin. So the first results are there soon, and a long preparation does not stand still.
    """

    def __init__(
        self,
        preparation: Preparation,
        next_run: NextRun,
        show_begin: Callable[[], None],
        slots: int,
    ) -> None:
        """Begin with nothing at work.

        Args:
            preparation: The tasks, which say what runs can begin.
            next_run: Gives the next run that can begin, and None after the last one.
            show_begin: Is called before the first run begins.
            slots: Number of slots.
        """
        self.preparation = preparation
        self._next_run = next_run
        self._show_begin = show_begin
        self._has_begun = False
        """Whether the first run has begun."""
        self._slots = slots
        self._runs_at_work: set[str] = set()
        """By the id of the trial."""
        self._next: list[Work] = []
        """What `has_work` has taken in advance: at most one."""

    def next(self, trial_id: str) -> Work:
        """Return what a slot does next.

        Args:
            trial_id: Id of the slot's trial, for `ended`.

        Raises:
            UnlearnbenchError: See `Preparation.advance`.
        """
        self.preparation.advance()
        work = self._next.pop() if self._next else self._take()
        if isinstance(work, RunSpec):
            if not self._has_begun:
                self._has_begun = True
                self._show_begin()
            self._runs_at_work.add(trial_id)
        return work

    def ended(self, trial_id: str) -> None:
        """Note that a trial is over, whatever it has done."""
        self._runs_at_work.discard(trial_id)

    def has_work(self) -> bool:
        """Whether a slot that pauses should ask `next`. Only one of them should at a time."""
        if self._next:
            return False
        work = self._take()
        if work is Pause.PAUSE:
            return False
        self._next.append(work)
        return True

    def _take(self) -> Work:
        is_left_to_runs = self._slots > 1 and not self._runs_at_work
        run: RunSpec | Pause | None = Pause.PAUSE
        if is_left_to_runs:
            run = self._next_run()
            if isinstance(run, RunSpec):
                return run
        task = self.preparation.next_task()
        if task is not None:
            return task
        return run if is_left_to_runs else self._next_run()


class PlannedRuns:
    """Runs that are all known, in the order in which they begin if they have what they need."""

    def __init__(self, runs: Sequence[RunSpec], preparation: Preparation) -> None:
        self._left = list(runs)
        self._preparation = preparation

    def next(self) -> RunSpec | Pause | None:
        """Return the first run that can begin, and None after the last one."""
        for place, run in enumerate(self._left):
            if self._preparation.may_begin(run):
                return self._left.pop(place)
        return Pause.PAUSE if self._left or not self._preparation.is_over else None


class SearchedRuns:
    """Runs that a search suggests. It begins when all models are prepared."""

    def __init__(self, search: Search, preparation: Preparation) -> None:
        self._search = search
        self._preparation = preparation

    def next(self) -> RunSpec | Pause | None:
        """Return the next run of the search, and None after the last one."""
        return self._search.next() if self._preparation.is_over else Pause.PAUSE
