"""Entry point of the command line: runs one command, and turns its end into an exit code.

Nothing heavy is imported before a command needs it, so that `--help` and errors are immediate.
"""

import io
import os
import sys
import traceback
from collections.abc import Sequence
from functools import lru_cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from unlearnbench.api.plugin_code import describe
from unlearnbench.base.console import Console
from unlearnbench.base.errors import UnlearnbenchError, no_room
from unlearnbench.base.garbage_collection import keep_what_is_imported
from unlearnbench.base.heap import keep_freed_memory
from unlearnbench.base.redaction import redact
from unlearnbench.base.signals import EXIT_CODE, Stopped
from unlearnbench.cli import (
    analysis,
    anchors,
    attack,
    compare,
    configs,
    doctor,
    evaluate,
    export,
    fetch,
    figures,
    gradient,
    leaderboard,
    plan,
    profiles,
    report,
    sweep,
    trackers,
)
from unlearnbench.cli.command import DOCUMENTATION, new_group
from unlearnbench.cli.plugin_commands import plugin_group
from unlearnbench.cli.plugin_kinds import KINDS

USER_ERROR = 2
INTERRUPTED = 130
"""Exit code of a shell for SIGINT."""
BROKEN_PIPE = 141
"""Exit code of a shell for SIGPIPE."""

app = new_group("Compare methods that make a language model forget.")


def _print_version(is_requested: bool) -> None:
    if is_requested:
        from importlib.metadata import version

        Console().print(version("unlearnbench"))
        raise typer.Exit


@app.callback(
    invoke_without_command=True,
    epilog=f"""\
\b
Start here:
  unlearnbench quickstart
      Compare methods on a small benchmark that is made here. It takes
      minutes, needs no network and no GPU, and ends with a page to open.
  unlearnbench configs list
      See what else is ready to run.
  unlearnbench configs new mine --forget-rows FILE --retain-rows FILE
      Begin a config for rows and a model of your own.
  unlearnbench plan tofu_llama2_7b
      See the runs of a sweep and what they cost, before any of them starts.
  unlearnbench sweep my.yaml --set epochs=10
      Sweep. The same command resumes it, and --set overrides keys of YAML.
  unlearnbench compare npo+nll ce-u
      See which of two methods forgets more at equal utility, and how surely.
  unlearnbench evaluate ./my-model --data ~/tofu
      Evaluate a model: is it forgotten, is it private, is the rest kept?
  unlearnbench attack ./my-model --attack relearning --retain ./retain-model
      Attack a model: does it give back what it has forgotten?

\b
A CONFIG is a YAML file, or the name of a config that is installed.
Exit codes: 0 done; 1 some runs failed; 2 an error, which a line explains
(--traceback shows where it came from); 130 interrupted; 141 the reader of
the output has gone (`| head`); 143 stopped by SIGTERM.

\b
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
    """Print the help if no command is given."""
    if context.invoked_subcommand is None:
        Console().print(context.get_help())


# The help lists commands and groups in this order.
for _module in (sweep, plan, evaluate, attack, report, compare, export, fetch, doctor):
    app.add_typer(_module.app)
app.add_typer(anchors.app, name="anchors")
app.add_typer(leaderboard.app, name="leaderboard")
app.add_typer(figures.app, name="figures")
app.add_typer(analysis.app, name="analysis")
for _kind in KINDS:
    _plugin_commands = plugin_group(_kind)
    if _kind == "methods":
        _plugin_commands.add_typer(gradient.app)
    app.add_typer(_plugin_commands, name=_kind)
app.add_typer(configs.app, name="configs")
app.add_typer(profiles.app, name="profiles")
app.add_typer(trackers.app, name="trackers")


@lru_cache(maxsize=1)
def root_command() -> Any:
    """Return the command line as Typer builds it: a group of commands."""
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: Arguments. None means the process's own. `--traceback` anywhere among them shows where
            an error came from.

    Returns:
        The exit code.
    """
    # If other programs need the cores, torch's threads must not wait for each other by turning in a
    # loop. Beside four busy processes, an evaluation took 13 times as long, and takes 4 times now.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    if argv is None:
        keep_what_is_imported()
        keep_freed_memory()
    arguments = list(sys.argv[1:] if argv is None else argv)
    show_traceback = "--traceback" in arguments
    if show_traceback:
        arguments.remove("--traceback")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal may lack characters such as «·».
            stream.reconfigure(errors="replace")
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except typer.Exit as error:
        # The help or the version was printed.
        return error.exit_code
    except BrokenPipeError:
        # Python writes once more at exit. That goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt, Stopped) as error:
        if show_traceback:
            traceback.print_exc()
        code, message = _code_and_message(error)
        _print_error(message)
        return code
    except SystemExit as error:
        # A completion script was printed.
        return int(error.code or 0)


def _run(argv: list[str]) -> int:
    """Carry out the command that the arguments name, and return its exit code."""
    command = root_command()
    if "_UNLEARNBENCH_COMPLETE" in os.environ:
        # A shell asks for completions. Typer prints them and exits.
        command(argv, prog_name="unlearnbench")
    with command.make_context("unlearnbench", argv) as context:
        return command.invoke(context) or 0


def _print_error(message: str) -> None:
    """Print a message without secrets. Lines are broken between words if a terminal shows them."""
    from unlearnbench.base.text_table import paragraph, width_of

    for line in redact(message).splitlines():
        shown = line
        if sys.stderr.isatty():
            shown = paragraph(line, width_of(sys.stderr), "    ")
        sys.stderr.write(f"{shown}\n")


def _code_and_message(error: BaseException) -> tuple[int, str]:
    """Return the exit code and the message for an exception that ended a command."""
    if isinstance(error, Stopped):
        return EXIT_CODE, f"{error}, and the same command resumes where this one stopped"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted; the same command resumes where this one stopped"
    if isinstance(error, UnlearnbenchError):
        return USER_ERROR, str(error)
    if isinstance(error, typer.TyperException):
        context: typer.Context | None = getattr(error, "ctx", None)
        path = context.command_path if context else "unlearnbench"
        text = error.format_message().replace("Value error, ", "")
        return USER_ERROR, f"{path}: {text}\nTry '{path} --help'."
    if isinstance(error, OSError) and error.filename is not None:
        text = f"{error.filename}: {error.strerror}"
    else:
        text = f"unexpected error: {describe(error)}; --traceback shows where"
    return USER_ERROR, str(no_room(text) or text)


if __name__ == "__main__":
    sys.exit(main())
