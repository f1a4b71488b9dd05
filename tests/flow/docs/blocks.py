"""Fenced blocks of a Markdown page, and the commands in them."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from textwrap import dedent

_FENCE = re.compile(
    r"^ *(?P<fence>`{3,}|~{3,})(?P<info>.*?)\n(?P<text>.*?)^ *(?P=fence) *$",
    re.DOTALL | re.MULTILINE,
)
_EXEMPTION = re.compile(r" *<!-- not run: (?P<reason>.+)-->")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str
    """File that the block is written to; empty if it has none."""
    text: str
    line: int
    """Line of its fence, from 1."""
    reason: str | None
    """Why it is not run; None if it is."""


@dataclass(frozen=True)
class Command:
    """A command line of a block."""

    words: tuple[str, ...]
    out: str
    """File that standard output goes to, or empty."""
    code: int
    """Expected exit code: 0, or that of a comment `# exit code 2`."""


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order."""
    return [*_blocks(text)]


def _blocks(text: str) -> Iterator[Block]:
    for fenced in _FENCE.finditer(text):
        language, _, options = fenced["info"].strip().partition(" ")
        titled = re.search(r'title="([^"]+)"', options)
        before = text[: fenced.start()].splitlines()[-1:]
        exempt = _EXEMPTION.fullmatch(before[0]) if before else None
        yield Block(
            language,
            titled[1] if titled else "",
            dedent(fenced["text"]),
            text.count("\n", 0, fenced.start()) + 1,
            exempt["reason"].strip() if exempt else None,
        )


def commands(text: str) -> Iterator[Command]:
    """The command lines of a shell block; `&&` divides one, a trailing backslash joins two."""
    for line in text.replace("\\\n", " ").splitlines():
        noted = re.search(r"#.*\bexit code (\d+)", line)
        words = shlex.split(line, comments=True)
        while words:
            end = words.index("&&") if "&&" in words else len(words)
            part, words = words[:end], words[end + 1 :]
            out = ""
            if ">" in part:
                part, (_, out) = part[: part.index(">")], part[part.index(">") :]
            yield Command(tuple(part), out, int(noted[1]) if noted else 0)


def inline_commands(text: str) -> list[tuple[str, ...]]:
    """The commands in the prose of a page, unless cut short."""
    prose = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"(?<!`)`(unlearnbench [^`\n]+)`(?!`)", prose)
    return [tuple(shlex.split(one)) for one in found if "…" not in one and "..." not in one]
