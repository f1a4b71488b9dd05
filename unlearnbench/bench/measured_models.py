"""The models to measure: built here, and trained into a certain state.

A state is how far the model's own answers agree with the true ones. `random` is untrained;
`memorised` is that model after training on every evaluated question; `unlearned` is the memorised
one after gradient ascent on the forget set, until the true answers are unlikely. Each is an
ordinary model folder, so `unlearnbench evaluate` accepts it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.bench.evaluation_case import EvaluationBenchSettings, Sets
from unlearnbench.bench.measurement import PrintLine
from unlearnbench.config.schema import Architecture
from unlearnbench.config.training_settings import MAX_LENGTH
from unlearnbench.data.encoding import TEMPLATES, Encoder
from unlearnbench.data.epoch_order import TrainingRows
from unlearnbench.errors import EvaluationError
from unlearnbench.evaluation.evaluate_model import model_settings
from unlearnbench.files.canonical_json import content_hash
from unlearnbench.models.loading import Source, load_model, load_tokenizer, pad_id
from unlearnbench.models.tiny import build_model, build_tokenizer
from unlearnbench.runs.prepared_models import prepared
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.trainer import FineTuning, Trainer

MEMORISED = 0.03
"""Mean loss in nats per token at which training ends."""
FORGOTTEN = 4.0
"""Mean loss on the forget set at which unlearning ends."""
EPOCHS = 24
"""Largest number of epochs of either."""
NOT_LEARNED = 1.0
"""Mean loss above which training counts as failed."""
QUICK_EPOCHS = 8

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


@dataclass(frozen=True, eq=False)
class MeasuredModels:
    """The models of one benchmark in a folder, each prepared at its first use."""

    settings: EvaluationBenchSettings
    sets: Sets
    folder: Path
    print_line: PrintLine

    def check(self) -> None:
        """Raises: EvaluationError if the folder's models were prepared with other settings."""
        place = self.folder / "settings.json"
        rows = [[[q.question, q.answer] for q in rows] for rows in self.sets.values()]
        source: dict[str, Any] = {
            "size": self.settings.size,
            "dtype": self.settings.dtype,
            "questions": {name: len(rows) for name, rows in self.sets.items()},
            "content": content_hash([rows, list(_text(self.sets))]),
        }
        try:
            if not place.is_file():
                self.folder.mkdir(parents=True, exist_ok=True)
                place.write_text(json.dumps(source, indent=2) + "\n", encoding="utf-8")
            there = dict(json.loads(place.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise EvaluationError(f"{place}: cannot be used for prepared models: {error}") from None
        differ = [key for key, value in source.items() if there.get(key) != value]
        if differ:
            raise EvaluationError(
                f"{self.folder}: the models there were prepared from something else (other "
                f"{', '.join(sorted(differ))}); use the same options, or another folder"
            )

    def prepare(self, state: str) -> Path:
        """The folder of the model in `state`."""
        prepared(self.folder / state, lambda: self._build(state))
        return self.folder / state

    def load(self, state: str) -> tuple[Any, Any]:
        """The model in `state`, on the fastest device, and its tokenizer."""
        return load(self.prepare(state), self.settings.dtype)

    def _build(self, state: str) -> tuple[Any, Any]:
        if state == "random":
            return random_model(self.settings.size, self.settings.dtype, _text(self.sets))
        model, tokenizer = self.load("memorised" if state == "unlearned" else "random")
        if state == "memorised":
            self.print_line(f"training the {self.settings.size} model until it knows the answers")
            everything = [q for rows in self.sets.values() for q in rows]
            self._train(model, tokenizer, everything, ascent=False)
        else:
            self.print_line("unlearning its forget set")
            self._train(model, tokenizer, self.sets["forget"], ascent=True)
        return model, tokenizer

    def _train(
        self, model: Any, tokenizer: Any, questions: Sequence[Question], *, ascent: bool
    ) -> None:
        """Train in place until the questions are memorised or, by gradient ascent, forgotten."""
        encoder = Encoder(tokenizer, TEMPLATES["plain"], MAX_LENGTH)
        encoded = [encoder.row(question) for question in questions]
        rows = TrainingRows(forget=encoded) if ascent else TrainingRows(retain=encoded)
        method = registry.load("methods", "gradient-ascent")() if ascent else FineTuning()
        how = TrainerSettings(
            epochs=QUICK_EPOCHS if self.settings.quick else EPOCHS,
            batch_size=16,
            learning_rate=1e-4 if ascent else 3e-3,
            optimizer="adamw" if ascent else "muon",
            schedule="constant" if ascent else "cosine",
            seed=0,
        )
        trainer = Trainer(model, Objective(method), rows, how, pad_id(tokenizer))
        loss = math.inf
        for epoch in range(1, how.epochs + 1):
            losses = [step.loss for step in trainer.epoch(epoch)]
            loss = sum(losses) / len(losses)
            self.print_line(f"  epoch {epoch}: {abs(loss):.3f} nats per token")
            if loss < (-FORGOTTEN if ascent else MEMORISED):
                return
        if loss > NOT_LEARNED and not self.settings.quick:
            raise EvaluationError(
                f"the benchmark's model did not memorise its {len(questions)} questions in "
                f"{how.epochs} epochs ({loss:.2f} nats per token); fewer --rows help"
            )


def random_model(size: str, dtype: str, text: Iterable[str]) -> tuple[Any, Any]:
    """A model of `size` with random weights, and a tokenizer trained on `text`."""
    architecture = ARCHITECTURES[size]
    tokenizer = build_tokenizer(text, architecture.vocabulary)
    model: Any = build_model(architecture, tokenizer, seed=0)
    if model.get_input_embeddings().num_embeddings < architecture.vocabulary // 2:
        with torch.random.fork_rng(devices=[]):  # the text has too few words to fill the vocabulary
            torch.manual_seed(0)
            model.resize_token_embeddings(architecture.vocabulary, mean_resizing=False)
    return model.to(getattr(torch, dtype)), tokenizer


def load(folder: Path, dtype: str) -> tuple[Any, Any]:
    """The model in `folder`, on the fastest device, and its tokenizer."""
    settings = model_settings(str(folder), "plain", dtype)
    source = Source(str(folder))
    return load_model(source, settings), load_tokenizer(source, settings)


def _text(sets: Sets) -> Iterator[str]:
    for questions in sets.values():
        for q in questions:
            for answer in (q.answer, q.paraphrased_answer or "", *q.perturbed_answers):
                yield f"Question: {q.question}\nAnswer: {answer}"
