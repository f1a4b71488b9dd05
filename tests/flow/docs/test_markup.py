"""Docstrings become pages: definitions keep their lines, and sources become sentences."""

import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path

import pytest

GENERATORS = Path(__file__).parents[3] / "docs" / "generate"
Convert = Callable[[str], str]


@pytest.fixture
def from_docstring(monkeypatch: pytest.MonkeyPatch) -> Iterator[Convert]:
    monkeypatch.syspath_prepend(str(GENERATORS))
    yield import_module("markup").from_docstring
    for module in ("markup", "mathml"):
        sys.modules.pop(module, None)


def test_a_source_becomes_a_sentence(from_docstring: Convert) -> None:
    text = "Literature: the authors use β 4. [source: a/b@c1 docs/x.md,\ny.md]"
    assert from_docstring(text) == (
        "**Literature:** the authors use β 4. <small>Source: a/b@c1 docs/x.md,\ny.md.</small>"
    )


def test_a_source_of_our_own_gives_its_reason_in_brackets(from_docstring: Convert) -> None:
    text = "Add a retain term. [source: ours: the reward is our own]"
    assert from_docstring(text) == (
        "Add a retain term. <small>Source: ours (the reward is our own).</small>"
    )


def test_definitions_keep_their_lines(from_docstring: Convert) -> None:
    text = "t  answer token of a forget row\np_t  its probability\nThe loss is bounded."
    assert from_docstring(text) == (
        "```{.text .formula}\nt  answer token of a forget row\np_t  its probability\n```\n\n"
        "The loss is bounded."
    )


def test_sections_in_google_style_are_left_to_the_documentation(from_docstring: Convert) -> None:
    section = "Args:\n    rate: Step size, as in\n        the paper.\n    seed: Of the draw."
    text = f"Train a model.\n\n{section}\n\nRaises:\n    DataError: No <rows>."
    expected = f"Train a model.\n\n{section}\n\nRaises:\n    DataError: No &lt;rows>."
    assert from_docstring(text) == expected
