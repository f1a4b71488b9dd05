"""How a command is declared, and the options that several commands have."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from typing import Any, get_args

from unlearnbench.commands import Command
from unlearnbench.outputs import Output
from unlearnbench.settings import ModelSettings, Precision

Subparsers = Any  # what `add_subparsers` returns is a private class of argparse

TEMPLATES = get_args(ModelSettings.model_fields["template"].annotation)
DTYPES = get_args(ModelSettings.model_fields["dtype"].annotation)
PRECISIONS = get_args(Precision)


def command(
    subparsers: Subparsers,
    name: str,
    run: Command,
    summary: str,
    epilog: str,
    writes: Sequence[Output] = (),
) -> argparse.ArgumentParser:
    """Declare the command `name`, which `run` carries out.

    writes  its options that name a place to write to
    """
    parser: argparse.ArgumentParser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, writes=tuple(writes))
    return parser


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """`--plugin FILE`, repeatable."""
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="FILE",
        help="Python file that defines a method, named as the file (repeatable)",
    )


def key_and_value(text: str) -> tuple[str, str]:
    """Split `KEY=VALUE`."""
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"expected KEY=VALUE, got {text!r}")
    return key, value


def add_json(parser: argparse.ArgumentParser) -> None:
    """`--json`."""
    parser.add_argument("--json", action="store_true", help="print JSON, for a program")


def add_config(parser: argparse.ArgumentParser, *, named: bool = True) -> None:
    """The configuration, where it is `named`, and what changes it."""
    if named:
        parser.add_argument(
            "config", metavar="CONFIG", help="YAML file, or a shipped config's name"
        )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="override a key, by its dotted path; the value is YAML (repeatable)",
    )
    add_plugin(parser)
    add_json(parser)


def add_data(parser: argparse.ArgumentParser, default: str) -> None:
    """`--data` and `--forget`."""
    parser.add_argument(
        "--data",
        default=default,
        metavar="DATA",
        help="`tofu` (from the hub), a folder of its files, or `synthetic` (default: %(default)s)",
    )
    parser.add_argument(
        "--forget", type=_fraction, default=0.1, metavar="FRACTION", help="default: 0.1"
    )


def add_profile(parser: argparse.ArgumentParser) -> None:
    """`--profile`, and what is overridden of it."""
    parser.add_argument("--profile", default="tofu", help="evaluation rules (default: tofu)")
    parser.add_argument(
        "--rows", type=at_least_one, help="first rows of each set, not the profile's"
    )


def at_least_one(text: str) -> int:
    """A whole number above 0."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is no whole number above 0")
    return int(text)


def positive(text: str) -> float:
    """A finite number above 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number above 0")
    return value


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is no number between 0 and 1")
    return value
