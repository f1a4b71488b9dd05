"""Commands of the command line, carried out in the process of a test."""

from collections.abc import Callable

import pytest

from unlearnbench.cli.main import main

Run = Callable[..., tuple[int, str, str]]
"""Carries out a command from its words; returns exit code, stdout and stderr."""


def commands_in_process(capsys: pytest.CaptureFixture[str]) -> Run:
    """A function that carries out commands, with what they print."""

    def run(*words: str) -> tuple[int, str, str]:
        code = main(words)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run
