"""Settings of a model's `generation_config` that transformers' `generate` follows.

Two kinds of settings change greedy answers: the ids at which an answer stops, and changes of logits
before the largest one is taken, such as a penalty on repetitions. Every profile follows the stops.
Only profiles that score like a harness with `generate` follow the changes of logits. All other
profiles take the most probable token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.base.errors import EvaluationError

if TYPE_CHECKING:
    from torch import Tensor

_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "sequence_bias": (),
    "repetition_penalty": (1.0,),
    "no_repeat_ngram_size": (0,),
    "bad_words_ids": (),
    "min_length": (0,),
    "min_new_tokens": (0,),
    "forced_bos_token_id": (),
    "forced_eos_token_id": (),
    "exponential_decay_length_penalty": (),
    "suppress_tokens": (),
    "begin_suppress_tokens": (),
}
"""Settings that change logits, in the order in which `generate` applies them.

The values are those at which a setting changes nothing, in addition to None.
"""
_REFUSED: Mapping[str, tuple[Any, ...]] = {
    "num_beams": (1,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "guidance_scale": (1.0,),
    "encoder_repetition_penalty": (1.0,),
    "encoder_no_repeat_ngram_size": (0,),
    "dola_layers": (),
    "constraints": (),
    "force_words_ids": (),
    "watermarking_config": (),
    "stop_strings": (),
}
"""Settings by which `generate` searches in another way, and the values at which it does not."""
_WRAPPED_IN = ("module", "base_model", "model")
"""Attributes in which wrappers keep the model that they are around."""


def generation_config_of(model: Any) -> Any:
    """Return the `generation_config` of a model or of the model in a wrapper; None without one."""
    config = getattr(model, "generation_config", None)
    if config is not None:
        return config
    for name in _WRAPPED_IN:
        config = getattr(getattr(model, name, None), "generation_config", None)
        if config is not None:
            return config
    return None


def stop_ids(config: Any) -> frozenset[int]:
    """Return the ids at which `generate` stops; none if there is no configuration."""
    ids = getattr(config, "eos_token_id", None)
    if ids is None:
        return frozenset()
    return frozenset(map(int, ids)) if isinstance(ids, Sequence) else frozenset((int(ids),))


def logit_settings(config: Any) -> dict[str, Any]:
    """Return the settings that make a greedy answer another one than the most probable tokens."""
    return _effective_settings(config, {**_NEUTRAL, **_REFUSED})


def _effective_settings(
    config: Any, neutral_values: Mapping[str, tuple[Any, ...]]
) -> dict[str, Any]:
    """Return the settings of a configuration that have another value than a neutral one."""
    settings: dict[str, Any] = {}
    for name, neutral in neutral_values.items():
        value = getattr(config, name, None)
        if value is not None and value not in neutral and value != []:
            settings[name] = value
    return settings


class LogitRules:
    """What `generate` does to logits before it takes the largest one."""

    def __init__(self, settings: Mapping[str, Any], stops: frozenset[int]) -> None:
        """Take the settings of a model.

        Args:
            settings: Settings among `_NEUTRAL` that change something.
            stops: Ids at which an answer stops.
        """
        self.settings = settings
        self.stops = stops
        # Some processors are made for the number of tokens of the prompt and of the answer.
        self._processors_by_shape: dict[tuple[int, int, Any], Any] = {}

    @classmethod
    def of(cls, config: Any) -> LogitRules | None:
        """Return the rules of a `generation_config`; None if it changes no logits.

        Raises:
            EvaluationError: A setting makes `generate` search in another way, such as beams.
        """
        refused = _effective_settings(config, _REFUSED)
        if refused:
            name, value = next(iter(refused.items()))
            raise EvaluationError(
                f"the model's generation_config has {name}: {value}, which the profile's source "
                f"follows and unlearnbench cannot; remove {name} from generation_config.json, or "
                "choose another profile"
            )
        settings = _effective_settings(config, _NEUTRAL)
        if "min_new_tokens" in settings:  # it takes precedence
            settings.pop("min_length", None)
        return cls(settings, stop_ids(config)) if settings else None

    def __call__(self, ids: Sequence[int], prompt: int, limit: int, logits: Tensor) -> Tensor:
        """Change the logits of the next token of a text.

        Args:
            ids: The text: the prompt, and the answer so far.
            prompt: Number of tokens of the prompt.
            limit: Largest number of tokens of the answer.
            logits: [V] the model's logits for the next token.

        Returns:
            Logits [V] in float32.
        """
        import torch

        shape = (prompt, limit, logits.device)
        if shape not in self._processors_by_shape:
            self._processors_by_shape[shape] = self._processors(*shape)
        processors = self._processors_by_shape[shape]
        text = torch.tensor([list(ids)], device=logits.device)
        changed: Tensor = processors(text, logits.float().unsqueeze(0))
        return changed[0]

    def _processors(self, prompt: int, limit: int, device: Any) -> Any:
        """Return the library's own processors, in the order in which `generate` applies them."""
        import torch
        from transformers import generation as library

        generation: Any = library  # the types of its classes are not exported
        eos = torch.tensor(sorted(self.stops), device=device)
        at = {"device": device}
        processors = generation.LogitsProcessorList()
        for name, value in self.settings.items():
            if name == "sequence_bias":
                processors.append(generation.SequenceBiasLogitsProcessor(value))
            elif name == "repetition_penalty":
                processors.append(generation.RepetitionPenaltyLogitsProcessor(float(value)))
            elif name == "no_repeat_ngram_size":
                processors.append(generation.NoRepeatNGramLogitsProcessor(value))
            elif name == "bad_words_ids":
                processors.append(generation.NoBadWordsLogitsProcessor(value, eos))
            elif name == "min_length" and self.stops:
                processors.append(generation.MinLengthLogitsProcessor(value, eos, **at))
            elif name == "min_new_tokens" and self.stops:
                processors.append(
                    generation.MinNewTokensLengthLogitsProcessor(prompt, value, eos, **at)
                )
            elif name == "forced_bos_token_id":
                processors.append(generation.ForcedBOSTokenLogitsProcessor(value))
            elif name == "forced_eos_token_id":
                processors.append(
                    generation.ForcedEOSTokenLogitsProcessor(prompt + limit, value, **at)
                )
            elif name == "exponential_decay_length_penalty":
                processors.append(generation.ExponentialDecayLengthPenalty(value, eos, prompt))
            elif name == "suppress_tokens":
                processors.append(generation.SuppressTokensLogitsProcessor(value, **at))
            elif name == "begin_suppress_tokens":
                processors.append(
                    generation.SuppressTokensAtBeginLogitsProcessor(value, prompt, **at)
                )
        return processors
