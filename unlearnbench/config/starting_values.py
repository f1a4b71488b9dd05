"""Starting values: learning rates, epochs and settings by method and by size of the model.

Only this table has them. `configs new` writes them into a configuration, the page *Starting values*
of the documentation shows them, and a sweep warns about a learning rate of another order of
magnitude.

Terms:
    size            class of a model by its number of weights (`ModelSize`)
    starting value  value with which a search begins. It is no result of a search, because the best
                    rate depends on the rows, the batch size and the schedule
    origin          whether a value was published, was measured by this project, or is neither

The functions `_tiny` to `_muse` each make the values of one source, which has the same model, size
and origin for all of its methods.

All rates are for AdamW on weights in float32 (or under bf16 autocast), in batches of
`StartingValue.batch_size` rows to forget. If weights themselves are in bfloat16, updates at the
lower rates are rounded away.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

_TOFU = "locuslab/tofu@8c49eee README.md; Maini et al. 2024, arXiv:2401.06121"
_OPEN_UNLEARNING = "locuslab/open-unlearning@d3d7cf9 docs/repro.md, configs/experiment/unlearn/tofu"
_COMMUNITY = "locuslab/open-unlearning@d3d7cf9 community/methods"
_MUSE = "swj0419/muse_bench@fcd6651; Shi et al. 2024, arXiv:2407.06460"
_CLOSER_LOOK = "sail-sg/closer-look-LLM-unlearning@b622294 scripts/tofu; arXiv:2410.08109"
_CEU = "Yang 2025, arXiv:2503.01224"
_STUDY = "our study, configuration `tofu_smollm2`, three seeds"
_QUICKSTART = "our `quickstart`, three seeds"
_TOUR = "our tour `every_method`, one seed, chosen by hand"


class ModelSize(Enum):
    """A class of models; its value is the largest number of weights in it.

    A bound is about halfway, by ratio, between the models of two classes for which there are
    values: 1.7 and 135 million, 135 million and 1.2 billion, 1.4 and 7 billion.
    """

    TINY = 20_000_000
    SMALL = 400_000_000
    ABOUT_1B = 3_000_000_000
    ABOUT_7B = math.inf

    @classmethod
    def of(cls, weights: int) -> ModelSize:
        """Return the class of a model with a number of weights."""
        return next(size for size in cls if weights <= size.value)

    @property
    def label(self) -> str:
        """The class in words, with the models for which there are values."""
        return _LABELS[self]


_LABELS = {
    ModelSize.TINY: "tiny: up to 20 million weights",
    ModelSize.SMALL: "small: 20 to 400 million weights",
    ModelSize.ABOUT_1B: "about 1B: 400 million to 3 billion weights",
    ModelSize.ABOUT_7B: "about 7B: more than 3 billion weights",
}


class Origin(Enum):
    """Where a value comes from."""

    PUBLISHED = "published"
    """Published for a model of this size, by a method's or benchmark's authors or by a harness."""
    MEASURED = "measured here"
    """Run by this project on a model of this size: the best of the few rates that were tried."""
    CARRIED_OVER = "carried over"
    """Taken from another size or from a similar method. We know of no run with it."""


@dataclass(frozen=True)
class StartingValue:
    """The settings with which a search of one method begins, for models of one size."""

    method: str
    size: ModelSize
    learning_rate: float
    epochs: int | None
    """None if the source counts optimiser steps. Then `remark` has their number."""
    origin: Origin
    source: str
    model: str
    """Model for which the source has the value."""
    retain: str | None = None
    """Retain term with which the method was run: `nll` or `kl`. None if it had no such term."""
    retain_weight: float = 1.0
    """Factor of the retain term."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """The method's settings that differ from its defaults."""
    batch_size: int | None = 32
    """Number of forget rows in an optimiser step; None if the source does not say it."""
    adapters: bool = False
    """Whether LoRA adapters were trained in place of all weights."""
    texts: bool = False
    """Whether the rows are texts. Otherwise they are questions with answers."""
    config: str | None = None
    """Installed configuration that has this value, if there is one."""
    remark: str = ""
    """What else a reader of the value should know, such as the number of steps; may be empty."""


