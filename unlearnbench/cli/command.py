"""Declaration, parsing and execution that all commands share.

Typer makes a command from a function: its parameters are the options, its docstring is the help,
and what it returns is the exit code; nothing stands for 0.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import pairwise
from typing import Any, ClassVar, TypeVar

import typer
from typer.core import TyperCommand, TyperGroup, TyperOption

from unlearnbench.api.plugin_code import place
from unlearnbench.cli.first_line import first_line
from unlearnbench.console import results, results_only_on_stdout
from unlearnbench.errors import UnlearnbenchError
from unlearnbench.files.outputs import Output, check_arguments
from unlearnbench.runtime.signals import Stopped

DOCUMENTATION = "Documentation: docs/ of the repository; `make docs` makes a site of it."
"""The last line of the help of groups."""

Function = TypeVar("Function", bound=Callable[..., int | None])


class Command(TyperCommand):
    """A command whose outputs are checked before it begins, and whose result is its exit code."""

    outputs: ClassVar[tuple[Output, ...]] = ()

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse `args`; an option with the metavar `X...` takes all values that follow it."""
        options = [param for param in self.params if isinstance(param, TyperOption)]
        valued = {name for one in options if not one.is_flag for name in one.opts}
        end = args.index("--") if "--" in args else len(args)
        for option, value in pairwise(args[:end]):
            if option in valued and value.startswith("--"):
                ctx.fail(f"Option {option!r} requires an argument.")
        several = {
            name for one in options if (one.metavar or "").endswith("...") for name in one.opts
        }
        return super().parse_args(ctx, [*_one_value_each(args[:end], several), *args[end:]])

    def invoke(self, ctx: Any) -> int:
        """Carry out the command; only its results go to standard output."""
        arguments = {one.opts[0].lstrip("-"): ctx.params[one.name] for one in self.params}
        check_arguments(arguments, self.outputs)
        with results_only_on_stdout(), self._announced(ctx):
            try:
                code: int = super().invoke(ctx) or 0
            except Stopped:
                raise
            except SystemExit as error:  # no command of ours ends like that
                raise UnlearnbenchError(
                    f"sys.exit({error.code!r}) was called at {place(error)}; nothing is done"
                ) from error
            results().flush()
        return code

    def _announced(self, ctx: Any) -> AbstractContextManager[None]:
        """Print a first line where the command is slow, a person waits, and no program reads."""
        if not ctx.obj or ctx.params.get("as_json"):
            return nullcontext()
        return first_line(ctx.command_path.removeprefix("unlearnbench "))

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments, without their types, and options."""
        sections: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            name, text = param.get_help_record(ctx) or ("", "")
            text = re.sub(r"\[default: \((.*?)\)(?=[];])", r"[default: \1", text)
            if isinstance(param, TyperOption):
                sections.setdefault("Options", []).append((name, text))
            else:
                sections.setdefault("Arguments", []).append((name.partition(" <")[0], text))
        _write_sections(formatter, sections)


class Group(TyperGroup):
    """A group of commands, listed under the headings of their panels."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002
        """Write each command with the first sentence of its help."""
        panels: dict[str, list[tuple[str, str]]] = {}
        for name, one in self.commands.items():
            panel = getattr(one, "rich_help_panel", None) or "Commands"
            panels.setdefault(panel, []).append((name, one.get_short_help_str(limit=200)))
        _write_sections(formatter, panels)


def new_group(text: str = "") -> typer.Typer:
    """A group of commands with the help `text`; nameless groups are merged into the one above."""
    return typer.Typer(
        cls=Group,
        help=text,
        epilog=DOCUMENTATION if text else None,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    )


def command(
    group: typer.Typer,
    name: str,
    *,
    writes: Sequence[Output] = (),
    panel: str | None = None,
    text: str | None = None,
) -> Callable[[Function], Function]:
    """Declare a command of `group`; the docstring may end with «Examples:», shown line by line.

    writes  the options that name a place to write to
    panel   the heading that it is listed under
    text    in place of the docstring
    """

    class Declared(Command):
        outputs = tuple(writes)

    def declare(function: Function) -> Function:
        doc = inspect.cleandoc(text or function.__doc__ or "")
        about, found, examples = doc.partition("\n\nExamples:\n")
        epilog = f"\b\nExamples:\n{examples}" if found else None  # \b: no line is wrapped
        how: Any = {"cls": Declared, "help": about, "epilog": epilog, "rich_help_panel": panel}
        return group.command(name, **how)(function)

    return declare


def option(metavar: str, text: str, *names: str, default: str | None = None, **more: Any) -> Any:
    """Declare an option with a value; `default` is what the help shows where the code has none."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=default or True, **more)


def argument(metavar: str, text: str | None = None, **more: Any) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, help=text)


def _write_sections(formatter: Any, sections: Mapping[str, Sequence[tuple[str, str]]]) -> None:
    for title, rows in sections.items():
        with formatter.section(title):
            formatter.write_dl(rows)


def _one_value_each(args: Sequence[str], several: set[str]) -> list[str]:
    """`--metrics a b` as `--metrics a --metrics b`, for the options `several`."""
    words: list[str] = []
    option = ""
    for arg in args:
        if arg in several or arg.startswith("-"):
            option = arg if arg in several else ""
            words.append(arg)
        elif option and words[-1] != option:
            words += [option, arg]
        else:
            words.append(arg)
    return words
