"""The command line's way in: runs one command, and turns what happens into an exit code.

Nothing heavy is imported before a command needs it, so `--help` and errors are immediate.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from typing import TextIO

from unlearnbench.console import results, results_apart
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.outputs import check_arguments, one_line, printable
from unlearnbench.parser import build_parser
from unlearnbench.plugin_code import place
from unlearnbench.redaction import redact
from unlearnbench.stopping import EXIT_CODE, Stopped

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
"""Exit codes; the last two are a shell's for SIGINT and SIGPIPE."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    closed = _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without «·» is no reason to fail
    try:
        if "stdout" in closed:
            raise UnlearnbenchError(
                "standard output is closed, so no result could be printed; send it to /dev/null "
                "where none is wanted"
            )
        code = _run(argv)
        sys.stdout.flush()
        return code
    except Stopped as error:
        return _ended(error)
    except SystemExit:  # of argparse, after help or a message about an option
        if (code := _settle(0)) != 0:
            return code
        raise
    except (UnlearnbenchError, KeyboardInterrupt) as error:
        return _ended(error)
    except (OSError, UnicodeEncodeError, MemoryError, RecursionError) as error:
        # What no check at a boundary has foreseen: a disk that fills, a name that no system takes.
        return _ended(error)


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    check_arguments(vars(args), args.writes)
    with results_apart():
        try:
            code: int = args.run(args)
        except Stopped:
            raise
        except SystemExit as error:  # no command of ours ends like that
            raise UnlearnbenchError(
                f"sys.exit({error.code!r}) was called at {place(error)}; nothing is done"
            ) from error
        results().flush()
    return code


def _ended(error: BaseException) -> int:
    """Print what `error` says, where there is somebody to read it; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return _settle(BROKEN_PIPE)
    if isinstance(error, Stopped):
        code, text = EXIT_CODE, f"{error}, and the same command goes on where this one stopped"
    elif isinstance(error, KeyboardInterrupt):
        code, text = INTERRUPTED, "interrupted; the same command goes on where this one stopped"
    else:
        code, text = USER_ERROR, _in_words(error)
    code = _settle(code)
    _print_error(text)
    return code


def _in_words(error: BaseException) -> str:
    if isinstance(error, UnlearnbenchError):
        return str(error)
    if isinstance(error, MemoryError):
        return f"out of memory: {one_line(error) or 'an input is too large for this machine'}"
    if isinstance(error, RecursionError):
        return "nested too deeply: an input has hundreds of levels inside each other; flatten it"
    if isinstance(error, UnicodeEncodeError):
        return f"{one_line(error.object)}: not a name that a file can have: {error.reason}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{one_line(error.filename)}: {error.strerror}"
    return f"{getattr(error, 'strerror', None) or one_line(error)}; nothing more was done"


def _settle(code: int) -> int:
    """Write out what was printed, or let it go; the exit code, or another where it was lost."""
    try:
        sys.stdout.flush()
    except OSError as error:
        # Python writes once more at exit: that goes nowhere.
        _discard(sys.stdout)
        if isinstance(error, BrokenPipeError):
            return code or BROKEN_PIPE
        _print_error(f"standard output: {error.strerror}")
        return code or USER_ERROR
    return code


def _print_error(text: str) -> None:
    try:
        sys.stderr.write(f"{printable(redact(text))}\n")
        sys.stderr.flush()
    except OSError:  # full or gone: the exit code says it
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Let what is left of a stream, and all that follows, go nowhere."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


def _open_streams() -> set[str]:
    """Open the null device for each standard stream that is closed; returns their names.

    The next file that is opened would take its number, and get what is printed.
    """
    closed: set[str] = set()
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            closed.add(name)
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", encoding="utf-8"))
    return closed


if __name__ == "__main__":
    sys.exit(main())
