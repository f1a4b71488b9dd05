"""What a sweep tells while it runs: a line per finished run, and a time to go that it can keep.

On a terminal a bar, the runs under way and the best settings so far stand below the lines;
elsewhere there are lines only, and now and then one of the best.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from types import TracebackType
from typing import Any

from unlearnbench.console import Console, duration, note_down
from unlearnbench.display import Display, View
from unlearnbench.forecast import Clock, Forecast
from unlearnbench.plan import RunSpec
from unlearnbench.records import EpochResult, Record
from unlearnbench.redaction import redact
from unlearnbench.standing import Leader, Panel, Standing, best_lines

BEAT_SECONDS = 30.0
"""Between lines about what goes on, where there is no bar."""
BEST, BEST_AT_THE_END = 3, 10
"""Methods that a table of the best names while runs go on, and when all have ended."""
LOG_FILE = "sweep.log"
"""What was said, with times, of all commands that worked in a sweep's folder."""
DEVICES = 8
"""Named one by one at the end; the idlest come first."""


class Progress:
    """The lines and the bar of one sweep, to be used in a `with`; safe to call from any thread."""

    def __init__(self, console: Console, clock: Clock = time.monotonic) -> None:
        self._console, self._clock = console, clock
        self._lock = threading.RLock()
        self._display: Display | None = None
        self._view = View("", 0, 0, 0.0)
        self._total = self._done = self._failed = 0
        self._under_way: dict[str, tuple[RunSpec, int]] = {}
        """Runs that workers have, and the epoch that each has reached."""
        self._standing = Standing()
        self._told: dict[Panel, tuple[Leader, ...]] = {}
        self._shown: tuple[bool, bool] = (False, False)
        self._forecast = Forecast((), 1, clock)
        self._tasks: dict[str, tuple[float, int]] = {}
        """When a preparation was first seen under way, and its steps at that time."""
        self._beat = clock()
        self._log: Path | None = None

    def keep(self, path: Path) -> None:
        """Add every line that is said from now on to a file."""
        self._log = path

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop_bar()

    def preparing(self, labels: Sequence[str]) -> None:
        """Models and anchors that are to be prepared."""
        if labels:
            self._say(f"preparing: {', '.join(labels)}")
        self._start_bar("preparing", 0, len(labels))

    def under_way(self, steps: Mapping[str, tuple[int, int] | None]) -> None:
        """How far the tasks are: steps done and in all by label, as far as they are known.

        On a terminal this goes to the bar; elsewhere a line says it every half minute.
        """
        now = self._clock()
        told: list[str] = []
        for label, known in steps.items():
            begun, first = self._tasks.setdefault(label, (now, known[0] if known else 0))
            if known is not None and known[0] > first:
                to_go = (now - begun) * (known[1] - known[0]) / (known[0] - first)
                share = 100 * known[0] / known[1]
                told.append(f"{label} {share:.0f} %, about {duration(to_go)} left")
        if self._display is not None:
            self._show(told="; ".join(told))
        elif told and now - self._beat >= BEAT_SECONDS:
            self._say("; ".join(told))
            self._beat = now

    def prepared(self, label: str, seconds: float) -> None:
        """One of them is there."""
        self._say(f"prepared {label} in {duration(seconds)}")
        self._show(done=self._view.done + 1)

    def running(
        self,
        runs: Sequence[RunSpec],
        finished: int,
        slots: int,
        known: Iterable[tuple[RunSpec, float]] = (),
    ) -> None:
        """The runs that are to be carried out; `finished` were done before.

        known  runs of earlier commands, and their seconds
        """
        self._forecast = Forecast(runs, slots, self._clock)
        for run, seconds in known:
            self._forecast.learn(run, seconds)
        self._total, self._done = len(runs) + finished, finished
        self._under_way = {}
        self._shown = (len({r.model.name for r in runs}) > 1, len({r.seed for r in runs}) > 1)
        kept = f", {finished} are done already" if finished else ""
        to_go = self.left()
        left = f"; about {to_go}, as those took" if to_go else ""
        self._warn_of_starts()
        self._say(f"running: {len(runs)} runs, {slots} at a time{kept}{left}")
        self._start_bar("running", finished, self._total)
        self._beat = self._clock()

    def began(self, run: RunSpec) -> None:
        """A run has been given to a worker."""
        self._forecast.begin(run)
        self._under_way[run.id] = (run, 0)
        self._update()

    def decided(self, stand_in: RunSpec, run: RunSpec) -> None:
        """A search has decided on a run; `running` was given a stand-in for it."""
        self._forecast.replace(stand_in, run)

    def epoch(self, run: RunSpec, result: EpochResult, seconds: float) -> None:
        """A run has reached an epoch, after `seconds` of work."""
        self._forecast.observe(run, result.epoch, seconds)
        self._under_way[run.id] = (run, result.epoch)
        self._update()

    def recorded(self, record: Record) -> None:
        """There is a record, of this command or an earlier one."""
        self._standing.add(record)

    def planned(self, ids: Collection[str]) -> None:
        """The runs that there are to be: other records' are not among the best."""
        self._standing.keep(ids)

    def ended(
        self, run: RunSpec, last: EpochResult | None, status: str = "finished", reason: str = ""
    ) -> None:
        """A run has ended with a record; `reason`: why it came to no result."""
        self._end(run)
        metrics = last.metrics if last else {}
        told = [
            f"{name} {value:.{digits}f}"
            for name, key, digits in (
                ("utility", "model_utility", 2),
                ("log10 FQ", "log10_forget_quality", 1),
            )
            if (value := metrics.get(key)) is not None
        ]
        if told and last:
            told.insert(0, f"epoch {last.epoch}:")
        if status != "finished":
            told.append(f"{status}: {reason}" if reason else status)
        said = [self._place(run), *told]
        to_go = self.left()
        self._say("  ".join(said) + (f"   {to_go} left" if to_go else ""))
        self._update()
        self._tell_best()

    def retrying(self, run: RunSpec, reason: str) -> None:
        """A run failed and is tried again."""
        self._forecast.restart(run)
        self._under_way.pop(run.id, None)
        self._say(f"{run.title}: {reason}; trying again")

    def failed(self, run: RunSpec, reason: str) -> None:
        """A run failed for good; the others go on."""
        self._end(run)
        self._failed += 1
        self._say(f"{self._place(run)}  failed: {reason}")
        self._update()

    def _end(self, run: RunSpec) -> None:
        self._forecast.end(run)
        self._under_way.pop(run.id, None)
        self._done += 1

    def warn(self, text: str) -> None:
        """Something that costs no run."""
        self._say(f"warning: {text}")

    def spent(self, seconds: Mapping[str, float], busy: Mapping[str, float] | None = None) -> None:
        """Where the time went; the parts add up to the wall time. And the busy share by device."""
        self._stop_bar()
        self._tell_best(last=True)
        parts = ", ".join(f"{name} {duration(value)}" for name, value in seconds.items())
        self._say(f"took {duration(sum(seconds.values()))}: {parts}")
        if busy:
            shares = [f"{device} {100 * share:.0f} %" for device, share in busy.items()]
            more = f" and {len(shares) - DEVICES} more" if len(shares) > DEVICES else ""
            mean = f" (mean {100 * fmean(busy.values()):.0f} %)" if len(shares) > 1 else ""
            self._say(f"busy: {', '.join(shares[:DEVICES])}{more}{mean}")

    def left(self) -> str:
        """`2 min 10 s`; nothing before the first epoch and after the last run."""
        to_go = self._forecast.to_go()
        return duration(to_go) if to_go and to_go >= 1 else ""

    def _place(self, run: RunSpec) -> str:
        """`[12/32] ce-u  lr 5e-05  forget 20 %`."""
        return f"[{self._done}/{self._total}] {self._name(run)}"

    def _name(self, run: RunSpec) -> str:
        models, seeds = self._shown
        return "  ".join(
            (
                run.method.label,
                *((run.model.name,) if models else ()),
                *(() if run.learning_rate is None else (f"lr {run.learning_rate:g}",)),
                f"forget {run.forget_fraction * 100:g} %",
                *((f"seed {run.seed}",) if seeds else ()),
            )
        )

    def no_result(self) -> tuple[str, ...]:
        """Panels whose start model shows nothing about methods, and why."""
        starts = self._standing.starts().values()
        return tuple(f"{start.place}: {start.fault}" for start in starts if start.fault)

    def _warn_of_starts(self) -> None:
        for text in self.no_result():
            self._say(f"NO RESULT for {text}.", alarm=True)

    def _tell_best(self, *, last: bool = False) -> None:
        """Where no display shows them: the best of each panel in which they have changed."""
        if self._display is not None or (not last and self._clock() - self._beat < BEAT_SECONDS):
            return
        best = self._standing.leaders(BEST_AT_THE_END if last else BEST)
        starts = self._standing.starts()
        for panel, leaders in best.items():
            start = starts.get(panel)
            if start is None or start.fault or not (last or leaders != self._told.get(panel)):
                continue
            for line in best_lines(start, leaders, last=last):
                self._say(line)
        if last:
            self._warn_of_starts()
        self._told, self._beat = best, self._clock()

    def _say(self, text: str, *, alarm: bool = False) -> None:
        text = redact(text)
        with self._lock:
            if self._log is not None:
                note_down(text, self._log)
            if self._display is not None:
                self._display.say(text, alarm=alarm)
            elif alarm:
                self._console.alarm(text)
            else:
                self._console.note(text)

    def _start_bar(self, title: str, done: int, total: int) -> None:
        self._stop_bar()
        self._view = View(title, done, total, self._clock())
        if total and self._console.err.isatty():
            self._display = Display(self._console.err, self._view, self._standing, self._clock)

    def _show(self, **changes: Any) -> None:
        """Change what the display shows; it looks by itself."""
        with self._lock:
            self._view = replace(self._view, **changes)
            if self._display is not None:
                self._display.view = self._view

    def _update(self) -> None:
        if self._display is not None:
            self._show(
                done=self._done,
                failed=self._failed,
                left=self._forecast.to_go(),
                at=self._clock(),
                under_way=tuple(
                    f"{self._name(run)}  epoch {epoch} of {run.epochs}"
                    for run, epoch in self._under_way.values()
                ),
            )

    def _stop_bar(self) -> None:
        with self._lock:
            if self._display is not None:
                self._display.stop()
                self._display = None
