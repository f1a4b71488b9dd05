"""Write a safetensors file in one pass, tensor by tensor.

`safetensors.torch.save_file` needs all tensors in host memory at once. The format is simple
(github.com/huggingface/safetensors#format):

1. eight bytes with the length of the header
2. the header: JSON with each tensor's type, shape and place
3. the values
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
    """Return the bytes of a whole tensor, even if this process has only a part of it."""
    return tensor.numel() * tensor.element_size()


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    whole: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file and force it onto the disk.

    Args:
        path: The file.
        tensors: Tensors with the types and shapes of the whole ones, by name.
        whole: Names and values, in the same order. Only one of them is in memory at a time.
        metadata: Texts by name, to be stored in the header.
    """
    header: dict[str, object] = {"__metadata__": dict(metadata)}
    begin = 0
    for name, tensor in tensors.items():
        end = begin + byte_size(tensor)
        header[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
        begin = end
    text = json.dumps(header).encode()
    # The values begin at a multiple of eight bytes.
    padding = -len(text) % 8
    text += b" " * padding
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, tensor in whole:
            flat = tensor.detach().cpu().reshape(-1)
            file.write(flat.view(torch.uint8).numpy().data)
        file.flush()
        os.fsync(file.fileno())
