"""`unlearnbench bench losses`: both ways compute the same, and its table compares them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from unlearnbench.bench.losses import PRIMITIVES, Primitive, Size
from unlearnbench.bench.peak_in_process import peak_in_process
from unlearnbench.bench.plain_losses import PlainPredictions
from unlearnbench.cli.main import main
from unlearnbench.errors import EvaluationError
from unlearnbench.losses.lm_head import Projection
from unlearnbench.losses.predictions import Predictions, Reference

SMALL = ("bench", "losses", "--sizes", "64x8x50", "--repeats", "1")


@pytest.mark.parametrize("name", [*PRIMITIVES, "lowered", "raw", "unlikelihood"])
def test_the_usual_way_computes_the_same(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight, other = (
        torch.randn(*shape, generator=generator, dtype=torch.float64)
        for shape in ((9, 4), (11, 4), (9, 4))
    )
    rows = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1, 1])
    labels = torch.randint(11, (9,), generator=generator)
    more: dict[str, Primitive] = {
        "lowered": lambda p, r: p.kl_from(r, lowered=2.0).sum(),
        "raw": lambda p, _: p.unified_cross_entropy(0.4, raw=True).sum(),
        "unlikelihood": lambda p, _: p.unlikelihood.sum(),
    }
    primitive: Any = {**PRIMITIVES, **more}[name]
    found = []
    for kind in (Predictions, PlainPredictions):
        leaves = [t.clone().requires_grad_() for t in (hidden, weight)]
        part = kind(leaves[0], Projection(leaves[1]), labels, rows, 2, 9, 2)
        start = Reference(torch.zeros(9), rows, 2, other, Projection(weight))
        value = primitive(part, start)
        found.append([value, *torch.autograd.grad(value, leaves)])
    for ours, usual in zip(*found, strict=True):
        torch.testing.assert_close(ours, usual.to(ours))


def test_it_measures_prints_and_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = partial(peak_in_process, here=True)
    monkeypatch.setattr("unlearnbench.bench.losses.peak_in_process", here)
    record = tmp_path / "record.jsonl"
    words = ["--primitives", "KL", "--record", str(record), "--markdown"]
    assert main([*SMALL, *words]) == 0
    out = capsys.readouterr().out
    assert "| KL |" in out
    assert "tokens × hidden size × vocabulary: 64 × 8 × 50, float32" in out
    (line,) = record.read_text().splitlines()
    result = json.loads(line)
    assert [each["name"] for each in result["results"]] == ["KL"]
    for each in result["results"]:
        assert each["ratio"] == pytest.approx(
            each["median_seconds"]["ours"] / each["median_seconds"]["usual"]
        )
        assert max(each["error"].values()) < 1e-3


def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "losses", "--sizes", "2048x1024"]) == 2
    assert "a size is TOKENSxHIDDENxVOCABULARY" in capsys.readouterr().err
    assert main([*SMALL, "--primitives", "CEU"]) == 2
    assert "--primitives: unknown 'CEU'; did you mean 'CE-U'?" in capsys.readouterr().err


def test_tokens_are_halved_until_the_usual_way_fits() -> None:
    size = Size.parse("4096x2048x128256")
    assert size.fitting(10**12, 4) == size
    assert size.fitting(10 * 2**30, 4) == Size(2048, 2048, 128256)
    assert size.fitting(1, 4).tokens == 32
    with pytest.raises(EvaluationError):
        Size.parse("0x1x1")
