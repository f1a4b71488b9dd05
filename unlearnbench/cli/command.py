"""Declaration and execution that all commands share.

Typer makes a command from a function: its parameters are the options, its docstring is the help,
and what it returns is the exit code; nothing stands for 0. The fields of a parameter that is a
dataclass are options, too: by it commands share them.
"""

import inspect
from collections.abc import Callable
from dataclasses import fields
from typing import Any, TypeVar

import typer
from typer.core import TyperCommand

from unlearnbench.base.console import results, results_only_on_stdout

DOCUMENTATION = """\
`COMMAND --help` explains a command, with examples. `list` and `show NAME`
do so for methods, modifiers, metrics, benchmarks, attacks and profiles.\
"""
"""The end of the help. It names only what an installed package can print."""

Function = TypeVar("Function", bound=Callable[..., int | None])


class Command(TyperCommand):
    """A command whose result is its exit code; only its results go to standard output."""

    def invoke(self, ctx: Any) -> int:
        """Carry out the command."""
        with results_only_on_stdout():
            code: int = super().invoke(ctx) or 0
            results().flush()
        return code


def new_group(text: str = "") -> typer.Typer:
    """A group of commands with the help `text`; nameless groups are merged into the one above."""
    return typer.Typer(
        help=text,
        short_help=text or None,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 80},
    )


def command(
    group: typer.Typer, name: str, *, text: str | None = None
) -> Callable[[Function], Function]:
    """Declare a command of `group`; the docstring may end with «Examples:», shown line by line.

    text  in place of the docstring
    """

    def declare(function: Function) -> Function:
        doc = inspect.cleandoc(text or function.__doc__ or "")
        about, heading, examples = doc.partition("\n\nExamples:\n")
        epilog = f"\b\nExamples:\n{examples}" if heading else None  # \b: no line is wrapped
        # Without it, the list of a group's commands would cut this line.
        first = " ".join(about.partition("\n\n")[0].split())
        group.command(name, cls=Command, help=about, short_help=first, epilog=epilog)(
            _flat(function)
        )
        return function

    return declare


def _flat(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """`function` with the fields of its parameters that are dataclasses as parameters."""
    signature = inspect.signature(function, eval_str=True)
    groups: dict[str, type[Any]] = {
        name: parameter.annotation
        for name, parameter in signature.parameters.items()
        if hasattr(parameter.annotation, "__dataclass_fields__")
    }

    def called(**values: Any) -> int | None:
        for name, group in groups.items():
            values[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        return function(**values)

    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            # A signature takes long: its annotations are evaluated.
            parameters += inspect.signature(groups[name], eval_str=True).parameters.values()
        else:
            parameters.append(parameter)
    called.__annotations__ = {each.name: each.annotation for each in parameters}
    flat = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    called.__signature__ = signature.replace(parameters=flat)  # type: ignore[attr-defined]
    return called


def option(metavar: str, text: str, *names: str, default: str | None = None, **more: Any) -> Any:
    """Declare an option with a value; `default` is what the help shows where the code has none."""
    return typer.Option(*names, metavar=metavar, help=text, show_default=default or True, **more)


def argument(metavar: str, text: str | None = None, **more: Any) -> Any:
    """Declare an argument."""
    return typer.Argument(metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, help=text)
