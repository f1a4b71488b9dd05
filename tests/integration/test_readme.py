"""What the README says works: its commands parse, its configuration loads, its method learns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.method import LossBatch, Method
from unlearnbench.config import method_specs
from unlearnbench.config.loader import load_config
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions
from unlearnbench.testing import CHECKS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\b[^\n]*\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[str]:
    shown = "\n".join(blocks("sh"))
    inline = re.findall(r"`(unlearnbench [^`\n]+)`", README)
    lines = [line.split("#")[0].strip() for line in shown.splitlines()]
    return [line for line in [*lines, *inline] if line.startswith("unlearnbench ")]


@pytest.mark.parametrize("line", commands())
def test_commands_parse(
    line: str, parse_command: Callable[[Sequence[str]], dict[str, Any]]
) -> None:
    parse_command(shlex.split(line)[1:])


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    shown = [line for line in blocks("sh")[0].splitlines() if line.startswith("make ")]
    targets = [line.split()[1] for line in shown] + re.findall(r"`make ([a-z]+)`", README)
    assert {"quickstart", "test", "fix", "check"} <= set(targets)
    for target in targets:
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target


def test_the_configuration_loads(tmp_path: Path) -> None:
    (block,) = blocks("yaml")
    path = tmp_path / "mine.yaml"
    path.write_text(block)
    config = load_config(str(path), [])
    assert len(config.methods) == 2
    assert [spec.hyperparameters["beta"] for spec in config.methods[1].specs] == [0.05, 0.1]
    assert {spec.name for spec in config.attacks} == {"relearning", "quantization"}


def test_the_method_does_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_files", {})
    (block,) = blocks("python")
    path = tmp_path / "floored.py"
    path.write_text(block)
    name = registry.register_file(path)
    method = method_specs.method_from_spec(method_specs.method_spec(name, {"floor": 0.2}))
    assert isinstance(method, Method)
    logits = torch.randn(3, 5, generator=torch.Generator().manual_seed(0), requires_grad=True)
    labels = torch.tensor([0, 3, 1])
    rows = torch.zeros(3, dtype=torch.long)
    forget = Predictions(logits, Projection(None), labels, rows, 1, 3, 1)
    loss = method.loss(LossBatch({"forget": forget}))
    p = logits.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    assert (p > 0.2).any()
    assert (p < 0.2).any()
    torch.testing.assert_close(loss, (p / 0.2).log().clamp(min=0).mean())


def test_the_way_to_a_method_is_told_on_a_page() -> None:
    (section,) = re.findall(r"## Add a method\n(.*?)\n## ", README, flags=re.DOTALL)
    assert len(section.splitlines()) < 40
    assert f"{len(CHECKS)} checks" in section


def test_it_is_short_and_its_picture_is_there() -> None:
    assert len(README.splitlines()) <= 82
    for picture in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", README):
        assert (ROOT / picture).is_file(), picture
