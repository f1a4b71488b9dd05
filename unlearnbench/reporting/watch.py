"""Live page of a running sweep: redrawn for new records, served to this machine.

A refresh costs a `stat` per record, and only new records are read. Drawing a large page takes
seconds on cores that the sweep needs, so it takes at most a tenth of the time.
"""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from unlearnbench.analysis.selection import SELECTION_FILE
from unlearnbench.api.registry import load
from unlearnbench.console import Console
from unlearnbench.errors import DamagedError, RecordError, UnlearnbenchError
from unlearnbench.plan.plan import PLAN_FILE
from unlearnbench.reporting.http_server import ServedPage, serve_page
from unlearnbench.reporting.report import Report, build_report, publish
from unlearnbench.results.records import Record, read_record, read_records
from unlearnbench.results.sweep_folder import LOCK_FILE, lock_owner

REST = 9.0
"""Seconds of pause after each second of drawing."""
RETRY_SECONDS = (0.1, 0.4)
"""Pauses before an unreadable record is tried again: it may just be replaced."""

Stamp = tuple[int, int]
"""Inode and modification time of a file; zeros without one."""


class Watch:
    """State of a sweep's folder, and the page that shows it.

    warn  prints a warning, called once for each
    """

    def __init__(
        self,
        folder: Path,
        out: Path | None,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self._out, self._warn, self._clock = folder, out, warn, clock
        self._started = clock()
        self._cache: dict[Path, tuple[Stamp, Record]] = {}
        self._damaged: dict[Path, str] = {}
        """Messages on records that are skipped."""
        self._seen: Any = None
        self._report: Report | None = None
        self._updated = self._next = self._rest_until = 0.0
        self._drawn = 0
        self._warned: set[str] = set()
        self._problem = ""
        self._driver: str | None = None
        self.page: Path | None = None
        self.served = self._serve(None)

    def refresh(self, every: float = 0.0, *, last: bool = False) -> bool:
        """Redraw the page if records changed; True if it was drawn.

        every  seconds until the next refresh;  last: there is none, so that no pause is needed
        """
        now = self._clock()
        self._driver = lock_owner(self.folder)
        seen = self._stamps()
        drawn = False
        # Without a running sweep nothing else needs the cores.
        rested = last or self._driver is None or now >= self._rest_until
        if seen != self._seen and seen[0] and rested:
            drawn = self._draw(seen)
            self._rest_until = now + (self._clock() - now) * (1 + REST)
        self._next = self._clock() + every
        self.served = ServedPage(self.served.page, self._version(), self.status_line())
        return drawn

    def _draw(self, seen: Any) -> bool:
        self._seen, before = seen, self._drawn
        records = read_records(self.folder, self._read)
        if records:  # the only one may just be replaced
            self._publish(records)
        for problem in (*self._damaged.values(), self._problem):
            if problem and problem not in self._warned:
                self._warned.add(problem)
                self._warn(f"warning: {problem}")
        return self._drawn > before

    def _read(self, place: Path) -> Record | None:
        """Read a record once; None if it is damaged, or was removed in the meantime."""
        stamp = _stamp(place / "record.json")
        cached = self._cache.get(place)
        if cached is not None and cached[0] == stamp:
            return cached[1]
        self._damaged.pop(place, None)
        for pause in (*RETRY_SECONDS, None):
            try:
                record = read_record(place)
            except RecordError as error:
                if pause is not None:
                    time.sleep(pause)
                elif not isinstance(error, DamagedError):
                    raise
                elif place.is_dir():
                    self._damaged[place] = str(error)
            else:
                self._cache[place] = (stamp, record)
                return record
        return None

    def _publish(self, records: Sequence[Record]) -> None:
        try:
            report = build_report(self.folder, records)
            self.page = publish(report, self.folder, self._out)
        except (UnlearnbenchError, OSError) as error:
            self._problem = str(error)
            return
        self._problem, self._report, self._updated = "", report, self._clock()
        self._drawn += 1
        self.served = self._serve(self.page.read_text(encoding="utf-8"))

    def _stamps(self) -> tuple[dict[str, Stamp], list[Stamp]]:
        """Stamps of the records, and of the other files that the page shows."""
        places = (self.folder / "records").glob("[!.]*")
        others = [_stamp(self.folder / name) for name in (PLAN_FILE, SELECTION_FILE)]
        return {place.name: _stamp(place / "record.json") for place in places}, others

    def status_line(self) -> str:
        """Status such as `live, 12 of 23 runs, updated at 14:03:22, next refresh 14:03:27`."""
        report, parts = self._report, list[str]()
        if report is None:
            parts.append("live, no record yet" if self._driver else "no record yet, no sweep runs")
        else:
            ended = report.finished + len(report.failures)
            planned = ended if report.planned is None else report.planned
            how = "live" if self._driver else "done" if ended >= planned else "no sweep runs"
            parts += [how, f"{ended} of {planned} runs", f"updated at {_time(self._updated)}"]
        if self._damaged:
            parts.append(f"{len(self._damaged)} damaged skipped")
        if self._problem:
            parts.append("not redrawn: see the terminal for the reason")
        return ", ".join([*parts, f"next refresh {_time(self._next)}"])

    def _version(self) -> str:
        return f"{self._started:.3f}-{self._drawn}"

    def _serve(self, page: str | None) -> ServedPage:
        name = self.folder.resolve().name
        text: str = load("dashboards", "live")(page, name, self._version())
        return ServedPage(text.encode(), self._version(), "")


def watch(
    folder: Path,
    out: Path | None,
    console: Console,
    *,
    port: int | None = None,
    every: float = 5.0,
    show: bool = False,
) -> Path | None:
    """Serve the page of `folder` until Ctrl-C, then write it; return its path, if there is one.

    port  of 127.0.0.1; None: any free one
    show  True opens a browser
    Raises: RecordError if `folder` is not a sweep folder, or if the port is taken.
    """
    if not any((folder / name).exists() for name in ("records", PLAN_FILE, LOCK_FILE)):
        raise RecordError(
            f"{folder} is not a sweep folder: it has neither {PLAN_FILE} nor records/; a sweep "
            "writes to output/name, such as runs/quickstart, as soon as it starts"
        )
    watched = Watch(folder, out, console.note)
    with serve_page(lambda: watched.served, port) as address:
        console.print(f"page  {address}  (this machine only; Ctrl-C ends it)")
        if show and not webbrowser.open(address):
            console.note("no browser could be started here: open the address yourself")
        with suppress(KeyboardInterrupt):
            while True:
                watched.refresh(every)
                time.sleep(every)
    watched.refresh(last=True)
    return watched.page


def _stamp(path: Path) -> Stamp:
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
