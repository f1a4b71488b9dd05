"""`unlearnbench compare A B`: which of two methods forgets more at equal utility, and how sure."""

from __future__ import annotations

import argparse
import textwrap
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from unlearnbench.arguments import Subparsers, add_json, command, positive
from unlearnbench.commands import sweep_folder
from unlearnbench.console import Console
from unlearnbench.errors import RecordError

if TYPE_CHECKING:
    from unlearnbench.comparison import Comparison, PanelComparison
    from unlearnbench.matching import Contender

_WIDTH = 96
_COLUMNS = (
    *("model", "forget", "side", "setting", "learning rate", "epoch"),
    *("Model Utility", "log10 FQ", "D", "seeds"),
)


def add_compare(subparsers: Subparsers) -> None:
    """`compare`."""
    parser = command(
        subparsers,
        "compare",
        compare,
        "tell which of two methods forgets more at equal utility, and how sure that is",
        "examples:\n"
        "  unlearnbench compare npo+nll ce-u\n"
        "  unlearnbench compare ce-u npo --in runs/tofu_tiny --json\n"
        '  unlearnbench compare "npo lr 5e-05" "npo lr 0.0001" --in runs/mine\n'
        "  unlearnbench compare runs/mine:npo runs/yours:npo\n\n"
        "Paired over questions. D is the KS distance between a model's truth ratios and the\n"
        "retain model's. The test allows for the number of settings a side was chosen from.",
    )
    parser.add_argument(
        "a", metavar="A", help="a method, a setting's label, a run's id, or FOLDER:one of these"
    )
    parser.add_argument("b", metavar="B", help="the same, to compare A with")
    parser.add_argument(
        "--in",
        dest="folder",
        default="runs/quickstart",
        metavar="FOLDER",
        help="the sweep's folder (default: %(default)s)",
    )
    parser.add_argument(
        "--within",
        type=positive,
        metavar="UTILITY",
        help="by how much Model Utility may differ and still be called equal (default: 0.02)",
    )
    add_json(parser)


def compare(args: argparse.Namespace) -> int:
    """`unlearnbench compare A B`."""
    a, b = _contender(args.a, args.folder), _contender(args.b, args.folder)
    from unlearnbench import comparison, matching
    from unlearnbench.verdict import overview, rule, verdict

    found = comparison.compare(a, b, args.within or matching.TOLERANCE)
    tests = sum(panel.test is not None for panel in found.panels)
    told = [verdict(panel, found.a, found.b, tests) for panel in found.panels]
    console = Console()
    if args.json:
        console.print_json(_json(found, told) | {"rule": rule(found.tolerance)})
        return 0
    if summary := overview(found):
        console.print(_filled(summary) + "\n")
    for lines in told:
        console.print("\n".join(map(_filled, lines)) + "\n")
    for line in found.only_one:
        console.print(f"Not compared: {line}.")
    rows = [row for panel in found.panels for row in _rows(panel)]
    if rows:
        console.table(_COLUMNS, rows)
        console.print()
    console.print(_filled(rule(found.tolerance)))
    return 0


def _filled(text: str) -> str:
    """Broken into lines, but for a number and its per cent sign."""
    return textwrap.fill(text.replace(" %", "\0%"), _WIDTH).replace("\0", " ")


def _contender(text: str, folder: str) -> Contender:
    """What A or B stands for; in a folder of its own, where it names one."""
    from unlearnbench.matching import find
    from unlearnbench.report import build_report

    own, colon, name = text.partition(":")
    # A setting's label may hold a colon, too.
    elsewhere = bool(colon) and ("/" in own or Path(own).is_dir())
    report = build_report(sweep_folder(own if elsewhere else folder))
    wanted = name if elsewhere else text
    families = sorted({row.family for row in report.rows if row.kind == "run"})
    full = with_retain_term(wanted, families)
    called = text.removesuffix(wanted) + full
    if full != wanted:
        Console().note(f"{text}: taken as {called}, the one form in which it ran")
    return find(full, called, report.rows, report.records, report.selection)


def with_retain_term(name: str, families: Sequence[str]) -> str:
    """`npo+nll` for `npo`, also before ` lr RATE`, where the method ran in that form alone.

    families  methods as they ran, each with its retain term
    Raises: RecordError with the forms, where there are several.
    """
    method, lr, rate = " ".join(name.split()).partition(" lr ")
    forms = [one for one in families if one.partition("+")[0] == method]
    if method in families or not forms:
        return name
    if len(forms) > 1:
        raise RecordError(f"{name!r} ran in several forms: {', '.join(forms)}; name one of them")
    return forms[0] + lr + rate


def _rows(panel: PanelComparison) -> list[tuple[Any, ...]]:
    if panel.a is None or panel.b is None:
        return []
    test = panel.test
    distances = (None, None) if test is None else (test.distance_a, test.distance_b)
    return [
        (
            *(panel.model, panel.forget_fraction, name, side.setting, side.learning_rate),
            *(side.epoch, round(side.utility, 4), round(side.quality, 4)),
            *(None if distance is None else round(distance, 4), len(side.seeds)),
        )
        for name, side, distance in zip("AB", (panel.a, panel.b), distances, strict=True)
    ]


def _json(found: Comparison, told: list[tuple[str, ...]]) -> dict[str, Any]:
    panels = [
        asdict(panel)
        | {"better": None if panel.better is None else panel.better.name, "told": list(lines)}
        for panel, lines in zip(found.panels, told, strict=True)
    ]
    return asdict(found) | {"panels": panels}
