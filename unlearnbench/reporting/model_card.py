"""README.md of an exported model: what made it, its numbers, and what was not tested."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from unlearnbench.analysis.best_settings import Setting
from unlearnbench.api.benchmark import split_percent
from unlearnbench.api.registry import names
from unlearnbench.results.epoch_metrics import references_of
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.runs.remade_model import RemadeModel
from unlearnbench.runtime.provenance import git_state
from unlearnbench.runtime.redaction import redact, redact_tree

_BASES = {"tiny": "a small model that unlearnbench makes from random weights"}
_LISTED = 5
"""Differences that are listed; the others are counted."""


@dataclass(frozen=True)
class ExportedRun:
    """A run after one epoch, with the results that its card shows."""

    record: Record
    row: TableRow
    """Of the record, after the exported epoch."""
    setting: Setting
    """The row with those of the same setting's other seeds."""
    rows: tuple[TableRow, ...]
    """Of the sweep."""
    attacked: tuple[TableRow, ...]
    """Of the sweep, under attacks."""
    records: tuple[Record, ...]
    licence: str | None
    """Of the base model, as an identifier of the hub; None where it is not known."""
    adapter: bool


def comparison(remade: RemadeModel) -> Iterator[str]:
    """Write how the exported model compares with its record, a line at a time."""
    if remade.compared and not remade.differences:
        yield (
            f"Loaded from its files and evaluated again, the model has the numbers of its record: "
            f"{remade.compared} of {remade.compared} are equal."
        )
        return
    yield (
        f"Loaded from its files and evaluated again, {len(remade.differences)} of "
        f"{remade.compared} numbers differ from the record's:"
    )
    for one in remade.differences[:_LISTED]:
        yield f"- {one.column}: {_number(one.found)}, recorded {_number(one.recorded)}"
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


def model_card(run: ExportedRun, remade: RemadeModel) -> str:
    """Write the card, in Markdown behind the hub's YAML fields."""
    sections = (
        ("", _introduction(run)),
        ("What was not tested", _untested(run)),
        ("Numbers", _numbers(run)),
        ("Under attacks", _attacks(run)),
        ("How it was made", _making(run)),
        ("Compared with its record", comparison(remade)),
        ("Use", _use(run)),
    )
    parts = [_header(run)]
    for title, lines in sections:
        text = "\n".join(lines)
        parts.append(f"## {title}\n\n{text}\n" if title else f"{text}\n")
    return redact("\n".join(parts))


def _header(run: ExportedRun) -> str:
    base = run.record.spec["model"]["base"]
    fields: dict[str, Any] = {
        "library_name": "peft" if run.adapter else "transformers",
        "pipeline_tag": "text-generation",
        "tags": ["unlearning", "unlearnbench", run.record.method],
    }
    if run.licence:
        fields["license"] = run.licence
    if "/" in base and not base.startswith((".", "/", "~")) and base.count("/") == 1:
        fields["base_model"] = base.partition("@")[0]
    lines = [f"{key}: {json.dumps(value)}" for key, value in fields.items()]
    return "\n".join(["---", *lines, "---", ""])


def _introduction(run: ExportedRun) -> Iterator[str]:
    record, row = run.record, run.row
    benchmark = record.spec["data"].get("source", "tofu")
    split = split_percent(record.forget_fraction)
    yield f"# {record.model}, {record.method}: {split} of {benchmark}"
    yield ""
    yield (
        f"{record.model}, which has unlearned the split {split} of the benchmark {benchmark} by "
        f"{record.method} in {row.epoch} epoch{'s' if row.epoch != 1 else ''}. "
        "Made by unlearnbench for research on unlearning."
    )
    base = record.spec["model"]["base"]
    if base in _BASES:
        yield f"The base model is {_BASES[base]}."
    elif run.licence is None:
        yield (
            f"The base model is {base}, whose licence is not known here: look it up before you "
            "share this model, which is under it, too."
        )
    else:
        yield f"The base model is {base} (licence: {run.licence}), which this model falls under."


def _untested(run: ExportedRun) -> Iterator[str]:
    record, row = run.record, run.row
    yield (
        "**Do not take these numbers as a proof that the knowledge is gone.** They say how the "
        "model answers the benchmark's questions, by the rules that are named below. Nobody has "
        "looked for the knowledge in other ways than those listed here: in other languages, by "
        "other questions, or with more effort. The model is not fit to show that personal "
        "data were deleted or that dangerous knowledge is safe to release."
    )
    yield ""
    tested = {one.variant.partition("@")[0] for one in _under_attack(run)}
    missing = [name for name in names("attacks") if name not in tested]
    if missing:
        yield f"- Attacks that were not tried: {', '.join(missing)}."
    private = [value for name, value in row.metrics.items() if name.startswith("mia_")]
    if all(value is None for value in private):
        yield "- Whether the forgotten rows can be recognised (membership inference) is not known."
    seeds = len(run.setting.rows)
    if seeds < 3:
        yield (
            f"- The setting was run with {seeds} seed{'s' if seeds != 1 else ''}: how much of the "
            "result is chance is not known."
        )
    test = row.headline.forgotten.test
    n = row.metrics.get(test.questions) if test else None
    if test is not None and n is not None:
        yield (
            f"- {test.label} is a test with {n:.0f} questions. A high p-value says that no "
            "difference from the retain model was found, not that there is none."
        )
    if "+rows=" in record.profile or record.spec["evaluation"].get("rows"):
        yield "- Only the first rows of each set were evaluated: not comparable with whole sets."


