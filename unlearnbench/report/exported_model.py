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
from jinja2 import Environment, StrictUndefined, Template

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
"""Largest difference of two numbers that count as equal, absolute and relative."""


@dataclass(frozen=True)
class Choice:
    """The run, and the epoch (or step) at which it is exported."""

    record: Record
    row: TableRow
    """Row of the table after this epoch."""
    setting: Setting
    """The run's setting after this epoch, with all seeds."""
    results: Results
    """Results of the sweep."""

    @property
    def title(self) -> str:
        """Name for people: `npo+nll · tiny · lr 0.001 · seed 0 · epoch 3`."""
        row = self.row
        rate = "" if row.learning_rate is None else f" · lr {float_text(row.learning_rate)}"
        return f"{row.method} · {row.model}{rate} · seed {row.seed} · {row.when}"


def choose(folder: Path, run: str, epoch: str = "best", step: int | None = None) -> Choice:
    """Find a run of a sweep and one of its epochs, or steps.

    Args:
        folder: The sweep's folder.
        run: A method or a setting's label, each with an optional ` lr RATE`, or the beginning of a
            run's id. Of several seeds the first one is chosen.
        epoch: `best`, `last` or a number. The best epoch is the one that forgot most and kept
            enough utility, or the one that `select` or `tune` has chosen.
        step: Number of a step in a sweep by steps, in place of `epoch`.

    Raises:
        RecordError: If there is no such run or epoch, or if the name fits several models or splits.
    """
    results = Results.read(folder)
    if step is not None:
        epoch = str(step)
    _check_unit(folder, results.unit, epoch, is_step=step is not None)
    contender = _contender_on_one_panel(folder, run, results)
    ((key, panel),) = contender.panels.items()
    if epoch == "best":
        setting = _best_setting(folder, run, contender, panel)
    else:
        setting = _setting_after(folder, run, epoch, contender, panel)
    row = min(setting.rows, key=lambda row: row.seed)
    record = next(record for record in results.records if record.id == row.run_id)
    return Choice(record, row, _with_other_seeds(setting, contender, key, results), results)


def _check_unit(folder: Path, unit: Unit, epoch: str, *, is_step: bool) -> None:
    """Check that a number counts what the sweep counts, epochs or steps.

    Raises:
        RecordError: If it does not.
    """
    if epoch in ("best", "last") or (unit is Unit.STEP) == is_step:
        return
    raise RecordError(f"{folder}: its runs are evaluated by {unit.plural}; use --{unit} {epoch}")


def _contender_on_one_panel(folder: Path, run: str, results: Results) -> Contender:
    """Find the runs that a name fits, without failed ones.

    Raises:
        RecordError: If they ran on several models or splits.
    """
    contender = find_contender(with_retain_term(run, results.methods_tried), str(folder), results)
    # A failed run has no model. It is left out, unless the name fits no other run.
    evidence = tuple(row for row in contender.rows if is_evidence(row))
    contender = replace(contender, rows=evidence or contender.rows)
    if len(contender.panels) > 1:
        ids = ", ".join(sorted({row.run_id for row in contender.rows})[:8])
        raise RecordError(f"{folder}: {run!r} ran on several models or splits; name a run: {ids}")
    return contender


def _best_setting(folder: Path, run: str, contender: Contender, panel: Panel) -> Setting:
    """Return the choice of `select` or `tune`, or the best setting if there is no such rule.

    Raises:
        RecordError: If there is neither.
    """
    chosen = _chosen(folder, run, contender, panel.panel)
    if chosen is not None:
        return chosen
    settings = _settings_after_training(contender, panel)
    return _best_of(folder, run, settings, contender, panel)


def _setting_after(
    folder: Path, run: str, epoch: str, contender: Contender, panel: Panel
) -> Setting:
    """Return the setting after an epoch. If several settings are meant, it is the best of them.

    Raises:
        RecordError: If none was evaluated after this epoch, or if none of several is the best.
    """
    settings = _settings_after_training(contender, panel)
    epochs = sorted({setting.epoch for setting in settings})
    wanted = str(epochs[-1]) if epoch == "last" and epochs else epoch
    after_epoch = [setting for setting in settings if str(setting.epoch) == wanted]
    if not after_epoch:
        listed = "".join(f", {number}" for number in epochs)
        raise RecordError(
            f"{folder}: {run!r} was not evaluated after {panel.unit.at(epoch)}; choose best, last"
            f"{listed}"
        )
    if len(after_epoch) == 1:
        return after_epoch[0]
    return _best_of(folder, run, after_epoch, contender, panel)


