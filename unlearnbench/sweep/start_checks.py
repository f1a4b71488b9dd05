"""The start models of a sweep are judged before the first of their runs."""

from collections.abc import Collection
from dataclasses import replace

from unlearnbench.analysis.best_text import stopped_text
from unlearnbench.analysis.settings import PanelKey, panel_order
from unlearnbench.analysis.start_model import Start
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.plan import Plan
from unlearnbench.sweep.pipeline import Pipeline
from unlearnbench.sweep.sweep_state import SweepState


class StartChecks:
    """Judges start models, and stops a sweep if some have not learned their rows.

    All that fail are named. Their records are kept and tracked, so that the same command goes on
    from there.
    """

    def __init__(
        self,
        plan: Plan,
        pipeline: Pipeline,
        state: SweepState,
        unfinished: Collection[str],
        *,
        force: bool,
    ) -> None:
        """Begin with no start model.

        Args:
            plan: The plan, whose records are tracked.
            pipeline: Measures what a start model knows whose record does not say it.
            state: The state of the sweep.
            unfinished: Statuses of records whose runs are run again.
            force: Whether the sweep goes on with start models that fail.
        """
        self._plan = plan
        self._pipeline = pipeline
        self._state = state
        self._unfinished = unfinished
        self._force = force
        self._count = 0
        """Number of start models that have been judged."""
        self._failed: list[Start] = []
        """Start models for which the sweep stops."""

    @property
    def have_failed(self) -> bool:
        """Whether the sweep stops, so that no further run begins."""
        return bool(self._failed)

    def judge(self, panels: Collection[PanelKey]) -> None:
        """Judge the start models of some models and splits, which are evaluated by now."""
        state = self._state
        state.read_references(self._plan)
        starts = [
            self._with_check(panel.start) for panel in state.start_panels() if panel.panel in panels
        ]
        self._count += len(starts)
        for start in starts:
            if start.doubt:
                state.progress.warn(f"{start.place}: {start.doubt}")
        failed = [start for start in starts if start.stops]
        if failed and self._force:
            names = "; ".join(start.place for start in failed)
            state.progress.warn(f"going on with --force, though the start model fails: {names}")
            return
        self._failed += failed

    def track(self, panels: Collection[PanelKey]) -> None:
        """Track the start and retain models of some models and splits, which are complete now."""
        state = self._state
        # Other runs are at work. They are tracked when they end.
        state.track_finished(self._plan, self._unfinished, new_runs=False)
        state.progress.warn_of_starts(
            [panel for panel in state.start_panels() if panel.panel in panels]
        )

    def stop(self) -> None:
        """End the sweep.

        Raises:
            UnlearnbenchError: In any case. It names the start models that have failed.
        """
        state = self._state
        state.track_finished(self._plan, self._unfinished, new_runs=False)
        # They were judged in the order in which their evaluations ended, which differs every time.
        failed = sorted(self._failed, key=lambda start: panel_order(start.panel))
        raise UnlearnbenchError(
            stopped_text(failed, self._count, state.folder, runs=state.ended_runs)
        )

    def _with_check(self, start: Start) -> Start:
        """Return a start model with its check, which records of earlier versions do not have."""
        if start.check is not None:
            return start
        check = self._pipeline.start_check(self._plan.config, self._state.folder, *start.panel)
        return replace(start, check=check)
