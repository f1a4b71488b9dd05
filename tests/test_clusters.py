"""The page on clusters: its YAML is a cluster's, its commands and settings exist."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from unlearnbench.config import load_config, shipped_configs
from unlearnbench.parser import build_parser

PAGE = (Path(__file__).parents[1] / "CLUSTERS.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", PAGE, flags=re.DOTALL)
COMMANDS = [
    line.partition("#")[0].strip()
    for kind, text in BLOCKS
    if kind == "bash"
    for line in text.replace("\\\n", " ").splitlines()
]


def test_the_cluster_is_one_that_ray_can_start() -> None:
    (text,) = (text for kind, text in BLOCKS if kind == "yaml")
    cluster: dict[str, Any] = yaml.safe_load(text)
    assert {"cluster_name", "provider", "auth", "max_workers", "setup_commands"} <= cluster.keys()
    kinds = cluster["available_node_types"]
    assert cluster["head_node_type"] in kinds
    assert all(isinstance(kind["node_config"], dict) for kind in kinds.values())
    assert kinds["gpus"]["max_workers"] <= cluster["max_workers"]
    assert "--autoscaling-config" in cluster["head_start_ray_commands"][-1]
    assert "$RAY_HEAD_IP" in cluster["worker_start_ray_commands"][-1]


def test_ray_itself_takes_the_cluster() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    (text,) = (text for kind, text in BLOCKS if kind == "yaml")
    util.validate_config(util.prepare_config(yaml.safe_load(text)))


def ours() -> list[list[str]]:
    """The arguments of each command of this package."""
    words = [shlex.split(line) for line in COMMANDS]
    cut = [line[line.index("--") + 1 :] if "--" in line else line for line in words]
    return [line[1:] for line in cut if line and line[0] == "unlearnbench"]


@pytest.mark.parametrize("arguments", ours(), ids=" ".join)
def test_each_command_is_one_and_its_settings_exist(arguments: list[str]) -> None:
    args = build_parser().parse_args(arguments)
    config = "tofu_llama2_7b" if args.config == "my.yaml" else args.config
    load_config(config, args.set)


def test_every_gpu_preset_is_on_the_page_with_the_papers_settings() -> None:
    presets = [name for name in shipped_configs() if name not in ("quickstart", "tofu_tiny")]
    assert len(presets) == 3
    for name in presets:
        assert f"`{name}`" in PAGE
        config = load_config(name)
        assert config.learning_rates == (4e-5,)
        assert (config.epochs, config.training.batch_size) == (5, 32)
        assert (config.training.weight_decay, config.training.optimizer) == (0.0, "adamw")
        assert config.forget_fractions == (0.01, 0.05, 0.1)
        (model,) = config.models
        assert model.fine_tuned is not None
        source = shipped_configs()[name].text
        assert f"sweep {name} --set learning_rates=[2e-6] --set epochs=10" in source
        assert "GiB" in source
        assert "hours a run" in source