def _best_of(
    folder: Path, run: str, settings: Sequence[Setting], contender: Contender, panel: Panel
) -> Setting:
    """Return the setting that forgot most of those that keep enough utility.

    Raises:
        RecordError: If no setting keeps enough.
    """
    least_kept = contender.sweep_panels[panel.panel].least_kept
    # Without a start model nobody knows how much is enough, so that no setting is the best.
    best = best_of(settings, np.inf if least_kept is None else least_kept)
    if best is None:
        raise RecordError(
            f"{folder}: {run!r}: no {panel.unit} keeps {UTILITY_SHARE:.0%} of the start model's "
            "utility, so none is the best; name a run by its id, with --epoch last or a number"
        )
    return best


def _settings_after_training(contender: Contender, panel: Panel) -> list[Setting]:
    """Return the settings that are meant, without epoch 0, which is the start model."""
    return [setting for setting in _settings(contender, panel) if setting.epoch > 0]


def _settings(contender: Contender, panel: Panel) -> Sequence[Setting]:
    """Return the settings that are meant: after `select` or `tune` only the chosen one, if it ran.

    Args:
        contender: The runs that are meant.
        panel: The contender's runs on one model and split.
    """
    best = contender.choice(panel.panel)
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
    setting: Setting, contender: Contender, key: PanelKey, results: Results
) -> Setting:
    """Return a setting with the seeds that the name of one run leaves out."""
    panel = next(panel for panel in results.panels if panel.panel == key)
    best = contender.choice(key)
    reporting_runs: Collection[str] = ()
    if best is not None and best.choice is not None:
        reporting_runs = best.choice.runs
    settings = panel.settings
    if any(row.run_id in reporting_runs for row in setting.rows):
        settings = _reporting(panel, reporting_runs)
    # Settings are equal if they are one setting after one epoch, whatever their seeds are.
    return next(other for other in settings if other == setting)


def _chosen(folder: Path, run: str, contender: Contender, key: PanelKey) -> Setting | None:
    """Return what `select` or `tune` has chosen for a method; None without such a rule.

    Raises:
        RecordError: If there is a rule, but no model of its choice.
    """
    best = contender.choice(key)
    if best is None:
        return None
    if best.setting is None:
        raise RecordError(
            f"{folder}: {run!r}: {best.why_not}; name a run by its id, with --epoch last or a "
            "number"
        )
    # A run's id names one of several seeds.
    rows = tuple(row for row in contender.rows if row in best.setting.rows)
    return replace(best.setting, rows=rows or best.setting.rows)


def check_place(to: Path) -> None:
    """Check that a model can be written into a folder: it must be new or empty.

    Raises:
        OutputError: If it is neither, or cannot be written.
    """
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
    """Write the model of a run into a folder, whole or not at all.

    Args:
        choice: The run and the epoch.
        config: Configuration of the sweep.
        folder: The sweep's folder.
        to: Folder of the model.
        adapter: Whether the LoRA adapter is written in place of the model that it is merged into.
        dtype: Of the written weights. Defaults to that of the base model, see `exported_dtype`.
        attention: Implementation that computes the run. Defaults to that of the record.
        show: Prints a line about the progress.

    Returns:
        A sentence that compares the numbers of the written model with the record.

    Raises:
        RecordError: If the record cannot be made again here.
        ModelError: If a model cannot be read.
        DataError: If the rows cannot be read.
    """
    with atomic_folder(to) as temporary:
        evaluation = remake(
            choice.record,
            choice.results.records,
            choice.row.epoch,
            config,
            folder,
            temporary,
            adapter=adapter,
            dtype=dtype,
            attention=attention,
            show=show,
        )
        written = stored_dtype(temporary)
        comparison = _compare_with_record(choice, numbers_of(evaluation, choice), written)
        card = model_card(choice, comparison, adapter=adapter, dtype=written or "not known")
        (temporary / "README.md").write_text(card, encoding="utf-8")
    return comparison


