"""`cluster.yaml` can come up."""

from pathlib import Path

import pytest
import yaml


def test_ray_accepts_the_cluster() -> None:
    util = pytest.importorskip("ray.autoscaler._private.util")
    text = (Path(__file__).parents[3] / "cluster.yaml").read_text(encoding="utf-8")
    util.validate_config(util.prepare_config(yaml.safe_load(text)))
