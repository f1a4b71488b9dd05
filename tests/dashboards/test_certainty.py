"""The page's section on how sure an order is, against records whose answer is known."""

from __future__ import annotations

import html
import importlib
import re
from typing import TYPE_CHECKING, Any

from unlearnbench import registry
from unlearnbench.claims import claims
from unlearnbench.records import Record
from unlearnbench.report import make_report
from unlearnbench.table import table

if TYPE_CHECKING:
    from .conftest import Fabric

certainty: Any = importlib.import_module("unlearnbench_dashboards.certainty")


def two_panels(fabric: Fabric) -> list[Record]:
    """npo before dpo on one, dpo before npo on the other; idk has the first alone."""
    records = [fabric.anchor("fine-tuned", fraction=f) for f in (0.05, 0.1)]
    for fraction, npo, dpo in ((0.05, -2.0, -4.0), (0.1, -8.0, -4.0)):
        records.append(fabric.run("npo", points=((0.8, npo),), fraction=fraction))
        records.append(fabric.run("dpo", points=((0.8, dpo),), fraction=fraction))
    return [*records, fabric.run("idk", points=((0.8, -1.0),), fraction=0.05)]


def section(records: list[Record]) -> str:
    page = registry.load("dashboards", "page")(make_report(records, name="x"))
    found = re.findall(r'<section id="claims".*?</section>', page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", found[0])) if found else ""


def test_ranks_and_hypervolumes_over_panels(fabric: Fabric) -> None:
    records = two_panels(fabric)
    by_name = {one.method: one for one in certainty.lines(claims(table(records), records))}
    npo, dpo, idk = (by_name[name] for name in ("npo", "dpo", "idk"))
    assert (npo.rank.mean, npo.places) == (1.5, (1.0, 2.0))
    assert (dpo.rank.mean, dpo.places) == (1.5, (2.0, 1.0))
    assert (idk.rank, idk.places) == (None, (None, None))
    # The fine-tuned model is at log10 FQ -16.3: 0.8 · (16.3 - 2) and 0.8 · (16.3 - 8).
    assert [round(v, 6) for v in npo.hypervolumes] == [11.44, 6.64]
    assert [v is None for v in idk.hypervolumes] == [False, True]


def test_the_page_says_what_an_order_rests_on(fabric: Fabric) -> None:
    told = section(two_panels(fabric))
    assert "This order rests on one seed: other seeds may change it." in told
    assert "With 80 forget questions" in told
    assert "from 2 panels (models × forget fractions)" in told
    assert "Left out, for want of runs on every panel: idk." in told
    assert re.search(
        r"npo\s+1\.5\s+\[1\.0, 2\.0\]\s+1\s+−2\.00\s+11\.44\s+2\s+−8\.00\s+6\.64", told
    )


def test_an_order_that_seeds_bear_out_is_not_doubted(fabric: Fabric) -> None:
    records = [fabric.anchor("fine-tuned")]
    for seed in range(3):
        records.append(fabric.run("npo", points=((0.8, -2.0 - seed / 10),), seed=seed))
        records.append(fabric.run("dpo", points=((0.8, -9.0 - seed / 10),), seed=seed))
    told = section(records)
    assert "Three seeds or more stand behind every best setting" in told
    assert "may change it" not in told


def test_only_equal_numbers_look_equal(fabric: Fabric) -> None:
    records = [fabric.anchor("fine-tuned")]
    for method, quality in (("npo", -2.0), ("dpo", -2.0004), ("idk", -2.0)):
        records.append(fabric.run(method, points=((0.8, quality),)))
    found = section(records)
    places = dict(re.findall(r"(npo|dpo|idk)\s+(\d\S*)\s+−2\.00", found))
    assert places == {"npo": "1.5", "dpo": "3", "idk": "1.5"}
    shown = dict(re.findall(r"(npo|dpo|idk)\s+\d\S*\s+(−2\.\d+)", found))
    assert shown == {"npo": "−2.0000", "dpo": "−2.0004", "idk": "−2.0000"}


def test_the_leaders_rivals_and_unequal_defaults_are_named(fabric: Fabric) -> None:
    records = [fabric.anchor("fine-tuned"), fabric.anchor("retain")]
    for method, skipped in (("npo", 0), ("dpo", 0), ("ce-u", 1)):
        more = {"ignore_first_answer_tokens": skipped}
        records.append(fabric.run(method, points=((0.8, -2.0),), hyperparameters=more))
    told = section(records)
    assert re.search(r"\S+ leads, but is not told apart from 2 methods: ", told)
    assert "Not the same for all: ignore_first_answer_tokens is 1 for ce-u and 0 for the" in told


def test_two_panels_have_no_interval(fabric: Fabric) -> None:
    told = section(two_panels(fabric))
    assert "about the lowest and highest that two panels give: no 95 % interval" in told


def test_without_runs_nothing_is_claimed(fabric: Fabric) -> None:
    assert section([fabric.anchor("fine-tuned")]) == ""
