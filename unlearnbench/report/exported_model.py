"""A run's unlearned model as a folder that transformers loads: weights, tokenizer and card."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import Environment, StrictUndefined

from unlearnbench.analysis.best_settings import UTILITY_SHARE, Panel
from unlearnbench.analysis.contender import Contender
from unlearnbench.analysis.named_contender import find_contender, with_retain_term
from unlearnbench.analysis.results import Results
from unlearnbench.analysis.setting_order import best_of
from unlearnbench.analysis.settings import PanelKey, Setting, average_seeds, is_evidence
from unlearnbench.analysis.wording import without_retain_model
from unlearnbench.api.benchmark import SplitKey
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.registry import names
from unlearnbench.base import hub
from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.errors import ModelError, OutputError, RecordError
from unlearnbench.base.number_text import float_text
from unlearnbench.base.outputs import check_folder
from unlearnbench.base.provenance import git_state
from unlearnbench.base.tables import TableSource
from unlearnbench.config.schema import SweepConfig
from unlearnbench.config.unit import Unit, budget_of_spec
from unlearnbench.models.source import Source
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import EpochResult, Record
from unlearnbench.results.table import TableRow
from unlearnbench.runs.remade_model import remake, stored_dtype

TOLERANCE = 1e-9
"""Most by which two numbers differ, relative to the larger one, that are called the same."""


@dataclass(frozen=True)
class Choice:
    """The run, and the epoch (or step) at which it is exported."""

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
        rate = "" if row.learning_rate is None else f" · lr {float_text(row.learning_rate)}"
        return f"{row.method} · {row.model}{rate} · seed {row.seed} · {row.when}"


def choose(folder: Path, run: str, epoch: str = "best", step: int | None = None) -> Choice:
    """Find a run of a sweep and one of its epochs, or steps.

    run    a method, a setting's label (each with an optional ` lr RATE`), a run's id, or the
           beginning of one; of a method the best setting, with its first seed
    epoch  `best`: of those that keep enough utility the one that forgot most, or what `select` or
           `tune` has chosen, on its first reporting seed; `last`, or a number
    step   number of a step in a sweep by steps, in place of `epoch`

    Raises: RecordError where there is none, or where the name fits several models or splits.
    """
    results = Results.read(folder)
    if step is not None:
        epoch = str(step)
    if epoch not in ("best", "last") and (results.unit is Unit.STEP) != (step is not None):
        option = f"--{results.unit} {epoch}"
        raise RecordError(
            f"{folder}: its runs are evaluated by {results.unit.plural}; use {option}"
        )
    side = find_contender(with_retain_term(run, results.methods_tried), str(folder), results)
    # A failed run has no model, unless no other one is meant.
    side = replace(side, rows=tuple(filter(is_evidence, side.rows)) or side.rows)
    if len(side.panels) > 1:
        ids = ", ".join(sorted({row.run_id for row in side.rows})[:8])
        raise RecordError(f"{folder}: {run!r} ran on several models or splits; name a run: {ids}")
    ((key, panel),) = side.panels.items()
    setting = None
    if epoch == "best":
        setting = _chosen(folder, run, side, key)
    settings = [setting for setting in _settings(side, panel) if setting.epoch > 0]
    if epoch != "best":
        known = sorted({setting.epoch for setting in settings})
        wanted = str(known[-1]) if epoch == "last" and known else epoch
        settings = [setting for setting in settings if str(setting.epoch) == wanted]
        if not settings:
            raise RecordError(
                f"{folder}: {run!r} was not evaluated after {panel.unit.at(epoch)}; choose best, "
                "last"
                f"{''.join(f', {number}' for number in known)}"
            )
        setting = settings[0] if len(settings) == 1 else None
    setting = setting or best_of(
        settings, np.inf if (floor := side.sweep_panels[key].least_kept) is None else floor
    )
    if setting is None:
        raise RecordError(
            f"{folder}: {run!r}: no {panel.unit} keeps {UTILITY_SHARE:.0%} of the start model's "
            "utility, so none is the best; name a run by its id, with --epoch last or a number"
        )
    row = min(setting.rows, key=lambda item: item.seed)
    record = next(item for item in results.records if item.id == row.run_id)
    return Choice(record, row, _with_other_seeds(setting, side, key, results), results)


def _settings(side: Contender, panel: Panel) -> Sequence[Setting]:
    """Return the settings that are meant: after `select` or `tune` only the chosen one, if it ran.

    Args:
        side: The runs that are meant.
        panel: Its own runs on one model and split.
    """
    best = side.choice(panel.panel)
    if best is None or best.choice is None:
        return panel.settings
    return _reporting(panel, best.choice.runs) or panel.settings


def _reporting(panel: Panel, runs: Collection[str]) -> tuple[Setting, ...]:
    """Return a chosen setting after each epoch, averaged over the seeds that report it.

    Args:
        panel: A model and split.
        runs: Ids of the runs that report the choice. If one of them ended early, the setting has no
            mean after later epochs.
    """
    rows = [row for row in panel.rows if row.run_id in runs]
    ends = [end for end in panel.ends if end.run_id in runs]
    return average_seeds(rows, ends)


def _with_other_seeds(
    setting: Setting, side: Contender, key: PanelKey, results: Results
) -> Setting:
    """Return a setting with the seeds that the name of one run leaves out."""
    panel = next(panel for panel in results.panels if panel.panel == key)
    best = side.choice(key)
    reporting = frozenset[str]() if best is None or best.choice is None else best.choice.runs
    settings = panel.settings
    if any(row.run_id in reporting for row in setting.rows):
        settings = _reporting(panel, reporting)
    return next(other for other in settings if other == setting)


def _chosen(folder: Path, run: str, side: Contender, key: PanelKey) -> Setting | None:
    """Return what `select` or `tune` has chosen for a method; None without such a rule.

    Raises:
        RecordError: If there is a rule and no model of its choice.
    """
    best = side.choice(key)
    if best is None:
        return None
    if best.setting is None:
        raise RecordError(
            f"{folder}: {run!r}: {best.why_not}; name a run by its id, with --epoch last or a "
            "number"
        )
    rows = tuple(row for row in side.rows if row in best.setting.rows)
    # One of several seeds may be named by its id.
    return replace(best.setting, rows=rows or best.setting.rows)


def check_place(to: Path) -> None:
    """Raise OutputError where no model can be written: it must be a new or an empty folder."""
    check_folder(to, "the model")
    if to.is_dir() and any(to.iterdir()):
        raise OutputError(f"{to}: cannot write the model: the folder is not empty; give a new one")


def export_model(
    choice: Choice,
    config: SweepConfig,
    folder: Path,
    to: Path,
    *,
    adapter: bool = False,
    dtype: str | None = None,
    attention: str | None = None,
    show: Callable[[str], None] = lambda _: None,
) -> str:
    """Write the model of a run into the folder `to`, whole or not at all.

    config     of the sweep in `folder`
    adapter    write the LoRA adapter, in place of the model that it is merged into
    dtype      of the written weights; default: the base's, see `exported_dtype`
    attention  implementation that computes the run; default: the record's
    show       prints a line on the progress

    Returns how its numbers compare with the record. Raises: RecordError, ModelError or DataError
    where the run cannot be trained again.
    """
    record, row = choice.record, choice.row
    with atomic_folder(to) as part:
        args = record, choice.results.records, row.epoch, config, folder, part
        evaluation = remake(*args, adapter=adapter, dtype=dtype, attention=attention, show=show)
        written, headline = stored_dtype(part), row.headline
        remade = numbers_of(evaluation, choice)
        (result,) = (item for item in record.epochs if item.epoch == row.epoch)
        columns = dict.fromkeys((*result.metrics, *row.metrics))
        sentence = compare_numbers(
            {column: row.metrics.get(column) for column in columns},
            {column: remade.get(column) for column in columns},
            trained=record.spec["model"]["dtype"],
            written=written,
            headline=(headline.kept.column, headline.forgotten.column),
        )
        text = model_card(choice, sentence, adapter=adapter, dtype=written or "not known")
        (part / "README.md").write_text(text, encoding="utf-8")
    return sentence


def numbers_of(evaluation: Evaluation, choice: Choice) -> Mapping[str, float | None]:
    """Return the numbers of a written model, by the same rules as those of the sweep's table.

    Args:
        evaluation: What was observed of the written model.
        choice: The run and epoch that the model is of.
    """
    results, epoch = choice.results, choice.row.epoch
    made = replace(
        choice.record,
        epochs=(EpochResult(epoch, {}, 0.0, 0.0),),
        attacked=(),
        evaluations={epoch: evaluation},
        attacked_evaluations={},
        provenance={},
    )
    compared = [
        other for other in results.records if other.kind != "run" and other.panel == made.panel
    ]
    table = table_of([*compared, made], results.table.metrics)
    return next(row.metrics for row in table.rows if row.run_id == made.id)


def compare_numbers(
    recorded: Mapping[str, float | None],
    remade: Mapping[str, float | None],
    *,
    trained: str,
    written: str | None,
    headline: Collection[str],
) -> str:
    """Describe how the numbers of a written model compare with those of its record.

    Args:
        recorded: Numbers by column.
        remade: The same numbers of the model that was written.
        trained: The dtype of the weights while the run trained.
        written: The dtype of the written weights; None for another one, such as 8-bit.
        headline: The columns that are listed if weights were rounded. All that differ are listed
            otherwise.
    """
    compared = [name for name in recorded if name in remade]
    # None is NaN in an array, and equal to itself.
    pair = np.array([[values[name] for name in compared] for values in (recorded, remade)], float)
    equal = np.isclose(pair[0], pair[1], rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True)
    sentence = f"of the numbers {equal.sum()} of {len(compared)} are equal"
    differing = [name for name, same in zip(compared, equal, strict=True) if not same]
    # float32 holds every value of the other types.
    is_rounded = written not in (trained, "float32")
    if differing and is_rounded:
        sentence += (
            f"; it was trained in {trained} and is written in {written}, which rounds its "
            f"weights (--dtype {trained} keeps them)"
        )
        differing = [name for name in differing if name in headline]
    if differing:
        values = [f"{name} {remade[name]}, recorded {recorded[name]}" for name in differing]
        sentence += f"; {'; '.join(values)}"
    return sentence


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.4g}"


def model_card(choice: Choice, comparison: str, *, adapter: bool, dtype: str) -> str:
    """Write the card, in Markdown behind the hub's YAML fields.

    dtype  of the written weights
    """
    record, row, report = choice.record, choice.row, choice.results
    model = record.spec["model"]
    origin = model["fine_tuned"] if model["base"] is None else model["base"]
    base = Source.parse(origin, None, model.get("adapter_base"))
    with suppress(ModelError):  # the base of an adapter that is gone by now
        base = base.whole
    on_hub = base.place != "tiny" and base.folder is None
    attacked = [o for o in report.attacked if (o.run_id, o.epoch) == (record.id, row.epoch)]
    panel = next(item for item in report.panels if item.panel == row.panel)
    template = (files("unlearnbench.report") / "model_card.md.j2").read_text("utf-8")
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["number"] = _number
    environment.filters["setting_number"] = float_text
    return environment.from_string(template).render(
        record=record,
        row=row,
        open=without_retain_model(row.schema),
        setting=choice.setting,
        budget=budget_of_spec(record.spec),
        base=base.repository.name if on_hub else "",
        licence=hub.licence(base.repository) if on_hub else None,
        untried=sorted({*names("attacks")} - {o.variant.partition("@")[0] for o in attacked}),
        references=[item for item in map(panel.row, ("fine-tuned", "retain")) if item is not None],
        attacks=attacked,
        exported_by=(git_state() or {}).get("commit") or "not known",
        comparison=comparison,
        adapter=adapter,
        dtype=dtype,
        rows=rows_options(record.spec["data"], record.forget_fraction),
        options=_options(record.spec),
    )


def rows_options(data: Mapping[str, Any], split: SplitKey) -> str:
    """Return the options of `evaluate` that name the rows of a run.

    Args:
        data: The section `data` of its configuration.
        split: What it forgets.

    Returns:
        For example `--data tofu --forget 0.1`, and for rows of the user's own `--forget-rows
        forget.jsonl --retain-rows retain.jsonl --column question=prompt`, or `--marked-rows all.csv
        --forget-if author=Ada`. A table that cannot be named on the command line is in capitals:
        `--forget-rows FORGET_ROWS`.
    """
    source = data.get("source", "tofu")
    if source not in {"questions", "texts"}:
        return f"--data {source} --forget {split}"
    options: list[str] = []
    parts = ["forget", "retain", "holdout"]
    if marked := _location_of_table(data.get("rows")):
        parts = ["holdout"]
        options.append(f"--marked-rows {shlex.quote(marked)}")
        options += _filter_options(data["forget_if"])
    for part in parts:
        table = data.get(part)
        if isinstance(table, Mapping) and not {"path", "python_rows"} & table.keys():
            table = table.get(str(split))  # a table for each split
        is_needed = part != "holdout"
        if location := _location_of_table(table) or (f"{part.upper()}_ROWS" if is_needed else ""):
            options.append(f"--{part}-rows {shlex.quote(location)}")
    for setting in ("question", "answer", "messages", "text"):
        if column := data.get(setting):
            options.append(f"--column {shlex.quote(f'{setting}={column}')}")
    return " ".join(options)


def _filter_options(forget_if: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of `evaluate` for the section `forget_if`."""
    for column, wanted in forget_if.items():
        for value in wanted if isinstance(wanted, list | tuple) else [wanted]:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"--forget-if {shlex.quote(f'{column}={text}')}"


def _location_of_table(table: Any) -> str:
    """Return a table as the command line names it; empty if it cannot."""
    if isinstance(table, str):
        return table
    if not isinstance(table, Mapping) or "path" not in table:  # given in Python
        return ""
    further = (table.get(key) for key in ("config", "split", "revision"))
    return TableSource(table["path"], *further).label


def _options(spec: Mapping[str, Any]) -> str:
    """Options of `evaluate` for the rules of a run: ` --template phi --rows 40`."""
    model, evaluation = spec["model"], spec["evaluation"]
    pairs = [("template", model["template"])]
    pairs += [("template-arg", f"{k}={v}") for k, v in (model.get("template_args") or {}).items()]
    keys = ("profile", "rows", "max_length", "question_key")
    pairs += [(key.replace("_", "-"), evaluation.get(key)) for key in keys]
    return "".join(f" --{k} {shlex.quote(str(v))}" for k, v in pairs if v is not None)
