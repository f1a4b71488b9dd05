"""A folder in which benchmarks of one's own rows find their files."""

from pathlib import Path

import pytest

from unlearnbench.base.deferred_warnings import drain


@pytest.fixture
def working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory, with no warning waiting."""
    monkeypatch.chdir(tmp_path)
    drain()
    return tmp_path