def _compare_with_record(
    choice: Choice, remade: Mapping[str, float | None], written: str | None
) -> str:
    """Describe how the numbers of a written model compare with those of the sweep's table.

    Args:
        choice: The run and the epoch.
        remade: Numbers of the written model, by column.
        written: The dtype of the written weights.
    """
    record, row = choice.record, choice.row
    (result,) = (result for result in record.epochs if result.epoch == row.epoch)
    columns = dict.fromkeys([*result.metrics, *row.metrics])
    headline = row.headline
    return compare_numbers(
        {column: row.metrics.get(column) for column in columns},
        {column: remade.get(column) for column in columns},
        trained=record.spec["model"]["dtype"],
        written=written,
        headline=(headline.kept.column, headline.forgotten.column),
    )


def numbers_of(evaluation: Evaluation, choice: Choice) -> Mapping[str, float | None]:
    """Return the numbers of a written model, by the same rules as those of the sweep's table.

    Args:
        evaluation: Observations of the written model.
        choice: The run and epoch that the model comes from.
    """
    results = choice.results
    epoch = choice.row.epoch
    # The record has only this evaluation, and says neither how long it took nor on which device.
    remade = replace(
        choice.record,
        epochs=(EpochResult(epoch, {}, 0.0, 0.0),),
        attacked=(),
        evaluations={epoch: evaluation},
        attacked_evaluations={},
        provenance={},
    )
    references = [
        record
        for record in results.records
        if record.kind != "run" and record.panel == remade.panel
    ]
    table = table_of([*references, remade], results.table.metrics)
    return next(row.metrics for row in table.rows if row.run_id == remade.id)


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
        written: The dtype of the written weights. None for any other type, such as 8-bit.
        headline: The columns that are listed if weights were rounded. If they were not, all columns
            that differ are listed.
    """
    compared = [name for name in recorded if name in remade]
    # None becomes NaN, which `equal_nan` lets be equal to itself.
    recorded_values = np.array([recorded[name] for name in compared], float)
    remade_values = np.array([remade[name] for name in compared], float)
    are_equal = np.isclose(
        recorded_values, remade_values, rtol=TOLERANCE, atol=TOLERANCE, equal_nan=True
    )
    sentence = f"of the numbers {are_equal.sum()} of {len(compared)} are equal"
    differing = [name for name, is_equal in zip(compared, are_equal, strict=True) if not is_equal]
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


def model_card(choice: Choice, comparison: str, *, adapter: bool, dtype: str) -> str:
    """Write the model card: YAML fields for the hub, followed by Markdown.

    Args:
        choice: The run and the epoch.
        comparison: Sentence that compares the numbers of the written model with the record.
        adapter: Whether only the LoRA adapter was written.
        dtype: Of the written weights.
    """
    record, row, results = choice.record, choice.row, choice.results
    attacked = [
        attacked_row
        for attacked_row in results.attacked
        if (attacked_row.run_id, attacked_row.epoch) == (record.id, row.epoch)
    ]
    # Variants look like `relearning@13`: the attack, then the point that was evaluated.
    tried_attacks = {attacked_row.variant.partition("@")[0] for attacked_row in attacked}
    panel = next(panel for panel in results.panels if panel.panel == row.panel)
    references = [panel.row("fine-tuned"), panel.row("retain")]
    base = _base_model(record.spec["model"])
    is_on_hub = base.place != "tiny" and base.folder is None
    return _card_template().render(
        record=record,
        row=row,
        open=without_retain_model(row.schema),
        setting=choice.setting,
        budget=budget_of_spec(record.spec),
        base=base.repository.name if is_on_hub else "",
        licence=hub.licence(base.repository) if is_on_hub else None,
        untried=sorted(set(names("attacks")) - tried_attacks),
        references=[reference for reference in references if reference is not None],
        attacks=attacked,
        exported_by=(git_state() or {}).get("commit") or "not known",
        comparison=comparison,
        adapter=adapter,
        dtype=dtype,
        rows=rows_options(record.spec["data"], record.forget_fraction),
        options=_options(record.spec),
    )


def _base_model(model: Mapping[str, Any]) -> Source:
    """Return the model that the start model was trained from.

    Args:
        model: The section `model` of a record's specification. If its `base` is None, only the
            fine-tuned start model is known.
    """
    origin = model["fine_tuned"] if model["base"] is None else model["base"]
    base = Source.parse(origin, None, model.get("adapter_base"))
    # An adapter names its base. The adapter itself is returned if that base is gone by now.
    with suppress(ModelError):
        base = base.whole
    return base


def _card_template() -> Template:
    """Read the template of the card."""
    text = (files("unlearnbench.report") / "model_card.md.j2").read_text("utf-8")
    environment = Environment(trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    environment.filters["number"] = _number
    environment.filters["setting_number"] = float_text
    return environment.from_string(text)


def _number(value: float | None) -> str:
    """Write a number with four digits, and None as a dash."""
    return "–" if value is None else f"{value:.4g}"


def rows_options(data: Mapping[str, Any], split: SplitKey) -> str:
    """Return the options of `evaluate` that name the rows of a run.

    Args:
        data: The section `data` of the run's configuration.
        split: The run's split.

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
    marked = _location_of_table(data.get("rows"))
    if marked:
        # One table has the rows of all parts, marked by a column, except for held-out rows.
        options.append(f"--marked-rows {shlex.quote(marked)}")
        options += _filter_options(data["forget_if"])
    else:
        for part in ("forget", "retain"):
            location = _location_of_part(data, part, split) or f"{part.upper()}_ROWS"
            options.append(f"--{part}-rows {shlex.quote(location)}")
    holdout = _location_of_part(data, "holdout", split)
    if holdout:
        options.append(f"--holdout-rows {shlex.quote(holdout)}")
    for setting in ("question", "answer", "messages", "text"):
        column = data.get(setting)
        if column:
            options.append(f"--column {shlex.quote(f'{setting}={column}')}")
    return " ".join(options)


