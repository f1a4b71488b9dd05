"""Places that a command writes to: checked before any work, written whole or not at all.

A place is refused if nothing can be written there, if the command reads it, or if two outputs are
the same. Each command declares its outputs with its options (`Output`); `check_arguments` is called
once, for all commands.
"""

from __future__ import annotations

import errno
import os
import tempfile
import unicodedata
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from unlearnbench.errors import OutputError, StorageError
from unlearnbench.files.atomic import PART, atomic_path
from unlearnbench.files.bounded import name_problem, text_problem

VIEWS = (".html", ".csv", ".svg", ".png", ".pdf", ".parquet")
"""Ends of names of files that no command reads: in a folder that is read they may be replaced."""
SCHEMES = ("file", "local", "memory", "s3", "s3a", "gs", "gcs")
"""Schemes of `storage`, by fsspec's names; a path has none."""
_BESIDE = f"{PART}01234567-"
"""Beginning of the name of the file that is written beside an output and renamed."""
_LONGEST = 120
"""Characters of a place in a message."""


@dataclass(frozen=True)
class Output:
    """One option of a command that names a place to write to."""

    option: str
    what: str
    """In messages: `the page`."""
    suffixes: tuple[str, ...] = ()
    """Ends that the name may have; none: any."""
    beside: tuple[str, ...] = ()
    """Suffixes of further files that are written with it, under the same name."""
    kind: Literal["file", "folder", "appended"] = "file"


def printable(text: str) -> str:
    r"""`text` with what moves or reorders a terminal's text as `\u001b`; lines stay lines.

    These are control characters, marks of writing direction and surrogates. JSON stays the same
    JSON: it reads back what is escaped.
    """
    if text.isprintable():
        return text
    return "".join(c if c in "\n\t" or not _moves(c) else f"\\u{ord(c):04x}" for c in text)


def _moves(character: str) -> bool:
    kind = unicodedata.category(character)
    return kind in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(character) in (
        *("LRE", "RLE", "LRO", "RLO", "PDF"),
        *("LRI", "RLI", "FSI", "PDI"),
    )


def one_line(text: object) -> str:
    """`text` for a line of its own: printable, without line breaks, cut where it is long."""
    line = printable(str(text)).replace("\n", "\\n").replace("\t", "\\t")
    return line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"


def spreadsheet_cell(value: Any) -> Any:
    """`value`, with an apostrophe before a text that a spreadsheet would take for a formula."""
    if not isinstance(value, str):
        return value
    text = value.replace("\r", "\\r")  # the csv module writes it bare, which ends a row
    return f"'{text}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else text


def check_arguments(arguments: Mapping[str, Any], outputs: Sequence[Output]) -> None:
    """Raise OutputError where an output of a command cannot be written, or must not be.

    arguments  of the command line, by name: all that are not outputs and name a file or a folder
               that is there are inputs
    """
    for name, value in arguments.items():
        for text in _texts(value):
            if name != "set":
                check_name(text, name)
            # YAML may have several lines; what is a path in it is checked as a setting.
            elif fault := text_problem(text):
                raise OutputError(f"--set {one_line(text)}: {fault}; leave it out")
    named = [(one, str(arguments[one.option])) for one in outputs if arguments.get(one.option)]
    for one, text in named:
        if one.kind == "folder":
            check_folder(text, one.what)
        else:
            check_file(text, one.what, one.suffixes)
    files = [(one.what, path) for one, text in named for path in _files(one, text)]
    check_apart(files, _inputs(arguments, {one.option for one in outputs}))


def _files(output: Output, text: str) -> Iterator[Path]:
    if output.kind == "file":
        yield Path(text)
        for suffix in output.beside:
            beside = Path(text).with_suffix(suffix)
            check_file(beside, f"what goes with {output.what}")
            yield beside


def _inputs(arguments: Mapping[str, Any], outputs: set[str]) -> list[Path]:
    """Files and folders that the other arguments name."""
    found: list[Path] = []
    for text in (t for n, v in arguments.items() if n not in outputs for t in _texts(v)):
        with suppress(OSError, ValueError):  # a method's name, a number, a hub's id
            if (path := Path(text)).exists():
                found.append(path)
    return found


def _texts(value: object) -> list[str]:
    many: list[object] = [*value] if isinstance(value, list | tuple) else [value]
    return [text for text in many if isinstance(text, str) and text]


