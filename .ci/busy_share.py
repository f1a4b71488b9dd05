"""Measure how busy a command keeps the cores of this machine, second by second.

    .venv/bin/python .ci/busy_share.py -- .venv/bin/unlearnbench sweep quickstart

The numbers come from the threads of the command and of all its descendants, so other programs on
the machine are not counted. The kernel keeps two times of each thread in
`/proc/PID/task/TID/schedstat`: how long it has run, and how long it was ready to run but waited for
a core. A thread that waits because of another program is not idle. A core counts as *wanted* if a
thread runs on it or waits for it, and as *idle* otherwise:

    wanted = min(cores, (time run + time waited) / interval)
    idle   = cores − wanted

On a quiet machine nothing waits, and `wanted` is the busy share that `top` shows. On a busy machine
the seconds get longer, but a phase with one process still wants one core of two.

Threads that end between two samples lose what they have done since the sample before. Disks and
sleep count as idle. This needs Linux.
"""

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

PROC = Path("/proc")
INTERVAL = 0.1
"""Seconds between two samples. Reading the threads of a sweep takes about 5 ms of a core."""
NANOSECONDS = 1e9


class Times(NamedTuple):
    """Seconds that threads have run, and that they have waited for a core."""

    ran: float
    waited: float


class Sample(NamedTuple):
    """What the command did in an interval.

    Attributes:
        seconds: Length of the interval.
        ran: Core-seconds that the command ran.
        wanted: Core-seconds that it ran or waited for, at most `cores` × `seconds`.
    """

    seconds: float
    ran: float
    wanted: float


@dataclass
class BusyShare:
    """The samples of a command.

    Attributes:
        cores: Number of cores that the command might use.
        samples: In their order.
    """

    cores: int
    samples: list[Sample] = field(default_factory=list)

    def add(self, seconds: float, times: Times) -> None:
        """Add an interval, in which the command's threads have run and waited for these times."""
        most = self.cores * seconds
        self.samples.append(Sample(seconds, times.ran, min(most, sum(times))))

    @property
    def seconds(self) -> float:
        """Duration of the command."""
        return sum(sample.seconds for sample in self.samples)

    @property
    def idle(self) -> float:
        """Core-seconds in which the command wanted no core."""
        wanted = sum(sample.wanted for sample in self.samples)
        return self.cores * self.seconds - wanted

    @property
    def idle_share(self) -> float:
        """Fraction of all cores and all seconds that was idle."""
        return self.idle / (self.cores * self.seconds) if self.seconds else 0.0

    def by_second(self) -> Iterator[Sample]:
        """Yield the sum of the intervals that begin in each second."""
        sums: dict[int, list[Sample]] = defaultdict(list)
        begin = 0.0
        for sample in self.samples:
            sums[int(begin)].append(sample)
            begin += sample.seconds
        for second in range(int(begin) + 1):
            if second in sums:
                columns = zip(*sums[second], strict=True)
                yield Sample(*(sum(column) for column in columns))


def descendants(root: int, known: set[int]) -> set[int]:
    """Return the processes that descend from a process, itself included.

    Args:
        root: Id of the process.
        known: Processes that were found before. They stay even if their parent has ended.
    """
    children: dict[int, list[int]] = defaultdict(list)
    alive: set[int] = set()
    for folder in PROC.iterdir():
        if not folder.name.isdigit():
            continue
        try:
            text = (folder / "stat").read_text(encoding="utf-8")
        except OSError:
            continue  # it has ended
        # The name of the program, in brackets, may contain blanks.
        parent = int(text.rpartition(")")[2].split()[1])
        alive.add(int(folder.name))
        children[parent].append(int(folder.name))
    found = {pid for pid in known | {root} if pid in alive}
    queue = list(found)
    while queue:
        for child in children[queue.pop()]:
            if child not in found:
                found.add(child)
                queue.append(child)
    return found


def times_of(pid: int) -> dict[int, Times]:
    """Return the times of each thread of a process, by the thread's id."""
    times: dict[int, Times] = {}
    try:
        threads = [*(PROC / str(pid) / "task").iterdir()]
    except OSError:
        return {}  # it has ended
    for thread in threads:
        try:
            ran, waited, _ = (thread / "schedstat").read_text(encoding="utf-8").split()
        except OSError:
            continue
        times[int(thread.name)] = Times(int(ran) / NANOSECONDS, int(waited) / NANOSECONDS)
    return times


class Meter:
    """Reads what a process and its descendants have done since the last reading."""

    def __init__(self, root: int) -> None:
        self._root = root
        self._processes: set[int] = set()
        self._before: dict[int, Times] = {}
        """By thread."""

    def read(self) -> Times:
        """Return the times since the last reading. New threads count from their beginning."""
        # The kernel would give the id of an ended process to another one only after thousands.
        self._processes = descendants(self._root, self._processes)
        now: dict[int, Times] = {}
        for pid in self._processes:
            now |= times_of(pid)
        ran = 0.0
        waited = 0.0
        for thread, times in now.items():
            before = self._before.get(thread, Times(0.0, 0.0))
            ran += times.ran - before.ran
            waited += times.waited - before.waited
        self._before = now
        return Times(ran, waited)


def measured(command: Sequence[str], cores: int, interval: float) -> tuple[BusyShare, int]:
    """Run a command and measure it.

    Returns:
        What was measured, and the command's exit code.
    """
    share = BusyShare(cores)
    with subprocess.Popen(command) as process:
        meter = Meter(process.pid)
        last = time.monotonic()
        while process.poll() is None:
            time.sleep(interval)
            times = meter.read()
            now = time.monotonic()
            share.add(now - last, times)
            last = now
    return share, process.returncode


def lines_of(share: BusyShare, begin: float) -> Iterator[str]:
    """Yield the table of seconds and the sums, as text.

    Args:
        share: What was measured.
        begin: When the command began, in seconds since 1970. `sweep.log` has times as well.
    """
    yield "second  time (UTC)  busy  wanted  idle"
    for second, sample in enumerate(share.by_second()):
        clock = time.strftime("%H:%M:%S", time.gmtime(begin + second))
        idle = share.cores * sample.seconds - sample.wanted
        bar = "#" * round(10 * sample.wanted)
        numbers = f"{sample.ran:4.2f}  {sample.wanted:6.2f}  {idle:4.2f}"
        yield f"{second:6d}  {clock:10}  {numbers}  {bar}"
    ran = sum(sample.ran for sample in share.samples)
    yield (
        f"{share.seconds:.1f} s, {ran:.1f} core-seconds run, {share.idle:.1f} of "
        f"{share.cores * share.seconds:.1f} core-seconds idle: {100 * share.idle_share:.1f} %"
    )


def main(words: Sequence[str]) -> int:
    """Measure a command, print the table to standard error, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--cores", type=int, default=os.cpu_count(), help="default: all")
    parser.add_argument("--interval", type=float, default=INTERVAL, help="seconds of a sample")
    parser.add_argument("--sum", action="store_true", help="print only the last line")
    parser.add_argument("command", nargs="+", help="the command, after --")
    options = parser.parse_args(words)
    begin = time.time()
    share, exit_code = measured(options.command, options.cores, options.interval)
    lines = list(lines_of(share, begin))
    print("\n".join(lines[-1:] if options.sum else lines), file=sys.stderr)
    return exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
