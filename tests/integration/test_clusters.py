"""The page on clusters: `cluster.yaml` can come up, and commands and settings exist."""

from __future__ import annotations

import re
import shlex
import tomllib
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]


def text_of(name: str) -> str:
    """A file of the repository."""
    return (ROOT / name).read_text(encoding="utf-8")


PAGE = text_of("docs/tutorials/run-on-a-cluster.md")
CLUSTER: dict[str, Any] = yaml.safe_load(text_of("cluster.yaml"))
SETUP: list[str] = CLUSTER["setup_commands"]
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "sh"
    for line in text.replace("\\\n", " ").splitlines()
]


def test_the_cluster_is_one_that_ray_can_start() -> None:
    assert {"cluster_name", "provider", "auth", "max_workers", "setup_commands"} <= CLUSTER.keys()
    kinds = CLUSTER["available_node_types"]
    assert CLUSTER["head_node_type"] in kinds
    assert kinds["gpus"]["max_workers"] <= CLUSTER["max_workers"]
    assert "--autoscaling-config" in CLUSTER["head_start_ray_commands"][-1]
    assert "$RAY_HEAD_IP" in CLUSTER["worker_start_ray_commands"][-1]


def test_ray_accepts_the_cluster() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    util.validate_config(util.prepare_config(yaml.safe_load(text_of("cluster.yaml"))))


@pytest.mark.parametrize("kind", CLUSTER["available_node_types"].values())
def test_every_node_has_an_image_and_room_for_models(kind: dict[str, Any]) -> None:
    config = kind["node_config"]
    # Without one Ray takes an image of 2022, whose Python and driver are too old.
    assert config["ImageId"] == "AMI_ID"
    assert any("s/AMI_ID/$AMI/" in command and "cluster.yaml" in command for command in COMMANDS)
    assert "ubuntu-24.04" in next(command for command in COMMANDS if "AMI=" in command)
    (volume,) = config["BlockDeviceMappings"]
    assert volume["Ebs"]["VolumeSize"] >= 200  # GB


def test_every_node_has_the_python_and_the_versions_that_are_tested() -> None:
    (venv,) = (line for line in SETUP if "-m venv" in line)
    python = re.match(r"python(3\.\d+) ", venv)
    assert python is not None
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    assert f"Programming Language :: Python :: {python[1]}" in project["classifiers"]
    (install,) = (line for line in SETUP if "pip install" in line)
    assert re.search(r"--constraint ~/install/constraints\.txt .*unlearnbench-\*\.whl", install)
    extras = re.search(r"whl\)\[(\w+)\]", install)
    assert extras is not None
    assert extras[1] in project["optional-dependencies"]
    assert f"ray=={version('ray')}" in text_of("constraints.txt").splitlines()
    starts = [*CLUSTER["head_start_ray_commands"], *CLUSTER["worker_start_ray_commands"]]
    assert all(line.startswith(". ~/venv/bin/activate; ") for line in starts)


def test_the_files_that_nodes_install_from_exist() -> None:
    mounts = dict(CLUSTER["file_mounts"])
    assert (ROOT / mounts.pop("/home/ubuntu/install/constraints.txt")).is_file()
    assert mounts == {"/home/ubuntu/install/dist": "dist"}
    assert "pip wheel --no-deps --wheel-dir dist ." in COMMANDS


def ours() -> list[list[str]]:
    """The arguments of each command of this package."""
    words = [shlex.split(line) for line in COMMANDS]
    cut = [line[line.index("--") + 1 :] if "--" in line else line for line in words]
    return [line[1:] for line in cut if line and line[0] == "unlearnbench"]