@dataclass(frozen=True)
class PreparationValue:
    """How a model of one size learns rows: settings of `preparation`."""

    size: ModelSize
    settings: Mapping[str, Any]
    """Settings that differ from the defaults of `preparation`."""
    origin: Origin
    source: str
    model: str


def _tiny(method: str, rate: float, retain: str | None = None, **settings: Any) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.TINY,
        learning_rate=rate,
        epochs=5,
        origin=Origin.MEASURED,
        source=_TOUR,
        model="a Llama with 1.3 million weights",
        retain=retain,
        settings=settings,
        config="every_method",
    )


def _quickstart(method: str, retain: str | None = None) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.TINY,
        learning_rate=1e-3,
        epochs=8,
        origin=Origin.MEASURED,
        source=_QUICKSTART,
        model="a Llama with 0.6 million weights",
        retain=retain,
        config="quickstart",
    )


def _small(
    method: str, rate: float, retain: str | None = None, remark: str = "", **settings: Any
) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.SMALL,
        learning_rate=rate,
        epochs=5,
        origin=Origin.MEASURED,
        source=_STUDY,
        model="SmolLM2-135M-Instruct",
        retain=retain,
        settings=settings,
        batch_size=8,
        config="tofu_smollm2",
        remark=remark or "25 optimiser steps",
    )


def _open_unlearning(
    method: str,
    retain: str | None = None,
    source: str = _OPEN_UNLEARNING,
    term_weight: float = 1.0,
    **settings: Any,
) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.ABOUT_1B,
        learning_rate=1e-5,
        epochs=10,
        origin=Origin.PUBLISHED,
        source=source,
        model="Llama-3.2-1B-Instruct",
        retain=retain,
        retain_weight=term_weight,
        settings=settings,
        config="open_unlearning_tofu_1b",
        remark="20 to 125 optimiser steps (TOFU forget01 to forget10)",
    )


def _tofu_phi(method: str) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.ABOUT_1B,
        learning_rate=2e-5,
        epochs=5,
        origin=Origin.PUBLISHED,
        source=_TOFU,
        model="Phi-1.5 (1.4 billion)",
    )


def _llama_2(
    method: str,
    *,
    rate: float,
    epochs: int,
    source: str,
    config: str | None,
    retain: str | None = None,
    remark: str = "",
    **settings: Any,
) -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.ABOUT_7B,
        learning_rate=rate,
        epochs=epochs,
        origin=Origin.PUBLISHED,
        source=source,
        model="Llama-2-7B-chat",
        retain=retain,
        settings=settings,
        config=config,
        remark=remark,
    )


def _tofu_llama_2(method: str) -> StartingValue:
    return _llama_2(method, rate=1e-5, epochs=5, source=_TOFU, config="tofu_llama2_7b")


def _muse(method: str, retain: str | None = None, remark: str = "") -> StartingValue:
    return StartingValue(
        method=method,
        size=ModelSize.ABOUT_7B,
        learning_rate=1e-5,
        epochs=10,
        origin=Origin.PUBLISHED,
        source=_MUSE,
        model="Llama-2-7B",
        retain=retain,
        batch_size=4,
        texts=True,
        config="muse_news",
        remark=remark or "constant schedule",
    )


def _carried_over(value: StartingValue, size: ModelSize, reason: str) -> StartingValue:
    """Return a value of another size, with the reason to use it as its source."""
    return replace(
        value,
        size=size,
        origin=Origin.CARRIED_OVER,
        source=reason,
        config="open_unlearning_tofu_7b",
        remark="",
    )


