"""A safetensors file written in one pass, tensor by tensor, and hashed while it is written.

`safetensors.torch.save_file` wants all tensors in host memory at once, and the file read again for
its hash. The format is small: eight bytes with the length of a JSON header, the header with each
tensor's type, shape and place, then the values (github.com/huggingface/safetensors#format). Files
are read with `safetensors.safe_open`.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
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
_CHUNK = 1 << 24
"""Bytes that are written and hashed at a time."""


def byte_size(tensor: Tensor) -> int:
    """Bytes of a whole tensor, also where this process holds a part of it."""
    return tensor.numel() * tensor.element_size()


@dataclass(frozen=True)
class Snapshot:
    """Tensors in host memory that nothing changes any more."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str]

    def save(self, path: Path) -> str:
        """Write them; returns the file's SHA-256."""
        return write_tensors(path, self.tensors, self.tensors.items(), self.metadata)


def host_copy(tensor: Tensor) -> Tensor:
    """A copy in host memory; of a GPU's, complete once the device is synchronised."""
    if not tensor.is_cuda:
        return tensor.detach().clone(memory_format=torch.contiguous_format)
    # Pinned, since the copy runs at the speed of the bus then.
    copy = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
    return copy.copy_(tensor.detach(), non_blocking=True)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    whole: Iterable[tuple[str, Tensor]],
    metadata: Mapping[str, str],
) -> str:
    """Write a safetensors file and force it onto the disk; returns its SHA-256.

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
    digest = hashlib.sha256()
    with path.open("wb", buffering=0) as file:

        def write(content: memoryview) -> None:
            digest.update(content)
            while content:
                content = content[file.write(content) :]

        write(memoryview(len(text).to_bytes(8, "little") + text))
        for _, tensor in whole:
            flat = tensor.detach().cpu().reshape(-1)
            values: memoryview = flat.view(torch.uint8).numpy().data
            for at in range(0, len(values), _CHUNK):
                write(values[at : at + _CHUNK])
        os.fsync(file.fileno())
    return digest.hexdigest()
