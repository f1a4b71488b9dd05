"""What the README says works: its commands parse, its configuration loads, its method learns."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from unlearnbench.api import registry
from unlearnbench.api.method import LossBatch, Method
from unlearnbench.config import method_specs
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\b[^\n]*\n(.*?)```", README, flags=re.DOTALL)


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
