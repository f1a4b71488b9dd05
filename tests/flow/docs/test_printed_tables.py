"""What pages print below commands that need no model: `plan` and `list`.

Blocks below commands that train are not compared, because their numbers take minutes and differ
between processors. `text title="printed"` blocks are compared by test_pages.py.
"""

import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from unlearnbench.cli.main import main

from .blocks import Command, blocks, commands

ROOT = Path(__file__).parents[3]
PAGES = sorted([*(ROOT / "docs/tutorials").glob("*.md"), *(ROOT / "docs/start").glob("*.md")])


def is_quick(command: Command) -> bool:
    """Whether a command only reads."""
    program, *words = command.words
    return program == "unlearnbench" and ("plan" in words[:1] or "list" in words[1:2])


def printed_tables(page: Path) -> Iterator[tuple[Command, str]]:
    """Yield each such command with the text that stands below it."""
    found = blocks(page.read_text(encoding="utf-8"))
    for block, below in pairwise(found):
        if block.language != "sh" or block.reason or below.language != "text" or below.title:
            continue
        typed = [*commands(block.text)]
        if len(typed) == 1 and is_quick(typed[0]):
            yield typed[0], below.text


def pattern_of(text: str) -> str:
    """Return a pattern in which `...` stands for any text, and times are any times."""
    pattern = "".join(
        ".*" if part == "..." else re.escape(part) for part in re.split(r"(\.\.\.)", text.strip())
    )
    # A machine of another speed, or a busier one, prints another time.
    return re.sub(r"about\\ \d+\\ min", r"about\\ \\d+\\ min", pattern)


CASES = [(page, *case) for page in PAGES for case in printed_tables(page)]


def test_pages_with_such_tables_are_found() -> None:
    assert {"compare-three-methods", "tune-fairly"} <= {page.stem for page, *_ in CASES}


@pytest.mark.parametrize(
    ("page", "command", "text"),
    CASES,
    ids=[f"{page.stem}: {' '.join(command.words[1:3])}" for page, command, _ in CASES],
)
def test_a_command_prints_what_its_page_prints(
    page: Path,
    command: Command,
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for block in blocks(page.read_text(encoding="utf-8")):
        if block.title and block.language in ("yaml", "python"):
            Path(block.title).write_text(block.text, encoding="utf-8")
    assert main([*command.words[1:]]) == 0
    printed = capsys.readouterr().out.strip()
    assert re.fullmatch(pattern_of(text), printed, re.DOTALL), printed
