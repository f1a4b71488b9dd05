"""`unlearnbench benchmarks …`: benchmarks with sets, metrics and headline; check one, write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from unlearnbench.cli.plugin_commands import Details, PluginCommands, plugin_group
from unlearnbench.errors import DataError

if TYPE_CHECKING:
    from unlearnbench.api.benchmark import Benchmark, HeadlineMetric
    from unlearnbench.testing import Result


def _example(name: str, kind: type[Benchmark]) -> Benchmark:
    from unlearnbench.config.plugin_settings import example

    return example(kind, {"source": name}, name)


def _row(name: str, kind: type[Benchmark]) -> dict[str, Any]:
    from unlearnbench.api.benchmark import split_text
    from unlearnbench.data.dataset_rules import splits_of

    benchmark = _example(name, kind)
    splits, two = splits_of(benchmark), benchmark.headline
    return {
        "rows": _count(benchmark, splits[:1]),
        "sets": [*benchmark.roles],
        "splits": [*map(split_text, splits)],
        "references": [*map(str, sorted(benchmark.references))],
        "headline": [two.kept.label, two.forgotten.label],
    }


def _count(benchmark: Benchmark, splits: Sequence[Any]) -> int | None:
    """The number of its rows; None where they are the hub's, or cannot be loaded."""
    from unlearnbench.api.benchmark import guarded_call

    if benchmark.repository is None:
        with suppress(DataError), guarded_call(benchmark, "load"):
            return len(benchmark.load(splits).full)
    return None


def _details(name: str, kind: type[Benchmark], row: Mapping[str, Any]) -> Details:
    import yaml

    from unlearnbench.config.profiles import TOFU

    benchmark = _example(name, kind)
    uses, two = benchmark.metrics(TOFU), benchmark.headline
    section = {k: v for k, v in benchmark.model_dump(mode="json").items() if v is not None}
    flow = yaml.safe_dump(section, default_flow_style=True, sort_keys=False, width=10_000)
    values = {
        "roles": dict(benchmark.roles),
        "metrics": [{"metric": u.metric, "sets": u.sets, "settings": u.settings} for u in uses],
        "headline": {"kept": asdict(two.kept), "forgotten": asdict(two.forgotten)},
    }
    rows = "of the hub, or out of reach" if row["rows"] is None else row["rows"]
    about = [
        f"rows:        {rows}",
        f"splits:      {', '.join(row['splits'])}",
        f"references:  {', '.join(row['references']) or 'none'}",
        f"kept:        {_described(two.kept)}",
        f"forgotten:   {_described(two.forgotten)}",
    ]
    cells = [
        (u.metric, ", ".join(u.sets), ", ".join(f"{k}={v}" for k, v in u.settings.items()))
        for u in uses
    ]
    return Details(
        values,
        [
            "\n".join(about),
            (("evaluation set", "role"), [*benchmark.roles.items()]),
            (("metric", "sets", "settings"), cells),
        ],
        f"data: {flow.strip()}",
    )


def _described(one: HeadlineMetric) -> str:
    test = "" if one.test is None else f", significant below {one.test.label} {one.test.level:g}"
    return f"{one.column} ({one.label}), {one.better} is better{test}"


def _check(name: str, values: Mapping[str, Any], only: Sequence[str]) -> Sequence[Result]:
    from unlearnbench.testing import check_benchmark

    return check_benchmark(name, values, only)


app = plugin_group(
    PluginCommands(
        kind="benchmarks",
        headings={key: key for key in ("rows", "sets", "splits", "references", "headline")},
        row=_row,
        details=_details,
        check=_check,
        show_help="Show a benchmark's sets, metrics, headline and settings.",
        check_help="""\
Check a benchmark for mistakes that are easily made, on its own rows; takes seconds.

Exit code 1 where there is a fault, or where its rows are out of reach.

Examples:
  unlearnbench benchmarks check synthetic
  unlearnbench benchmarks check my_benchmark.py
  unlearnbench benchmarks check tofu --set path=../tofu --only holdout
  unlearnbench benchmarks check --all --json""",
    )
)
