"""The models to measure: built here with random weights, and trained into a state.

A state is how far the model's own answers agree with the true ones, on which the speed of an
evaluation depends. `random` is untrained; `memorised` is that model after training on every
evaluated question; `unlearned` is the memorised one after gradient ascent on the forget set.

    python -m benchmarks.models FOLDER SIZE DATA    write a random model in bf16 into a folder
"""

import math
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.config.schema import Architecture
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.limits import pad_id
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.runs.evaluate_model import data_settings
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

from .timer import DEVICE

ARCHITECTURES = {
    "quick": Architecture(
        vocabulary=400, hidden_size=32, layers=2, heads=2, intermediate_size=48, context=256
    ),
    # 3.4 million parameters.
    "tiny": Architecture(
        vocabulary=4096, hidden_size=192, layers=6, heads=6, intermediate_size=512
    ),
    # 1.1e8; the vocabulary is Llama-2's, as below.
    "100m": Architecture(
        vocabulary=32000, hidden_size=768, layers=12, heads=12, intermediate_size=2048
    ),
    # 1.09e9 parameters.
    "1b": Architecture(
        vocabulary=32000, hidden_size=2048, layers=20, heads=16, intermediate_size=5632
    ),
}
SHAPES: dict[str, dict[str, Any]] = {
    # That of Llama-3.2-1B at a size for tests: 4 heads that share 2 of keys and values.
    "llama3-quick": {
        "vocab_size": 400, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
        "tie_word_embeddings": True,
    },
    # 1.35e8 parameters, as SmolLM2-135M: 30 small layers.
    "smollm2-135m": {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "tie_word_embeddings": True,
    },
    # 1.24e9 parameters, as Llama-3.2-1B.
    "llama3-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192,
        "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "head_dim": 64, "tie_word_embeddings": True,
    },
    # 6.74e9 parameters, as Llama-2-7B.
    "llama2-7b": {
        "vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008,
        "num_hidden_layers": 32, "num_attention_heads": 32, "tie_word_embeddings": False,
    },
}  # fmt: skip
"""Arguments of `LlamaConfig`; `Architecture` has no heads that share keys and values."""
SIZES = (*ARCHITECTURES, *SHAPES)
QUICK = ("quick", "llama3-quick")
"""Sizes for tests: in this process, and few rows."""
LARGE = ("1b", "llama3-1b", "llama2-7b")
"""Sizes that are measured with random weights only, and a model at a time."""
LOSSES = {"memorised": 0.03, "unlearned": -4.0}
"""Nats per token at which training ends; gradient ascent has negative ones."""
EPOCHS: dict[str, int] = {"quick": 2, "llama3-quick": 2}
"""The most epochs of training by size; 24 of the others."""


def random_model(
    size: str, text: Iterable[Question], dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """A model of `size` with random weights, and a tokenizer trained on `text`.

    A large one is drawn on the device, where that takes seconds instead of minutes.
    """
    shape = SHAPES.get(size)
    vocabulary = ARCHITECTURES[size].vocabulary if shape is None else min(shape["vocab_size"], 8000)
    tokenizer = build_tokenizer(
        (f"Question: {q.question}\nAnswer: {a}" for q in text for a in q.scored_answers),
        vocabulary,
    )
    if shape is not None:
        return _llama(shape, tokenizer, dtype), tokenizer
    model: Any = build_model(ARCHITECTURES[size], tokenizer, seed=0)
    if model.get_input_embeddings().num_embeddings < vocabulary // 2:
        torch.manual_seed(0)  # the text has too few words to fill the vocabulary
        model.resize_token_embeddings(vocabulary, mean_resizing=False)
    return model.to(DEVICE, dtype), tokenizer


def _llama(shape: Mapping[str, Any], tokenizer: Any, dtype: torch.dtype) -> Any:
    special = {f"{n}_token_id": getattr(tokenizer, f"{n}_token_id") for n in ("bos", "eos", "pad")}
    config = LlamaConfig(max_position_embeddings=4096, **shape, **special)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with DEVICE:
            return LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(before)


def in_states(
    size: str, sets: Mapping[str, Sequence[Question]], dtype: torch.dtype
) -> Iterator[tuple[str, Any, Any]]:
    """(state, model, tokenizer) of each state, one after the other; the largest is random only."""
    everything = [question for rows in sets.values() for question in rows]
    model, tokenizer = random_model(size, everything, dtype)
    yield "random", model.eval(), tokenizer
    if size in LARGE:
        return
    encoder, pad = Encoder(tokenizer, TEMPLATES["plain"], MAX_LENGTH), pad_id(tokenizer)
    epochs = EPOCHS.get(size, 24)
    learning = TrainerSettings(epochs, 16, 3e-3, optimizer="muon", schedule="cosine", seed=0)
    rows = TrainingRows(retain=[encoder.row(question) for question in everything])
    train(Trainer(model, Objective(FineTuning()), rows, learning, pad), "memorised")
    yield "memorised", model.eval(), tokenizer
    forgetting = TrainerSettings(epochs, 16, 1e-4, optimizer="adamw", schedule="constant", seed=0)
    rows = TrainingRows(forget=[encoder.row(question) for question in sets["forget"]])
    ascent = Objective(registry.load("methods", "gradient-ascent")())
    train(Trainer(model, ascent, rows, forgetting, pad), "unlearned")
    yield "unlearned", model.eval(), tokenizer


def train(trainer: Trainer, state: str) -> None:
    """Train until the loss is that of the state, or the epochs are over."""
    loss, epoch = math.inf, 0
    while loss > LOSSES[state] and epoch < trainer.schedule.epochs:
        epoch += 1
        losses = [step.loss for step in trainer.epoch(epoch)]
        loss = sum(losses) / len(losses)


if __name__ == "__main__":
    folder, size, data = sys.argv[1:]
    model, tokenizer = random_model(
        size, load_benchmark(data_settings(data), ()).full, torch.bfloat16
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
