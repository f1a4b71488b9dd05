"""What travels to a cluster's nodes, and how nodes that differ are found."""

from __future__ import annotations

import json
import os
import pickle
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench import environment, registry
from unlearnbench.config import load_config
from unlearnbench.errors import ConfigError, UnlearnbenchError
from unlearnbench.provenance import versions
from unlearnbench.settings import SweepConfig
from unlearnbench.sweep.nodes import Luggage, Report, differences, pack, report, unlike_gpus

ROOT = Path(__file__).parents[2]

LOOKS = """
import json, sys, unlearnbench
from unlearnbench import registry
offers = registry.offers("methods")
files = [unlearnbench.__file__, sys.modules[registry.load_method("npo").__module__].__file__]
print(json.dumps({"methods": [o.name for o in offers], "files": files,
                  "configs": registry.load("configs", "builtin").__file__}))
"""


@pytest.fixture
def config() -> SweepConfig:
    return load_config("quickstart", ["methods=[npo]"])


def test_what_travels_is_the_package_with_its_entry_points(
    tmp_path: Path, config: SweepConfig
) -> None:
    modules = pack(config, tmp_path)
    assert {Path(path).name.split("-")[0] for path in modules} == {
        *("unlearnbench", "unlearnbench_configs", "unlearnbench_dashboards"),
        "unlearnbench_methods",
    }
    assert not list(tmp_path.rglob("*.pyc"))
    package = tmp_path / "unlearnbench"
    sent = {path.relative_to(package) for path in package.rglob("*") if path.is_file()}
    there = ROOT / "unlearnbench"
    kept = {p.relative_to(there) for p in there.rglob("*") if p.is_file() and p.suffix != ".pyc"}
    assert sent == kept
    env = os.environ | {"PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", LOOKS], env=env, cwd=tmp_path, capture_output=True, check=True
    )
    found = json.loads(done.stdout)
    assert all(file.startswith(str(tmp_path)) for file in [*found["files"], found["configs"]])
    assert found["methods"] == sorted(set(registry.names("methods"))), "each is offered once"


HERE = Report("a", {"python": "3.11.7", "torch": "2.13.0", "peft": "0.18"}, {"npo": "own 1"}, "")


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (HERE, []),
        (
            replace(HERE, versions=HERE.versions | {"torch": "2.12.0"}),
            ["torch 2.12.0 there, 2.13.0 here"],
        ),
        (
            replace(HERE, versions={"python": "3.11.7", "torch": "2.13.0", "ray": "2"}),
            ["peft is missing there, 0.18 here", "ray 2 there, missing here"],
        ),
        (replace(HERE, methods={}), ["no entry point of method 'npo' there, own 1 offers it here"]),
        (
            replace(HERE, methods={"npo": "own 2"}),
            ["method 'npo' is from own 2 there, from own 1 here"],
        ),
    ],
)
def test_what_differs_is_named(there: Report, said: list[str]) -> None:
    assert differences(there, HERE) == said


def test_gpus_that_differ_are_named() -> None:
    gpu = {"GPU": "NVIDIA H100", "NVIDIA driver": "580.65", "CUDA of torch": "13.0"}
    first = replace(HERE, gpu=gpu)
    assert differences(first, replace(HERE, gpu={"CUDA of torch": "13.0"})) == []
    assert differences(first, replace(HERE, gpu={"CUDA of torch": "12.8"})) == [
        "torch is built for CUDA 13.0 there, 12.8 here"
    ]
    head = replace(HERE, host="head", gpu={"CUDA of torch": "13.0"})
    assert unlike_gpus([head, first, replace(first, host="b")]) == ""
    other = replace(first, host="b", gpu=gpu | {"GPU": "NVIDIA A100", "NVIDIA driver": "570.1"})
    assert unlike_gpus([head, first, other]) == (
        "the nodes' GPUs differ, so their numbers agree to rounding only: "
        "GPU NVIDIA A100 on b, NVIDIA H100 on a; NVIDIA driver 570.1 on b, 580.65 on a"
    )


def test_a_node_reports_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unlearnbench.sweep.nodes.gpus_of_machine", lambda: {"GPU": "H100"})
    assert report([]).gpu == {"GPU": "H100"}


UNPACKS = """
import pickle, sys
from pathlib import Path
from unlearnbench import registry
from unlearnbench.errors import UnlearnbenchError
luggage = pickle.loads(Path(sys.argv[1]).read_bytes())
for _ in range(2):
    try:
        luggage.unpack()
    except UnlearnbenchError as error:
        sys.exit(str(error))
print(Path.cwd(), registry.file_digest("my-loss"), registry.load_method("my-loss")().label)
"""

PLUGIN = """
from typing import ClassVar
from unlearnbench.method import LossBatch, Method, Needs
class Mine(Method):
    "L = cross-entropy."
    needs: ClassVar[Needs] = Needs(parts=frozenset({"forget"}))
    label: ClassVar[str] = "mine"
    def loss(self, batch: LossBatch):
        return batch.forget.cross_entropy().sum()
"""


def unpacked(luggage: Luggage, tmp_path: Path) -> subprocess.CompletedProcess[str]:
    file = tmp_path / "luggage"
    file.write_bytes(pickle.dumps(luggage))
    command = [sys.executable, "-c", UNPACKS, str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_worker_unpacks_plugin_files_that_only_the_driver_has(
    tmp_path: Path, config: SweepConfig
) -> None:
    luggage = Luggage(
        config=config,
        folder=tmp_path,
        working_folder=tmp_path,
        node="",
        plugins=((tmp_path / "nowhere" / "my_loss.py", PLUGIN.encode()),),
        versions=tuple(versions().items()),
        git={"commit": "abc"},
    )
    done = unpacked(luggage, tmp_path)
    assert done.stdout.split()[0] == str(tmp_path), done.stderr
    assert len(done.stdout.split()[1]) == 16
    assert done.stdout.split()[2] == "mine"

    late = replace(luggage, versions=(*luggage.versions[:-1], ("ray", "9.9")))
    done = unpacked(late, tmp_path)
    assert done.returncode == 1
    assert re.search(rf"ray {versions()['ray']} there, 9\.9 here", done.stderr)


def test_results_in_a_folder_that_ray_deletes_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "runtime_resources" / "working_dir_files" / "_ray_pkg_1"
    job.mkdir(parents=True)
    monkeypatch.chdir(job)
    environment.check_output(str(tmp_path / "runs"))
    with pytest.raises(UnlearnbenchError, match=r"output: 'runs' is inside the job's working_dir"):
        environment.check_output("runs")


def test_an_address_is_refused_before_ray_would_wait_for_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for address, message in {
        "ray://head:10001": r"ray\.address +through ray://.*ray job submit .*address=auto",
        "head": r"ray\.address +expected auto or host:port, got 'head'",
    }.items():
        with pytest.raises(ConfigError, match=message):
            load_config("quickstart", [f"ray.address={address}"])
    assert load_config("quickstart", ["ray.address=auto"]).ray.address == "auto"
    with socket.socket() as taken:  # bound but not listening: refuses
        taken.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.delenv("RAY_ADDRESS", raising=False)
        monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
        assert environment.check_address("auto") == "auto", "Ray looks for it"
        (tmp_path / "ray").mkdir()
        (tmp_path / "ray" / "ray_current_cluster").write_text(gone)
        with pytest.raises(UnlearnbenchError, match=f"no Ray cluster answers at '{gone}'"):
            environment.check_address("auto")
        taken.listen()
        assert environment.check_address("auto") == gone