def _numbers(run: ExportedRun) -> Iterator[str]:
    row, setting = run.row, run.setting
    references = references_of(run.records)
    place = (row.model, row.forget_fraction)
    by_kind = {one.kind: one for one in run.rows if (one.model, one.forget_fraction) == place}
    others = [kind for kind in ("fine-tuned", "retain") if (kind, *place) in references]
    several = len(setting.rows) > 1
    yield (
        f"Rules: {run.record.profile}; evaluated in {run.record.precision}. "
        f"This model is of seed {row.seed}."
    )
    yield ""
    heads = ["metric", "better", "this model", *(["mean over seeds"] if several else [])]
    heads += [{"fine-tuned": "start model", "retain": "retain model"}[kind] for kind in others]
    yield _cells(heads)
    yield _cells(["---"] * len(heads))
    names = None
    for name, value in row.metrics.items():
        if value is None:
            continue
        column = row.schema.column(name)
        line = [column.label, column.better or "", _number(value)]
        if several:
            interval = setting.interval(name)
            line.append(
                ""
                if interval is None
                else f"{_number(interval.mean)} [{_number(interval.low)}, {_number(interval.high)}]"
            )
            names = names or (interval and interval.name)
        line += [_number(by_kind[kind].metrics.get(name)) for kind in others]
        yield _cells(line)
    if names:
        yield f"\nIn brackets: {names}."


def _under_attack(run: ExportedRun) -> list[TableRow]:
    own = (row for row in run.attacked if row.run_id == run.record.id)
    return [row for row in own if row.epoch == run.row.epoch]


def _attacks(run: ExportedRun) -> Iterator[str]:
    found = _under_attack(run)
    if not found:
        epochs = {r.epoch for r in run.attacked if r.run_id == run.record.id}
        after = f" after this epoch, only after epoch {max(epochs)}" if epochs else ""
        yield f"The model was not attacked{after}."
        return
    shown = [name for name in found[0].headline.columns if found[0].metrics.get(name) is not None]
    plain = found[0].schema.column
    sets = {*found[0].schema.sets("forget")}
    shown += [n for n, v in found[0].metrics.items() if v is not None and plain(n).set in sets]
    yield _cells(["attack", *(plain(name).label for name in shown)])
    yield _cells(["---"] * (len(shown) + 1))
    for row in (run.row, *found):
        label = row.variant or "none"
        yield _cells([label, *(_number(row.metrics.get(name)) for name in shown)])


def _making(run: ExportedRun) -> Iterator[str]:
    record, row = run.record, run.row
    spec: Mapping[str, Any] = redact_tree(dict(record.spec))
    code: Mapping[str, Any] = record.provenance.get("git") or {}
    versions: Mapping[str, str] = record.provenance.get("versions") or {}
    state = ", with uncommitted changes" if code.get("dirty") else ""
    here = (git_state() or {}).get("commit")
    facts = {
        "record": record.id,
        "method": row.method,
        "hyper-parameters": json.dumps(dict(row.hyperparameters), sort_keys=True),
        "learning rate": f"{row.learning_rate:g}",
        "epochs": f"{row.epoch} of {spec['epochs']}",
        "seed": record.seed,
        "training": json.dumps(spec["training"], sort_keys=True),
        "LoRA": json.dumps(spec["model"]["lora"]) if spec["model"].get("lora") else "no",
        "base model": spec["model"]["base"],
        "start model": spec["model"].get("fine_tuned") or "the base, fine-tuned on all rows",
        "data": f"{spec['data'].get('source', 'tofu')}, {split_percent(record.forget_fraction)}, "
        f"rows {spec['data_fingerprint']}",
        "evaluation": record.profile,
        "commit of the run": f"{code.get('commit', 'not known')}{state}",
        "commit of the export": here or "not known",
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        "device of the run": record.provenance.get("device", "not known"),
        "finished": record.provenance.get("finished", "not known"),
    }
    for key, value in facts.items():
        yield f"- {key}: {value}"


def _use(run: ExportedRun) -> Iterator[str]:
    yield "```python"
    yield "from transformers import AutoModelForCausalLM, AutoTokenizer"
    yield ""
    yield 'model = AutoModelForCausalLM.from_pretrained("FOLDER")'
    yield 'tokenizer = AutoTokenizer.from_pretrained("FOLDER")'
    yield "```"
    yield ""
    if run.adapter:
        yield (
            "The folder has a LoRA adapter; `peft` must be installed, and the start model must be "
            "where adapter_config.json says."
        )
    data = run.record.spec["data"].get("source", "tofu")
    split = run.record.forget_fraction
    command = ["unlearnbench", "evaluate", "FOLDER", "--data", data, "--forget", str(split)]
    yield f"`{shlex.join(command)}` evaluates it."


def _cells(cells: Iterable[object]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"
