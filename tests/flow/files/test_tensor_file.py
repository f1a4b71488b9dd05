"""Tensors as a file that safetensors reads."""

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from unlearnbench.base.tensor_file import DTYPES, byte_size, write_tensors

METADATA = {"step": "7", "state": '{"é": 1}'}


def tensors() -> dict[str, torch.Tensor]:
    """One of each type, with none, one and several dimensions, and one that is not contiguous."""
    made = {f"as {name}": torch.arange(7).to(dtype) for dtype, name in DTYPES.items()}
    made |= {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "wide": torch.randn(3, 5).T}
    return dict(sorted(made.items(), key=lambda item: -item[1].element_size()))


def test_safetensors_reads_what_was_written(tmp_path: Path) -> None:
    path, made = tmp_path / "one.safetensors", tensors()
    write_tensors(path, made, made.items(), METADATA)
    found = load_file(path)
    assert found.keys() == made.keys()
    for name, tensor in made.items():
        assert found[name].dtype == tensor.dtype
        assert torch.equal(found[name], tensor), name
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == METADATA
    assert path.stat().st_size == pytest.approx(sum(map(byte_size, made.values())), abs=2048)
