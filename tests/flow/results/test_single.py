"""A model that is judged by itself has the numbers that a sweep with the same observations has."""

import itertools
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest

from tests.factories.marks import some_in_make_test
from tests.factories.random_folders import Drawn, draw, write
from unlearnbench.analysis.lasting import AttackedSetting
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.under_attack import UnderAttack
from unlearnbench.api import registry
from unlearnbench.api.observations import SETS, Evaluation
from unlearnbench.base.errors import EvaluationError
from unlearnbench.config.entries import AttackSpec, benchmark_named, benchmark_of
from unlearnbench.config.profiles import TOFU
from unlearnbench.results.finalize import table_of
from unlearnbench.results.rules import named_metrics
from unlearnbench.results.single import ModelRole, records_of
from unlearnbench.results.table import TableRow
from unlearnbench.testing import made_up_set
from unlearnbench.testing.metric_checks import taken

DATA = Path(__file__).parents[2] / "data"
ROLE_OF_KIND: dict[str, ModelRole] = {role.kind: role for role in ModelRole}


@dataclass(frozen=True)
class Observed:
    """The evaluations of a sweep's models, plain and under attacks."""

    results: Results

    def of_model(self, row: TableRow) -> dict[str, Evaluation]:
        """The evaluations of a model after an epoch by variant, the plain one included."""
        evaluations: dict[str, Evaluation] = {}
        for other in (row, *self.results.attacked):
            if other.kind == "run":
                is_same = (other.run_id, other.epoch) == (row.run_id, row.epoch)
            else:
                is_same = (other.kind, other.panel) == (row.kind, row.panel)
            evaluation = self.results.observed(other) if is_same else None
            if evaluation is not None:
                evaluations[other.variant] = evaluation
        return evaluations

    def single(self, row: TableRow) -> Results:
        """Judge a run after an epoch by itself, beside the sweep's retain and start model."""
        models = {ModelRole.MODEL: self.of_model(row)}
        for other in self.results.rows:
            if other.kind != "run" and other.panel == row.panel:
                models[ROLE_OF_KIND[other.kind]] = self.of_model(other)
        record = next(record for record in self.results.records if record.id == row.run_id)
        benchmark = benchmark_of(dict(record.spec["data"]), stored=True)
        attacks = [AttackSpec.model_validate(spec) for spec in record.spec.get("attacks", ())]
        records = records_of(models, benchmark, row.forget_fraction, attacks)
        table = table_of(records, named_metrics(self.results.config))
        return Results("single", records, table)


def runs_of(results: Results) -> Iterator[TableRow]:
    """The runs' rows with observations, except epoch 0, which is the start model."""
    for row in results.rows:
        if row.kind == "run" and row.epoch and results.observed(row) is not None:
            yield row


def differing(
    swept: Mapping[str, float | None], single: Mapping[str, float | None]
) -> dict[str, tuple[float | None, float | None]]:
    """Numbers that differ, also those that only one of both has."""
    return {
        name: (swept.get(name), single.get(name))
        for name in swept.keys() | single.keys()
        if swept.get(name) != single.get(name)
    }


def test_all_models_have_the_numbers_of_a_stored_sweep(tmp_path: Path) -> None:
    shutil.copytree(DATA / "small_sweep", tmp_path / "sweep")
    results = Results.read(tmp_path / "sweep")
    observed = Observed(results)
    compared = 0
    for row in runs_of(results):
        for single in observed.single(row).rows:
            swept = row
            if single.kind != "run":
                (swept,) = (
                    r for r in results.rows if (r.kind, r.panel) == (single.kind, row.panel)
                )
            assert differing(swept.metrics, single.metrics) == {}, (row.run_id, single.kind)
            assert len(single.metrics) > 20
            compared += 1
    assert compared > 30


def drawn_with_attacks(count: int) -> list[Drawn]:
    """Draw folders whose models were attacked."""
    attacked = (drawn for drawn in map(draw, itertools.count()) if is_attacked(drawn))
    return [*itertools.islice(attacked, count)]


def is_attacked(drawn: Drawn) -> bool:
    return "no attack" not in drawn.features


