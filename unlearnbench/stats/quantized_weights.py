"""Weights as they are after quantisation and dequantisation, by the rules of bitsandbytes.

- NF4 and FP4 (Dettmers et al. 2023, arXiv:2305.14314): the weight is read row by row as one line,
  which is cut into blocks of 64. Within a block, w becomes s times the code nearest to w / s, with
  s = max|w|.
- `int8-weights`, the weights of LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339): within a row,
  w becomes round(127 w / s) · s / 127, with s = max|w|. Halves are rounded to even. The int8
  activations of LLM.int8() are not imitated.

Source: bitsandbytes 0.50.2, `functional.get_4bit_type` and `backends/default/ops.py`. The
arithmetic is in fp32 as there.
"""

from typing import Literal

import torch
from torch import Tensor

Code = Literal["nf4", "fp4", "int8-weights"]
BLOCK = 64
"""Number of weights that share a scale in a code of 4 bits."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = tuple(v / 12 for v in (-12, -8, -6, -4, -3, -2, -0.0625, 0, 0.0625, 2, 3, 4, 6, 8, 12))
"""In ascending order. These are 15 values, because two of the 16 codes are zero."""
_BLOCKS = 1 << 18
"""Number of blocks that are quantised at a time. It bounds the fp32 memory for a large layer."""
_127TH = 7.874015718698502e-3
"""1 / 127, rounded as in bitsandbytes."""


@torch.no_grad()
def quantized(weight: Tensor, code: Code) -> Tensor:
    """Quantise a weight [out, in] to a code and back, in the weight's own dtype.

    A value halfway between two codes takes the lower one, as bitsandbytes does on a CPU. Its GPU
    kernels for FP4 take the code nearer to zero, and separate 6/12 from 8/12 at 0.583333. So 7 in
    10,000 normally distributed weights in bf16 get the other neighbour on a GPU, which is equally
    near.
    """
    return _by_row(weight) if code == "int8-weights" else _by_block(weight, code)


def _by_block(weight: Tensor, code: Literal["nf4", "fp4"]) -> Tensor:
    """Quantise to NF4 or FP4 and back, block by block."""
    values = torch.tensor(NF4 if code == "nf4" else FP4, device=weight.device)
    middles = (values[:-1] + values[1:]) / 2
    count = weight.numel()
    line = torch.nn.functional.pad(
        weight.reshape(-1), (0, -count % BLOCK)
    )  # zeros do not change a maximum
    like = torch.empty_like(line)
    blocks = line.view(-1, BLOCK).split(_BLOCKS)
    for block, to in zip(blocks, like.view(-1, BLOCK).split(_BLOCKS), strict=True):
        scaled = block.float()
        scale = scaled.abs().amax(dim=1, keepdim=True)
        # The lower bound is that of bitsandbytes. It keeps a block of zeros from dividing by zero.
        scaled = (scaled * (1 / scale.clamp(min=1e-38))).clamp_(-1, 1)
        places = torch.bucketize(scaled, middles, out_int32=True).view(-1)
        to.copy_(values.index_select(0, places).view_as(scaled).mul_(scale))
    return like[:count].view(weight.shape)


def _by_row(weight: Tensor) -> Tensor:
    """Quantise to int8 and back, row by row."""
    half = weight.half()  # bitsandbytes quantises fp16, whatever the model's type is
    scale = half.abs().amax(dim=1, keepdim=True).float()
    # The lower bound keeps a row of zeros from dividing by zero. Other scales in fp16 are larger.
    places = torch.round(half * (127 / scale.clamp(min=1e-8)))
    return (places * scale * _127TH).to(weight.dtype)
