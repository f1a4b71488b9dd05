"""`unlearnbench attacks …`: attacks with what they change and evaluate; check one, write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.cli.plugin_commands import Details, PluginCommands, plugin_group

if TYPE_CHECKING:
    from unlearnbench.api.attack import Attack
    from unlearnbench.testing import Result


def _row(name: str, kind: type[Attack]) -> dict[str, Any]:
    return {
        "changes": _changes(kind),
        "sets": [*map(str, sorted(kind.roles))],
        "points": [point for point in _example(name, kind).points() if point] or None,
    }


def _changes(kind: type[Attack]) -> str:
    from unlearnbench.api.attack import PromptAttack, WeightAttack

    if issubclass(kind, WeightAttack):
        return "weights"
    return "questions" if issubclass(kind, PromptAttack) else "number of answers"


def _example(name: str, kind: type[Attack]) -> Attack:
    from unlearnbench.config.plugin_settings import example

    return example(kind, {}, name)


def _details(name: str, kind: type[Attack], row: Mapping[str, Any]) -> Details:
    from unlearnbench.api.attack import variant

    variants = [variant(name, point) for point in _example(name, kind).points()]
    values = {
        "variants": variants,
        "version": kind.version,
        "label": kind.label,
        "white_box": kind.white_box,
        "reads_answers": kind.reads_answers,
    }
    holds = (
        "the weights; a method at inference time is bypassed"
        if kind.white_box
        else "access to questions and answers; a method at inference time stays in front"
    )
    about = [
        f"version {kind.version}",
        f"label:     {kind.label}",
        f"changes:   {row['changes']}",
        f"adversary: has {holds}",
        f"sets:      {', '.join(row['sets'])}",
        f"variants:  {', '.join(variants)}",
    ]
    return Details(values, ["\n".join(about)], f"attacks: [{name}]")


def _check(name: str, values: Mapping[str, Any], only: Sequence[str]) -> Sequence[Result]:
    from unlearnbench.testing import check_attack

    return check_attack(name, values, only)


app = plugin_group(
    PluginCommands(
        kind="attacks",
        headings={"changes": "changes", "sets": "sets", "points": "points"},
        row=_row,
        details=_details,
        check=_check,
        show_help="Show what an attack does, the variants it evaluates, and its settings.",
        check_help="""\
Check an attack for mistakes that are easily made, on a tiny model; takes seconds.

Exit code 1 where there is a fault.

Examples:
  unlearnbench attacks check paraphrase
  unlearnbench attacks check my_attack.py
  unlearnbench attacks check relearning --set rows=half --only restored
  unlearnbench attacks check --all --json""",
    )
)
