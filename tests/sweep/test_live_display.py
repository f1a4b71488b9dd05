"""The display fits the terminal, and counts what it leaves out."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest

from unlearnbench.analysis.best_so_far import LiveBest
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.sweep.live_display import Display, View


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def live_best(panels: int, methods: int, utility: float = 0.8) -> LiveBest:
    found = LiveBest()
    for panel in range(panels):
        for i in range(methods + 1):
            kind: Any = "run" if i else "fine-tuned"
            metrics = {"model_utility": utility, "log10_forget_quality": -float(i) if i else -99.0}
            found.add(
                Record(
                    id=f"{panel}-{i}",
                    kind=kind,
                    model=f"a-model-of-some-length-{panel}",
                    forget_fraction=0.1,
                    method=f"gradient-difference-{i}+nll" if i else kind,
                    learning_rate=1e-5 if i else None,
                    seed=0,
                    spec={},
                    status="finished",
                    profile="tofu@1",
                    epochs=(EpochResult(int(i > 0), metrics, 1.0, 1.0),),
                )
            )
    return found


def screen(
    of: LiveBest, view: View, columns: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The display's lines, without the terminal's codes."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("LINES", str(lines))
    monkeypatch.setenv("TERM", "dumb")
    from rich.console import Console

    file = Terminal()
    display = Display(file, view, of, lambda: 100.0)
    console = Console(file=StringIO(), width=columns, height=lines)
    try:
        with console.capture() as captured:
            console.print(display.content())
    finally:
        display.stop()
    return captured.get().splitlines()


@pytest.mark.parametrize(("columns", "lines"), [(80, 24), (120, 40), (60, 12)])
def test_eight_panels_of_23_methods_fit_into_two_thirds_of_the_screen(
    columns: int, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = tuple(f"npo  lr 1e-05  forget {i} %  epoch 1 of 5" for i in range(16))
    view = View(
        "running", 90, 184, 0.0, failed=2, seconds_left=75.0, measured_at=90.0, running=running
    )
    shown = screen(live_best(8, 23), view, columns, lines, monkeypatch)
    assert len(shown) <= 2 * lines // 3
    assert all(len(line.rstrip()) <= columns for line in shown)
    assert shown[0].startswith("running ")
    assert "90/184  16 running  2 failed  0:01:40" in shown[0]
    assert f"  and {16 - min(4, lines // 6)} more" in shown
    if columns >= 80:
        assert "━" in shown[0]
        assert "about 1 min 05 s left" in shown[0], "ten of its seconds have passed"
        best = [line for line in shown if "gradient-differ" in line and "-1.00" in line]
        assert best, "the best of a panel comes first"
    else:
        assert "━" not in shown[0]
    hidden = 8 - sum("a-model" in line for line in shown)
    assert (f"  and {hidden} more panels" in shown) == (hidden > 0)


def test_one_panel_has_room_for_its_best_methods(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screen(live_best(1, 23), View("running", 1, 23, 0.0), 100, 30, monkeypatch)
    assert "gradient-difference-1+nll" in shown[2]
    assert sum("+nll" in line for line in shown) == 5
    heading = next(line for line in shown if line.startswith("best so far"))
    assert heading.split()[3:] == ["method", "rate", "epoch", "utility", "log10", "FQ", "p"]
    assert shown[2].split()[-3:] == ["0.800", "-1.00", "0.1"]


def test_a_start_that_shows_nothing_has_no_best(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = screen(live_best(1, 3, 0.01), View("running", 1, 3, 0.0), 100, 30, monkeypatch)
    assert len(shown) == 1, "the bar alone"


def test_without_a_result_there_is_a_bar_only(monkeypatch: pytest.MonkeyPatch) -> None:
    view = View("preparing", 0, 5, 0.0, note="model [a] 36 %, about 21 s left")
    (line,) = screen(LiveBest(), view, 80, 24, monkeypatch)
    assert line.startswith("preparing ")
    assert "0/5  0:01:40  model [a] 36 %" in line
