"""The section on the order of methods, for records with a known order."""

from __future__ import annotations

import html
import importlib
import re
from typing import TYPE_CHECKING, Any

from unlearnbench.api import registry
from unlearnbench.results.records import Record

from ..conftest import report_of

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
    page = registry.load("dashboards", "page")(report_of(records))
    found = re.findall(r'<section id="claims".*?</section>', page, flags=re.DOTALL)
    return html.unescape(re.sub(r"<[^>]*>", " ", found[0])) if found else ""


def test_ranks_and_hypervolumes_over_panels(fabric: Fabric) -> None:
    records = two_panels(fabric)
    by_name = {one.rank.family: one for one in data.rank_lines(report_of(records).claims)}
    npo, dpo, idk = (by_name[name] for name in ("npo", "dpo", "idk"))
    assert (npo.rank.mean, [*npo.rank.places.values()]) == (2.0, [2.0, 2.0])
    assert (dpo.rank.mean, [*dpo.rank.places.values()]) == (2.0, [3.0, 1.0])
    assert idk.rank.mean is None
    # The fine-tuned model is at log10 FQ -16.3: 0.8 · (16.3 - 2) and 0.8 · (16.3 - 8).
    assert [round(one.hypervolume, 6) for one in npo.standings] == [11.44, 6.64]
    assert [one is None for one in idk.standings] == [False, True]


def test_only_equal_numbers_look_equal(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned")]
    for method, quality in (("npo", -2.0), ("dpo", -2.0004), ("idk", -2.0)):
        records.append(fabric.run(method, points=((0.8, quality),)))
    found = section(records)
    shown = dict(re.findall(r"(npo|dpo|idk)\s+(−2\.\d+)", found))
    assert "One seed: no order (idk, npo, dpo)." in found, "a place would read as a tie"
    assert shown == {"npo": "−2.0000", "dpo": "−2.0004", "idk": "−2.0000"}


def markup(records: list[Record]) -> str:
    page = registry.load("dashboards", "page")(report_of(records))
    found: list[str] = re.findall(r'<section id="claims".*?</section>', page, flags=re.DOTALL)
    return found[0]


def test_every_two_methods_have_a_sign(fabric: Fabric) -> None:
    """Three seeds at equal utility, without truth ratios that tell them apart."""
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    for method, quality in (("npo", -2.0), ("dpo", -4.0), ("idk", -9.0)):
        records += [fabric.run(method, points=((0.8, quality),), seed=s) for s in range(3)]
    report = report_of(records)
    (table,) = report.pairs
    found = markup(records)
    signs = re.findall(r'aria-label="([a-z ]+)">(.)</span>', found)
    expected = [
        (pair.verdict.value, data.SYMBOLS[pair.verdict])
        for a in table.methods
        for b in table.methods
        if a is not b
        for pair in [table.pairs[a.name, b.name]]
    ]
    assert signs == expected
    assert len(expected) == 6
    assert found.count('class="same"') == 3


def test_intervals_are_drawn_where_the_numbers_are(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    records += [
        fabric.run("npo", points=((u, -4.0),), seed=s) for s, u in enumerate((0.8, 0.82, 0.84))
    ]
    report = report_of(records)
    (panel,) = report.panels
    setting = panel.best[0].setting
    assert setting is not None
    _, strips = data.Picture.of(panel, report.pairs[0]).strips
    interval = setting.interval("model_utility")
    assert interval is not None
    x1, x2, cx = (strips.scale.percent(v) for v in (interval.low, interval.high, 0.82))
    found = markup(records)
    assert f'<line x1="{x1}%" x2="{x2}%" y1="50%"' in found
    assert f'cx="{cx}%"' in found
    assert (strips.start, strips.retain) == (0.883, 0.87)


def test_of_one_seed_nothing_is_claimed(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    records += [fabric.run(name, points=((0.8, q),)) for name, q in (("npo", -2.0), ("dpo", -9.0))]
    found = markup(records)
    assert "Nothing is claimed with fewer than three seeds." in found
    assert {*re.findall(r'aria-label="([a-z ]+)">.</span>', found)} == {"undecided"}
    assert "--within" not in found


def test_a_lone_method_has_no_table_of_pairs(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned"), fabric.run("npo")]
    assert '<td class="same"' not in markup(records)


def test_methods_without_a_best_setting_are_named_with_the_reason(fabric: Fabric) -> None:
    records = [fabric.reference("fine-tuned"), fabric.run("npo"), fabric.run("dpo")]
    records.append(fabric.run("idk", points=((0.1, -1.0),)))
    text = re.sub(r"<[^>]*>|\s+", " ", markup(records))
    assert re.search(r"keeps too little utility: +idk", text)
    assert markup(records).count("<circle") == 4, "two numbers of npo and dpo"