def check_file(path: str | Path, what: str, suffixes: Sequence[str] = ()) -> None:
    """Raise OutputError where no file can be written at `path`; nothing is left there."""
    path = Path(check_name(path, what))
    if suffixes and path.suffix.lower() not in suffixes:
        raise _refused(path, what, f"its name must end in {' or '.join(suffixes)}")
    try:
        if path.is_dir():
            raise _refused(path, what, "a folder")
        if os.path.lexists(path) and not path.is_file():
            raise _refused(path, what, "neither a file nor a new one")
    except OSError as error:
        raise _refused(path, what, error.strerror or str(error)) from error
    _check_writable(path.parent, path.with_name(_BESIDE + path.name), path, what)


def check_folder(path: str | Path, what: str) -> None:
    """Raise OutputError where no folder can be made, or written into; nothing is left there."""
    path = Path(check_name(path, what))
    _check_writable(path, path, path, what)


def check_storage(url: str) -> None:
    """Raise StorageError unless results can be shared through `url`; asks no server.

    A path must be one that can be written; schemes are the configuration's to check.
    """
    if not url.strip():
        raise StorageError("storage: empty; give a path, s3:// or gs://, or leave the key out")
    scheme, is_url, rest = url.partition("://")
    if not is_url:
        check_folder(url, "storage")
    elif scheme in ("file", "local"):
        check_folder(rest, "storage")


def check_name(path: str | Path, what: str) -> str:
    """`path` as text. Raises: OutputError where it can be no name or path."""
    text = str(path)
    if fault := name_problem(text):
        raise OutputError(f"{what}: {one_line(text)}: {fault}; choose another name")
    return text


def _longest_name(path: Path) -> int:
    """Bytes of a name where `path` is to be."""
    for folder in path.absolute().parents:
        with suppress(OSError, ValueError, AttributeError):  # the last on Windows
            return os.pathconf(folder, "PC_NAME_MAX")
    return 255


def _check_writable(folder: Path, longest: Path, place: Path, what: str) -> None:
    """Raise OutputError unless a file can be made in `folder`, or in what it would be made in.

    longest  what will be written there first;  place: what messages call it
    """
    try:
        if max(len(os.fsencode(part)) for part in ("", *longest.parts)) > _longest_name(place):
            raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))
        for near in (folder, *folder.absolute().parents):
            if near.is_dir():
                with tempfile.TemporaryFile(dir=near):  # leaves no name, not even while it is open
                    return
            if os.path.lexists(near):
                rule = "a link to nothing" if near.is_symlink() else "not a folder"
                raise _refused(
                    place, what, rule if near == place else f"{one_line(near)} is {rule}"
                )
    except OSError as error:
        raise _refused(place, what, error.strerror or str(error)) from error


def check_apart(outputs: Sequence[tuple[str, Path]], inputs: Iterable[Path]) -> None:
    """Raise OutputError where an output is an input, lies over a file of one, or is another's.

    outputs  each with its name in messages
    """
    read = list(inputs)
    for index, (what, path) in enumerate(outputs):
        for other, there in outputs[:index]:
            if _same(path, there):
                raise _refused(path, what, f"{other} goes there; choose another place")
        for source in read:
            if _same(path, source) or _part_of(path, source):
                where = "" if _same(path, source) else f", as a part of {one_line(source)}"
                raise _refused(path, what, f"it is read{where}; choose another place")


def _part_of(path: Path, folder: Path) -> bool:
    """Return whether `path` is a file that the program may read from `folder`."""
    if not path.is_file() or not folder.is_dir() or path.suffix.lower() in VIEWS:
        return False
    if path.resolve().is_relative_to(folder.resolve()):
        return True
    return any(_same(path, one) for one in folder.iterdir())


def _same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:  # not there yet
        return one.absolute() == other.absolute() or one.resolve() == other.resolve()


@contextmanager
def writing(path: Path, what: str, fix: str = "") -> Generator[Path, None, None]:
    """Yield a path beside `path` to write to, which replaces it at the end; makes its folder.

    Raises: OutputError with `fix` where that cannot be done; the old file stays as it was.
    """
    try:
        with atomic_path(path) as part:
            yield part
    except OSError as error:
        reason = error.strerror or str(error)
        raise _refused(path, what, "; ".join(filter(None, [reason, fix]))) from error


def write_file(path: Path, text: str, what: str, fix: str = "") -> None:
    """Replace `path` by `text` at once, so that a reader never sees half of it; see `writing`."""
    with writing(path, what, fix) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _refused(path: str | Path, what: str, reason: str) -> OutputError:
    return OutputError(f"{one_line(path)}: cannot write {what}: {reason}")
