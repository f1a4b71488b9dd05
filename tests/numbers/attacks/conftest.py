"""Tools that the harness gives to attacks on weights, without a harness."""

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest

from unlearnbench.api.attack import AttackRows
from unlearnbench.api.benchmark import Benchmark, Question
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.limits import pad_id
from unlearnbench.models.rows_loading import other_rows
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.training.fine_tuning import FineTuner


@dataclass
class PlainTools:
    """`AttackTools` of one model, which notes what was trained on."""

    rows: AttackRows
    tuner: FineTuner
    start: Any = None
    trained: list[Any] = field(default_factory=list[Any])

    def fine_tune(self, model: Any, rows: Any, **how: Any) -> Any:
        """Train, and note rows and settings."""
        self.trained.append((tuple(rows), how))
        return self.tuner(model, rows, **how)

    def start_model(self) -> Any:
        """The model that runs begin from."""
        return copy.deepcopy(self.start)

    def other_rows(self, source: Benchmark | str) -> tuple[Question, ...]:
        """Rows from elsewhere."""
        return other_rows(source)


@pytest.fixture
def tools(tokenizer: Any, questions: tuple[Question, ...]) -> Callable[..., PlainTools]:
    """Makes the tools: eight rows to forget about four subjects, two to keep."""

    def make(subject_rows: int = 2, start: Any = None) -> PlainTools:
        tuner = FineTuner(Encoder(tokenizer, TEMPLATES["plain"], 200), pad_id(tokenizer))
        return PlainTools(AttackRows(questions[:8], questions[8:], subject_rows), tuner, start)

    return make