@pytest.mark.parametrize(
    "drawn", some_in_make_test(drawn_with_attacks(8), 3), ids=lambda drawn: str(drawn.number)
)
def test_numbers_under_attacks_are_those_of_a_sweep(drawn: Drawn, tmp_path: Path) -> None:
    results = Results.read(write(drawn, tmp_path).folder)
    observed = Observed(results)
    under = {(row.run_id, row.epoch, row.variant): row for row in results.attacked}
    references = {(row.kind, row.panel, row.variant): row for row in results.attacked}
    for row in runs_of(results):
        for single in observed.single(row).attacked:
            if single.kind == "run":
                swept = under[row.run_id, row.epoch, single.variant]
            else:
                swept = references[single.kind, row.panel, single.variant]
            assert differing(swept.metrics, single.metrics) == {}, (row.run_id, single.variant)


def shown(under: UnderAttack) -> tuple[object, ...]:
    """The numbers that the page and `attack` show of a model under a variant."""
    return under.before, under.after, under.retain, under.start, under.removed, under.lasting


def is_whole(setting: AttackedSetting) -> bool:
    """Whether a setting is one run whose score depends on no other run."""
    depends_on_others = setting.not_attacked or setting.setting.why_not
    return len(setting.setting.rows) == 1 and not depends_on_others and not setting.bypassed_by


@pytest.mark.long
def test_what_lasts_is_the_same_on_the_page_and_by_attack(tmp_path: Path) -> None:
    scores: list[float | None] = []
    for drawn in drawn_with_attacks(10):
        results = Results.read(write(drawn, tmp_path / str(drawn.number)).folder)
        observed = Observed(results)
        for panel in results.lasting:
            for setting in panel.settings:
                if not is_whole(setting):
                    continue
                (alone,) = observed.single(setting.setting.rows[0]).lasting
                (single,) = alone.settings
                if alone.column != panel.column:
                    continue  # Another panel lacks the number that this one could be measured by.
                assert {*map(shown, single.under)} == {*map(shown, setting.under)}
                assert not single.bypassed_by, "nobody knows by which method it was made"
                assert single.lasting == setting.lasting
                assert single.comes_back == setting.comes_back
                assert single.why_not == setting.why_not.replace(
                    f"epoch {setting.setting.epoch}", f"epoch {single.setting.epoch}"
                )
                scores.append(single.lasting)
    assert len(scores) > 10
    assert sum(score is not None for score in scores) > 5


TOFU_BENCHMARK = benchmark_named("tofu")
ANSWERED = '''
from dataclasses import replace
from typing import ClassVar

from unlearnbench.api import PromptAttack


class Answered(PromptAttack):
    """Ask again those questions that the model has answered."""

    label = "Answered"
    reads_answers: ClassVar[bool] = True

    def selects(self, row, rows):
        return bool(rows.answers.get(row.question))

    def asked(self, row, point, rows):
        return replace(row, question=f"Again: {row.question}")
'''


def test_the_start_model_has_the_number_of_the_rows_that_the_model_was_asked(
    tmp_path: Path,
) -> None:
    """It is not attacked itself, and other models may have been asked other rows."""
    (tmp_path / "answered.py").write_text(ANSWERED, encoding="utf-8")
    registry.register_file(tmp_path / "answered.py")
    rows_of_model = {ModelRole.MODEL: range(20), ModelRole.RETAIN: range(10, 40)}
    probability = {ModelRole.MODEL: 0.2, ModelRole.RETAIN: 0.1, ModelRole.START: 0.9}
    models: dict[ModelRole, dict[str, Evaluation]] = {}
    for role, best in probability.items():
        plain = evaluation(40)
        # The later rows are known less.
        known = replace(
            plain.sets["forget"],
            answer_loss=-np.log(best * np.linspace(1.0, 0.5, 40)),
            answer_tokens=np.ones(40, dtype=np.int64),
            token_columns=None,
        )
        models[role] = {"": replace(plain, sets={**plain.sets, "forget": known})}
        if role in rows_of_model:
            places = [*rows_of_model[role]]
            asked = replace(taken(known, places), places=np.array(places))
            models[role]["answered"] = Evaluation(plain.profile, {"forget": asked})
    table = table_of(records_of(models, TOFU_BENCHMARK, 0.1))
    before = {row.run_id: row.metrics["probability_forget"] for row in table.before}
    means = {
        role: np.linspace(1.0, 0.5, 40)[[*rows]].mean() for role, rows in rows_of_model.items()
    }
    assert before == {
        "model": pytest.approx(0.2 * means[ModelRole.MODEL]),
        "retain": pytest.approx(0.1 * means[ModelRole.RETAIN]),
        "start": pytest.approx(0.9 * means[ModelRole.MODEL]),
    }