def _location_of_part(data: Mapping[str, Any], part: str, split: SplitKey) -> str:
    """Return the table of a part of the rows as the command line names it; empty if it cannot.

    Args:
        data: The section `data` of a configuration.
        part: `forget`, `retain` or `holdout`.
        split: Key of the table, if each split has its own.
    """
    table = data.get(part)
    if isinstance(table, Mapping) and not {"path", "python_rows"} & table.keys():
        # Each split has a table of its own.
        table = table.get(str(split))
    return _location_of_table(table)


def _filter_options(forget_if: Mapping[str, Any]) -> Iterator[str]:
    """Yield the options of `evaluate` for the section `forget_if`."""
    for column, wanted in forget_if.items():
        values = wanted if isinstance(wanted, list | tuple) else [wanted]
        for value in values:
            # The command line reads `true`, as YAML does, and not Python's `True`.
            text = str(value).lower() if isinstance(value, bool) else str(value)
            yield f"--forget-if {shlex.quote(f'{column}={text}')}"


def _location_of_table(table: Any) -> str:
    """Return a table as the command line names it; empty if it cannot."""
    if isinstance(table, str):
        return table
    # Rows that were given in Python have no path.
    if not isinstance(table, Mapping) or "path" not in table:
        return ""
    source = TableSource(
        table["path"], table.get("config"), table.get("split"), table.get("revision")
    )
    return source.label


def _options(spec: Mapping[str, Any]) -> str:
    """Return the options of `evaluate` for the rules of a run: ` --template phi --rows 40`."""
    model = spec["model"]
    evaluation = spec["evaluation"]
    values: list[tuple[str, Any]] = [("template", model["template"])]
    for name, value in (model.get("template_args") or {}).items():
        values.append(("template-arg", f"{name}={value}"))
    for key in ("profile", "rows", "max_length", "question_key"):
        values.append((key.replace("_", "-"), evaluation.get(key)))

    options = ""
    for option, value in values:
        if value is not None:
            options += f" --{option} {shlex.quote(str(value))}"
    return options
