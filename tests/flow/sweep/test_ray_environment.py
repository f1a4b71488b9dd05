"""Addresses and folders that cannot work are refused before Ray starts."""

import socket
from pathlib import Path

import pytest

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.loader import load_config
from unlearnbench.sweep.ray_cluster import start


def test_a_folder_that_ray_deletes_and_an_address_without_a_cluster_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    with socket.socket() as bound:  # bound but not listening: refuses
        bound.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{bound.getsockname()[1]}"
        config = load_config("quickstart", [f"ray.address={address}", "output=runs"])
        with pytest.raises(UnlearnbenchError, match=r"'runs' is inside the job's working_dir"):
            start(config)
        kept = config.model_copy(update={"output": str(tmp_path / "runs")})
        with pytest.raises(UnlearnbenchError, match=f"no Ray cluster answers at '{address}'"):
            start(kept)
