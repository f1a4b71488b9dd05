"""Equations keep every character; indices and exponents are where they belong."""

import inspect
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from unlearnbench.api import registry

sys.path.insert(0, str(Path(__file__).parents[3] / "docs" / "generate"))


def plain(text: str) -> str:
    """Without the signs that place what follows, and without blanks."""
    return re.sub(r"[\s_^]|(?<=\^)\(([^()]*)\)", r"\1", text.replace("²", "2"))


@pytest.mark.parametrize("name", registry.names("methods"))
def test_the_equations_of_a_method_lose_nothing(name: str) -> None:
    from mathml import equation  # pyright: ignore[reportMissingImports]

    lines = inspect.cleandoc(registry.load_method(name).__doc__ or "").splitlines()
    found = [line for line in lines if re.match(r"\S{1,12} = ", line) and not line.endswith(".")]
    assert found
    for line in found:
        math = ElementTree.fromstring(equation(line).replace("&#160;", ""))
        assert plain("".join(math.itertext())) == plain(line)


def test_indices_and_exponents() -> None:
    from mathml import equation  # pyright: ignore[reportMissingImports]

    assert "<msubsup><mi>p</mi><mrow><mi>t</mi></mrow><mrow><mi>β</mi></mrow></msubsup>" in (
        equation("L = p_t^β")
    )
    assert "<mrow><mi>ref</mi><mo>,</mo><mi>b</mi></mrow></msub>" in equation("L = s_ref,b")
