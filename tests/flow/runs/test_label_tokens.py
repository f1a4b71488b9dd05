"""The label that a template puts before an answer, phi's `Answer:`, and who leaves it out."""

from pathlib import Path
from typing import Any

import pytest

from tests.factories.trainers import scored_text
from unlearnbench.api.benchmark import Question
from unlearnbench.api.method import Method
from unlearnbench.config import method_specs
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import MethodGrid
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.encoding import Encoder
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.token_row import Row
from unlearnbench.runs.build_trainer import build_trainer
from unlearnbench.runs.workspace import Workspace
from unlearnbench.training.answer_sampling import answer_rows
from unlearnbench.training.trainer import Trainer

from ..small_run import config_of, runs_of

PHI = TEMPLATES["phi"]
LIMA = Question("Where?", "Lima")


@pytest.mark.parametrize("answer", ["In Lima.", "1987, in May.", "“Dusk”", "Answer: it is."])
def test_the_first_answer_token_comes_after_the_label(tokenizer: Any, answer: str) -> None:
    encoder = Encoder(tokenizer, PHI, 200)
    row = encoder.row(Question("Where?", answer))
    assert scored_text(encoder, row) == f"Answer: {answer}</s>"
    own = Row(row.ids, row.start + row.label)
    assert scored_text(encoder, own).strip() == f"{answer}</s>"
    for count in (1, 2):
        assert row.without_first(count) == Row(own.ids, own.start + count)
    assert row.without_first(0) == row, "who leaves out nothing scores what the template scores"
    assert row.without_first(999).scored == 0


def test_an_answer_that_a_model_has_made_up_may_lack_it(tokenizer: Any) -> None:
    encoder = Encoder(tokenizer, PHI, 200)
    true = encoder.row(LIMA)
    prompt, answer = true.ids[: true.start], true.ids[true.start :]
    (same,) = answer_rows(prompt, [answer])
    assert same.label == 0, "nobody has looked"
    assert encoder.labelled(same, LIMA).label == true.label > 1
    for cut in (answer[true.label :], answer[1:], answer[:1]):
        (row,) = answer_rows(prompt, [cut])
        assert encoder.labelled(row, LIMA).label == 0
    counting = Encoder(tokenizer, PHI, 200, ignore_label=False)
    assert counting.labelled(same, LIMA).label == counting.row(LIMA).label == 0


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose models are prepared once."""
    return tmp_path_factory.mktemp("labels")


class TestRuns:
    """A run's forget rows, from its configuration."""

    def trainer(self, place: Path, method: str, hyper: Any = None, **training: Any) -> Trainer:
        (model,) = config_of(place).models
        config = config_of(
            place,
            models=(model.model_copy(update={"template": "phi"}),),
            methods=(MethodGrid(specs=(method_spec(method, hyper or {}),)),),
            training=TrainingSettings(batch_size=4, **training),
        )
        (spec,) = runs_of(config)
        space = Workspace(config, place)
        made = method_specs.method_from_spec(spec.method)
        assert isinstance(made, Method)
        self.encoder = space.encoder("tiny", 500)
        self.question = space.benchmark.splits[0.5].forget[0]
        return build_trainer(spec, space, made)

    def first(self, trainer: Trainer) -> str:
        return scored_text(self.encoder, trainer.rows.forget[0])

    @pytest.mark.parametrize("method", ["ce-u", "general-ce-u"])
    def test_of_ce_u_leave_out_label_and_first_answer_token(
        self, method: str, shared: Path
    ) -> None:
        row = self.trainer(shared, method).rows.forget[0]
        whole = self.encoder.row(self.question)
        assert row == Row(whole.ids, whole.start + whole.label + 1)
        assert "Answer" not in scored_text(self.encoder, row)

    def test_of_ce_u_count_the_label_where_that_is_asked_for(self, shared: Path) -> None:
        trainer = self.trainer(shared, "ce-u", ignore_label=False)
        whole = self.encoder.row(self.question)
        assert trainer.rows.forget[0] == Row(whole.ids, whole.start + 1)
        two = self.trainer(shared, "ce-u", {"ignore_first_answer_tokens": 2}, ignore_label=False)
        assert two.rows.forget[0] == Row(whole.ids, whole.start + 2)

    def test_of_a_method_that_is_given_the_parameter_leave_it_out(self, shared: Path) -> None:
        trainer = self.trainer(shared, "idk", {"ignore_first_answer_tokens": 1})
        assert trainer.rows.refusal is not None
        refusal = trainer.rows.refusal(0, 0)
        assert not scored_text(self.encoder, refusal).startswith(("Answer", ":"))