def evaluation(
    count: int = 4,
    asked: str = "question",
    profile: str = TOFU.id,
    precision: str | None = None,
) -> Evaluation:
    """Sets with this number of questions."""
    rows = made_up_set(n=count)
    sets = {
        name: replace(rows, questions=tuple(f"{asked} {i} of {name}" for i in range(count)))
        for name in SETS
    }
    return Evaluation(profile, dict(sets), precision=precision)


@pytest.mark.parametrize(
    ("retain", "start", "message"),
    [
        (evaluation(3), None, "--retain: evaluated on 3 forget questions, the model on 4"),
        (evaluation(asked="other"), None, "Forget Quality: forget question 0 is 'question 0"),
        (evaluation(profile="tofu@0"), None, "--retain: by profile tofu@0, and the model by tofu@"),
        (None, evaluation(3), "--start: evaluated on 3 retain questions, the model on 4"),
        (None, evaluation(asked="other"), "--start: evaluated on 4 retain questions"),
        (None, evaluation(profile="tofu@0"), "--start: by profile tofu@0, and the model by tofu@"),
        (evaluation(precision="bfloat16"), None, "numbers of different precisions do not compare"),
        (None, evaluation(precision="bfloat16"), "numbers of different precisions do not compare"),
    ],
)
def test_models_that_do_not_compare_are_refused(
    retain: Evaluation | None, start: Evaluation | None, message: str
) -> None:
    models = {ModelRole.MODEL: {"": evaluation(precision="float32")}}
    if retain is not None:
        models[ModelRole.RETAIN] = {"": retain}
    if start is not None:
        models[ModelRole.START] = {"": start}
    with pytest.raises(EvaluationError) as raised:
        records_of(models, TOFU_BENCHMARK, 0.1)
    assert message in str(raised.value)


@pytest.mark.parametrize("role", [ModelRole.RETAIN, ModelRole.START])
@pytest.mark.parametrize("set_name", SETS)
def test_every_set_that_two_models_have_must_have_the_same_rows(
    role: ModelRole, set_name: str
) -> None:
    """All numbers of both stand side by side."""
    model, other = evaluation(), evaluation()
    models = {ModelRole.MODEL: {"": model}, role: {"": other}}
    assert records_of(models, TOFU_BENCHMARK, 0.1)
    fewer = {**other.sets, set_name: evaluation(3).sets[set_name]}
    models[role] = {"": replace(other, sets=fewer)}
    with pytest.raises(EvaluationError, match=f"--{role}: evaluated on 3 {set_name} questions"):
        records_of(models, TOFU_BENCHMARK, 0.1)
    without = {name: rows for name, rows in other.sets.items() if name != set_name}
    models[role] = {"": replace(other, sets=without)}
    assert records_of(models, TOFU_BENCHMARK, 0.1)


def without_questions(count: int) -> Evaluation:
    """An evaluation as read from a log of open-unlearning."""
    of = evaluation(count)
    return replace(of, sets={name: replace(rows, questions=()) for name, rows in of.sets.items()})


@pytest.mark.parametrize("role", [ModelRole.RETAIN, ModelRole.START])
def test_logs_without_questions_are_compared_by_their_number(role: ModelRole) -> None:
    models = {ModelRole.MODEL: {"": without_questions(4)}, role: {"": without_questions(3)}}
    with pytest.raises(EvaluationError, match=f"--{role}: evaluated on 3 "):
        records_of(models, TOFU_BENCHMARK, 0.1)
    assert records_of({**models, role: models[ModelRole.MODEL]}, TOFU_BENCHMARK, 0.1)
