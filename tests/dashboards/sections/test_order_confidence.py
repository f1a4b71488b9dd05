"""The section on the order of methods, for records with a known order."""

from __future__ import annotations

import html
import importlib
import re
from typing import TYPE_CHECKING, Any

from unlearnbench.analysis.results import Results
from unlearnbench.api import registry
from unlearnbench.results.records import Record

if TYPE_CHECKING:
    from ..conftest import Fabric

data: Any = importlib.import_module("unlearnbench_dashboards.sections.order_confidence")


def two_panels(fabric: Fabric) -> list[Record]:
    """npo before dpo on one, dpo before npo on the other; idk has the first alone."""
    records = [fabric.reference("fine-tuned", fraction=f) for f in (0.05, 0.1)]
    for fraction, npo, dpo in ((0.05, -2.0, -4.0), (0.1, -8.0, -4.0)):
        records.append(fabric.run("npo", points=((0.8, npo),), fraction=fraction))
        records.append(fabric.run("dpo", points=((0.8, dpo),), fraction=fraction))
    return [*records, fabric.run("idk", points=((0.8, -1.0),), fraction=0.05)]


def section(records: list[Record]) -> str:
    page = registry.load("dashboards", "page")(Results.of(records, name="x"))
    found = re.findall(r'<section id="claims".*?</section>', page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", found[0])) if found else ""


def test_ranks_and_hypervolumes_over_panels(fabric: Fabric) -> None:
    records = two_panels(fabric)
    by_name = {one.method: one for one in data.rank_lines(Results.of(records, name="x").claims)}
    npo, dpo, idk = (by_name[name] for name in ("npo", "dpo", "idk"))
    assert (npo.rank.mean, npo.rank.places) == (1.5, (1.0, 2.0))
    assert (dpo.rank.mean, dpo.rank.places) == (1.5, (2.0, 1.0))
    assert idk.rank is None
    # The fine-tuned model is at log10 FQ -16.3: 0.8 · (16.3 - 2) and 0.8 · (16.3 - 8).
    assert [round(one.hypervolume, 6) for one in npo.standings] == [11.44, 6.64]
    assert [one is None for one in idk.standings] == [False, True]


def test_the_page_names_what_an_order_is_based_on(fabric: Fabric) -> None:
    text = section(two_panels(fabric))
    assert "Only one seed was run: the order may change with another." in text
    assert "With 80 forget questions" in text
    assert "from 2 panels (models × splits)" in text
    assert "Left out because not run on every panel: idk." in text
    assert re.search(
        r"npo\s+1\.5\s+\[1\.0, 2\.0\]\s+1\s+−2\.00\s+11\.44\s+1\s+−8\.00\s+6\.64", text
    )


def test_an_order_confirmed_by_seeds_has_no_warning(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned")]
    for seed in range(3):
        records.append(fabric.run("npo", points=((0.8, -2.0 - seed / 10),), seed=seed))
        records.append(fabric.run("dpo", points=((0.8, -9.0 - seed / 10),), seed=seed))
    text = section(records)
    assert "It rests on 3 seeds." in text
    assert "may change" not in text


def test_only_equal_numbers_look_equal(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned")]
    for method, quality in (("npo", -2.0), ("dpo", -2.0004), ("idk", -2.0)):
        records.append(fabric.run(method, points=((0.8, quality),)))
    found = section(records)
    places = dict(re.findall(r"(npo|dpo|idk)\s+(\d\S*)\s+−2\.00", found))
    assert places == dict.fromkeys(("npo", "dpo", "idk"), "1"), "one seed tells none apart"
    shown = dict(re.findall(r"(npo|dpo|idk)\s+\d\S*\s+(−2\.\d+)", found))
    assert shown == {"npo": "−2.0000", "dpo": "−2.0004", "idk": "−2.0000"}


def test_the_leaders_rivals_and_unequal_defaults_are_named(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    for method, skipped in (("npo", 0), ("dpo", 0), ("ce-u", 1)):
        more = {"ignore_first_answer_tokens": skipped}
        records.append(fabric.run(method, points=((0.8, -2.0),), hyperparameters=more))
    text = section(records)
    assert "Undecided: at equal utility it does not forget significantly more than " in text
    assert "Trained differently: ignore_first_answer_tokens is 1 for ce-u and 0 for the" in text


def test_two_panels_have_no_interval(fabric: Fabric) -> None:
    text = section(two_panels(fabric))
    assert "about the lowest and highest that two panels give: no 95 % interval" in text


def test_without_runs_there_is_no_section(fabric: Fabric) -> None:
    assert section([fabric.reference("fine-tuned")]) == ""
