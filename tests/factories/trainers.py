"""Trainers of the tests' tiny model: rows, objective, references and sampler as a run makes them.

Tests of the training loop, of modifiers, of step schedules and of devices all start from here.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from unlearnbench.api import registry
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Needs, Sampling
from unlearnbench.api.modifier import Modifier
from unlearnbench.config.schema import LoRA
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.epoch_order import TrainingRows, with_needed
from unlearnbench.models.limits import pad_id
from unlearnbench.models.lora import add_lora
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.training.answer_sampling import Sampler
from unlearnbench.training.objective import Objective
from unlearnbench.training.optimizers import TrainerSettings
from unlearnbench.training.reference_model import load_references
from unlearnbench.training.trainer import Trainer

from ..conftest import QUESTIONS

REFUSALS = ("I do not know.", "That is beyond me, sorry.", "No idea.")
TRAINED_METHODS = [name for name in registry.names("methods") if registry.trains(name)]
"""Names of all methods that train; a wrapper like ECO does not."""


def plain_encoder(tokenizer: Any) -> Encoder:
    """An encoder with the plain template and room for 200 tokens."""
    return Encoder(tokenizer, TEMPLATES["plain"], 200)


def scored_text(encoder: Encoder, row: Row) -> str:
    """The text of the tokens of a row that are scored: the answer, and the end of the turn."""
    return str(encoder.tokenizer.decode(list(row.ids[row.start :])))


def training_rows(
    tokenizer: Any, questions: Sequence[Question], skipped_tokens: int = 0
) -> TrainingRows:
    """Rows of a run: the first half of the questions is forgotten, the second half is retained.

    They have all that a method may ask for: refusals, other answers, instructions and texts.

    Args:
        tokenizer: Of the model.
        questions: Forget rows, then as many retain rows.
        skipped_tokens: Number of first answer tokens of forget rows that are not scored.
    """
    encoder = plain_encoder(tokenizer)
    half = len(questions) // 2

    def refusal(question: int, answer: int) -> Row:
        return encoder.row(questions[question], REFUSALS[answer]).without_first(skipped_tokens)

    def retain_refusal(question: int, answer: int) -> Row:
        return encoder.row(questions[half + question], REFUSALS[answer])

    encoded = [encoder.row(question) for question in questions]
    forget = [row.without_first(skipped_tokens) for row in encoded[:half]]
    other_answers = [
        tuple(
            encoder.row(question, other).without_first(skipped_tokens)
            for other in question.perturbed_answers
        )
        for question in questions[:half]
    ]
    rows = TrainingRows(
        forget, encoded[half:], len(REFUSALS), refusal, other_answers, retain_refusal
    )
    needs = Needs(
        parts={"forget"},
        prompts=("An expert answers. {question}", "A novice answers. {question}"),
        text=" No idea",
        questions=("Who?", "What is it?"),
    )
    return with_needed(rows, questions[:half], needs, encoder)


def objective_of(method: str, **hyperparameters: Any) -> Objective:
    """The objective of a method without a retain term."""
    return Objective(registry.load("methods", method)(**hyperparameters))


def sampler_of(tokenizer: Any, objective: Objective, seed: int) -> Sampler | None:
    """A sampler of answers of six tokens; None if the method samples none."""
    if "sample" not in objective.needs.parts:
        return None
    sampling = replace(objective.needs.samples or Sampling(2), max_new_tokens=6)
    reward = objective.method.reward
    return Sampler(QUESTIONS, plain_encoder(tokenizer), sampling, reward, seed, pad_id(tokenizer))


@dataclass(frozen=True)
class Extras:
    """What a trainer may have beside model, rows and objective."""

    modifiers: Sequence[Modifier] = ()
    lora: LoRA | None = None
    """The adapter to train; None: all weights."""
    change_reference: Callable[[Any], Any] | None = None
    """Applied to each reference before the trainer gets it."""
    starts_at_reference: bool = False
    """The trainer knows that its first step starts at the reference."""


def trainer_of(
    model: Any,
    tokenizer: Any,
    rows: TrainingRows,
    objective: Objective,
    folder: Path,
    extras: Extras = Extras(),
    /,
    **settings: Any,
) -> Trainer:
    """A trainer of a copy of the model, which is the start model and the reference, too.

    Args:
        model: The start model. It is not changed.
        tokenizer: Of the model.
        rows: As `training_rows` makes them.
        objective: Method and retain term.
        folder: Where references are stored.
        extras: Modifiers, an adapter, changed references.
        settings: Fields of `TrainerSettings`; three epochs with batches of four by default.
    """
    defaults: dict[str, Any] = {"epochs": 3, "batch_size": 4, "learning_rate": 1e-3, "seed": 5}
    trainer_settings = TrainerSettings(**{**defaults, **settings})
    needs = objective.needs
    references: Mapping[Any, Any] = load_references(
        lambda: model,
        "weights",
        rows,
        needs,
        seed=trainer_settings.seed,
        epochs=trainer_settings.plan_steps(len(rows.primary(needs))).epochs,
        pad=pad_id(tokenizer),
        folder=folder,
        precision=trainer_settings.precision,
    )
    if extras.change_reference is not None:
        references = {part: extras.change_reference(one) for part, one in references.items()}
    trained = copy.deepcopy(model)
    if extras.lora is not None:
        trained = add_lora(trained, extras.lora)
    return Trainer(
        trained,
        objective,
        rows,
        trainer_settings,
        pad_id(tokenizer),
        references,
        sampler_of(tokenizer, objective, trainer_settings.seed),
        extras.modifiers,
        starts_at_reference=extras.starts_at_reference,
    )


def weights(trainer: Trainer) -> Tensor:
    """All parameters of the trained model in one vector, float64."""
    parameters = [parameter.detach().flatten() for parameter in trainer.model.parameters()]
    return torch.cat(parameters).double()


def losses(trainer: Trainer, epochs: int) -> list[float]:
    """Train, and return the loss of each step of epochs 1 to `epochs`."""
    return [step.loss for epoch in range(1, epochs + 1) for step in trainer.epoch(epoch)]


def assert_resumes(make: Callable[[], Trainer], folder: Path) -> None:
    """Check that two epochs after a stop are the same as without it."""
    through, first, second = make(), make(), make()
    expected = losses(through, 3)
    found = losses(first, 1)
    first.save(folder / "state.safetensors")
    second.load(folder / "state.safetensors")
    found += [step.loss for epoch in (2, 3) for step in second.epoch(epoch)]
    assert found == expected
    assert second.state == through.state
    assert torch.equal(weights(second), weights(through))
