"""The second half of the random folders of `make test-long`, see `test_agreement.py`.

The other half is in `test_agreement_first_half.py`, so that two processes share the folders.
"""

from pathlib import Path

import pytest

from tests.numbers.oracle.test_agreement import FIRST_OF_MANY, assert_agreement


@pytest.mark.long
@pytest.mark.parametrize("first", FIRST_OF_MANY[1::2])
def test_views_of_many_folders_agree(first: int, tmp_path: Path) -> None:
    assert_agreement(first, tmp_path)
