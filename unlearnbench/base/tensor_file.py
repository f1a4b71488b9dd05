"""A safetensors file written in one pass, tensor by tensor.

`safetensors.torch.save_file` wants all tensors in host memory at once. The format is small: eight
bytes with the length of a JSON header, the header with each tensor's type, shape and place, then
the values (github.com/huggingface/safetensors#format).
"""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Types of tensors by their names in the format."""


def byte_size(tensor: Tensor) -> int:
    """Bytes of a whole tensor, also where this process holds a part of it."""
    return tensor.numel() * tensor.element_size()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    whole: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file and force it onto the disk.

    tensors  types and shapes, by name
    whole    the values, in the same order; each is let go when it is written
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + byte_size(tensor)
        shape = list(tensor.shape)
        header[name] = {"dtype": DTYPES[tensor.dtype], "shape": shape, "data_offsets": [begin, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # values begin at a multiple of eight
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in whole:
            flat = tensor.detach().cpu().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
