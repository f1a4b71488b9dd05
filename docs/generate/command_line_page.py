"""The page of the command line: every command with its arguments, options and examples."""

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

from markup import code, escaped, table

from unlearnbench.cli.main import root_command

INTRODUCTION = """\
# Command line

This page lists every command of `unlearnbench` with its arguments and options. The option `--help`
prints the same text for any command. The argument CONFIG is the path of a YAML file, or the name of
a configuration that comes with the project (the command `unlearnbench configs list` prints these
names). If the value of an option ends in `...`, you can give several values, or repeat the option.

Each command ends with one of these exit codes:

| exit code | meaning |
|---|---|
| 0 | The command has done its work. |
| 1 | Some runs failed, or a check found a fault. |
| 2 | The command stopped with an error, which one line explains. |
| 130 | You interrupted the command. The same command resumes the work. |
| 143 | SIGTERM stopped the command. The same command resumes the work. |
| 141 | The program that read the output has ended, for example `| head`. |
"""


def page() -> str:
    """The text of the page."""
    root = root_command()
    context = root.make_context("unlearnbench", [], resilient_parsing=True)
    return "\n".join([INTRODUCTION, *_group(root, context, "unlearnbench")])


def _group(group: Any, context: Any, path: str) -> Iterator[str]:
    for name, command in group.commands.items():
        if command.hidden:
            continue
        part = command.make_context(name, [], parent=context, resilient_parsing=True)
        called = f"{path} {name}"
        if hasattr(command, "commands"):
            yield from _group(command, part, called)
        else:
            yield _command(command, part, called)


def _command(item: Any, context: Any, path: str) -> str:
    arguments: list[tuple[str, str]] = []
    options: list[tuple[str, str]] = []
    for param in item.get_params(context):
        name, text = param.get_help_record(context) or ("", "")
        text = re.sub(r"\[default: \((.*?)\)(?=[];])", r"[default: \1", text)
        if param.param_type_name == "argument":
            arguments.append((code(name.partition(" <")[0]), escaped(text)))
        elif name and "--help" not in name:
            options.append((code(name), escaped(text)))
    lines = [f"## {path.removeprefix('unlearnbench ')} {{#{path.replace(' ', '-')}}}\n"]
    lines.append(f"{escaped(item.help or '')}\n")
    usage = " ".join(item.collect_usage_pieces(context))
    lines.append(f"```sh\n{path} {usage}\n```\n")
    if arguments:
        lines.append(table(("argument", "meaning"), arguments))
    if options:
        lines.append(table(("option", "meaning"), options))
    if item.epilog:
        _, _, examples = item.epilog.partition("\n")
        shown = dedent("\n".join(examples.splitlines()[1:]))
        lines.append(f"Examples:\n\n```sh\n{shown}\n```\n")
    return "\n".join(lines)
