"""The page on clusters: `cluster.yaml` can come up, and commands and settings exist."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]


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


def test_ray_accepts_the_cluster() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    util.validate_config(util.prepare_config(yaml.safe_load(text_of("cluster.yaml"))))


def test_the_files_that_nodes_install_from_exist() -> None:
    mounts = dict(CLUSTER["file_mounts"])
    assert (ROOT / mounts.pop("/home/ubuntu/install/constraints.txt")).is_file()
    assert mounts == {"/home/ubuntu/install/dist": "dist"}
    assert "pip wheel --no-deps --wheel-dir dist ." in COMMANDS
