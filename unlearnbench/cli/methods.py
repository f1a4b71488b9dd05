"""`unlearnbench methods …`: methods with equations and settings; check one, write one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from unlearnbench.api import registry
from unlearnbench.cli import gradient
from unlearnbench.cli.plugin_commands import Details, PluginCommands, plugin_group

if TYPE_CHECKING:
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import Method
    from unlearnbench.testing import Result


def _row(_: str, method: type[Method | Wrapper]) -> dict[str, Any]:
    """The parts of a batch that the loss reads; what it reads of the start model in brackets."""
    from unlearnbench.api.inference_method import Wrapper
    from unlearnbench.api.method import PARTS

    if issubclass(method, Wrapper):
        return {"needs": ["questions (trains nothing)"]}
    needs = method.needs
    parts = [part for part in PARTS if part in needs.parts | needs.statistics]
    return {"needs": [*parts, *(f"reference({part})" for part in sorted(needs.reference))]}


def _details(name: str, method: type[Method | Wrapper], row: Mapping[str, Any]) -> Details:
    fields = method.model_fields.items()
    floats = (
        (k, one.default) for k, one in fields if one.annotation is float and not one.is_required()
    )
    grid = next((f", {key}: [{default}]" for key, default in floats), "")
    rates = ", learning_rates: [1.0e-5]" if registry.trains(name) else ""
    reads = f"reads: {', '.join(row['needs'])}"
    return Details({}, [reads], f"- {{method: {name}{grid}{rates}}}")


def _check(name: str, values: Mapping[str, Any], only: Sequence[str]) -> Sequence[Result]:
    if not only or "fresh-process" in only:
        from unlearnbench.runtime.fresh_process import fresh_process

        fresh_process()  # its imports take as long as ours
    from unlearnbench.testing import check_method

    return check_method(name, values, only)


def _unseen(names: Sequence[str], values: Mapping[str, Any]) -> str:
    """Note the methods that read a reference and do not declare their value where it begins."""
    from unlearnbench.api.method import Method
    from unlearnbench.testing import example

    silent = [
        name
        for name in names
        if isinstance(one := example(name, values), Method)
        and one.needed().reference
        and one.value_at_reference() is None
    ]
    which = "it" if len(names) == 1 else ", ".join(silent)
    note = (
        "; a wrong factor would not show: {} declared no `value_at_reference` beside the reference"
    )
    return note.format(which) if silent else ""


app = plugin_group(
    PluginCommands(
        kind="methods",
        headings={"needs": "reads"},
        row=_row,
        details=_details,
        check=_check,
        show_help="Show a method's equation, what it reads, and its hyper-parameters.",
        check_help="""\
Check a method for the mistakes of published harnesses; takes seconds, and no GPU.

On a tiny random model, through the code that trains. Exit code 1 where there is a fault.

Examples:
  unlearnbench methods check npo
  unlearnbench methods check --plugin my_method.py
  unlearnbench methods check npo --set beta=0.5 --only reference
  unlearnbench methods check --all --json""",
        settings="hyper-parameters",
        unseen=_unseen,
    )
)
app.add_typer(gradient.app)