_COMPOSED_FOR_1B = (
    _open_unlearning("undial", beta=10.0, source=f"{_COMMUNITY}/UNDIAL, configs/trainer"),
    _open_unlearning(
        "satimp",
        "nll",
        source=f"{_COMMUNITY}/SatImp, configs/trainer",
        term_weight=10.0,
        beta1=5.0,
        beta2=1.0,
    ),
    _open_unlearning("wga", "nll", source=f"{_COMMUNITY}/WGA, configs/trainer", beta=1.0),
)

STARTING_VALUES: tuple[StartingValue, ...] = (
    # Tiny models, which are trained here in seconds. Weights that began at random and have learned
    # a few hundred rows take rates that would destroy a pretrained model.
    _quickstart("npo", "nll"),
    _quickstart("general-ce-u"),
    _quickstart("ce-u", "nll"),
    _tiny("simnpo", 1e-3, "nll", forget_weight=0.125),
    _tiny("ce-u", 1e-4),
    _tiny("gradient-ascent", 1e-4),
    _tiny("gradient-difference", 2e-4),
    _tiny("kl-minimization", 2e-4),
    _tiny("idk", 1e-3),
    _tiny("dpo", 1e-4),
    _tiny("rmu", 6e-3, steering=20.0, retain_weight=10.0),
    _tiny("jensun", 1e-3),
    _tiny("circuit-breakers", 1e-3),
    _tiny("lunar", 1e-2, steering=6.0, retain_weight=3.0),
    _tiny("kto", 1e-3, "nll", weight=20.0, value="log-sigmoid", clamp=False),
    _tiny("idk-ap", 1e-3),
    _tiny("pdu", 1e-3),
    _tiny("elm", 1e-3),
    _tiny("altpo", 1e-3, "nll", temperature=1.5, max_new_tokens=40),
    _tiny("baldro", 1e-3, "nll"),
    _tiny("task-vector", 1e-4, alpha=5.0),
    _tiny("grpo", 1e-3, "nll", samples=4, max_new_tokens=32),
    _tiny("grpo-ceu", 3e-4, "nll", samples=4, max_new_tokens=32),
    _tiny("tnpo", 1e-3, "nll"),
    _tiny("maximum-entropy", 1e-3, "nll", forget_weight=0.1),
    _tiny("dpo-ceu", 1e-4, "nll"),
    _tiny("satimp", 1e-4),
    _tiny("undial", 1e-4),
    _tiny("flat", 1e-4),
    _tiny("wga", 1e-3, "nll"),
    _tiny("ihl", 1e-3, "nll"),
    # Small pretrained models.
    _small("npo", 5e-5, "nll"),
    _small("simnpo", 5e-5, "nll"),
    _small("general-ce-u", 5e-5),
    _small("ce-u", 1e-5, remark="5e-5 destroys the model"),
    _small("gradient-ascent", 1e-5, remark="hardly forgets; 5e-5 destroys the model"),
    _small("gradient-difference", 1e-5, remark="hardly forgets; 5e-5 destroys the model"),
    _small("kl-minimization", 1e-5, remark="hardly forgets; 5e-5 destroys the model"),
    _small("idk", 1e-5, remark="forgets next to nothing; at 5e-5 it refuses"),
    _small("dpo", 1e-5, remark="forgets next to nothing; 5e-5 destroys the model"),
    _small(
        "rmu",
        5e-4,
        remark="layer 8 of 30; at the default layer nothing moves",
        layer=8,
        adaptive=True,
        steering=5.0,
        retain_weight=1.0,
    ),
    # About 1B.
    _open_unlearning("npo", "nll", beta=0.1),
    _open_unlearning("simnpo", "nll", beta=4.5, forget_weight=0.125),
    StartingValue(
        method="general-ce-u",
        size=ModelSize.ABOUT_1B,
        learning_rate=1e-5,
        epochs=10,
        origin=Origin.CARRIED_OVER,
        source="the rate of ce-u: no rate of general-ce-u is published for this size",
        model="Llama-3.2-1B-Instruct",
    ),
    _open_unlearning("ce-u", source=f"{_COMMUNITY}/CEU, configs/trainer"),
    _open_unlearning("gradient-ascent"),
    _open_unlearning("gradient-difference", retain_weight=1.0),
    _tofu_phi("gradient-ascent"),
    _tofu_phi("gradient-difference"),
    _tofu_phi("kl-minimization"),
    _tofu_phi("idk"),
    _open_unlearning("dpo", "nll", beta=0.1, scaled=True),
    _open_unlearning(
        "rmu", layer=8, steering=2.0, retain_weight=1.0, trained="all", trained_layers=8
    ),
    *_COMPOSED_FOR_1B,
    StartingValue(
        method="pdu",
        size=ModelSize.ABOUT_1B,
        learning_rate=1e-5,
        epochs=10,
        origin=Origin.PUBLISHED,
        source=f"{_COMMUNITY}/PDU/run.sh",
        model="Llama-3.2-1B-Instruct, also 3B",
        settings={"warmup_epochs": 5},
        batch_size=128,
        remark="30 epochs for 8B",
    ),
    StartingValue(
        method="altpo",
        size=ModelSize.ABOUT_1B,
        learning_rate=2e-5,
        epochs=2,
        origin=Origin.PUBLISHED,
        source=f"{_COMMUNITY}/AltPO/run.sh",
        model="Llama-3.2-1B-Instruct",
        retain="nll",
        settings={"asked": "authors"},
        remark="middle of their grid: rates 1e-5 to 5e-5, β 0.05 to 0.5, retain weights 1 to 5",
    ),
    # About 7B.
    _llama_2(
        "npo",
        rate=1e-5,
        epochs=10,
        source="licong-lin/negative-preference-optimization@1207bbe TOFU/config/forget.yaml",
        config="authors_tofu_7b",
        retain="nll",
        beta=0.1,
    ),
    _llama_2(
        "simnpo",
        rate=1e-5,
        epochs=10,
        source="OPTML-Group/Unlearn-Simple@f1a355d TOFU/README.md",
        config="authors_tofu_7b",
        retain="nll",
        remark="forget05: β 2.5, weight 0.1375",
        beta=4.5,
        forget_weight=0.125,
    ),
    StartingValue(
        method="general-ce-u",
        size=ModelSize.ABOUT_7B,
        learning_rate=1e-5,
        epochs=10,
        origin=Origin.CARRIED_OVER,
        source="open-unlearning's rate of ce-u for 1B: no rate of general-ce-u is published",
        model="Llama-3.2-1B-Instruct",
    ),
    _llama_2(
        "ce-u",
        rate=4e-5,
        epochs=5,
        source=_CEU,
        config="tofu_llama2_7b",
        remark="1 to 5 epochs",
    ),
    _llama_2("ce-u", rate=2e-6, epochs=10, source=_CEU, config=None, remark="1 to 10 epochs"),
    _tofu_llama_2("gradient-ascent"),
    _tofu_llama_2("gradient-difference"),
    _tofu_llama_2("kl-minimization"),
    _tofu_llama_2("idk"),
    _llama_2(
        "dpo",
        rate=1e-5,
        epochs=10,
        source=_OPEN_UNLEARNING,
        config="open_unlearning_tofu_7b",
        retain="nll",
        beta=0.1,
        scaled=True,
    ),
    StartingValue(
        method="rmu",
        size=ModelSize.ABOUT_7B,
        learning_rate=5e-5,
        epochs=None,
        origin=Origin.PUBLISHED,
        source="Li et al. 2024, arXiv:2403.03218",
        model="Zephyr-7B",
        settings={"layer": 8, "steering": 6.5, "retain_weight": 1200.0},
        batch_size=4,
        texts=True,
        config="wmdp_zephyr",
        remark="150 optimiser steps",
    ),
    _llama_2(
        "rmu",
        rate=1e-5,
        epochs=10,
        source=_OPEN_UNLEARNING,
        config="open_unlearning_tofu_7b",
        layer=8,
        steering=2.0,
        retain_weight=1.0,
        trained="all",
        trained_layers=8,
    ),
    _llama_2(
        "maximum-entropy",
        rate=1e-5,
        epochs=5,
        source=_CLOSER_LOOK,
        config="authors_tofu_7b_5_epochs",
        retain="nll",
        where="all",
        forget_weight=0.1,
    ),
    _llama_2(
        "idk-ap",
        rate=1e-5,
        epochs=5,
        source=_CLOSER_LOOK,
        config="authors_tofu_7b_5_epochs",
        beta=0.1,
        retain_weight=1.0,
    ),
    _llama_2(
        "altpo",
        rate=5e-5,
        epochs=2,
        source="molereddy/Alternate-Preference-Optimization@c9b78bd README.md",
        config=None,
        retain="nll",
        asked="authors",
    ),
    *(
        _carried_over(value, ModelSize.ABOUT_7B, f"{value.source}, composed for 1B")
        for value in _COMPOSED_FOR_1B
    ),
    StartingValue(
        method="undial",
        size=ModelSize.ABOUT_7B,
        learning_rate=1e-4,
        epochs=10,
        origin=Origin.PUBLISHED,
        source=f"{_COMMUNITY}/UNDIAL/README.md",
        model="Llama-2-7B-chat",
        settings={"beta": 10.0},
        adapters=True,
        remark="LoRA of rank 8, α 16",
    ),
    StartingValue(
        method="ihl",
        size=ModelSize.ABOUT_7B,
        learning_rate=1e-4,
        epochs=5,
        origin=Origin.PUBLISHED,
        source="csm9493/efficient-llm-unlearning@272484a TOFU",
        model="Llama-2-7B-chat",
        retain="nll",
        adapters=True,
        remark="LoRA of rank 32, α 64, which begins from FILA there",
    ),
    StartingValue(
        method="elm",
        size=ModelSize.ABOUT_7B,
        learning_rate=5e-5,
        epochs=None,
        origin=Origin.PUBLISHED,
        source="rohitgandikota/erasing-llm@fa33064 erase.py",
        model="Zephyr-7B",
        batch_size=4,
        adapters=True,
        texts=True,
        remark="3,000 samples; LoRA of rank 256, α 16, layers 4 to 8",
    ),
    StartingValue(
        method="jensun",
        size=ModelSize.ABOUT_7B,
        learning_rate=8e-6,
        epochs=10,
        origin=Origin.PUBLISHED,
        source="nmndeep/JensUn-Unlearning@925e221 configs; Singh et al. 2025, arXiv:2509.02820",
        model="Llama-3.2-3B-Instruct",
    ),
    StartingValue(
        method="lunar",
        size=ModelSize.ABOUT_7B,
        learning_rate=1e-2,
        epochs=20,
        origin=Origin.PUBLISHED,
        source="facebookresearch/LUNAR@dfa56eb config/forget.yaml",
        model="Llama-3-8B-Instruct",
        settings={"layer": 23, "steering": 2.0},
        batch_size=None,
        remark="64 tokens of a step; one matrix of one layer is trained",
    ),
    _muse("gradient-ascent", remark="the paper reports epoch 1"),
    _muse("gradient-ascent", "nll", remark="the paper reports epoch 7"),
    _muse("gradient-ascent", "kl"),
    _muse("npo", remark="the paper reports epoch 1"),
    _muse("npo", "nll"),
    _muse("npo", "kl"),
)

