"""The tasks before the runs of a sweep: which one is next, and which runs have what they need.

A run needs all tasks of its model and split: the models, their evaluations, also under attacks, and
what those wait for. It does not wait for the tasks of other models and splits.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence

from unlearnbench.analysis.settings import PanelKey
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.preparation_task import PreparationTask
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.sweep.early_bases import EarlyBases
from unlearnbench.sweep.start_checks import StartChecks
from unlearnbench.sweep.sweep_state import SweepState


class Preparation:
    """The tasks of a sweep, of which it gives one after the other to those who execute them."""

    def __init__(
        self,
        tasks: Sequence[PreparationTask],
        runs: Sequence[RunSpec],
        state: SweepState,
        checks: StartChecks,
        *,
        retries: int = 0,
        in_sequence: bool = False,
        bases: EarlyBases | None = None,
    ) -> None:
        """Begin with the tasks that are not done.

        Args:
            tasks: All tasks, also those that are done.
            runs: The runs that are to begin.
            state: The state of the sweep, which shows progress.
            checks: Judges the start models.
            retries: How often a task is tried again after an error that may not come again.
            in_sequence: Whether the runs of a split continue those of another split. The runs of a
                model then wait for the tasks of all its splits.
            bases: The process that trains base models early.
        """
        self._state = state
        self._checks = checks
        self._retries = retries
        self._bases = bases or EarlyBases()
        # An early process may have ended already. The user is told of its models all the same.
        self._early = [task for task in tasks if self._bases.trains(task)]
        self._waiting = [task for task in tasks if not task.done and task not in self._early]
        self._at_work: dict[str, PreparationTask] = {}
        """By id."""
        self._done = {task.id for task in tasks if task.done}
        self._done.difference_update(task.id for task in self._early)
        self._failures: Counter[str] = Counter()
        """By id of a task, how often it has failed."""
        self._error: UnlearnbenchError | None = None
        """The error that ends the sweep."""

        panels = list(dict.fromkeys(_panel_of(run) for run in runs))
        self._needs = _needs(tasks, panels)
        self._plain_needs = _needs([task for task in tasks if not task.attack], panels)
        self._unjudged = list(panels)
        """Panels whose start model is not judged yet."""
        self._incomplete = list(panels)
        """Panels whose runs cannot begin yet."""
        self._waits_for: dict[PanelKey, list[PanelKey]] = {
            panel: [other for other in panels if other[0] == panel[0]] if in_sequence else [panel]
            for panel in panels
        }
        models = dict.fromkeys(model for model, _ in panels)
        self._place_of_model = {model: place for place, model in enumerate(models)}
        state.progress.preparing([task.label for task in (*self._early, *self._waiting)])

    @property
    def is_over(self) -> bool:
        """Whether all tasks are done, and all runs may begin."""
        return not (self._waiting or self._at_work or self._early or self._incomplete)

    def may_begin(self, run: RunSpec) -> bool:
        """Whether a run has all that it needs."""
        if self._checks.have_failed:
            return False
        panels = self._waits_for.get(_panel_of(run), ())
        return not any(panel in self._incomplete for panel in panels)

    def next_task(self) -> PreparationTask | None:
        """Return a task that can begin, which is then at work; None if there is none now.

        A task that waits only for a base model that is being trained early begins at once. Its
        process imports meanwhile, and then waits for the lock on the base model.
        """
        soon = self._done.union(task.id for task in self._early[:1])
        ready = [task for task in self._waiting if soon.issuperset(task.after)]
        if self._checks.have_failed:
            # The sweep ends when all start models are evaluated.
            ready = [task for task in ready if not task.attack]
        if not ready:
            return None
        task = min(ready, key=self._order)
        self._waiting.remove(task)
        self._at_work[task.id] = task
        return task

    def _order(self, task: PreparationTask) -> tuple[int, bool, int]:
        """Return the sort key of tasks that can begin.

        The runs of the first model are to begin soon. Attacks come last, because the check of the
        start model waits for everything else. Of the other tasks, the longest comes first, so that
        none is left over while all slots but one are idle.
        """
        return self._place_of_model.get(task.model, 0), bool(task.attack), -task.rows

    def ended(self, task_id: str, seconds: float) -> None:
        """Note that a task is done.

        Args:
            task_id: The task.
            seconds: How long it took.
        """
        task = self._at_work.pop(task_id)
        self._done.add(task_id)
        self._state.progress.prepared(task.label, seconds)
        self._look_at_early_bases()
        if any(early.id in task.after for early in self._early):
            # A worker had to prepare the base model itself, so the early process hangs.
            self._bases.stop()

    def failed(self, task_id: str, reason: str, *, is_transient: bool = False) -> None:
        """Note that a task has failed. Unless it is tried again, `advance` raises the error.

        Args:
            task_id: The task.
            reason: Why.
            is_transient: Whether another attempt may succeed.
        """
        task = self._at_work.pop(task_id)
        self._failures[task_id] += 1
        if is_transient and self._failures[task_id] <= self._retries:
            self._waiting.append(task)
            return
        self._error = UnlearnbenchError(
            f"{task.label}: {reason}; fix that and run the same command again: models already "
            "prepared are reused"
        )

    def advance(self) -> None:
        """Take up what has been done since the last call.

        Start models are judged as soon as they are evaluated, before the first of their runs.

        Raises:
            UnlearnbenchError: A task has failed, since the runs would fail with it. Or start models
                have not learned their rows. All start models are evaluated by then, though attacks
                on them may still be at work, because they take longer than anything else here.
        """
        self._look_at_early_bases()
        if self._error is not None:
            raise self._error
        judged = self._taken_from(self._unjudged, self._plain_needs)
        if judged:
            self._checks.judge(judged)
        if self._checks.have_failed:
            if not self._unjudged:
                self._checks.stop()
            return
        complete = self._taken_from(self._incomplete, self._needs)
        if complete:
            self._checks.track(complete)

    def _taken_from(
        self, panels: list[PanelKey], needs: Mapping[PanelKey, Collection[str]]
    ) -> list[PanelKey]:
        """Take those panels out of a list whose needs are done, and return them."""
        taken = [panel for panel in panels if self._done.issuperset(needs[panel])]
        for panel in taken:
            panels.remove(panel)
        return taken

    def _look_at_early_bases(self) -> None:
        """Note which base models have been trained early."""
        for task in self._early[:]:
            seconds = self._bases.seconds_of(task)
            if seconds is not None:
                self._early.remove(task)
                self._done.add(task.id)
                self._state.progress.prepared(task.label, seconds)
        if self._early and self._bases.has_ended():
            self._waiting = self._early + self._waiting
            self._early = []


def _panel_of(run: RunSpec) -> PanelKey:
    return run.model.name, run.forget_fraction


def _needs(
    tasks: Sequence[PreparationTask], panels: Iterable[PanelKey]
) -> dict[PanelKey, set[str]]:
    """Return the ids of the tasks that the runs of each panel need.

    These are the evaluations of its model on its split, and what they wait for. A task of the model
    that no evaluation waits for is needed by all runs of the model: without references, there is no
    evaluation, and runs need the start model all the same.
    """
    after = {task.id: task.after for task in tasks}
    model_of = {task.id: task.model for task in tasks}
    needs: dict[PanelKey, set[str]] = {}
    for panel in panels:
        evaluations = [task.id for task in tasks if (task.model, task.fraction) == panel]
        needs[panel] = _with_earlier(evaluations, after)
    needed = {task_id for of_panel in needs.values() for task_id in of_panel}
    for panel, of_panel in needs.items():
        of_panel.update(
            task_id
            for task_id, model in model_of.items()
            if model == panel[0] and task_id not in needed
        )
    return needs


def _with_earlier(ids: Iterable[str], after: Mapping[str, Collection[str]]) -> set[str]:
    """Return tasks with all that they wait for, directly or not."""
    found: set[str] = set()
    left = list(ids)
    while left:
        task_id = left.pop()
        if task_id not in found:
            found.add(task_id)
            left += after.get(task_id, ())
    return found
