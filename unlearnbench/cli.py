"""The command line's way in: runs one command, and turns what happens into an exit code.

Nothing heavy is imported before a command needs it, so `--help` and errors are immediate.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence

from unlearnbench.console import results, results_apart
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.parser import build_parser
from unlearnbench.plugin_code import place
from unlearnbench.redaction import redact
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
        with results_apart():
            code: int = args.run(args)
            results().flush()
        return code
    except UnlearnbenchError as error:
        sys.stderr.write(f"{redact(str(error))}\n")
        return USER_ERROR
    except Stopped as stopped:
        sys.stderr.write(f"{stopped}, and the same command goes on where this one stopped\n")
        return EXIT_CODE
    except SystemExit as error:  # no command of ours ends like that
        sys.stderr.write(
            f"sys.exit({error.code!r}) was called at {place(error)}; nothing is done\n"
        )
        return USER_ERROR
    except KeyboardInterrupt:
        sys.stderr.write("interrupted; the same command goes on where this one stopped\n")
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left. Python flushes once more at exit: let it go nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


if __name__ == "__main__":
    sys.exit(main())
