"""Paper figures with a line for each method: their numbers, their names and their width."""

from __future__ import annotations

import importlib
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest

from unlearnbench.analysis.results import Results
from unlearnbench.base.errors import RecordError
from unlearnbench.report.figures import lasting, pairs

from ..attacked_records import under_attacks
from ..conftest import METHODS

if TYPE_CHECKING:
    from unlearnbench.results.records import Record

    from ..conftest import Fabric

export: Any = importlib.import_module("unlearnbench_dashboards.figures.export")
ONE = ((0.8, -5.0),)


@pytest.fixture(scope="module")
def records(fabric: Fabric) -> tuple[Record, ...]:
    runs = [
        fabric.run(method, points=((0.8, -5.0 - place),), seed=seed)
        for place, method in enumerate(("idk", "npo+nll", "dpo"))
        for seed in range(3)
    ]
    return under_attacks([fabric.reference("fine-tuned"), fabric.reference("retain"), *runs])


def of_role(figure: Any, role: str, family: str = "") -> list[Any]:
    return [
        trace
        for trace in figure.data
        if trace.meta["role"] == role and family in ("", trace.meta["family"])
    ]


def texts(figure: Any) -> list[str]:
    return [note.text for note in figure.layout.annotations]


def boxes(figure: Any) -> list[tuple[float, float, float, float, str]]:
    """Left, top, right and bottom of each text in pixels, by the mean width of letters."""
    found: list[tuple[float, float, float, float, str]] = []
    for note in figure.layout.annotations:
        wide = 0.5 * note.font.size * len(note.text)
        x = note.x * figure.layout.width
        left = {"left": x, "center": x - wide / 2, "right": x - wide}[note.xanchor]
        middle = (1 - note.y) * figure.layout.height
        half = 0.45 * note.font.size
        found.append((left, middle - half, left + wide, middle + half, note.text))
    return found


def test_lasting_goes_from_before_to_after_the_strongest_attack(
    records: tuple[Record, ...],
) -> None:
    figure = lasting(records)
    (panel,) = Results.of(records, name="").lasting
    (idk,) = (item for item in panel.best if item.setting.family == "idk")
    strongest = idk.worst
    assert strongest is not None
    (line,) = [trace for trace in of_role(figure, "lasting", "idk") if trace.mode == "lines"]
    assert list(line.x) == pytest.approx([strongest.before, strongest.after])
    share = 100 * (1 - (idk.lasting or 0.0))
    assert any(text.startswith(f"{share:.0f} % [") for text in texts(figure))
    starts, retains = (
        {trace.x[0] for trace in of_role(figure, "reference") if trace.meta["name"] == name}
        for name in ("start", "retain")
    )
    assert (starts, retains) == ({0.8}, {0.12})


def test_pairs_have_the_intervals_and_the_signs_of_the_analysis(
    records: tuple[Record, ...],
) -> None:
    figure = pairs(records)
    results = Results.of(records, name="")
    (table,), (panel,) = results.pairs, results.panels
    for best in table.methods:
        setting = best.setting
        assert setting is not None
        lines = [
            trace for trace in of_role(figure, "interval", best.family) if trace.mode == "lines"
        ]
        for metric, line in zip(
            (panel.headline.forgotten, panel.headline.kept), lines, strict=True
        ):
            interval = setting.interval(metric.column)
            assert interval is not None
            assert list(line.x) == pytest.approx([interval.low, interval.high])
    signs = [text for text in texts(figure) if text in ("▲", "▼", "?", "–")]
    assert len(signs) == len(table.pairs)


@pytest.mark.parametrize("draw", [lasting, pairs])
@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("text", 6.75)])
def test_a_column_has_names_that_do_not_overlap_and_no_legend(
    draw: Any, width: str, inches: float, fabric: Fabric
) -> None:
    runs = [fabric.run(name, points=ONE, seed=s) for name in METHODS for s in range(3)]
    made = under_attacks([fabric.reference("fine-tuned"), fabric.reference("retain"), *runs])
    figure = draw(made, width=width)
    assert export._scale(figure, "svg") * figure.layout.width == pytest.approx(
        96 * inches, rel=0.01
    )
    assert not any(trace.showlegend for trace in figure.data)
    assert {*METHODS} <= {*texts(figure)}
    for a, b in combinations(boxes(figure), 2):
        apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
        assert apart, (a, b)
    for left, top, right, bottom, text in boxes(figure):
        assert left >= 0, text
        assert right <= figure.layout.width + 1, text
        assert top >= 0, text
        assert bottom <= figure.layout.height + 1, text


def test_several_panels_stand_below_each_other_with_their_names(fabric: Fabric) -> None:
    made = under_attacks(
        fabric.sweep(models=("a", "b"), fractions=(0.1,), epochs=2, seeds=(0, 1, 2))
    )
    for draw in (lasting, pairs):
        figure = draw(made)
        named = {text for text in texts(figure) if text.startswith("<b>")}
        assert named == {"<b>a, forget 10 %</b>", "<b>b, forget 10 %</b>"}
        only = draw(made, fraction=0.1)
        assert len(only.data) == len(figure.data)


def test_of_one_seed_no_pair_is_decided(fabric: Fabric) -> None:
    made = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    made += [fabric.run(name, points=((0.8, q),)) for name, q in (("npo", -2.0), ("dpo", -9.0))]
    signs = [text for text in texts(pairs(made)) if text in ("▲", "▼", "?", "–")]
    assert signs == ["?", "?"]


def test_what_cannot_be_drawn_is_said(fabric: Fabric) -> None:
    made = [fabric.reference("fine-tuned"), fabric.run("npo", points=ONE)]
    with pytest.raises(RecordError, match="no run of these was attacked"):
        lasting(made)
    with pytest.raises(RecordError, match="no method has a best setting"):
        pairs([fabric.reference("fine-tuned"), fabric.run("npo", points=((0.1, -5.0),))])
    with pytest.raises(RecordError, match=r"no split 0\.5 in this table"):
        pairs(made, fraction=0.5)
