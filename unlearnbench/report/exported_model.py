"""A run's unlearned model as a folder that transformers loads: weights, tokenizer and card."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from jinja2 import Environment, StrictUndefined

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    best_of,
)
from unlearnbench.analysis.equal_utility import Contender, find_contender, with_retain_term
from unlearnbench.analysis.results import Results
from unlearnbench.api.benchmark import split_percent
from unlearnbench.api.registry import names
from unlearnbench.base import hub
from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.errors import OutputError, RecordError
from unlearnbench.base.outputs import check_folder
from unlearnbench.base.provenance import git_state
from unlearnbench.base.redaction import redact, redact_tree
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.loading import Source
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.runs.remade_model import RemadeModel, remake, spec_of

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


Epoch = Literal["best", "last"] | int
"""Epoch of a run: its best by the rule of the tables, its last, or a number."""


@dataclass(frozen=True)
class Choice:
    """The run and epoch that are exported."""

    folder: Path
    """Folder of the sweep."""
    record: Record
    row: TableRow
    """After the chosen epoch."""
    setting: Setting
    """With the other seeds."""
    results: Results

    @property
    def title(self) -> str:
        """Name for people: `npo+nll · tiny · lr 0.001 · seed 0 · epoch 3`."""
        row = self.row
        rate = "" if row.learning_rate is None else f" · lr {row.learning_rate:g}"
        return f"{row.method} · {row.model}{rate} · seed {row.seed} · epoch {row.epoch}"


def choose(folder: Path, run: str, epoch: Epoch = "best") -> Choice:
    """Find a run of a sweep and one of its epochs.

    run    a method, a setting's label (each with an optional ` lr RATE`), a run's id, or the
           beginning of one; of a method the best setting, with its first seed
    epoch  `best`: of those that keep enough utility the one that forgot most

    Raises: RecordError where there is none, or where the name fits several models or splits.
    """
    results = Results.read(folder)
    for item in results.records:
        if run and item.kind != "run" and item.id.startswith(run):
            spec_of(item)  # raises
    side = find_contender(with_retain_term(run, results.families), str(folder), results)
    if len(side.panels) > 1:
        ids = sorted({row.run_id for row in side.rows})
        raise RecordError(
            f"{folder}: {run!r} ran on several models or splits; name one run by its id: "
            f"{', '.join(ids[:8])}{' …' if len(ids) > 8 else ''}"
        )
    setting = _setting(f"{folder}: {run!r}", side, epoch)
    row = min(setting.rows, key=lambda item: item.seed)
    record = next(item for item in results.records if item.id == row.run_id)
    # With its other seeds, which the run's own id leaves out.
    whole = next(s for panel in results.panels for s in panel.settings if s == setting)
    return Choice(folder, record, row, whole, results)


def _setting(location: str, side: Contender, epoch: Epoch) -> Setting:
    ((key, panel),) = side.panels.items()
    settings, floor = panel.settings, side.floor(key)
    if epoch == "best" or len({setting.key[:-1] for setting in settings}) > 1:
        best = None if floor is None else best_of(settings, floor)
        if best is None:
            raise RecordError(
                f"{location}: no epoch keeps {UTILITY_SHARE:.0%} of the start model's utility, so "
                "none is the best; name a run by its id, with --epoch last or a number"
            )
        if epoch == "best":
            return best
        settings = tuple(setting for setting in settings if setting.key[:-1] == best.key[:-1])
    trained = {setting.epoch: setting for setting in settings if setting.epoch > 0}
    wanted = max(trained, default=0) if epoch == "last" else epoch
    if wanted not in trained:
        raise RecordError(
            f"{location} was not evaluated after epoch {epoch}; choose one of "
            f"{', '.join(map(str, sorted(trained))) or 'another run: this one has none'}"
        )
    return trained[wanted]


def check_place(to: Path) -> None:
    """Raise OutputError where no model can be written: it must be a new or an empty folder."""
    check_folder(to, "the model")
    with suppress(FileNotFoundError):
        if any(to.iterdir()):
            raise OutputError(
                f"{to}: cannot write the model: the folder is not empty; give a new one"
            )


def export_model(
    choice: Choice,
    config: SweepConfig,
    to: Path,
    *,
    adapter: bool = False,
    show: Callable[[str], None] = lambda _: None,
) -> RemadeModel:
    """Write the model of a run into the folder `to`, whole or not at all.

    config   of the sweep
    adapter  write the LoRA adapter, in place of the model that it is merged into
    show     prints a line on the progress

    Raises: OutputError where the folder has files; RecordError, ModelError or DataError where the
    run cannot be trained again.
    """
    try:
        with atomic_folder(to) as part:
            remade = remake(
                *(choice.record, choice.results.records, choice.row.epoch),
                *(config, choice.folder, part),
                adapter=adapter,
                show=show,
            )
            licence = licence_of(Source.parse(choice.record.spec["model"]["base"]))
            text = model_card(choice, remade, licence, adapter=adapter)
            (part / "README.md").write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{to}: cannot write the model: {error.strerror or error}; nothing is left there"
        ) from error
    return remade


def licence_of(base: Source) -> str | None:
    """Read the licence of a base model from its card; None where it is not known."""
    if base.place == "tiny":
        return "mit"
    if base.folder is None:
        return hub.licence(base.repository)
    with suppress(OSError, UnicodeDecodeError):
        text = (base.folder / "README.md").read_text(encoding="utf-8")
        header = text.split("---")[1] if text.startswith("---") else ""
        if result := re.search(r"^license:\s*['\"]?([\w.+-]+)['\"]?\s*$", header, re.MULTILINE):
            return result[1]
    return None
