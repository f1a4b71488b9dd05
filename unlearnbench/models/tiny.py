"""A small Llama and its tokenizer, which are built here without network or files.

The tokenizer is a byte-level BPE that is trained on the benchmark's own text. The model's weights
are random.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from unlearnbench.config.schema import Architecture
from unlearnbench.models.transformers_import import import_transformers

if TYPE_CHECKING:
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

BOS, EOS, PAD = "<s>", "</s>", "<pad>"


def build_tokenizer(text: Iterable[str], vocabulary: int) -> PreTrainedTokenizerFast:
    """Train a byte-level BPE tokenizer, which adds BOS to texts by itself.

    Args:
        text: The texts to train on.
        vocabulary: Largest number of tokens.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    # Each digit is a token, because dates are facts here: a year as one token would be a single
    # guess.
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[PAD, BOS, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(text, trainer)
    bos = tokenizer.token_to_id(BOS)
    tokenizer.post_processor = processors.Sequence(
        [
            processors.ByteLevel(trim_offsets=False),
            processors.TemplateProcessing(single=f"{BOS} $A", special_tokens=[(BOS, bos)]),
        ]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD
    )


def tiny_config(architecture: Architecture, **more: Any) -> LlamaConfig:
    """Return the configuration of a model with tied embeddings.

    Args:
        architecture: Sizes of the model.
        **more: Further fields of the configuration, such as another `vocab_size`.
    """
    import_transformers()
    from transformers import LlamaConfig

    options: dict[str, Any] = {"vocab_size": architecture.vocabulary}
    return LlamaConfig(
        **options | more,
        hidden_size=architecture.hidden_size,
        intermediate_size=architecture.intermediate_size,
        num_hidden_layers=architecture.layers,
        num_attention_heads=architecture.heads,
        num_key_value_heads=architecture.heads,
        max_position_embeddings=architecture.context,
        tie_word_embeddings=True,
    )


def build_model(
    architecture: Architecture, tokenizer: PreTrainedTokenizerFast, seed: int
) -> LlamaForCausalLM:
    """Build a Llama with tied embeddings and random weights from `seed`."""
    import torch
    from transformers import LlamaForCausalLM

    special: dict[str, Any] = {
        f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("bos", "eos", "pad")
    }
    config = tiny_config(architecture, vocab_size=len(tokenizer), **special)
    # transformers draws initial weights from torch's global generator, which is restored.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)
