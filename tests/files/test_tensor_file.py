"""Tensors as a file: what safetensors reads back, and a hash of every byte that was written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from unlearnbench.files.hashing import file_hash
from unlearnbench.files.tensor_file import DTYPES, Snapshot, byte_size, host_copy, write_tensors

METADATA = {"step": "7", "state": '{"é": 1}'}


def tensors() -> dict[str, torch.Tensor]:
    """One of each type, with none, one and several dimensions, and one that is not contiguous."""
    made = {f"as {name}": torch.arange(7).to(dtype) for dtype, name in DTYPES.items()}
    made |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "wide": torch.randn(3, 5).T}
    return dict(sorted(made.items(), key=lambda item: -item[1].element_size()))


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    path, made = tmp_path / "one.safetensors", tensors()
    digest = write_tensors(path, made, made.items(), METADATA)
    assert digest == file_hash(path)
    found = load_file(path)
    assert found.keys() == made.keys()
    for name, tensor in made.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == METADATA
    assert path.stat().st_size == pytest.approx(sum(map(byte_size, made.values())), abs=2048)


def test_one_value_is_in_memory_at_a_time(tmp_path: Path) -> None:
    made = {str(i): torch.full((4,), float(i)) for i in range(3)}
    asked: list[str] = []

    def values() -> Any:
        for name, tensor in made.items():
            asked.append(f"{name} after {(tmp_path / 'f').stat().st_size}")
            yield name, tensor

    write_tensors(tmp_path / "f", made, values(), {})
    header = (tmp_path / "f").stat().st_size - 48
    assert asked == [f"{i} after {header + 16 * i}" for i in range(3)]


def test_a_snapshot_does_not_change_with_the_model(tmp_path: Path) -> None:
    weight = torch.ones(2, 3)
    snapshot = Snapshot({"weight": host_copy(weight)}, METADATA)
    weight.add_(1)
    snapshot.save(tmp_path / "f")
    assert torch.equal(load_file(tmp_path / "f")["weight"], torch.ones(2, 3))
