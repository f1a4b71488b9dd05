"""The table of published numbers, and verdicts against it."""

import pytest

from unlearnbench.analysis.anchors import check_anchor, find_anchor, load_anchors
from unlearnbench.benchmarks.muse import MUSE
from unlearnbench.config.profiles import OPEN_UNLEARNING, get_profile
from unlearnbench.evaluation.summary import plan_of


def test_every_number_is_of_a_column_that_there_is() -> None:
    columns = {
        split: {one.name for one in plan_of(OPEN_UNLEARNING, benchmark).columns}
        for split, benchmark in (("", None), ("all", MUSE()))
    }
    anchors = load_anchors()
    assert len(anchors) == 28
    for anchor in anchors.values():
        get_profile(anchor.profile)
        metrics = [one.metric for one in anchor.numbers]
        assert len(set(metrics)) == len(metrics)
        assert {*metrics} <= columns[anchor.split if anchor.split == "all" else ""]
        assert all(one.tolerance > 0 and one.source for one in anchor.numbers)
        assert anchor.split in (*anchor.id.split("-"), "all") or "retain" in anchor.id


def test_an_anchor_knows_its_prompt_and_split() -> None:
    llama3, llama2 = find_anchor("llama-3.2-1b-retain95"), find_anchor("llama-2-7b-full-forget01")
    assert (llama3.key, llama3.forget_rows) == (0.05, 200)
    assert llama3.template_args["date_string"] == "10 Apr 2025"
    assert (llama2.key, llama2.forget_rows) == (0.01, 40)
    assert not llama2.template_args
    muse = find_anchor("muse-books-target")
    assert (muse.key, muse.forget_rows, muse.template) == ("all", None, "plain")


def test_a_difference_beyond_its_tolerance_differs() -> None:
    anchor = find_anchor("llama-3.2-1b-retain90")
    values = {"model_utility": 0.5892923, "rouge_forget": 0.3813}
    checks = {one.metric: one for one in check_anchor(anchor, values)}
    assert checks["model_utility"].verdict == "ok", "what another machine measured"
    assert checks["rouge_forget"].verdict == "differs"
    assert checks["rouge_forget"].difference == pytest.approx(0.3813 - 0.37907355526383685)
    assert checks["mia_loss"].verdict == "not measured"
    assert {one.verdict for one in check_anchor(anchor, values, 1e-6)} == {
        "differs",
        "not measured",
    }
