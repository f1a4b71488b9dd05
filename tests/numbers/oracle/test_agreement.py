"""Every view of random folders says what an independent recomputation says.

A hundred folders are compared in `make test`, and a thousand in `make test-long`. Any number of
them is compared with `UNLEARNBENCH_FOLDERS=5000 pytest -m long tests/numbers/oracle`, from the
folder `UNLEARNBENCH_FIRST_FOLDER` on. A disagreement is a fault of the product or of the
recomputation: `tests/factories/random_folders.py` writes the folder again from its number.
"""

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from tests.factories.random_folders import draw, write
from tests.numbers.oracle.agreement import Disagreement, disagreements
from tests.numbers.oracle.written_views import views_of
from tests.oracle.claims import Claims

GROUP = 10
"""Folders of one test."""
FEW = 100
MANY = int(os.environ.get("UNLEARNBENCH_FOLDERS", "1000"))
ONCE_APART = (449,)
"""Folders of `make test-long` that once disagreed; a chosen setting with a seed that ended early
had scores over the other seeds."""
FIRST = int(os.environ.get("UNLEARNBENCH_FIRST_FOLDER", "0"))


def found_in(number: int, root: Path) -> list[Disagreement]:
    """Write the folder with a number, and compare its views."""
    made = write(draw(number), root)
    views = views_of(made.folder)
    with np.errstate(invalid="ignore"):
        claims = Claims.of(made.folder)
    shutil.rmtree(made.folder)
    return disagreements(views, claims)


def assert_agreement(first: int, root: Path) -> None:
    """Assert that the views of a group of folders agree."""
    lines: list[str] = []
    for number in range(first, first + GROUP):
        lines += [f"folder {number}: {item}" for item in found_in(number, root)]
    assert not lines, "\n".join([f"{len(lines)} disagreements", *lines[:20]])


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, FEW, GROUP))
def test_views_agree_with_the_recomputation(first: int, tmp_path: Path) -> None:
    assert_agreement(first, tmp_path)


@pytest.mark.parametrize("number", ONCE_APART)
def test_views_agree_that_once_did_not(number: int, tmp_path: Path) -> None:
    assert found_in(number, tmp_path) == []


@pytest.mark.long
@pytest.mark.parametrize("first", range(FIRST, FIRST + MANY, GROUP))
def test_views_of_many_folders_agree(first: int, tmp_path: Path) -> None:
    assert_agreement(first, tmp_path)
