"""Quote texts of rows in messages, except if a sweep keeps no texts (`keep_texts: false`).

The configuration decides whether texts are hidden before any row is read. Its decision holds for
the whole process.
"""

from collections.abc import Sized

from unlearnbench.base.errors import shortened


class _Texts:
    """Whether texts of rows are hidden in this process."""

    are_hidden = False


def hide_row_texts(*, hidden: bool) -> None:
    """Decide whether messages quote texts of rows."""
    _Texts.are_hidden = hidden


def are_row_texts_hidden() -> bool:
    """Whether messages may not quote texts of rows."""
    return _Texts.are_hidden


def row_text(value: object) -> str:
    """Quote a text of a row, or say how long it is if texts are hidden."""
    if not _Texts.are_hidden:
        return shortened(value)
    length = f" of length {len(value)}" if isinstance(value, Sized) else ""
    return f"<{type(value).__name__}{length}, hidden by keep_texts: false>"
