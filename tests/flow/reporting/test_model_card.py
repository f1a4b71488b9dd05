"""The card of an exported model: each interval contains the mean in front of it."""

import re

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.config.loader import load_config
from unlearnbench.config.plan import make_plan
from unlearnbench.report.exported_model import Choice, compare_numbers, model_card
from unlearnbench.results.records import run_record

from ...numbers.analysis.conftest import pointed

NUMBER = r"(-?\d+(?:\.\d+)?)"
CELL = re.compile(rf"\| {NUMBER} \(mean {NUMBER} \[{NUMBER}, {NUMBER}\]\) \|")


def test_the_number_of_a_seed_stands_beside_the_mean_of_all() -> None:
    config = load_config("quickstart").model_copy(update={"seeds": (0, 1, 2)})
    first, *others = make_plan(config, "rows").runs[:3]
    utilities = (0.9, 0.71, 0.7)  # the first seed is outside of the interval of the mean
    records = [
        run_record(run, status="finished", epochs=pointed(run.id, [(utility, -5.0)]).epochs)
        for run, utility in zip((first, *others), utilities, strict=True)
    ]
    results = Results.of(records, name="mine")
    ((setting,),) = (panel.settings for panel in results.panels)
    choice = Choice(records[0], setting.rows[0], setting, results)
    text = model_card(choice, "equal", adapter=False, dtype="float32")
    cells = [tuple(map(float, cell)) for cell in CELL.findall(text)]
    assert (0.9, 0.77) in {(value, mean) for value, mean, _, _ in cells}
    assert all(low <= mean <= high for _, mean, low, high in cells)
    assert "In brackets: the mean over 3 seeds" in text


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
