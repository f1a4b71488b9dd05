"""Tiny models with random weights of the families that people use, from transformers' own classes.

Windows and chunks are 8 tokens, so that the rows of a test are longer. Layers have more than one
kind of attention wherever the family does. Weights are larger than at the start of training: greedy
answers vary, and a token that is seen by mistake changes the numbers by much more than rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

VOCABULARY = 330
WINDOW = 8
"""Tokens of sliding windows and of chunks."""
_SHARPNESS = 5.0

_LLAMA: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""Sizes under the names that most families give them."""
_GPT2: Mapping[str, Any] = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}


def _without(*names: str) -> Mapping[str, Any]:
    """The sizes for a family that has no fields of these names.

    Unknown fields would become attributes of the configuration, and hide that it lacks them.
    """
    return {name: value for name, value in _LLAMA.items() if name not in names}


_SLIDING = ["sliding_attention", "full_attention"]
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}


@dataclass(frozen=True)
class Family:
    """How to build a tiny model of one architecture."""

    kind: str
    """The `model_type` of its configuration."""
    sizes: Mapping[str, Any] = field(default_factory=lambda: _LLAMA)
    changes: Mapping[str, Any] = field(default_factory=dict[str, Any])
    lora_targets: tuple[str, ...] = ("q_proj", "v_proj")
    """Names of layers, as a user lists them."""

    def config(self) -> Any:
        """The configuration of the model."""
        from transformers import AutoConfig

        return AutoConfig.for_model(self.kind, **{**self.sizes, **self.changes})

    def build(self, *, seed: int = 4, attention: str | None = None) -> Any:
        """A model with random weights, in evaluation mode.

        attention: Implementation by transformers' name. None: transformers' own choice.
        """
        import torch
        from transformers import AutoModelForCausalLM

        options = {} if attention is None else {"attn_implementation": attention}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model: Any = AutoModelForCausalLM.from_config(self.config(), **options)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if "sinks" in name or name.endswith("bias"):
                        parameter.normal_(std=0.5)  # zeros, or what was in memory, tell nothing
                    elif parameter.ndim >= 2 and "A_log" not in name:
                        parameter.mul_(_SHARPNESS)
        return model.eval()


FAMILIES: Mapping[str, Family] = {
    "llama": Family("llama"),
    "llama4": Family(
        "llama4_text",
        changes={
            "intermediate_size_mlp": 64,
            "num_local_experts": 4,
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "head_dim": 8,
            "no_rope_layers": [1, 1, 1, 0],
            "floor_scale": WINDOW,
            "interleave_moe_layer_step": 2,
        },
    ),
    "qwen2": Family("qwen2"),
    "qwen3": Family("qwen3", changes={"head_dim": 8}),
    "qwen3-moe": Family(
        "qwen3_moe",
        changes={
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 16,
        },
    ),
    "gemma": Family("gemma", changes={"head_dim": 8}),
    "gemma2": Family(
        "gemma2",
        changes={
            "head_dim": 8,
            "sliding_window": WINDOW,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
        },
    ),
    "gemma3": Family(
        "gemma3_text",
        changes={"head_dim": 8, "sliding_window": WINDOW, "layer_types": _SLIDING},
    ),
    "gemma3-vision": Family(
        "gemma3",
        sizes={},
        changes={
            "text_config": {
                **_LLAMA,
                "head_dim": 8,
                "sliding_window": WINDOW,
                "layer_types": _SLIDING,
            },
            "vision_config": {
                "hidden_size": 16,
                "intermediate_size": 16,
                "num_hidden_layers": 1,
                "num_attention_heads": 2,
                "image_size": 8,
                "patch_size": 4,
            },
            "mm_tokens_per_image": 4,
            "image_token_index": VOCABULARY - 1,
            "boi_token_index": VOCABULARY - 2,
            "eoi_token_index": VOCABULARY - 3,
        },
    ),
    "phi": Family("phi", changes={"num_key_value_heads": 4, "resid_pdrop": 0.0}),
    "phi3": Family("phi3", changes={"sliding_window": WINDOW}, lora_targets=("qkv_proj", "o_proj")),
    "mistral": Family("mistral", changes={"sliding_window": WINDOW}),
    "mixtral": Family(
        "mixtral",
        changes={"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": None},
    ),
    "olmo2": Family("olmo2"),
    "olmoe": Family("olmoe", changes={"num_experts": 4, "num_experts_per_tok": 2}),
    "smollm3": Family("smollm3", changes={"no_rope_layers": [1, 0]}),
    "gpt2": Family("gpt2", _GPT2, _NO_DROPOUT, ("c_attn", "c_fc")),
    "gpt-neox": Family(
        "gpt_neox", _without("num_key_value_heads"), lora_targets=("query_key_value", "dense")
    ),
    "gpt-j": Family("gptj", _GPT2, {**_NO_DROPOUT, "rotary_dim": 4}),
    "gpt-neo": Family(
        "gpt_neo",
        _without("num_key_value_heads", "num_hidden_layers", "num_attention_heads"),
        {
            "num_layers": 2,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 1]],
            "window_size": WINDOW,
            "resid_dropout": 0.0,
            "embed_dropout": 0.0,
            "attention_dropout": 0.0,
        },
    ),
    "opt": Family(
        "opt",
        _without("num_key_value_heads", "intermediate_size"),
        {"ffn_dim": 64, "word_embed_proj_dim": 32, "dropout": 0.0},
    ),
    "bloom": Family(
        "bloom",
        _without(
            "num_key_value_heads",
            "num_attention_heads",
            "num_hidden_layers",
            "intermediate_size",
            "max_position_embeddings",
        ),
        {"n_head": 4, "n_layer": 2},
        lora_targets=("query_key_value",),
    ),
    "falcon": Family(
        "falcon",
        _without("num_key_value_heads", "intermediate_size"),
        lora_targets=("query_key_value", "dense"),
    ),
    "falcon-alibi": Family(
        "falcon",
        _without("num_key_value_heads", "intermediate_size"),
        {"alibi": True, "new_decoder_architecture": False, "parallel_attn": False},
        lora_targets=("query_key_value", "dense"),
    ),
    "mpt": Family(
        "mpt",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256},
        {"expansion_ratio": 2, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
        ("Wqkv", "out_proj"),
    ),
    "mamba": Family(
        "mamba",
        _without(
            "num_attention_heads",
            "num_key_value_heads",
            "intermediate_size",
            "max_position_embeddings",
        ),
        {"state_size": 4},
        lora_targets=("in_proj", "x_proj"),
    ),
    "granite": Family("granite", changes={"logits_scaling": 4.0, "residual_multiplier": 0.5}),
    "cohere": Family("cohere", changes={"logit_scale": 0.5}),
    "stablelm": Family("stablelm"),
    "deepseek-v3": Family(
        "deepseek_v3",
        changes={
            "num_key_value_heads": 4,
            "moe_intermediate_size": 16,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "n_group": 2,
            "topk_group": 1,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 4,
            "qk_nope_head_dim": 8,
            "v_head_dim": 8,
        },
        lora_targets=("q_b_proj", "o_proj"),
    ),
    "gpt-oss": Family(
        "gpt_oss",
        changes={
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": WINDOW,
            "layer_types": _SLIDING,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10_000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
            },
        },
    ),
}
"""By the name under which tests and the table show them."""
