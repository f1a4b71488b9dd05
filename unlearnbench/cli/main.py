"""Entry of the command line: runs one command, and turns what happens into an exit code.

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

USER_ERROR, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
"""Exit codes; the last two are a shell's for SIGINT and SIGPIPE."""

app = new_group("Compare methods that make a language model forget.")


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """Print the help where no command is given."""
    if context.invoked_subcommand is None:
        Console().print(context.get_help())


for _module in (sweep, plan, evaluate, attack, report, compare, export, fetch, doctor):
    app.add_typer(_module.app)
_plugins = {kind: plugin_group(kind) for kind in KINDS}
_plugins["methods"].add_typer(gradient.app)
for _name, _group in (
    *(("anchors", anchors.app), ("leaderboard", leaderboard.app), ("figures", figures.app)),
    *(("analysis", analysis.app), *_plugins.items()),
    *(("configs", configs.app), ("profiles", profiles.app), ("trackers", trackers.app)),
):
    app.add_typer(_group, name=_name)


@lru_cache(maxsize=1)
def root_command() -> Any:
    """The command line as Typer builds it: a group of commands."""
    return get_command(app)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; the return value is the exit code.

    argv  default: the process's own; `--traceback` anywhere in it shows where an error came from
    """
    # Where other programs want the cores, torch's threads must not wait for each other by turning
    # in a loop: beside four busy processes an evaluation took 13 times as long, now 4 times.
    os.environ.setdefault("GOMP_SPINCOUNT", "1000")
    arguments = [*(sys.argv[1:] if argv is None else argv)]
    if show_traceback := "--traceback" in arguments:
        arguments.remove("--traceback")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal may lack «·»
    try:
        code = _run(arguments)
        sys.stdout.flush()
        return code
    except typer.Exit as error:  # after help or the version
        return error.exit_code
    except BrokenPipeError:
        # Python writes once more at exit: that goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except (Exception, KeyboardInterrupt, Stopped) as error:
        if show_traceback:
            traceback.print_exc()
        from unlearnbench.base.text_table import paragraph, width_of

        code, text = _ending(error)
        for line in redact(text).splitlines():
            # A terminal would break a line in the middle of a word.
            shown = paragraph(line, width_of(sys.stderr), "    ") if sys.stderr.isatty() else line
            sys.stderr.write(f"{shown}\n")
        return code
    except SystemExit as error:  # after a script of completion
        return int(error.code or 0)


def _run(argv: list[str]) -> int:
    command = root_command()
    if "_UNLEARNBENCH_COMPLETE" in os.environ:
        command(argv, prog_name="unlearnbench")  # a shell asks for completions; exits
    with command.make_context("unlearnbench", argv) as context:
        return command.invoke(context) or 0


def _ending(error: BaseException) -> tuple[int, str]:
    """Exit code and message of what ended a command."""
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
