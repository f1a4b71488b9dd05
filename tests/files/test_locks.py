"""Locks are the kernel's; a file system without them is an error that says so."""

from __future__ import annotations

import errno
import fcntl
from pathlib import Path

import pytest

from unlearnbench.errors import OutputError
from unlearnbench.files.locks import exclusive_lock
from unlearnbench.results.sweep_folder import lock_folder, lock_owner


def test_a_file_system_without_locks_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".lock").write_text("process 1")

    def flock(*_: object) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(fcntl, "flock", flock)
    message = r"has no locks \(Function not implemented\).*\(Lustre: -o flock\)"
    with (
        pytest.raises(OutputError, match=message) as caught,
        exclusive_lock(tmp_path / ".model.lock"),
    ):
        pass
    assert "\n" not in str(caught.value)
    with pytest.raises(OutputError, match=message), lock_folder(tmp_path):
        pass
    with pytest.raises(OutputError, match=message):
        lock_owner(tmp_path)
