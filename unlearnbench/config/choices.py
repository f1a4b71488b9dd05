"""Values that settings and options choose from; importing them costs nothing."""

from __future__ import annotations

from typing import Literal

Dtype = Literal["float32", "bfloat16"]
Precision = Literal["bf16", "fp32"]
Template = Literal["auto", "plain", "llama-2", "phi", "chat"]
