"""The figure of a meta-evaluation, by value."""

from dataclasses import replace
from typing import Any

import pytest

from unlearnbench.analysis.meta_evaluation import MetaEvaluation, MetricQuality, Robustness
from unlearnbench.api.metric import MetricColumn
from unlearnbench.report.figures import meta_evaluation

NONE = Robustness(None, 0, "no run was evaluated under the attack")
FIRST = MetricQuality(
    column=MetricColumn("a_forget", "A, forget", "lower", (0.0, 2.0)),
    knows="higher",
    control=False,
    known=(1.0, 1.5),
    unknown=(0.5, 0.25),
    faithfulness=1.0,
    low=0.5,
    high=1.0,
    threshold=0.75,
    accuracy=1.0,
    quantization=NONE,
    relearning=NONE,
)
UNBOUNDED = MetricColumn("b_retain", "B <retain>", "lower", (0.0, float("inf")))
CONTROL = replace(
    FIRST,
    column=UNBOUNDED,
    knows="lower",
    control=True,
    known=(4.0, 2.0),
    unknown=(3.0, 3.0),
    threshold=3.0,
)


def found(*metrics: MetricQuality, split: Any = 0.1) -> MetaEvaluation:
    return MetaEvaluation(split, (), (), metrics, (CONTROL,), ())


def traces(figure: Any) -> dict[str, Any]:
    return {trace.name: trace for trace in figure.data}


def test_values_are_drawn_between_the_bounds_of_the_scale_and_labelled_with_themselves() -> None:
    drawn = traces(meta_evaluation([found(FIRST)]))
    knows, does_not = drawn["knows the rows (0 models)"], drawn["does not (0 models)"]
    assert list(knows.x) == [0.5, 0.75, 1.0, 0.0], "without a bound: from smallest to largest"
    assert [value for _, value in knows.customdata] == [1.0, 1.5, 4.0, 2.0]
    assert list(does_not.x) == [0.25, 0.125, 0.5, 0.5]
    assert [round(y) for y in knows.y] == [round(y) for y in does_not.y] == [0, 0, 1, 1]
    assert [*drawn["threshold"].x] == [0.375, 0.5]
    assert drawn["threshold"].customdata[0] == "0.7500"


def test_faithfulness_has_its_interval_and_controls_their_name() -> None:
    figure = meta_evaluation([found(FIRST)])
    faithfulness = traces(figure)["faithfulness"]
    assert (list(faithfulness.x), list(faithfulness.error_x.arrayminus)) == ([1.0, 1.0], [0.5] * 2)
    labels = figure.layout.yaxis.ticktext
    assert labels == ("A, forget", "<i>control: B &lt;retain&gt; ↓</i>")
    assert "overall" not in traces(figure), "no run was attacked"


def test_robustness_is_drawn_where_there_is_one() -> None:
    robust = replace(FIRST, quantization=Robustness(0.5, 3), relearning=Robustness(0.25, 2))
    drawn = traces(meta_evaluation([found(robust)]))
    assert list(drawn["Q, quantization"].x) == [0.5, None]
    assert list(drawn["R, relearning"].x) == [0.25, None]
    assert list(drawn["overall"].x) == pytest.approx([0.5, None])
