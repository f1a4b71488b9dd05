"""Terminals get drawn tables and bars, pipes plain lines."""

import io

from unlearnbench.base.console import Console, progress_bar


def test_a_plain_table_is_aligned() -> None:
    out = io.StringIO()
    Console(out, io.StringIO()).table(("name", "n"), [("ce-u", 1.0), ("x", None), ("y", 20)])
    assert out.getvalue() == "name   n\nce-u   1\nx      -\ny     20\n"


def test_a_bar_on_a_terminal_and_nothing_elsewhere() -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    err = Terminal()
    with progress_bar(Console(io.StringIO(), err), "a[b]") as bar:
        bar(1, 2)
        bar(2, 2)
    assert "a[b]" in err.getvalue()
    assert "2/2" in err.getvalue()
    plain = io.StringIO()
    with progress_bar(Console(io.StringIO(), plain), "work") as bar:
        for done in range(9):
            bar(done, 8)
    assert plain.getvalue() == ""
