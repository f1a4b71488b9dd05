"""Fenced blocks of a Markdown page, and the commands in them."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from textwrap import dedent

LANGUAGES = frozenset({"sh", "python", "yaml", "text", "json", "toml"})
_FENCE = re.compile(r"(?P<indent> *)(?P<fence>`{3,}|~{3,})(?P<info>.*)")
_EXEMPTION = re.compile(r"<!-- not run:(?P<reason>.*)-->")


@dataclass(frozen=True)
class Block:
    """A fenced block."""

    language: str
    title: str
    """File that the block is written to; empty if it has none."""
    text: str
    line: int
    """Of its fence, from 1."""
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
    """The blocks of a page, in order. Raises: ValueError for a block that breaks a rule."""
    lines = text.splitlines()
    found: list[Block] = []
    at = 0
    while at < len(lines):
        opened = _FENCE.fullmatch(lines[at])
        if opened is None:
            if _EXEMPTION.search(lines[at]):
                _check_exemption(lines, at)
            at += 1
            continue
        ends = re.compile(rf" *{opened['fence'][0]}{{{len(opened['fence'])},}} *")
        end = next((i for i in range(at + 1, len(lines)) if ends.fullmatch(lines[i])), None)
        if end is None:
            raise ValueError(f"line {at + 1}: the fence is not closed")
        found.append(_block(lines, at, end, opened["info"].strip()))
        at = end + 1
    return found


def _check_exemption(lines: Sequence[str], at: int) -> None:
    if at + 1 == len(lines) or not _FENCE.fullmatch(lines[at + 1]):
        raise ValueError(f"line {at + 1}: `not run` is not just before a fence")


def _block(lines: Sequence[str], at: int, end: int, info: str) -> Block:
    language, _, options = info.partition(" ")
    if language not in LANGUAGES:
        known = ", ".join(sorted(LANGUAGES))
        raise ValueError(f"line {at + 1}: {language!r} is not one of the languages {known}")
    titled = re.search(r'title="([^"]+)"', options)
    exempt = _EXEMPTION.fullmatch(lines[at - 1].strip()) if at else None
    reason = exempt["reason"].strip() if exempt else None
    if reason == "":
        raise ValueError(f"line {at}: `not run` without a reason")
    if language == "yaml" and titled is None:
        raise ValueError(f'line {at + 1}: a YAML block has a title, as in title="my.yaml"')
    text = dedent("\n".join(lines[at + 1 : end]) + "\n")
    return Block(language, titled[1] if titled else "", text, at + 1, reason)


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
    """The commands in the prose of a page, of the project and of make, unless cut short."""
    prose = re.sub(r"^ *(`{3,}|~{3,}).*?^ *\1", "", text, flags=re.DOTALL | re.MULTILINE)
    found = re.findall(r"(?<!`)`((?:unlearnbench|make) [^`\n]+)`(?!`)", prose)
    return [tuple(shlex.split(one)) for one in found if "…" not in one and "..." not in one]
