"""README.md of an exported model: what made it, its numbers, and what was not tested."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from unlearnbench.api.benchmark import split_percent
from unlearnbench.api.registry import names
from unlearnbench.base.provenance import git_state
from unlearnbench.base.redaction import redact, redact_tree
from unlearnbench.runs.remade_model import RemadeModel

if TYPE_CHECKING:
    from unlearnbench.report.exported_model import Choice

_LISTED = 5
"""Differences that are listed; the others are counted."""


def comparison(remade: RemadeModel) -> Iterator[str]:
    """Write how the exported model compares with its record, a line at a time."""
    equal = remade.compared - len(remade.differences)
    yield (
        "Loaded from its files and evaluated again, the model is compared with its record: "
        f"of the numbers {equal} of {remade.compared} are equal."
    )
    if remade.compared and not remade.differences:
        return
    for other in remade.differences[:_LISTED]:
        yield f"- {other.column}: {_number(other.found)}, recorded {_number(other.recorded)}"
    if (more := len(remade.differences) - _LISTED) > 0:
        yield f"- and {more} that differ by less"
    if not remade.same_start:
        yield "The start model has been prepared again since, and has other weights."
    if remade.first_other_step is None:
        yield "Every optimiser step had the recorded loss, so writing the weights rounded them."
    else:
        yield (
            f"From optimiser step {remade.first_other_step} on the loss is not the recorded one, "
            f"as on another device or with other versions (made on {remade.device})."
        )


def model_card(choice: Choice, remade: RemadeModel, licence: str | None, *, adapter: bool) -> str:
    """Write the card, in Markdown behind the hub's YAML fields.

    licence  of the base model, as an identifier of the hub; None where it is not known
    """
    record, row, report = choice.record, choice.row, choice.results
    spec: dict[str, Any] = redact_tree(dict(record.spec))
    base, benchmark = spec["model"]["base"], spec["data"].get("source", "tofu")
    header = {
        "library_name": "peft" if adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["unlearning", "unlearnbench", record.method],
        **({"license": licence} if licence else {}),
    }
    if not base.startswith((".", "/", "~")) and base.count("/") == 1:
        header["base_model"] = base.partition("@")[0]
    attacked = [other for other in report.attacked if other.run_id == record.id]
    at_epoch = [other for other in attacked if other.epoch == row.epoch]
    panel = next(item for item in report.panels if item.panel == row.panel)
    command = ["unlearnbench", "evaluate", "FOLDER", "--data", benchmark]
    forget = {*row.schema.sets("forget")}
    template = (files("unlearnbench.report") / "model_card.md.j2").read_text("utf-8")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    environment.filters["number"] = _number
    text = environment.from_string(template).render(
        header=header,
        record=record,
        row=row,
        spec=spec,
        made=record.provenance,
        base=base,
        benchmark=benchmark,
        split=split_percent(record.forget_fraction),
        licence=licence,
        untried=sorted({*names("attacks")} - {o.variant.partition("@")[0] for o in at_epoch}),
        private=any(v is not None for k, v in row.metrics.items() if k.startswith("mia_")),
        setting=choice.setting,
        seeds=len(choice.setting.rows),
        test=row.headline.forgotten.test,
        references=[item for item in map(panel.row, ("fine-tuned", "retain")) if item is not None],
        attacks=[row, *at_epoch] if at_epoch else [],
        under_attack=[
            name
            for name in dict.fromkeys((*row.headline.columns, *row.metrics))
            if any(item.metrics.get(name) is not None for item in at_epoch)
            and (name in row.headline.columns or row.schema.column(name).set in forget)
        ],
        attacked_after=max((other.epoch for other in attacked), default=None),
        exported_by=(git_state() or {}).get("commit") or "not known",
        comparison=[*comparison(remade)],
        adapter=adapter,
        command=shlex.join([*command, "--forget", str(record.forget_fraction)]),
    )
    return redact(text)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
