"""Tiny models of texts with random weights: a sentence encoder, and a classifier of pairs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    PreTrainedTokenizerFast,
)


def word_tokenizer(texts: Sequence[str]) -> PreTrainedTokenizerFast:
    """Return a tokenizer of words with the special tokens of BERT."""
    special = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
    words = sorted({word for text in texts for word in text.split()})
    ids = {word: i for i, word in enumerate([*special, *words])}
    made = Tokenizer(models.WordLevel(ids, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token="[UNK]",
        pad_token="[PAD]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=160,
    )


def save_encoder(folder: Path, tokenizer: PreTrainedTokenizerFast, seed: int = 1) -> None:
    """Save a tiny BERT and its tokenizer, without the files of sentence-transformers."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=160,
    )
    made = BertModel(config)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(4)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def add_pooling(folder: Path, modes: Mapping[str, Any], more: Sequence[str] = ()) -> None:
    """Add the files by which sentence-transformers describes an encoder."""
    kinds = ["Transformer", "Pooling", *more]
    paths = ["", "1_Pooling", *(f"{i + 2}_{kind}" for i, kind in enumerate(more))]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for i, (kind, path) in enumerate(zip(kinds, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    rules = {"max_seq_length": 12, "do_lower_case": False}
    (folder / "sentence_bert_config.json").write_text(json.dumps(rules))


def save_judge(
    folder: Path,
    tokenizer: PreTrainedTokenizerFast,
    premises: Sequence[str],
    hypotheses: Sequence[str],
) -> None:
    """Save a tiny DeBERTa that chooses each of three labels for some of these pairs."""
    labels = ("entailment", "neutral", "contradiction")
    torch.manual_seed(5)
    # Not all of these settings are declared fields of the configuration.
    settings: dict[str, Any] = {
        "relative_attention": True,
        "position_biased_input": False,
        "position_buckets": 16,
        "pos_att_type": ["p2c", "c2p"],
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "type_vocab_size": 0,
    }
    config = DebertaV2Config(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        id2label=dict(enumerate(labels)),
        label2id={label: i for i, label in enumerate(labels)},
        **settings,
    )
    made = DebertaV2ForSequenceClassification(config).eval()
    pairs = tokenizer([*premises], [*hypotheses], padding=True, return_tensors="pt")
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.mul_(6)
        # Without this, the label of one class would be the most probable one of every pair.
        made.classifier.bias -= made(**pairs).logits.mean(0)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
