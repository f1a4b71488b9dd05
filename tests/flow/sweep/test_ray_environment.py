"""Ray starts only if its address and folder can work, and never by itself."""

import socket
import subprocess
import sys
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


_LEFTOVER = """
from unlearnbench.config.loader import load_config
from unlearnbench.sweep.ray_cluster import ray_session

with ray_session(load_config("quickstart", ["ray.concurrent=1"])):
    import ray
    from ray.exceptions import RaySystemError
    group = ray.util.placement_group([{"CPU": 1}])
try:
    ray.util.remove_placement_group(group)
except RaySystemError as error:
    print("has not been started" in str(error), ray.is_initialized())
"""


@pytest.mark.long
def test_what_is_left_of_a_sweep_starts_no_other_ray(tmp_path: Path) -> None:
    """In a process of its own, because Ray reads its variables at the first import."""
    command = [sys.executable, "-c", _LEFTOVER]
    ended = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ended.stdout.splitlines()[-1:] == ["True False"], ended.stderr
