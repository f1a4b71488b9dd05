"""Progress of a sweep: a line for each run that ends, and an estimate of the time to go.

On a terminal, a progress bar of rich stays below the lines.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from shutil import get_terminal_size
from textwrap import wrap
from typing import TYPE_CHECKING

from unlearnbench.analysis.best_settings import Panel
from unlearnbench.analysis.best_text import best_lines
from unlearnbench.analysis.conclusion import Conclusion
from unlearnbench.analysis.wording import counted, without_retain_model
from unlearnbench.api.benchmark import Headline, split_percent
from unlearnbench.base.console import WARNING_STYLE, Console, append_log_line, format_duration
from unlearnbench.base.number_text import float_text
from unlearnbench.base.redaction import redact
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.unit import Unit
from unlearnbench.results.records import EpochResult
from unlearnbench.results.setting_value import Labels, SettingValue
from unlearnbench.results.time_to_go import Clock, Forecast

if TYPE_CHECKING:
    from rich.progress import Progress as Bar


BEST = 10
"""Largest number of methods in a table of the best."""
LOG_FILE = "sweep.log"
"""File in a sweep's folder with the lines of all commands, with times."""
WIDTH = 100
"""Largest number of columns of the text of a conclusion."""


class Progress:
    """The lines and the bar of a sweep, as a context manager. Safe to call from any thread."""

    def __init__(
        self,
        console: Console,
        headline: Headline,
        clock: Clock = time.monotonic,
        unit: Unit = Unit.EPOCH,
    ) -> None:
        """Show nothing yet.

        Args:
            console: Where lines and bar go.
            headline: The two metrics that the line of a run shows.
            clock: Returns seconds.
            unit: Unit of the moments at which runs are evaluated.
        """
        self.forecast = Forecast((), 1, clock)
        self._console = console
        self._headline = headline
        self._clock = clock
        self._unit = unit
        self._lock = threading.RLock()
        self._log: Path | None = None
        self._warnings: set[str] = set()
        self._notes: set[str] = set()
        """What `shares_gpus` has printed."""
        self._useless_starts: set[str] = set()
        """What `warn_of_starts` has printed."""

        # The bar, and what it counts: first tasks, then runs.
        self._bar: Bar | None = None
        self._counts_tasks = False
        self._done = 0
        self._total = 0
        self._failed = 0
        self._running: set[str] = set()

        # What the runs differ in, which the name of a run says.
        self._labels = Labels()
        self._has_several_models = False
        self._has_several_seeds = False

    def log_to(self, path: Path) -> None:
        """Append every further line to a file."""
        self._log = path

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self._stop_bar()

    def preparing(self, labels: Sequence[str]) -> None:
        """Start the bar of the tasks that runs depend on."""
        if labels:
            self._print(f"preparing: {', '.join(labels)}")
        self._counts_tasks = True
        self._start_bar("preparing", 0, len(labels))

    def prepared(self, label: str, seconds: float) -> None:
        """Print that a task is done. Runs may have begun meanwhile, which the bar counts then."""
        self._print(f"prepared {label} in {format_duration(seconds)}")
        if self._counts_tasks:
            self._done += 1
            self._update()

    def running(
        self,
        runs: Sequence[RunSpec],
        finished: int,
        slots: int,
        known: Sequence[tuple[RunSpec, float]] = (),
        panels: Sequence[Panel] = (),
    ) -> None:
        """Start the bar of the runs.

        Args:
            runs: The runs that are left.
            finished: Number of runs that ended before.
            slots: Number of concurrent runs.
            known: Runs of earlier commands, and their seconds.
            panels: Panels of the start models.
        """
        self.forecast = Forecast(runs, slots, self._clock)
        for run, seconds in known:
            self.forecast.learn(run, seconds)
        self._running = set()
        self._labels = Labels()
        for run in (*runs, *(run for run, _ in known)):
            self._labels.add(*_method(run))
        self._has_several_models = len({run.model.name for run in runs}) > 1
        self._has_several_seeds = len({run.seed for run in runs}) > 1
        self.warn_of_starts(panels)
        line = f"running: {counted(len(runs), 'run')}, {slots} at a time"
        if finished:
            line += f", {finished} done already"
        time_left = self.time_left()
        if time_left:
            line += f"; about {time_left}, as those took"
        self._print(line)
        self._counts_tasks = False
        self._start_bar("running", finished, len(runs) + finished)

    def started(self, run: RunSpec) -> None:
        """Show that a run was given to a worker."""
        self.forecast.begin(run)
        # A search may have suggested the run just now.
        self._labels.add(*_method(run))
        self._running.add(run.id)
        self._update_runs()

    def epoch(self, run: RunSpec, result: EpochResult, seconds: float) -> None:
        """Show that a run has reached an epoch, or a step.

        Args:
            run: The run.
            result: Its result.
            seconds: Seconds of work since the last result.
        """
        self.forecast.observe(run, result.epoch, seconds)
        self._running.add(run.id)
        self._update_runs()

    def attacked(self, run: RunSpec, seconds: float) -> None:
        """Note that the attacks on a run's last model are done, `seconds` after its last result."""
        self.forecast.observe_last_attacks(run, seconds)

    def ended(
        self, run: RunSpec, last: EpochResult | None, status: str = "finished", reason: str = ""
    ) -> None:
        """Print the end of a run with a record.

        Args:
            run: The run.
            last: Its last result. None: it has none.
            status: How it ended.
            reason: Why it has no result.
        """
        self._remove(run)
        parts = [self._count_and_name(run)]
        numbers = [] if last is None else self._headline_numbers(last)
        if last is not None and numbers:
            parts.append(f"{self._unit.at(last.epoch)}:")
            parts += numbers
        if status != "finished":
            parts.append(f"{status}: {reason}" if reason else status)
        line = "  ".join(parts)
        time_left = self.time_left()
        if time_left:
            line += f"   {time_left} left"
        self._print(line)
        self._update_runs()

    def _headline_numbers(self, result: EpochResult) -> list[str]:
        """Return the headline's metrics with their values, without those that are undefined."""
        numbers: list[str] = []
        for metric in (self._headline.kept, self._headline.forgotten):
            value = result.metrics.get(metric.column)
            if value is not None:
                # One digit less than in tables.
                digits = max(metric.digits - 1, 0)
                numbers.append(f"{metric.plain_short} {value:.{digits}f}")
        return numbers

    def retrying(self, run: RunSpec, reason: str) -> None:
        """Print that a run failed and is tried again."""
        self.forecast.restart(run)
        self._running.discard(run.id)
        self._print(f"{run.title}: {reason}; trying again")

    def failed(self, run: RunSpec, reason: str) -> None:
        """Print that a run failed for good."""
        self._remove(run)
        self._print(f"{self._count_and_name(run)}  failed: {reason}")
        self._failed += 1
        self._update_runs()

    def crowded(self, run: RunSpec, text: str) -> None:
        """Warn that a run had too little memory beside other runs, and is repeated alone."""
        self.forecast.restart(run)
        self._running.discard(run.id)
        self.warn(text)

    def shares_gpus(self, text: str, slots: int) -> None:
        """Print how many runs share a GPU, unless it was printed before.

        Args:
            text: What was measured and decided.
            slots: Number of runs at a time from now on.
        """
        self.forecast.use_slots(slots)
        if text not in self._notes:
            self._notes.add(text)
            self._print(text)

    def _remove(self, run: RunSpec) -> None:
        self.forecast.end(run)
        self._running.discard(run.id)
        self._done += 1

    def warn(self, text: str) -> None:
        """Print a warning, unless it was printed before. Several workers may send the same one."""
        if text not in self._warnings:
            self._warnings.add(text)
            self._print(f"warning: {text}")

    def concluded(
        self, panels: Sequence[Panel], conclusions: Sequence[Conclusion], seconds: float
    ) -> None:
        """Print the best settings, and the conclusion of each panel with a valid start model.

        Args:
            panels: The panels of the table.
            conclusions: A conclusion for each panel.
            seconds: Duration of the sweep.
        """
        self._stop_bar()
        notes: dict[str, None] = {}
        for panel in panels:
            title_and_rows = best_lines(panel, BEST)
            if not title_and_rows:
                continue
            title, *table_rows = title_and_rows
            self._print_wrapped(title, "  ", first="")
            for row in table_rows:
                self._print(row)
            # Panels with the same note share it.
            notes[without_retain_model(panel.rows[0].schema)] = None
        for note in filter(None, notes):
            self._print_wrapped(note, "  ")
        self._print_useless(no_result(panels))
        self._print(f"took {format_duration(seconds)}")
        faulty = [panel.panel for panel in panels if panel.start.fault]
        for conclusion in conclusions:
            if (conclusion.model, conclusion.split) in faulty:
                continue  # a warning is printed in its place
            self._print(f"result of {conclusion.place}:")
            for number, sentence in enumerate(conclusion.sentences, start=1):
                self._print_wrapped(f"{number}. {sentence}", "     ")

    def _print_wrapped(self, text: str, indent: str, *, first: str = "  ") -> None:
        """Print a text in lines that never part a number from its per cent sign.

        Args:
            text: One or several sentences.
            indent: Blanks in front of all lines but the first.
            first: Blanks in front of the first line.
        """
        no_break_space = "\N{NO-BREAK SPACE}"
        columns = get_terminal_size(fallback=(WIDTH, 24)).columns
        lines = wrap(
            text.replace(" %", f"{no_break_space}%"),
            min(WIDTH, columns),
            initial_indent=first,
            subsequent_indent=indent,
            break_long_words=False,
            break_on_hyphens=False,
        )
        for line in lines:
            self._print(line.replace(no_break_space, " "))

    def time_left(self) -> str:
        """Return the time to go, as in `2 min 10 s`.

        The text is empty before the first epoch and after the last run.
        """
        seconds = self.forecast.to_go()
        return format_duration(seconds) if seconds and seconds >= 1 else ""

    def _count_and_name(self, run: RunSpec) -> str:
        """Return `[12/32] npo (beta=0.1)  lr 5e-05  forget 20 %`, with what the runs differ in."""
        return f"[{self._done}/{self._total}] {self._name(run)}"

    def _name(self, run: RunSpec) -> str:
        parts = [self._labels.label(*_method(run))]
        if self._has_several_models:
            parts.append(run.model.name)
        if run.learning_rate is not None:
            parts.append(f"lr {float_text(run.learning_rate)}")
        parts.append(split_percent(run.forget_fraction))
        if self._has_several_seeds:
            parts.append(f"seed {run.seed}")
        return "  ".join(parts)

    def warn_of_starts(self, panels: Sequence[Panel]) -> None:
        """Warn of start models that cannot show a method's effect, once of each."""
        new = [text for text in no_result(panels) if text not in self._useless_starts]
        self._useless_starts.update(new)
        self._print_useless(new)

    def _print_useless(self, texts: Sequence[str]) -> None:
        for text in texts:
            self._print(f"NO RESULT for {text}.", red=True)

    def _print(self, text: str, *, red: bool = False) -> None:
        """Print a line above the bar, and append it to the log."""
        text = redact(text)
        with self._lock:
            if self._log is not None:
                append_log_line(text, self._log)
            if self._bar is not None:
                style = WARNING_STYLE if red else None
                self._bar.console.print(
                    text, style=style, markup=False, highlight=False, soft_wrap=True
                )
            elif red:
                self._console.warn(text)
            else:
                self._console.note(text)

    def _start_bar(self, title: str, done: int, total: int) -> None:
        self._stop_bar()
        self._done, self._total = done, total
        if total and self._console.err.isatty():
            self._bar = self._console.bar("{task.fields[note]}")
            self._bar.start()
            self._bar.add_task(title, total=total, completed=done, note="")

    def _update(self, note: str = "") -> None:
        """Show on the bar how many tasks or runs are done, and a note."""
        with self._lock:
            if self._bar is not None:
                self._bar.update(self._bar.task_ids[0], completed=self._done, note=note)

    def _update_runs(self) -> None:
        """Show on the bar how many runs are running and have failed, and the time to go."""
        notes = [f"{len(self._running)} running"]
        if self._failed:
            notes.append(f"{self._failed} failed")
        time_left = self.time_left()
        if time_left:
            notes.append(f"about {time_left} left")
        self._update(", ".join(notes))

    def _stop_bar(self) -> None:
        with self._lock:
            if self._bar is not None:
                self._bar.stop()
                self._bar = None


def _method(run: RunSpec) -> tuple[str, SettingValue]:
    """Return a run's method and its setting, as `Labels` takes them."""
    method = run.method.model_dump(mode="json")
    # With `epochs_as: runs`, a setting has several runs, which differ in the number of epochs or
    # steps.
    budget: dict[tuple[str, ...], int] = {(run.unit.plural,): run.budget}
    return run.method.label, SettingValue.of(method, others=budget)


def no_result(panels: Sequence[Panel]) -> tuple[str, ...]:
    """Return the panels whose start model cannot show a method's effect, each with the reason."""
    starts = [panel.start for panel in panels]
    return tuple(f"{start.place}: {start.fault}" for start in starts if start.fault)
