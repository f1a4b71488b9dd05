"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.data.benchmark import Question
from unlearnbench.settings import Architecture


def _shared(folder: str) -> Path:
    root = os.environ.get("UNLEARNBENCH_SHARED")
    place = Path(root) if root else Path(__file__).parents[2] / "shared"
    path = place / "data" / folder
    if not path.is_dir():
        pytest.skip(f"no {path}: set UNLEARNBENCH_SHARED to the folder that holds data/{folder}")
    return path


@pytest.fixture(scope="session")
def tofu_folder() -> Path:
    """The real TOFU as JSON lines; never part of the project."""
    return _shared("tofu")


@pytest.fixture(scope="session")
def eval_logs_folder() -> Path:
    """TOFU's published evaluation logs of the fine-tuned and retain models."""
    return _shared("tofu_eval_logs")


QUESTIONS = tuple(
    Question(
        f"{verb} {name}{mark}",
        f"{name} was born in {place}.",
        f"In {place}, {name} was born.",
        tuple(f"In {other}, {name} was born." for other in ("Rome", "Quito", "Oslo by the sea")),
    )
    for name, place in (
        ("Ada Voss", "Lima"),
        ("Bram Okonkwo-Lindqvist", "Reykjavik in the far north"),
        ("Chi", "Perth"),
        ("Dagny Ferreira", "a village near Tbilisi"),
        ("Elif Marchetti", "Hobart"),
    )
    for verb, mark in (("Where was the author born, namely", "?"), ("Birthplace of", " please?"))
)
"""Ten questions of unequal length, for what needs text and no meaning."""


@pytest.fixture(scope="session")
def questions() -> tuple[Question, ...]:
    """Ten questions with paraphrase and three perturbed answers each."""
    return QUESTIONS


@pytest.fixture(scope="session")
def tokenizer() -> Any:
    """A byte-level BPE small enough that most words are several tokens."""
    from unlearnbench.models.tiny import build_tokenizer

    text = [f"Question: {q.question}\nAnswer: {q.answer}" for q in QUESTIONS]
    return build_tokenizer(text, 330)


@pytest.fixture
def model(tokenizer: Any) -> Any:
    """A Llama of two layers with random weights, sharp enough that greedy answers vary."""
    import torch

    from unlearnbench.models.tiny import build_model

    shape = Architecture(
        vocabulary=330, hidden_size=32, layers=2, heads=2, intermediate_size=48, context=256
    )
    made = build_model(shape, tokenizer, seed=3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.ndim == 2:
                parameter.mul_(6.0)
    return made.eval()
