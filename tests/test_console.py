"""A person is told what runs and how long it takes; a pipe gets plain lines."""

from __future__ import annotations

import io

import pytest

from unlearnbench.console import Bar, Console, duration, finite


def test_a_terminal_gets_a_drawn_table() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    out = Terminal()
    console = Console(out, io.StringIO())
    console.table(("name", "value"), [("a[b]", 1.5), ("c", None)], "title")
    assert "a[b]" in out.getvalue()
    assert "1.5" in out.getvalue()


def test_a_plain_table_is_aligned() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table(("name", "n"), [("ce-u", 1.0), ("x", None), ("y", 20)])
    assert out.getvalue() == "name   n\nce-u   1\nx      -\ny     20\n"


def test_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    with Bar(Console(io.StringIO(), err), "a[b]") as bar:
        bar(1, 2)
        bar(2, 2)
    assert "a[b]" in err.getvalue()
    assert "100%" in err.getvalue()
    plain = io.StringIO()
    with Bar(Console(io.StringIO(), plain), "work") as bar:
        for done in range(9):
            bar(done, 8)
    assert plain.getvalue().splitlines() == [f"work: {25 * i} %" for i in range(5)]


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (7500, "2 h 05 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_json_has_no_infinities() -> None:
    nan, inf = float("nan"), float("inf")
    values = finite({"a": 1.0, "b": nan, "c": -inf, "d": None})
    assert values == {"a": 1.0, "b": None, "c": None, "d": None}
