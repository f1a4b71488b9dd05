"""The results of a sweep: its records and table, and what every view prints of them.

Page, terminal, CSV, LaTeX, tracker, `compare` and `export` read a `Results` and derive nothing
again. Each value is computed at its first use, because some of them read evaluations from disk.

A *record* has the stored observations of one run, or of a start or retain model. The *table* has
all numbers, a row for each model, epoch and attack. The *plan* lists the runs that a sweep is to
make. A *panel* is one model and split. A panel is *valid* if its start model knows the forget rows,
so that forgetting can be seen (`Start.fault` says why not). `select` and `tune` are rules in YAML
that choose a setting of each method on some seeds, and report it on others.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from unlearnbench.analysis.attacked_panels import attacked_panels
from unlearnbench.analysis.best_settings import Choice, Panel, panels
from unlearnbench.analysis.board_choices import choices_on_board
from unlearnbench.analysis.choice_plan import ChoicePlan
from unlearnbench.analysis.conclusion import Conclusion, conclude
from unlearnbench.analysis.ended_early import EarlyEnd, early_ends
from unlearnbench.analysis.lasting import AttackedPanel
from unlearnbench.analysis.method_order import OrderConfidence
from unlearnbench.analysis.order_confidence import assess_order
from unlearnbench.analysis.pairs import PairTable, pair_table
from unlearnbench.analysis.scorecard import Scorer
from unlearnbench.analysis.selection import (
    SELECTION_FILE,
    choices_of,
    moved_choices,
    no_choices_yet,
    selection_of,
    stored_choices,
)
from unlearnbench.analysis.settings import PanelKey
from unlearnbench.api.attack import Attack
from unlearnbench.api.benchmark import Headline
from unlearnbench.api.observations import Evaluation
from unlearnbench.base.errors import PluginError, RecordError
from unlearnbench.base.redaction import redact_tree
from unlearnbench.config.entries import AttackSpec, attack_from_spec
from unlearnbench.config.plan_file import PLAN_FILE
from unlearnbench.config.profiles import TOFU
from unlearnbench.config.unit import Unit
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.evaluation.privacy_control import control_warning
from unlearnbench.evaluation.summary import plan_of
from unlearnbench.results.attack_variants import is_white_box
from unlearnbench.results.finalize import finalize
from unlearnbench.results.outcomes import WITHOUT_RESULT, outcome
from unlearnbench.results.records import Record, planned_records, read_records
from unlearnbench.results.rules import mixed_code, named_metrics, rules_of
from unlearnbench.results.stored_table import NOTHING_STORED, StoredTable, read_table
from unlearnbench.results.table import Table, TableRow

LINKS_FILE = "links.json"
"""Addresses of a sweep and its runs in a tracker, in the sweep's folder."""


