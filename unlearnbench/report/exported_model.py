"""A run's unlearned model as a folder that transformers loads: weights, tokenizer and card."""

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from unlearnbench.analysis.best_settings import (
    UTILITY_SHARE,
    Setting,
    best_of,
)
from unlearnbench.analysis.equal_utility import Contender, find_contender, with_retain_term
from unlearnbench.analysis.results import Results
from unlearnbench.base import hub
from unlearnbench.base.atomic import atomic_folder
from unlearnbench.base.errors import OutputError, RecordError
from unlearnbench.base.outputs import check_folder
from unlearnbench.config.schema import SweepConfig
from unlearnbench.models.loading import Source
from unlearnbench.report.model_card import model_card
from unlearnbench.results.records import Record
from unlearnbench.results.table import TableRow
from unlearnbench.runs.remade_model import RemadeModel, remake, spec_of

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
