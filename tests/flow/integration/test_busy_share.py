"""The script that says how busy a command keeps the cores."""

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
BUSY = "import time; end = time.process_time() + {seconds}\nwhile time.process_time() < end: pass"


@pytest.fixture(scope="module")
def script() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / ".ci")
        return importlib.import_module("busy_share")


def test_intervals_are_summed_by_second_and_never_want_more_than_all_cores(script: Any) -> None:
    share = script.BusyShare(cores=2)
    share.add(0.5, script.Times(ran=0.25, waited=0.25))
    share.add(0.5, script.Times(ran=0.9, waited=0.6))  # three threads, of which two can run
    share.add(1.0, script.Times(ran=0.0, waited=0.0))
    assert share.seconds == 2.0
    assert [tuple(second) for second in share.by_second()] == [(1.0, 1.15, 1.5), (1.0, 0.0, 0.0)]
    assert share.idle == pytest.approx(4.0 - 1.5)
    assert share.idle_share == pytest.approx(2.5 / 4.0)
    last = [*script.lines_of(share, 0.0)][-1]
    assert last == "2.0 s, 1.1 core-seconds run, 2.5 of 4.0 core-seconds idle: 62.5 %"


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="needs Linux")
def test_children_and_their_children_are_counted_however_busy_the_machine_is(script: Any) -> None:
    two = (
        "import subprocess, sys; words = [sys.executable, '-c', sys.argv[1]]\n"
        "both = [subprocess.Popen(words) for _ in range(2)]\n"
        "assert not any(one.wait() for one in both)"
    )
    command = [sys.executable, "-c", two, BUSY.format(seconds=0.6)]
    share, exit_code = script.measured(command, cores=2, interval=0.05)
    assert exit_code == 0
    ran = sum(sample.ran for sample in share.samples)
    assert 1.0 < ran < 2.0, "two processes of 0.6 s, and their start"
    # One thread never wants more than one core, whatever else the machine does.
    command = [sys.executable, "-c", BUSY.format(seconds=0.6)]
    share, _ = script.measured(command, cores=2, interval=0.05)
    assert 0.45 < share.idle_share < 0.7


def test_the_exit_code_is_that_of_the_command(
    script: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert script.main(["--sum", "--", sys.executable, "-c", "raise SystemExit(3)"]) == 3
    assert capsys.readouterr().err.count("\n") == 1
