"""A sweep's page while the sweep runs: drawn anew with new records, served to this machine.

Looking costs a `stat` per record, and only records that were not seen before are read. Drawing a
large page takes seconds, on cores that the sweep wants: it may take a tenth of the time at most.
"""

from __future__ import annotations

import time
import webbrowser
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from unlearnbench.console import Console
from unlearnbench.errors import DamagedError, RecordError, UnlearnbenchError
from unlearnbench.folder import LOCK_FILE, holder
from unlearnbench.plan import PLAN_FILE
from unlearnbench.records import Record, read_record, read_records
from unlearnbench.registry import load
from unlearnbench.report import Report, build_report, publish
from unlearnbench.selection import SELECTION_FILE
from unlearnbench.serving import Served, serving

REST = 9.0
"""Seconds of rest after a second of drawing."""
AGAIN_SECONDS = (0.1, 0.4)
"""After which a record that cannot be read is tried again: it may be giving way to another."""

Stamp = tuple[int, int]


class Reader:
    """`read_record` that reads each record once, and leaves out what is damaged."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, Record]] = {}
        self.damaged: dict[Path, str] = {}
        """What is wrong with those that are left out."""

    def __call__(self, place: Path) -> Record | None:
        """The record; None where it is damaged, or gone in the meantime."""
        stamp = _stamp(place / "record.json")
        known = self._known.get(place)
        if known is None or known[0] != stamp:
            record = self._read(place)
            if record is None:
                return None
            known = self._known[place] = (stamp, record)
        return known[1]

    def _read(self, place: Path) -> Record | None:
        self.damaged.pop(place, None)
        for pause in AGAIN_SECONDS:
            with suppress(RecordError):
                return read_record(place)
            time.sleep(pause)
        try:
            return read_record(place)
        except DamagedError as error:
            if place.is_dir():
                self.damaged[place] = str(error)
            return None


class Watch:
    """What is known of a sweep's folder, and the page that shows it.

    say  is told what a person should know, once
    """

    def __init__(
        self,
        folder: Path,
        out: Path | None,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.folder, self._out, self._say, self._clock = folder, out, say, clock
        self._begun = clock()
        self._read = Reader()
        self._seen: Any = None
        self._report: Report | None = None
        self._updated = self._next = self._rest_until = 0.0
        self._drawn = 0
        self._said: set[str] = set()
        self._trouble = ""
        self._driver: str | None = None
        self.page: Path | None = None
        self.served = self._serve(None)

    def look(self, every: float = 0.0, *, last: bool = False) -> bool:
        """Look whether there is something new, and draw it; says whether it was drawn.

        every  seconds until the next look;  last: there is none, and no rest is needed
        """
        now = self._clock()
        self._driver = holder(self.folder)
        seen = self._stamps()
        drawn = False
        # Where no sweep runs nobody else wants the cores.
        rested = last or self._driver is None or now >= self._rest_until
        if seen != self._seen and seen[0] and rested:
            drawn = self._draw(seen)
            self._rest_until = now + (self._clock() - now) * (1 + REST)
        self._next = self._clock() + every
        self.served = Served(self.served.page, self._version(), self.line())
        return drawn

    def _draw(self, seen: Any) -> bool:
        self._seen, before = seen, self._drawn
        records = read_records(self.folder, self._read)
        if records:  # the only one may be giving way to another
            self._publish(records)
        for trouble in (*self._read.damaged.values(), self._trouble):
            if trouble and trouble not in self._said:
                self._said.add(trouble)
                self._say(f"warning: {trouble}")
        return self._drawn > before

    def _publish(self, records: Sequence[Record]) -> None:
        try:
            report = build_report(self.folder, records)
            self.page = publish(report, self.folder, self._out)
        except (UnlearnbenchError, OSError) as error:
            self._trouble = str(error)
            return
        self._trouble, self._report, self._updated = "", report, self._clock()
        self._drawn += 1
        self.served = self._serve(self.page.read_text(encoding="utf-8"))

    def _stamps(self) -> tuple[dict[str, Stamp], list[Stamp]]:
        """Changes when a record comes or goes, and with what the page shows beside them."""
        places = (self.folder / "records").glob("[!.]*")
        beside = [_stamp(self.folder / name) for name in (PLAN_FILE, SELECTION_FILE)]
        return {place.name: _stamp(place / "record.json") for place in places}, beside

    def line(self) -> str:
        """`live, 12 of 23 runs, updated at 14:03:22, next look 14:03:27`, or why it is not live."""
        report, told = self._report, list[str]()
        if report is None:
            told.append("live, no record yet" if self._driver else "no record yet, no sweep runs")
        else:
            ended = report.finished + len(report.failures)
            planned = ended if report.planned is None else report.planned
            how = "live" if self._driver else "done" if ended >= planned else "no sweep runs"
            told += [how, f"{ended} of {planned} runs", f"updated at {_time(self._updated)}"]
        if self._read.damaged:
            told.append(f"{len(self._read.damaged)} damaged left out")
        if self._trouble:
            told.append("not drawn anew: the terminal says why")
        return ", ".join([*told, f"next look {_time(self._next)}"])

    def _version(self) -> str:
        return f"{self._begun:.3f}-{self._drawn}"

    def _serve(self, page: str | None) -> Served:
        name = self.folder.resolve().name
        text: str = load("dashboards", "live")(page, name, self._version())
        return Served(text.encode(), self._version(), "")


def watch(
    folder: Path,
    out: Path | None,
    console: Console,
    *,
    port: int | None = None,
    every: float = 5.0,
    show: bool = False,
) -> Path | None:
    """Serve the page of `folder` until Ctrl-C, then leave it as a file; its path, if there is one.

    port  of 127.0.0.1; None: any that is free;  show: open a browser
    Raises: RecordError where `folder` is no sweep's, or the port is taken.
    """
    if not any((folder / name).exists() for name in ("records", PLAN_FILE, LOCK_FILE)):
        raise RecordError(
            f"{folder} is no sweep's folder: it has neither {PLAN_FILE} nor records/; a sweep "
            "writes to output/name, such as runs/quickstart, as soon as it starts"
        )
    watched = Watch(folder, out, console.note)
    with serving(lambda: watched.served, port) as address:
        console.print(f"page  {address}  (this machine only; Ctrl-C ends it)")
        if show and not webbrowser.open(address):
            console.note("no browser could be started here: open the address in one")
        with suppress(KeyboardInterrupt):
            while True:
                watched.look(every)
                time.sleep(every)
    watched.look(last=True)
    return watched.page


def _stamp(path: Path) -> Stamp:
    """What changes when a file does; zeros where there is none."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds).strftime("%H:%M:%S")
