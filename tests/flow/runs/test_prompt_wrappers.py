"""Runs of methods that ask other prompts: from a configuration to a record, and under attack."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.factories.marks import some_in_make_test
from unlearnbench.base.errors import ConfigError
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.schema import MethodGrid
from unlearnbench.results.records import Record, read_records
from unlearnbench.runs import workspace
from unlearnbench.runs.plan_sweep import plan_sweep
from unlearnbench.runs.run import run_single

from ..small_run import config_of, runs_of, without_times
from .test_attack_model import NOISE, specs

METHODS: dict[str, dict[str, Any]] = {
    "icul": {"forget_rows": 1, "retain_rows": 0},
    "guardrail": {"text": "Say nothing of {names}."},
}
RIGID = '''
from dataclasses import replace

from unlearnbench.api import DefenderRows, PromptWrapper, Question


class Rigid(PromptWrapper):
    """Asks with more words than any model can read."""

    words: int = 9000

    def asked(self, row: Question, rows: DefenderRows) -> Question:
        return replace(row, question="word " * self.words + row.question)
'''


def run(folder: Path, name: str, **changes: Any) -> Record:
    grid = MethodGrid(specs=(method_spec(name, METHODS.get(name, {})),))
    config = config_of(folder, methods=(grid,), **changes)
    (spec,) = runs_of(config)
    return run_single(spec, config, folder / "runs" / "small", lambda _: None)


def start_models(folder: Path) -> list[Record]:
    """The records of the start model: the plain one, and one for each attack."""
    records = read_records(folder / "runs" / "small")
    return [record for record in records if record.kind == "fine-tuned"]


@pytest.mark.parametrize("name", METHODS)
def test_a_run_asks_other_prompts_and_repeats(place: Path, name: str) -> None:
    record = run(place, name)
    assert record.status == "finished"
    assert [epoch.epoch for epoch in record.epochs] == [1], "it is evaluated once"
    assert not record.steps, "nothing is trained"
    (start,) = start_models(place)
    for set_name, rows in record.evaluations[1].sets.items():
        plain = start.evaluations[0].sets[set_name]
        assert rows.questions == plain.questions, "questions are compared with other models'"
        assert rows.references == plain.references
        assert (rows.answer_tokens == plain.answer_tokens).all()
        assert (rows.answer_loss != plain.answer_loss).any()
    shutil.rmtree(place / "runs" / "small" / "records" / record.id)
    workspace.clear_workspaces()
    assert without_times(run(place, name)) == without_times(record), "the same numbers"


@pytest.mark.parametrize("name", some_in_make_test(METHODS, 2))
def test_attacks_see_the_prompt_unless_they_have_the_weights(
    place: Path, tmp_path: Path, name: str
) -> None:
    from unlearnbench.api import registry

    (tmp_path / "plain_noise.py").write_text(NOISE.replace("class Noise", "class PlainNoise"))
    (tmp_path / "white_noise_2.py").write_text(
        NOISE.replace("class Noise", "class WhiteNoise2").replace(
            'label = "Noise"', 'label = "Noise"\n    white_box = True'
        )
    )
    noise = registry.register_file(tmp_path / "plain_noise.py")
    white = registry.register_file(tmp_path / "white_noise_2.py")
    attacks = specs(noise, white, "paraphrase", "sampling") + specs("in-context", k=1)
    record = run(place, name, attacks=attacks)
    key = "probability_forget"
    found = {result.variant: result.metrics[key] for result in record.attacked}
    models: dict[str, float | None] = {}
    for start in start_models(place):
        models |= {result.variant: result.metrics[key] for result in start.attacked}
    plain = record.epochs[0].metrics[key]
    assert found[f"{white}@0"] == models[f"{white}@0"], "bypassed"
    assert found[f"{noise}@0"] == pytest.approx(plain), "the same model and prompts"
    prompt_attacks = [variant for variant in found if variant.startswith(("in-context", "para"))]
    assert len(prompt_attacks) == 2
    for variant in prompt_attacks:
        assert found[variant] not in (plain, models[variant]), "another question, and wrapped"


def test_a_text_without_names_is_refused_before_the_first_run(place: Path) -> None:
    data = config_of(place).data.model_copy(update={"questions_per_author": 1})
    config = config_of(
        place, data=data, methods=(MethodGrid(specs=(method_spec("guardrail", {}),)),)
    )
    with pytest.raises(ConfigError, match="guardrail: the forget rows name no subjects"):
        plan_sweep(config)


def test_a_prompt_that_does_not_fit_is_an_error_of_one_line(place: Path, tmp_path: Path) -> None:
    from unlearnbench.api import registry
    from unlearnbench.base.errors import EvaluationError

    (tmp_path / "rigid.py").write_text(RIGID)
    name = registry.register_file(tmp_path / "rigid.py")
    with pytest.raises(EvaluationError, match="text that the method or the attack puts around"):
        run(place, name)
