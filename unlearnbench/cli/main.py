"""Entry of the command line: runs one command, and turns what happens into an exit code.

Nothing heavy is imported before a command needs it, so that `--help` and errors are immediate.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Annotated, Any, TextIO

import typer
from typer.main import get_command

from unlearnbench.cli import (
    analysis,
    anchors,
    attack_checkpoint,
    attacks,
    bench,
    benchmarks,
    cache,
    compare,
    configs,
    doctor,
    evaluate,
    export,
    figures,
    leaderboard,
    methods,
    metrics,
    plan,
    profiles,
    report,
    sweep,
)
from unlearnbench.cli.command import DOCUMENTATION, new_group
from unlearnbench.console import Console
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.files.outputs import one_line, printable
from unlearnbench.runtime.redaction import redact
from unlearnbench.runtime.signals import EXIT_CODE, Stopped

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
"""Exit codes; the last two are a shell's for SIGINT and SIGPIPE."""

app = new_group("Compare methods that make a language model forget.")


def _print_version(given: bool) -> None:
    if given:
        from importlib.metadata import version

        Console().print(version("unlearnbench"))
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=f"""\
\b
Start here:
  unlearnbench quickstart                     eight methods on a small benchmark made here: no
                                              network, no GPU, minutes; ends with a page to open
  unlearnbench sweep every_method             ... and all the others
  unlearnbench configs list                   what else is ready to run
  unlearnbench plan tofu_llama2_7b            the runs of a sweep, and their cost, before any
  unlearnbench sweep tofu_llama2_7b           ... and the sweep; the same command resumes it
  unlearnbench sweep my.yaml --set epochs=10  any key of the YAML can be overridden
  unlearnbench compare npo+nll ce-u           which of two forgets more at equal utility, and
                                              how sure that is
  unlearnbench evaluate ./my-model --data ~/tofu
                                              one model: is it forgotten, is it private, is the
                                              rest kept; all metrics, answers, log
  unlearnbench attack ./my-model --attack relearning --retain ./my-retain-model
                                              ... does it give back what it has forgotten?
  unlearnbench score log.json --retain retain90.json
                                              the same of a log of TOFU's, or open-unlearning's
  unlearnbench anchors check --log TOFU_EVAL.json
                                              does this installation reproduce published numbers?

\b
A CONFIG is a YAML file or the name of a shipped one. `COMMAND --help` explains a command.
Exit codes: 0 done; 1 some runs failed; 2 an error, which one line explains; 130 interrupted;
141 the reader of the output has gone (`| head`); 143 stopped by SIGTERM.

{DOCUMENTATION}""",
)
def _root(
    context: typer.Context,
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Print the help where no command is given."""
    if context.invoked_subcommand is None:
        Console().print(context.get_help())


for _group in (
    *(sweep.app, plan.app, evaluate.app, attack_checkpoint.app),
    *(report.app, compare.app, export.app, report.mlflow, doctor.app),
):
    app.add_typer(_group)
for _name, _group, _panel in (
    ("leaderboard", leaderboard.app, report.RESULTS),
    ("figures", figures.app, report.RESULTS),
    ("analysis", analysis.app, report.RESULTS),
    ("anchors", anchors.app, evaluate.ONE_MODEL),
    ("methods", methods.app, "Installed"),
    ("metrics", metrics.app, "Installed"),
    ("benchmarks", benchmarks.app, "Installed"),
    ("attacks", attacks.app, "Installed"),
    ("configs", configs.app, "Installed"),
    ("profiles", profiles.app, "Installed"),
    ("cache", cache.app, "This machine"),
    ("bench", bench.app, "Speed and memory"),
):
    app.add_typer(_group, name=_name, rich_help_panel=_panel)


@lru_cache(maxsize=1)
def root_command() -> Any:
    """The command line as Typer builds it: a group of commands."""
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code.

    argv  default: the process's own; then a slow command begins with a line of progress
    """
    closed = _open_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack «·»
    try:
        if "stdout" in closed:
            raise UnlearnbenchError(
                "standard output is closed, so no result could be printed; send it to /dev/null "
                "where none is wanted"
            )
        code = _run(sys.argv[1:] if argv is None else [*argv], announce=argv is None)
        sys.stdout.flush()
        return code
    except typer.Exit as error:  # after help or the version
        return _flush(error.exit_code)
    except (UnlearnbenchError, typer.TyperException, KeyboardInterrupt, Stopped) as error:
        return _ended(error)
    except (OSError, UnicodeEncodeError, MemoryError, RecursionError) as error:
        # Faults that no check can foresee: a disk that fills, a name that no system takes.
        return _ended(error)
    except SystemExit as error:  # after a script of completion
        return _flush(int(error.code or 0))


def _run(argv: list[str], *, announce: bool) -> int:
    command = root_command()
    if "_UNLEARNBENCH_COMPLETE" in os.environ:
        command(argv, prog_name="unlearnbench")  # a shell asks for completions; exits
    with command.make_context("unlearnbench", argv, obj=announce) as context:
        return command.invoke(context) or 0


def _ended(error: BaseException) -> int:
    """Print the message of `error`, unless its reader is gone; returns the exit code."""
    if isinstance(error, BrokenPipeError):
        return _flush(BROKEN_PIPE)
    if isinstance(error, Stopped):
        code, text = EXIT_CODE, f"{error}, and the same command resumes where this one stopped"
    elif isinstance(error, KeyboardInterrupt):
        code, text = INTERRUPTED, "interrupted; the same command resumes where this one stopped"
    else:
        code, text = USER_ERROR, _message(error)
    code = _flush(code)
    _print_error(text)
    return code


def _message(error: BaseException) -> str:
    if isinstance(error, UnlearnbenchError):
        return str(error)
    if isinstance(error, typer.TyperException):
        context: typer.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context else "unlearnbench"
        text = error.format_message().replace("Value error, ", "")
        return f"{path}: {text}\nTry '{path} --help'."
    if isinstance(error, MemoryError):
        return f"out of memory: {one_line(error) or 'an input is too large for this machine'}"
    if isinstance(error, RecursionError):
        return "nested too deeply: an input has hundreds of levels inside each other; flatten it"
    if isinstance(error, UnicodeEncodeError):
        return f"{one_line(error.object)}: not a name that a file can have: {error.reason}"
    if isinstance(error, OSError) and error.filename is not None:
        return f"{one_line(error.filename)}: {error.strerror}"
    return f"{getattr(error, 'strerror', None) or one_line(error)}; nothing more was done"


def _flush(code: int) -> int:
    """Flush standard output; returns `code`, or that of an error where output was lost."""
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
    except OSError:  # full or closed: the exit code remains
        _discard(sys.stderr)


def _discard(stream: TextIO) -> None:
    """Send the rest of a stream to the null device."""
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
