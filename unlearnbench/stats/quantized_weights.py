"""Weights as they are after quantisation and dequantisation, by the rules of bitsandbytes.

NF4 and FP4 (Dettmers et al. 2023, arXiv:2305.14314): the weight row by row as one line, cut into
blocks of 64; within each, w → code nearest to w / s, times s = max|w|. `int8-weights`: the weights
of LLM.int8() (Dettmers et al. 2022, arXiv:2208.07339): by row, w → round(127 w / s) · s / 127,
half to even; its activations in int8 are no part of it. Read in bitsandbytes 0.50.2,
`functional.get_4bit_type` and `backends/default/ops.py`; arithmetic in fp32 as there.
"""

from typing import Literal

import torch
from torch import Tensor

Code = Literal["nf4", "fp4", "int8-weights"]
BLOCK = 64
"""Weights with one scale in a code of 4 bits."""
NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
FP4 = tuple(v / 12 for v in (-12, -8, -6, -4, -3, -2, -0.0625, 0, 0.0625, 2, 3, 4, 6, 8, 12))
"""In the order of values; zero has two of the 16 codes."""
_BLOCKS = 1 << 18
"""Blocks at a time, which bounds the memory in fp32 beside a large layer."""
_127TH = 7.874015718698502e-3


@torch.no_grad()
def quantized(weight: Tensor, code: Code) -> Tensor:
    """[out, in] the weight after quantisation to `code` and back, in its own type.

    A value halfway between two codes takes the lower one, as bitsandbytes does on a CPU. Its GPU
    kernels for FP4 take the one nearer to zero there, and bound 6/12 from 8/12 at 0.583333: 7 in
    10,000 normally distributed weights in bf16 have another neighbour on a GPU, as near as ours.
    """
    return _by_row(weight) if code == "int8-weights" else _by_block(weight, code)


def _by_block(weight: Tensor, code: Literal["nf4", "fp4"]) -> Tensor:
    values = torch.tensor(NF4 if code == "nf4" else FP4, device=weight.device)
    middles = (values[:-1] + values[1:]) / 2
    count = weight.numel()
    line = torch.nn.functional.pad(weight.reshape(-1), (0, -count % BLOCK))  # no larger maximum
    like = torch.empty_like(line)
    blocks = line.view(-1, BLOCK).split(_BLOCKS)
    for block, to in zip(blocks, like.view(-1, BLOCK).split(_BLOCKS), strict=True):
        scaled = block.float()
        scale = scaled.abs().amax(dim=1, keepdim=True)
        # The bound, as in bitsandbytes: the reciprocal of a block of zeros is finite.
        scaled = (scaled * (1 / scale.clamp(min=1e-38))).clamp_(-1, 1)
        places = torch.bucketize(scaled, middles, out_int32=True).view(-1)
        to.copy_(values.index_select(0, places).view_as(scaled).mul_(scale))
    return like[:count].view(weight.shape)


def _by_row(weight: Tensor) -> Tensor:
    half = weight.half()  # bitsandbytes quantises fp16, whatever the model's type is
    scale = half.abs().amax(dim=1, keepdim=True).float()
    # The bound: of a row of zeros; below every other scale in fp16.
    places = torch.round(half * (127 / scale.clamp(min=1e-8)))
    return (places * scale * _127TH).to(weight.dtype)
