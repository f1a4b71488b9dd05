"""The command line's way in: runs one command, and turns what happens into an exit code.

Nothing heavy is imported before a command needs it, so `--help` and errors are immediate.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Sequence

from unlearnbench.bounded import name_problem, shortened, text_problem
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.parser import build_parser
from unlearnbench.stopping import EXIT_CODE, Stopped

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without «·» is no reason to fail
    parser = build_parser()
    args = parser.parse_args(argv)
    if args.command is None:
        parser.print_help()
        return 0
    try:
        _check_texts(args)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except UnlearnbenchError as error:
        sys.stderr.write(f"{error}\n")
        return USER_ERROR
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}, and the same command goes on where this one stopped\n")
        return EXIT_CODE
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on where this one stopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python flushes once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def _check_texts(args: argparse.Namespace) -> None:
    """Raise UnlearnbenchError for an argument that cannot be a name or a path.

    The text of `--set` may have several lines; what is a path in it is checked as a setting.
    """
    for key, value in vars(args).items():
        for text in value if isinstance(value, list) else (value,):
            if isinstance(text, str):
                wrong = text_problem(text) if key == "set" else name_problem(text)
                if wrong:
                    raise UnlearnbenchError(f"{shortened(text)[1:-1]}: the argument {wrong}")


if __name__ == "__main__":
    sys.exit(main())
