"""How commands are declared and carried out.

Typer makes a command from a function. The parameters of the function are the options, its docstring
is the help, and its result is the exit code (None means 0). If a parameter is a dataclass, the
fields of the dataclass are options. That is how commands share options.
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
"""The end of the help. It mentions only what an installed package can print."""

Function = TypeVar("Function", bound=Callable[..., int | None])


class Command(TyperCommand):
    """A command that returns its exit code, and prints only its results to standard output."""

    def invoke(self, ctx: Any) -> int:
        """Carry out the command, and return the exit code."""
        with results_only_on_stdout():
            code: int = super().invoke(ctx) or 0
            results().flush()
        return code


def new_group(text: str = "") -> typer.Typer:
    """Return a group of commands.

    Args:
        text: Help of the group. A group without a name is merged into the one above, and has none.
    """
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
    """Return a decorator that declares a function as a command.

    The docstring may end with a section «Examples:», which is printed line by line.

    Args:
        group: To which the command belongs.
        name: Of the command.
        text: Help in place of the docstring.
    """

    def declare(function: Function) -> Function:
        docstring = inspect.cleandoc(text or function.__doc__ or "")
        about, heading, examples = docstring.partition("\n\nExamples:\n")
        # \b keeps the lines of the examples from being wrapped.
        epilog = f"\b\nExamples:\n{examples}" if heading else None
        # Without a short help, the list of a group's commands would cut this line.
        first_paragraph = " ".join(about.partition("\n\n")[0].split())
        declare_in_group = group.command(
            name, cls=Command, help=about, short_help=first_paragraph, epilog=epilog
        )
        declare_in_group(_with_fields_as_parameters(function))
        return function

    return declare


def _with_fields_as_parameters(function: Callable[..., int | None]) -> Callable[..., int | None]:
    """Return a function that has the fields of dataclasses as parameters.

    Typer reads its signature. When it is called, it makes the dataclasses from the fields, and
    calls `function` with them.
    """
    # Evaluating the annotations of a signature takes long, so each signature is read once.
    signature = inspect.signature(function, eval_str=True)
    dataclass_of_parameter: dict[str, type[Any]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if hasattr(parameter.annotation, "__dataclass_fields__"):
            dataclass_of_parameter[name] = parameter.annotation
            signature_of_fields = inspect.signature(parameter.annotation, eval_str=True)
            parameters.extend(signature_of_fields.parameters.values())
        else:
            parameters.append(parameter)

    def with_dataclasses(**values: Any) -> int | None:
        for name, group in dataclass_of_parameter.items():
            values_of_group = {field.name: values.pop(field.name) for field in fields(group)}
            values[name] = group(**values_of_group)
        return function(**values)

    # Typer reads both the annotations and the signature.
    with_dataclasses.__annotations__ = {each.name: each.annotation for each in parameters}
    named = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in parameters]
    with_dataclasses.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=named
    )
    return with_dataclasses


def option(metavar: str, text: str, *names: str, default: str | None = None, **more: Any) -> Any:
    """Declare an option with a value.

    Args:
        metavar: What stands for the value in the help: `FILE`.
        text: Help of the option.
        names: Names such as `--set`. By default, the parameter's name is the option's.
        default: What the help shows as default if the code has none.
        more: Further arguments of `typer.Option`.
    """
    return typer.Option(*names, metavar=metavar, help=text, show_default=default or True, **more)


def argument(metavar: str, text: str | None = None, **more: Any) -> Any:
    """Declare an argument; `more` are further arguments of `typer.Argument`."""
    return typer.Argument(metavar=metavar, help=text, **more)


def flag(name: str, text: str) -> Any:
    """Declare an option without a value."""
    return typer.Option(name, help=text)