_TINY_PREPARATION = {
    "optimizer": "muon",
    "learning_rate": 3e-3,
    "schedule": "cosine",
    "epochs": 10,
    "weight_decay": 0.0,
}
PREPARATIONS: tuple[PreparationValue, ...] = (
    PreparationValue(
        size=ModelSize.TINY,
        settings=_TINY_PREPARATION,
        origin=Origin.MEASURED,
        source="defaults of `base: tiny`",
        model="Llamas with 0.6 to 1.7 million weights",
    ),
    PreparationValue(
        size=ModelSize.SMALL,
        settings={"learning_rate": 2e-4, "epochs": 10, "batch_size": 16},
        origin=Origin.MEASURED,
        source="our study, configuration `tofu_smollm2`",
        model="SmolLM2-135M-Instruct",
    ),
    PreparationValue(
        size=ModelSize.ABOUT_1B,
        settings={"learning_rate": 2e-5, "epochs": 5, "weight_decay": 0.01},
        origin=Origin.PUBLISHED,
        source=_TOFU,
        model="Phi-1.5 (1.4 billion)",
    ),
    PreparationValue(
        size=ModelSize.ABOUT_7B,
        settings={"learning_rate": 1e-5, "epochs": 5, "weight_decay": 0.01},
        origin=Origin.PUBLISHED,
        source=_TOFU,
        model="Llama-2-7B-chat",
    ),
)
"""Settings by which models of each size learn rows. Those for about 7B are also the defaults."""

