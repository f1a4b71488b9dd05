"""Numbers as text."""

from __future__ import annotations

import importlib
from typing import Any

import pytest

formatting: Any = importlib.import_module("unlearnbench_dashboards.formatting")


@pytest.mark.parametrize(
    ("rate", "text"), [(2e-5, "2e-5"), (1e-3, "1e-3"), (1.5e-4, "1.5e-4"), (None, "none")]
)
def test_rates_are_written_as_in_a_paper(rate: float | None, text: str) -> None:
    assert formatting.rate_text(rate) == text
