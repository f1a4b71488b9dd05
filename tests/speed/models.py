"""The models to measure: built here with random weights, and trained into a state.

A state is how far the model's own answers agree with the true ones, on which the speed of an
evaluation depends. `random` is untrained; `memorised` is that model after training on every
evaluated question; `unlearned` is the memorised one after gradient ascent on the forget set.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.config.schema import Architecture
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.models.encoding import TEMPLATES, Encoder
from unlearnbench.models.epoch_order import TrainingRows
from unlearnbench.models.loading import pad_id
from unlearnbench.models.tiny import build_model, build_tokenizer
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
STATES = ("random", "memorised", "unlearned")
LOSSES = {"memorised": 0.03, "unlearned": -4.0}
"""Nats per token at which training ends; gradient ascent has negative ones."""
EPOCHS = {"quick": 2}
"""The most epochs of training by size; 24 of the others."""


def random_model(
    size: str, text: Iterable[Question], dtype: torch.dtype = torch.float32
) -> tuple[Any, Any]:
    """A model of `size` with random weights, and a tokenizer trained on `text`."""
    shape = ARCHITECTURES[size]
    tokenizer = build_tokenizer(
        (f"Question: {q.question}\nAnswer: {a}" for q in text for a in q.scored_answers),
        shape.vocabulary,
    )
    model: Any = build_model(shape, tokenizer, seed=0)
    if model.get_input_embeddings().num_embeddings < shape.vocabulary // 2:
        torch.manual_seed(0)  # the text has too few words to fill the vocabulary
        model.resize_token_embeddings(shape.vocabulary, mean_resizing=False)
    return model.to(DEVICE, dtype), tokenizer


def in_states(
    size: str, sets: Mapping[str, Sequence[Question]], dtype: torch.dtype
) -> Iterator[tuple[str, Any, Any]]:
    """(state, model, tokenizer) of each state, one after the other; the largest is random only."""
    everything = [question for rows in sets.values() for question in rows]
    model, tokenizer = random_model(size, everything, dtype)
    yield "random", model.eval(), tokenizer
    if size == "1b":
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
    while loss > LOSSES[state] and epoch < trainer.how.epochs:
        epoch += 1
        losses = [step.loss for step in trainer.epoch(epoch)]
        loss = sum(losses) / len(losses)
