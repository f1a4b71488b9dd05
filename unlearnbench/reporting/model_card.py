"""README.md of an exported model: what made it, its numbers, and what was not tested."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from jinja2 import Environment, StrictUndefined

from unlearnbench.api.benchmark import split_percent
from unlearnbench.api.registry import names
from unlearnbench.runs.remade_model import RemadeModel
from unlearnbench.runtime.provenance import git_state
from unlearnbench.runtime.redaction import redact, redact_tree

if TYPE_CHECKING:
    from unlearnbench.reporting.exported_model import Choice

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
    record, row, report = choice.record, choice.row, choice.report
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
    test = row.headline.forgotten.test
    command = ["unlearnbench", "evaluate", "FOLDER", "--data", benchmark]
    template = (files("unlearnbench.reporting") / "model_card.md.j2").read_text("utf-8")
    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True, undefined=StrictUndefined
    )
    text = environment.from_string(template).render(
        header=header,
        record=record,
        row=row,
        base=base,
        benchmark=benchmark,
        split=split_percent(record.forget_fraction),
        licence=licence,
        untried=sorted(
            {*names("attacks")} - {other.variant.partition("@")[0] for other in at_epoch}
        ),
        private=any(v is not None for k, v in row.metrics.items() if k.startswith("mia_")),
        seeds=len(choice.setting.rows),
        test=test,
        questions=row.metrics.get(test.questions) if test else None,
        part="+rows=" in record.profile or spec["evaluation"].get("rows"),
        **_numbers(choice),
        attacks=_attacks(choice, at_epoch),
        attacked_after=max((other.epoch for other in attacked), default=None),
        making=_making(choice, spec),
        comparison=[*comparison(remade)],
        adapter=adapter,
        command=shlex.join([*command, "--forget", str(record.forget_fraction)]),
    )
    return redact(text)


def _numbers(choice: Choice) -> dict[str, Any]:
    """The lines of the table of metrics, and the name of its intervals over seeds."""
    row, setting = choice.row, choice.setting
    titles = {"fine-tuned": "start model", "retain": "retain model"}
    panel = (row.model, row.forget_fraction)
    rows = choice.report.rows
    by_kind = {r.kind: r for r in rows if (r.model, r.forget_fraction) == panel}
    others = [kind for kind in titles if kind in by_kind]
    several, interval_name = len(setting.rows) > 1, None
    heads = ["metric", "better", "this model", *["mean over seeds"] * several]
    heads += [titles[kind] for kind in others]
    lines = [heads, ["---"] * len(heads)]
    for name, value in row.metrics.items():
        if value is None:
            continue
        column = row.schema.column(name)
        line = [column.label, column.better or "", _number(value)]
        if several:
            interval = setting.interval(name)
            line.append("")
            if interval is not None:
                bounds = f"[{_number(interval.low)}, {_number(interval.high)}]"
                line[-1], interval_name = f"{_number(interval.mean)} {bounds}", interval.name
        lines.append([*line, *(_number(by_kind[kind].metrics.get(name)) for kind in others)])
    return {"numbers": lines, "interval": interval_name}


def _attacks(choice: Choice, attacked: list[Any]) -> list[list[str]]:
    """The lines of the table of attacks; none where the model was not attacked."""
    if not attacked:
        return []
    first = attacked[0]
    forget = {*first.schema.sets("forget")}
    shown = [
        name
        for name in dict.fromkeys((*first.headline.columns, *first.metrics))
        if first.metrics.get(name) is not None
        and (name in first.headline.columns or first.schema.column(name).set in forget)
    ]
    lines = [["attack", *(first.schema.column(n).label for n in shown)], ["---"] * (len(shown) + 1)]
    for row in (choice.row, *attacked):
        lines.append([row.variant or "none", *(_number(row.metrics.get(name)) for name in shown)])
    return lines


def _making(choice: Choice, spec: dict[str, Any]) -> dict[str, Any]:
    record, row, made = choice.record, choice.row, choice.record.provenance
    code, lora = made.get("git") or {}, spec["model"].get("lora")
    state = ", with uncommitted changes" if code.get("dirty") else ""
    versions = (made.get("versions") or {}).items()
    return {
        "record": record.id,
        "method": row.method,
        "hyper-parameters": json.dumps(dict(row.hyperparameters), sort_keys=True),
        "learning rate": f"{row.learning_rate:g}",
        "epochs": f"{row.epoch} of {spec['epochs']}",
        "seed": record.seed,
        "training": json.dumps(spec["training"], sort_keys=True),
        "LoRA": json.dumps(lora) if lora else "no",
        "base model": spec["model"]["base"],
        "start model": spec["model"].get("fine_tuned") or "the base, fine-tuned on all rows",
        "rows": spec["data_fingerprint"],
        "evaluation": record.profile,
        "commit of the run": f"{code.get('commit', 'not known')}{state}",
        "commit of the export": (git_state() or {}).get("commit") or "not known",
        "versions": ", ".join(f"{name} {number}" for name, number in versions),
        "device of the run": made.get("device", "not known"),
        "finished": made.get("finished", "not known"),
    }


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
