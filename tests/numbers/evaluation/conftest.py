"""A model with something to say, for the tests of the evaluation."""

from collections.abc import Callable
from typing import Any

import pytest

from unlearnbench.api.benchmark import Question
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.templates import TEMPLATES


@pytest.fixture(scope="session")
def learned(
    make_model: Callable[[], Any], tokenizer: Any, questions: tuple[Question, ...]
) -> dict[str, Any]:
    """Weights of a model that has learned some of the answers, so that drafts are partly right."""
    from unlearnbench.models.epoch_order import TrainingRows
    from unlearnbench.training.objective import Objective
    from unlearnbench.training.optimizers import TrainerSettings
    from unlearnbench.training.trainer import FineTuning, Trainer

    model = make_model()
    encoder = Encoder(tokenizer, TEMPLATES["plain"], 200)
    rows = TrainingRows(retain=[encoder.row(q) for q in questions[2:8]])
    how = TrainerSettings(epochs=40, batch_size=3, learning_rate=3e-3, seed=0)
    trainer = Trainer(model, Objective(FineTuning()), rows, how, pad_id(tokenizer))
    for epoch in range(1, 41):
        list(trainer.epoch(epoch))
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.fixture
def sharp(model: Any, learned: dict[str, Any]) -> Any:
    """The model that has learned some of the answers."""
    model.load_state_dict(learned)
    return model.eval()
