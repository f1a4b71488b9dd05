"""Addresses and folders that cannot work are refused before Ray starts."""

import socket
from pathlib import Path

import pytest

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.sweep import ray_cluster as environment


def test_results_in_a_folder_that_ray_deletes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    environment.check_output(str(tmp_path / "runs"))
    with pytest.raises(UnlearnbenchError, match=r"output: 'runs' is inside the job's working_dir"):
        environment.check_output("runs")


def test_an_address_is_refused_before_ray_would_wait_for_it() -> None:
    with socket.socket() as bound:  # bound but not listening: refuses
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        with pytest.raises(UnlearnbenchError, match=f"no Ray cluster answers at '{address}'"):
            environment.check_address(address)
        bound.listen()
        assert environment.check_address(address) == address
