"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


def _shared(folder: str) -> Path:
    root = os.environ.get("UNLEARNBENCH_SHARED")
    place = Path(root) if root else Path(__file__).parents[2] / "shared"
    path = place / "data" / folder
    if not path.is_dir():
        pytest.skip(f"no {path}: set UNLEARNBENCH_SHARED to the folder that holds data/{folder}")
    return path


@pytest.fixture(scope="session")
def tofu_folder() -> Path:
    """The real TOFU as JSON lines; never part of the project."""
    return _shared("tofu")


@pytest.fixture(scope="session")
def eval_logs_folder() -> Path:
    """TOFU's published evaluation logs of the fine-tuned and retain models."""
    return _shared("tofu_eval_logs")