@dataclass(frozen=True)
class Results:
    """Everything that is shown of a sweep."""

    name: str
    """Name of the sweep."""
    records: tuple[Record, ...]
    """By ascending id."""
    table: Table
    """All numbers."""
    description: str = ""
    """Text from the configuration; empty without one."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """The resolved configuration."""
    planned: int | None = None
    """Number of runs in the plan; None without a plan."""
    unplanned: int = 0
    """Number of records in the folder that are not in the plan, and so not in `rows`."""
    links: Mapping[str, str] = field(default_factory=dict)
    """Address of each run in MLflow by record id, if logged to a server."""
    choice_plan: ChoicePlan | None = None
    """What `select` or `tune` chooses from; None in a sweep without such a rule."""
    stored_selection: Mapping[str, Any] | None = None
    """Content of the stored `selection.json`, for plans of earlier versions."""

    @classmethod
    def of(
        cls,
        records: Iterable[Record],
        *,
        name: str,
        known: StoredTable = NOTHING_STORED,
        config: Mapping[str, Any] | None = None,
        planned: Iterable[str] | None = None,
        references: Collection[str] | None = None,
        **more: Any,
    ) -> Results:
        """Return the results of records.

        Args:
            records: The records.
            name: Name of the sweep.
            known: An earlier table of the records.
            config: The resolved configuration. None if it is unknown; then each record is computed
                by the metrics that its own configuration names.
            planned: Ids of the runs in the plan. Records of other runs are left out. None without a
                plan, for all records.
            references: Ids of the start and retain models that the planned runs are compared with.
                None if the plan does not list them, see `planned_records`.
            more: Further fields of `Results` by name.
        """
        records = tuple(records)
        planned_ids = None if planned is None else frozenset(planned)
        shown = records
        if planned_ids is not None:
            shown = planned_records(records, planned_ids, references)
        chosen_metrics = None if config is None else named_metrics(config)
        return cls(
            name=name,
            records=tuple(sorted(shown, key=lambda record: record.id)),
            table=finalize(shown, rules_of(shown, chosen_metrics), known),
            config=config or {},
            planned=None if planned_ids is None else len(planned_ids),
            unplanned=len(records) - len(shown),
            **more,
        )

    @classmethod
    def read(cls, folder: str | Path) -> Results:
        """Read the results of a sweep's folder. The sweep may still be running.

        Raises:
            RecordError: If the folder has no record, or a damaged file.
        """
        folder = Path(folder)
        records = read_records(folder)
        if not records:
            raise RecordError(
                f"{folder}: no records to report; give a sweep's folder, which contains `records/` "
                "once its first run has ended"
            )
        plan = _read_json(folder / PLAN_FILE)
        config: Mapping[str, Any] = plan.get("config", {})
        links = stored_links(folder).get("runs", {})
        return cls.of(
            records,
            name=plan.get("name", folder.resolve().name),
            known=read_table(folder),
            config=config,
            planned=[run["id"] for run in plan["runs"]] if plan else None,
            references=plan.get("references"),
            description=config.get("description", ""),
            choice_plan=ChoicePlan.read(plan),
            stored_selection=_read_json(folder / SELECTION_FILE) or None,
            # A page can link only to a server.
            links={run: link for run, link in links.items() if str(link).startswith("http")},
        )

    # Records and rows

    @property
    def rows(self) -> tuple[TableRow, ...]:
        """The rows of plain evaluations."""
        return self.table.rows

    @property
    def attacked(self) -> tuple[TableRow, ...]:
        """The rows of evaluations under attacks."""
        return self.table.attacked

    @property
    def before(self) -> tuple[TableRow, ...]:
        """The plain numbers on the rows that attacks asked, see `Table.before`."""
        return self.table.before

    @property
    def without_result(self) -> tuple[Record, ...]:
        """Runs that failed or collapsed."""
        return tuple(
            record
            for record in self.records
            if record.kind == "run" and record.status in WITHOUT_RESULT
        )

    @property
    def families(self) -> tuple[str, ...]:
        """Methods that ran, each with its retain term."""
        return tuple(sorted({row.family for row in self.rows if row.kind == "run"}))

    @property
    def methods_tried(self) -> tuple[str, ...]:
        """Methods as in `families`, and methods of which no run has a result."""
        lost = {record.method for record in self.without_result}
        return tuple(sorted({*self.families, *lost}))

    @property
    def profile(self) -> str:
        """Name and hash of the evaluation's rules; empty if nothing was evaluated."""
        return next((record.profile for record in self.records if record.epochs), "")

    @property
    def schema(self) -> BenchmarkSchema:
        """The benchmark of the records."""
        return self.table.schema

    @property
    def headline(self) -> Headline:
        """The two numbers that methods are ranked by."""
        return self.schema.headline

    @property
    def unit(self) -> Unit:
        """What the moments of evaluations are counted in: epochs, or steps in a sweep by steps."""
        return self.schema.unit

    @cached_property
    def _record_of_id(self) -> Mapping[str, Record]:
        return {record.id: record for record in self.records}

    def observed(self, row: TableRow) -> Evaluation | None:
        """Return what was observed for a row of `rows` or `attacked`, read from its file.

        Returns:
            None if nothing is stored, for example of a failed run or a line of a leaderboard.

        Raises:
            DamagedError: If the file is not as it was written.
        """
        record = self._record_of_id[row.run_id]
        if row.variant:
            return record.attacked_evaluations.get((row.epoch, row.variant))
        return record.evaluations.get(row.epoch)

    # Choices of `select` and `tune`

    @cached_property
    def selection(self) -> Mapping[str, Any] | None:
        """What `select` or `tune` has chosen: the content of `selection.json`.

        None without such a rule, and until all trials have ended. A *trial* is a run on the seeds
        of the choice.
        """
        plan = self.choice_plan
        if plan is None or plan.missing(self.records):
            return None
        if self.needs_stored_selection:
            stored = stored_choices(self.stored_selection, self.rows, self.records, plan)
            if stored:
                return stored
        return selection_of(self.rows, self.records, plan)

    @property
    def needs_stored_selection(self) -> bool:
        """Whether only the stored `selection.json` says what was chosen for which entry.

        Plans of earlier versions do not say which entries the runs of a search are of.
        """
        plan = self.choice_plan
        return plan is not None and plan.is_searched and not plan.says_why

    @cached_property
    def choices(self) -> tuple[Choice, ...]:
        """The choices of all panels; on a leaderboard, the choices that its lines state."""
        plan, selection = self.choice_plan, self.selection
        if plan is None:
            return choices_on_board(self.records)
        if selection is None:
            return no_choices_yet(self.rows, self.records, plan)
        return choices_of(selection, self.rows, self.records, plan)

    # Panels and comparisons

    @cached_property
    def panels(self) -> tuple[Panel, ...]:
        """The models and splits, with their settings, start model and best settings."""
        return panels(self.rows, self.choices, self.ends)

    @cached_property
    def valid_panels(self) -> tuple[Panel, ...]:
        """The panels whose start model has no fault."""
        return tuple(panel for panel in self.panels if not panel.start.fault)

    @cached_property
    def ends(self) -> tuple[EarlyEnd, ...]:
        """The runs that collapsed, were stopped by a search, or ran out of patience."""
        return early_ends(self.records, self.rows)

    @cached_property
    def claims(self) -> OrderConfidence:
        """The order of the methods on valid panels; reads evaluations."""
        return assess_order(self.valid_panels, self.records)

    @cached_property
    def pairs(self) -> tuple[PairTable, ...]:
        """Every two methods of a panel, for the panels of `claims`; reads evaluations."""
        rivals_of_panel = {order.panel: order.rivals for order in self.claims.panels}
        tables: list[PairTable] = []
        for panel in self.valid_panels:
            if panel.panel in rivals_of_panel:
                rivals = rivals_of_panel[panel.panel]
                tables.append(pair_table(panel, self.records, rivals))
        return tuple(tables)

    @cached_property
    def lasting(self) -> tuple[AttackedPanel, ...]:
        """The attacked settings of valid panels; reads evaluations if attacks leave rows out."""
        return attacked_panels(
            self.valid_panels,
            self.attacked,
            is_white_box,
            before=self.before,
            observed=self.observed,
            plugins=self.attack_plugins,
        )

    @cached_property
    def attack_plugins(self) -> Mapping[str, Attack]:
        """The attacks of the runs with their settings, by name, as far as they are installed."""
        plugins: dict[str, Attack] = {}
        for record in self.records:
            for document in record.spec.get("attacks", ()):
                if document["name"] in plugins:
                    continue
                with suppress(PluginError):
                    spec = AttackSpec.model_validate(document)
                    plugins[spec.name] = attack_from_spec(spec)
        return plugins

    @cached_property
    def scorers(self) -> Mapping[PanelKey, Scorer]:
        """What scores the settings of each panel; reads evaluations when a setting is scored."""
        return {
            panel.panel: Scorer(
                self.schema, panel.row("retain"), panel.row("fine-tuned"), self.observed
            )
            for panel in self.panels
        }

    @cached_property
    def conclusions(self) -> tuple[Conclusion, ...]:
        """Facts and three sentences for each panel with runs."""
        order_of_panel = {order.panel: order for order in self.claims.panels}
        attacked_of_panel = {panel.panel: panel for panel in self.lasting}
        pairs_of_panel = {table.panel: table for table in self.pairs}
        conclusions: list[Conclusion] = []
        for panel in self.panels:
            key = panel.panel
            lost = [outcome(record) for record in self.without_result if record.panel == key]
            lost.sort(key=lambda run: run.title)
            has_runs = any(row.kind == "run" for row in panel.rows)
            if not lost and not has_runs:
                continue
            conclusion = conclude(
                panel,
                order_of_panel.get(key),
                attacked_of_panel.get(key),
                lost,
                self.scorers[key],
                pairs_of_panel.get(key),
            )
            conclusions.append(conclusion)
        return tuple(conclusions)

    # What the numbers do not show

    @cached_property
    def warnings(self) -> tuple[str, ...]:
        """Lines on what the numbers do not show: of the benchmark, its metrics and its attacks."""
        doubts = [
            f"{panel.place}: {panel.start.doubt}" for panel in self.panels if panel.start.doubt
        ]
        lines = (
            self.schema.warning,
            mixed_code(self.records),
            *self.table.notes,
            *moved_choices(self.choices),
            *self._control_warnings(),
            *doubts,
            *self.unobserved(),
        )
        # Some of these are empty or None, and several records may give the same line.
        return tuple(dict.fromkeys(line for line in lines if line))

    def _control_warnings(self) -> Iterator[str]:
        """Yield a warning for each start model on which membership attacks fail.

        The start model was trained on the retain rows, so an attack that does not find them there
        says nothing about other models.
        """
        for record in self.records:
            if record.kind == "fine-tuned" and record.epochs:
                metrics = record.epochs[0].metrics
                warning = control_warning(metrics, record.model, record.forget_fraction)
                if warning:
                    yield warning

    def unobserved(self) -> Iterator[str]:
        """Yield a line for each chosen metric that reads observations which records do not have."""
        run_ids = {row.run_id for row in self.rows}
        for name, settings in named_metrics(self.config).items():
            try:
                # Only `extra` of this plan is used: the observations that the metric reads.
                plan = plan_of(TOFU, None, {name: settings})
            except PluginError:  # The metric is not installed here.
                continue
            if not plan.extra:
                continue
            columns = self.schema.plan.affected({name})
            known: set[str] = set()
            for row in self.rows:
                if any(row.metrics.get(column) is not None for column in columns):
                    known.add(row.run_id)
            unknown = run_ids - known
            if unknown:
                observations = ", ".join(sorted(plan.extra))
                yield (
                    f"{name}: not known of {len(unknown)} of {len(run_ids)} records "
                    f"({min(unknown)} for one), which lack {observations}; to make it, "
                    "delete their folders in records/ and start the sweep again, or give the sweep "
                    "another name"
                )


def stored_links(folder: Path) -> dict[str, Any]:
    """Return the addresses that a tracker stored in a sweep's folder; empty without them.

    Returns:
        `{"sweep": address, "runs": {record id: address}}`.
    """
    return _read_json(folder / LINKS_FILE)


def _read_json(path: Path) -> dict[str, Any]:
    """Read a file of the sweep's folder; empty without it, as in a folder of single runs.

    Raises:
        RecordError: If the file is damaged.
    """
    if not path.is_file():
        return {}
    try:
        content: dict[str, Any] = redact_tree(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        message = f"{path}: damaged ({error}); start the sweep again, which rewrites it"
        raise RecordError(message) from None
    return content
