"""Circuit breakers: turn hidden states of forget rows away from the old ones."""

from dataclasses import replace
from functools import lru_cache
from typing import ClassVar

import torch
from pydantic import field_validator
from torch import Tensor
from torch.nn.functional import cosine_similarity, normalize

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.method import LossBatch, Method, Needs, Part, Terms, layer_of
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Predictions, Reference

_PAPER = "Zou et al. 2024, arXiv:2406.04313"
_MOVE = 0.01
"""Length of the move along u, as a fraction of the state's length (ours)."""
_BOTH: frozenset[Part] = frozenset({"forget", "retain"})


class CircuitBreakers(Method):
    """RR (representation rerouting): Zou et al. 2024, arXiv:2406.04313.

    L = α (1 − τ) · mean_t mean_ℓ max(0, cos(h_t, h_ref,t)) + α τ · mean_r mean_ℓ ‖h_r − h_ref,r‖

    t, r      position that predicts an answer token of a forget row, of a retain row
    h, h_ref  hidden states [D] after each decoder layer ℓ of `layers`, of the model and of the
              frozen start model; after the last layer, the final norm is included
    τ         part of the run that is over, divided by `horizon`: the loss first turns the states of
              forget rows, and later holds those of retain rows

    All layers up to the last one of `layers` are trained.

    In the first step, h equals h_ref. There, the cosine is 1 and its gradient is 0, so a training
    would not move, or would follow rounding errors. At such positions, the cosine of h + 0.01 ‖h‖ u
    is used instead, with a fixed random direction u from `direction_seed`. All states begin to turn
    towards this direction. This is our own addition. The masks of the modifiers `salun`, `sure` and
    `wagle` are computed from this gradient.

    The authors' code holds the states of all layers and positions, with padding as zeros. Here,
    only the states of answer tokens after the layers in `layers` are held.

    Literature: this method has its own retain term, so add no other one. The authors use layers 10
    and 20 of 32 (`layers: 10,20`, because their layer 0 is the embedding) and α 10. They train LoRA
    (rank 16, α 16) up to layer 21 at 1.0e-4, in 150 steps of 16 rows. Their τ reaches one half,
    which is `horizon: 2`. [source: GraySwanAI/circuit-breakers src/lorra_circuit_breaker.py]
    """

    family = "hidden states"
    needs = Needs(parts=_BOTH, states=_BOTH)
    ranges: ClassVar = {"weight": (1.0, 100.0)}  # ours

    layers: str = setting(
        "2", "decoder layers ℓ from 1, with commas", "ours: the smallest models have as many"
    )
    weight: float = setting(10.0, "weight α of both terms", _PAPER, gt=0)
    horizon: float = setting(
        2.0,
        "number of run lengths after which only retain rows would count",
        "GraySwanAI/circuit-breakers src/lorra_circuit_breaker.py: 300 steps for runs of 150",
        ge=1,
    )

    direction_seed: int = setting(
        0,
        "seed of the direction u towards which the first step turns states",
        "ours: any number works",
        ge=0,
    )

    @field_validator("layers")
    @classmethod
    def _check_layers(cls, text: str) -> str:
        numbers = [number.strip() for number in text.split(",")]
        if not all(number.isdigit() and int(number) > 0 for number in numbers):
            raise ValueError(f"layers must be numbers from 1 with commas, got {text!r}")
        return text

    @property
    def _layers(self) -> frozenset[int]:
        return frozenset(map(int, self.layers.split(",")))

    def needed(self) -> Needs:
        """Return the needs with the states after `layers`."""
        return replace(self.needs, layers=self._layers)

    def trains(self, parameter: str, layers: int) -> bool:
        """Whether a weight is in a layer up to the last of `layers`. No later layer is read."""
        return 0 < layer_of(parameter) <= max(self._layers)

    def loss(self, batch: LossBatch) -> Terms:
        """Return the two terms of the loss. The second one is 0 at the beginning of a run."""
        cosines: list[Tensor] = []  # [N] for each layer
        distances: list[Tensor] = []
        for layer in sorted(self._layers):
            h = _states(batch.parts["forget"], layer)
            h_ref = _states(batch.reference.parts["forget"], layer)
            moved = self._moved_from_start(h, h_ref)
            cosines.append(cosine_similarity(moved, h_ref, dim=1).clamp(min=0))
            h = _states(batch.parts["retain"], layer)
            h_ref = _states(batch.reference.parts["retain"], layer)
            distances.append((h - h_ref).norm(dim=1))
        tau = batch.progress / self.horizon  # progress: 0 at the first step, 1 at the end
        # The sum over layers below, divided by their number, is the mean over ℓ.
        scale = self.weight / len(cosines)
        forget = batch.forget.mean_tokens(torch.stack(cosines).sum(dim=0))
        retain = batch.retain.mean_tokens(torch.stack(distances).sum(dim=0))
        return {"forget": scale * (1 - tau) * forget, "retain": scale * tau * retain}

    def _moved_from_start(self, h: Tensor, start: Tensor) -> Tensor:
        """Return states h [N, D]. States that equal the start model's are moved along u."""
        is_start = (h == start).all(dim=1, keepdim=True)
        u = _direction(self.direction_seed, h.shape[1], h.dtype, h.device)
        return h + torch.where(is_start, _MOVE * start.norm(dim=1, keepdim=True) * u, 0.0)


@lru_cache(maxsize=1)  # it is copied to a GPU once, and not for each micro-batch
def _direction(seed: int, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Return a random direction [size] of length 1, the same in all processes and devices."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randn(size, generator=generator, dtype=torch.float64)
    return normalize(drawn, dim=0).to(device, dtype)


def _states(rows: Predictions | Reference, layer: int) -> Tensor:
    """Return the hidden states [N, D] after a layer, in float32 or more."""
    return at_least_fp32(rows.hidden_states(layer))
