"""RMU: steer hidden states of forget rows in a random direction."""

from collections.abc import Hashable
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, ClassVar, Literal, cast

import torch
from torch import Tensor

from unlearnbench.api.hyperparameters import setting
from unlearnbench.api.identity import IF_SET
from unlearnbench.api.method import (
    LossBatch,
    Method,
    Needs,
    Part,
    Terms,
    is_down_projection,
    layer_of,
)
from unlearnbench.losses.lm_head import at_least_fp32
from unlearnbench.losses.predictions import Predictions

_ZEPHYR = "Li et al. 2024, arXiv:2403.03218; centerforaisafety/wmdp, for Zephyr-7B"


class RMU(Method):
    """RMU: Li et al. 2024 (WMDP), arXiv:2403.03218.

    L = mean_b mean_t∈b ‖h_t − c · u‖² + α · mean_r mean_t∈r ‖h_t − h_ref,t‖²

    b, r      forget row, retain row;  t  position that predicts one of its answer tokens
    h, h_ref  hidden states [D] after decoder layer ℓ, of the model and of the frozen start model;
              after the last layer, the final norm is included
    u         r / ‖r‖ for one fixed r ~ U[0, 1)^D from `direction_seed`;  c  how far along it
    ℓ         `layer`, counted from 1. WMDP counts from 0, so its layer 7 of 32 is 8 here, a quarter
              of the depth. The default fits the smallest models, so set it by your model's depth.
              States are longer after later layers, and c has to be larger than their length.

    `adaptive: true` replaces c by c · mean_t∈b ‖h_ref,t‖ in each row. This is adaptive RMU
    (Huu-Tien et al. 2024, arXiv:2408.06223), whose c is 5. Its code computes one number from the
    first batch of a topic, as a mean that includes padding.

    By default, the MLP's down-projections of layers ℓ − 2 to ℓ are trained. `trained: all` trains
    all weights of these layers, and `trained_layers` says how many layers up to ℓ are trained.
    Other weights stay, whatever retain term is added. (open-unlearning trains the whole model, with
    c 2 and α 1. On WMDP, it does the same as here.)

    The norm is a sum over D, as in the paper. WMDP's code takes the mean over D, which scales both
    terms alike, and also averages over prompt and padding.

    Literature: this method has its own retain term. WMDP uses c 6.5 and α 1200 at layer 8 of 32 for
    Zephyr-7B. [source: Li et al. 2024, arXiv:2403.03218; centerforaisafety/wmdp] G-effect has
    another loss under this name, which cannot be expressed here. Its forget term is a mean over D
    towards c · U[0, 1)^D, which is not normalised (c is 2, and the norm is about c √(D/3), that is
    37 c at D 4096). The term is taken after layer 10, 21 or 32. All weights are trained, and the
    retain term is a KL with weight 1. `{retain_weight: 0, retain: {term: kl}}` is not the same: its
    forget term is D times heavier against the same KL, and its target is 37 times shorter at equal
    c. [source: tmlr-group/G-effect@ef368ee dataloader.py]
    """

    family = "hidden states"
    needs = Needs(parts=frozenset({"forget", "retain"}), states=frozenset({"forget", "retain"}))
    learning_rate = 5e-5  # centerforaisafety/wmdp, for Zephyr-7B
    ranges: ClassVar = {"steering": (1.0, 100.0)}  # ours, within filyp/open-unlearning@5955f30

    layer: int = setting(
        2,
        "decoder layer ℓ whose states are steered, counted from 1",
        "ours: the smallest models have as many; WMDP's 7 from 0 is 8 here",
        ge=1,
    )
    steering: float = setting(6.5, "length c of the target state", _ZEPHYR, gt=0)
    adaptive: Annotated[bool, IF_SET] = setting(
        False, "c is a multiple of the row's own states in the start model", _ZEPHYR
    )
    retain_weight: float = setting(1200.0, "weight α of the retain rows", _ZEPHYR, ge=0)
    trained: Literal["down-projection", "all"] = setting(
        "down-projection", "which weights of the trained layers change", "centerforaisafety/wmdp"
    )
    trained_layers: int = setting(
        3,
        "number of trained layers, the last of which is ℓ",
        "centerforaisafety/wmdp: layers 5 to 7 from 0",
        ge=1,
    )
    direction_seed: int = setting(
        0, "seed of the random direction u", "ours: any number works", ge=0
    )

    def needed(self) -> Needs:
        """Return the needs with the states after `layer`.

        The start model's states of forget rows are needed only if `adaptive` reads them.
        """
        states: frozenset[Part] = frozenset({"forget", "retain"} if self.adaptive else {"retain"})
        return replace(self.needs, states=states, layers=frozenset({self.layer}))

    def trains(self, parameter: str, layers: int) -> bool:
        """Whether a weight is in one of the `trained_layers` layers that end with `layer`."""
        number = layer_of(parameter)
        is_in_range = self.layer - self.trained_layers < number <= self.layer
        if number == 0 or not is_in_range:
            return False
        return self.trained == "all" or is_down_projection(parameter)

    def direction(self, size: int) -> Tensor:
        """Return u [size] in float64, the same in all processes and on all devices."""
        generator = torch.Generator().manual_seed(self.direction_seed)
        drawn = torch.rand(size, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(drawn, dim=0)

    def loss(self, batch: LossBatch) -> Terms:
        """Return two terms, `forget` and `retain`."""
        states = at_least_fp32(batch.forget.hidden_states(self.layer))  # [N, D]
        method = cast("Hashable", self)  # pydantic makes frozen models hashable
        u = _direction(method, states.shape[1], states.dtype, states.device)
        target = self.steering * u
        if self.adaptive:
            norms = at_least_fp32(batch.reference.forget.hidden_states(self.layer)).norm(dim=1)
            target = batch.forget.mean_rows(norms)[batch.forget.rows].unsqueeze(1) * target
        start = at_least_fp32(batch.reference.retain.hidden_states(self.layer))
        moved = at_least_fp32(batch.retain.hidden_states(self.layer)) - start
        return {
            "forget": _mean_square(batch.forget, states - target),
            "retain": self.retain_weight * _mean_square(batch.retain, moved),
        }


@lru_cache(maxsize=1)  # it is copied to a GPU once, and not for each micro-batch
def _direction(method: RMU, size: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return method.direction(size).to(device, dtype)


def _mean_square(rows: Predictions, difference: Tensor) -> Tensor:
    """Average ‖difference‖² over the tokens of each row, and then over rows."""
    return rows.mean_sequences(rows.mean_rows(difference.square().sum(dim=1)))