FIRST_METHODS: tuple[tuple[str, str | None], ...] = (
    ("npo", "nll"),
    ("simnpo", "nll"),
    ("general-ce-u", None),
)
"""Methods to try first, with their retain terms. Of the ten methods in our study on
SmolLM2-135M-Instruct, only these three forgot and kept utility (docs/studies/real-model.md)."""


@dataclass(frozen=True)
class RelearningValue:
    """How an attack trains models of one size again on forgotten rows."""

    learning_rate: float
    steps: tuple[int, ...]
    origin: Origin
    source: str


RELEARNING: Mapping[ModelSize, RelearningValue] = {
    ModelSize.TINY: RelearningValue(1e-3, (3, 13), Origin.MEASURED, _QUICKSTART),
    ModelSize.SMALL: RelearningValue(1e-4, (10,), Origin.MEASURED, _STUDY),
    ModelSize.ABOUT_1B: RelearningValue(
        1e-5, (15,), Origin.CARRIED_OVER, "the rate of the attack for 7B"
    ),
    ModelSize.ABOUT_7B: RelearningValue(
        1e-5,
        (15,),
        Origin.PUBLISHED,
        "OPTML-Group/Unlearn-Smooth@fc655ba; Fan et al. 2025, arXiv:2502.05374",
    ),
}


def starting_values(
    method: str, size: ModelSize, *, adapters: bool = False
) -> tuple[StartingValue, ...]:
    """Return the values of a method for models of a size. A search begins with the first one.

    Args:
        method: Name of the method.
        size: Class of the model.
        adapters: Whether LoRA adapters are trained. Adapters need other rates than whole weights,
            so only values of one kind are returned.
    """
    return tuple(
        value
        for value in STARTING_VALUES
        if value.method == method and value.size is size and value.adapters == adapters
    )


def expected_rate(
    method: str, weights: int, rate: float, *, adapters: bool = False
) -> StartingValue | None:
    """Return the known value whose learning rate is nearest to a rate, by ratio.

    Args:
        method: Name of the method.
        weights: Number of weights of the model.
        rate: Learning rate that a sweep has.
        adapters: Whether LoRA adapters are trained.

    Returns:
        None if nothing is known of the method for models of this size.
    """
    known = starting_values(method, ModelSize.of(weights), adapters=adapters)
    return min(known, key=lambda value: abs(math.log(value.learning_rate / rate)), default=None)


def preparation_value(size: ModelSize) -> PreparationValue:
    """Return how models of a size learn rows."""
    return next(value for value in PREPARATIONS if value.size is size)
