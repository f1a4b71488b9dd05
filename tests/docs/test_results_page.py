"""The page on `results.csv` has every column that such a table can have."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

from unlearnbench.api.metric import MetricColumn
from unlearnbench.api.registry import load, names
from unlearnbench.config.entries import benchmark_named
from unlearnbench.config.profiles import TOFU
from unlearnbench.errors import PluginError
from unlearnbench.evaluation.benchmark_schema import StoredBenchmark
from unlearnbench.results.table import FIRST, LAST, VARIANT

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "results.md"


def test_every_column_is_described_once_with_its_direction() -> None:
    lines = re.findall(r"^\| `(\w+)` \| (.+) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    listed = [name for name, _ in lines]
    on_request = {name for name in names("metrics") if not load("metrics", name).roles}
    installed: dict[str, MetricColumn] = {}
    for name in names("benchmarks"):
        benchmark = benchmark_named(name)
        own = {use.metric for use in benchmark.metrics(TOFU)}
        for metric in {""} | on_request - own:
            with suppress(PluginError):  # it needs settings
                stored = StoredBenchmark.of(benchmark, TOFU, {metric: {}} if metric else {})
                installed |= {one.name: one for one in (*stored.columns, *stored.under_attack)}
    assert len(listed) == len({*listed})
    assert {*listed} >= {*FIRST, *LAST, VARIANT, *installed}
    for name, rest in lines:
        if name in installed:
            label, _, better = (cell.strip() for cell in rest.split(" | "))
            assert (label, better) == (installed[name].label, installed[name].better or "")
