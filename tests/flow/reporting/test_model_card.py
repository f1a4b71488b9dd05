"""The card of an exported model: each interval contains the mean in front of it."""

import re
from dataclasses import replace

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.report.exported_model import Choice, compare_numbers, model_card
from unlearnbench.results.records import run_record

from ...numbers.analysis.conftest import pointed

NUMBER = r"(-?\d+(?:\.\d+)?)"
CELL = re.compile(rf"\| {NUMBER} \(mean {NUMBER} \[{NUMBER}, {NUMBER}\]\) \|")


def a_choice(learning_rate: float | None = None) -> Choice:
    """A choice of the first of three seeds, which is outside of the interval of their mean."""
    config = load_config("quickstart").model_copy(update={"seeds": (0, 1, 2)})
    runs = make_plan(config, "rows").runs[:3]
    if learning_rate is not None:
        runs = tuple(run.model_copy(update={"learning_rate": learning_rate}) for run in runs)
    records = [
        run_record(run, status="finished", epochs=pointed(run.id, [(utility, -5.0)]).epochs)
        for run, utility in zip(runs, (0.9, 0.71, 0.7), strict=True)
    ]
    results = Results.of(records, name="mine")
    ((setting,),) = (panel.settings for panel in results.panels)
    return Choice(records[0], setting.rows[0], setting, results)


def test_the_number_of_a_seed_stands_beside_the_mean_of_all() -> None:
    text = model_card(a_choice(), "equal", adapter=False, dtype="float32")
    cells = [tuple(map(float, cell)) for cell in CELL.findall(text)]
    assert (0.9, 0.77) in {(value, mean) for value, mean, _, _ in cells}
    assert all(low <= mean <= high for _, mean, low, high in cells)
    assert "In brackets: the mean over 3 seeds" in text


def test_a_seed_that_ended_early_leaves_no_mean_and_is_named() -> None:
    choice = a_choice()
    setting = replace(choice.setting, why_not="seed 3 collapsed at epoch 1")
    text = model_card(replace(choice, setting=setting), "equal", adapter=False, dtype="float32")
    assert "There is no mean over seeds: seed 3 collapsed at epoch 1." in text
    assert "In brackets" not in text
    assert CELL.findall(text) == []


def test_a_learning_rate_has_all_its_digits() -> None:
    text = model_card(a_choice(0.0001234567), "equal", adapter=False, dtype="float32")
    assert "\n- learning rate: 0.0001234567\n" in text


@pytest.mark.parametrize(
    ("trained", "written", "is_rounded"),
    [
        ("float32", "float32", False),
        ("float32", "bfloat16", True),
        ("bfloat16", "bfloat16", False),
        ("bfloat16", "float16", True),
        # An adapter on a bfloat16 model is trained and written in float32.
        ("bfloat16", "float32", False),
    ],
)
def test_only_a_narrower_type_rounds_weights(trained: str, written: str, is_rounded: bool) -> None:
    recorded, remade = {"utility": 0.5, "loss": 1.0}, {"utility": 0.6, "loss": 1.1}
    sentence = compare_numbers(
        recorded, remade, trained=trained, written=written, headline=("utility",)
    )
    assert sentence.startswith("of the numbers 0 of 2 are equal; ")
    assert "utility 0.6, recorded 0.5" in sentence
    assert ("which rounds its weights" in sentence) is is_rounded
    assert ("loss 1.1, recorded 1.0" in sentence) is not is_rounded
