"""What the views of a sweep's folder say, parsed from what the product writes.

`views_of(folder)` runs the commands that a user would, and keeps their files and output as texts.
Nothing is taken from the product's own values: a number counts as it stands in a file.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import re
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from unittest import mock

from unlearnbench.analysis.results import Results
from unlearnbench.api.attack import variant
from unlearnbench.api.observations import Evaluation
from unlearnbench.api.tracker import MetricPoint, SweepSummary, TrackedRun, TrackedSweep, Tracker
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.cli.main import main
from unlearnbench.config.entries import AttackSpec, attack_from_spec, benchmark_of
from unlearnbench.config.schema import MethodSpec
from unlearnbench.report import exported_model, sweep_tracker
from unlearnbench.results.finalize import table_of
from unlearnbench.results.records import read_records
from unlearnbench.results.rules import named_metrics
from unlearnbench.results.single import PLAIN, ModelRole, records_of

_SCRIPT = re.compile(r"<script[^>]*>.*?</script>", re.DOTALL)
_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)
_SECTION_DATA = re.compile(
    r'<script type="text/plain" id="data-([\w-]+)">(.*?)</script>', re.DOTALL
)


@dataclass
class Cell:
    """A cell of a table on the page."""

    text: str = ""
    attributes: dict[str, str] = field(default_factory=dict[str, str])
    links: list[dict[str, str]] = field(default_factory=list[dict[str, str]])
    """Attributes of buttons, and of texts with a title, in it."""
    pieces: list[tuple[bool, str]] = field(default_factory=list[tuple[bool, str]])
    """Its texts, and whether each is in small letters."""

    @property
    def value(self) -> float | None:
        """The number that the cell is sorted by."""
        text = self.attributes.get("data-value", "")
        return float(text) if text else None


@dataclass
class Row:
    """A row of a table on the page."""

    attributes: dict[str, str] = field(default_factory=dict[str, str])
    cells: list[Cell] = field(default_factory=list[Cell])


@dataclass
class Table:
    """A table on the page."""

    section: str
    place: str
    """Number of its panel; empty if rows name their own."""
    attributes: dict[str, str]
    titles: list[str] = field(default_factory=list[str])
    rows: list[Row] = field(default_factory=list[Row])

    def lines(self) -> Iterator[tuple[Row, dict[str, Cell]]]:
        """Yield each row with its cells by title; cells that span several columns are left out."""
        for row in self.rows:
            yield row, dict(zip(self.titles, row.cells, strict=False))


class _Page(HTMLParser):
    """Collects the tables of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.tables: list[Table] = []
        self._section = ""
        self._places: list[str] = []
        self._table: Table | None = None
        self._cell: Cell | None = None
        self._in_head = False
        self._is_small = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {name: value or "" for name, value in attrs}
        if tag == "section":
            self._section = attributes.get("id", "")
        elif tag == "div":
            self._places.append(attributes.get("data-place", ""))
        elif tag == "table":
            place = next((place for place in reversed(self._places) if place), "")
            self._table = Table(self._section, place, attributes)
            self.tables.append(self._table)
        elif tag == "thead":
            self._in_head = True
        elif tag == "tr" and self._table is not None and not self._in_head:
            self._table.rows.append(Row(attributes))
        elif tag in ("th", "td") and self._table is not None:
            self._cell = Cell(attributes=attributes)
            if not self._in_head:
                self._table.rows[-1].cells.append(self._cell)
        elif tag in ("button", "span") and self._cell is not None:
            self._cell.links.append(attributes)
        elif tag == "small":
            self._is_small = True

    def handle_endtag(self, tag: str) -> None:
        if tag == "div" and self._places:
            self._places.pop()
        elif tag == "table":
            self._table = None
        elif tag == "thead":
            self._in_head = False
        elif tag == "small":
            self._is_small = False
        elif tag in ("th", "td") and self._cell is not None:
            self._cell.text = " ".join(self._cell.text.split())
            if self._in_head and self._table is not None:
                self._table.titles.append(self._cell.text)
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self._cell.text += data
            if data.strip():
                self._cell.pieces.append((self._is_small, data.strip()))


@dataclass(frozen=True)
class Page:
    """The page of a folder."""

    data: Mapping[str, Any]
    """Values that its scripts read."""
    sections: Mapping[str, Any]
    """Further values by section."""
    tables: Sequence[Table]

    @classmethod
    def read(cls, text: str) -> Page:
        """Parse a page."""
        found = _DATA.search(text)
        assert found is not None, "the page has no data"
        sections = {
            name: json.loads(zlib.decompress(base64.b64decode(packed), -zlib.MAX_WBITS))
            for name, packed in _SECTION_DATA.findall(text)
            if name in ("best", "scorecard")
        }
        parser = _Page()
        parser.feed(_SCRIPT.sub("", text))
        return cls(json.loads(found[1]), sections, parser.tables)


class CollectingTracker(Tracker):
    """Keeps what is logged."""

    runs: dict[str, TrackedRun]

    def start(self, sweep: TrackedSweep) -> None:  # noqa: ARG002
        self.runs = {}

    def has(self, *_: object) -> bool:
        return False

    def log(self, run: TrackedRun, *_: object, **__: object) -> bool:
        self.runs[run.id] = run
        return True

    def artefact(self, file: Path) -> None: ...

    def link(self, run: str | None = None) -> str | None:  # noqa: ARG002
        return None

    def finish(self, status: Any) -> None: ...


@dataclass(frozen=True)
class Exported:
    """What `export` takes of a method without being told an epoch."""

    run: str
    epoch: int


@dataclass(frozen=True)
class Views:
    """Everything that the product writes about a folder."""

    results: list[dict[str, str]]
    """Lines of `results.csv`."""
    attacks: list[dict[str, str]]
    selection: Mapping[str, Any] | None
    tuning: list[dict[str, str]]
    conclusion: Mapping[str, Any]
    page: Page | None
    best_csv: list[dict[str, str]]
    """`report --table csv`."""
    best_markdown: str
    scorecard: str
    """`report --latex`; empty without one."""
    board: list[Mapping[str, Any]]
    """Lines of `leaderboard export`."""
    shown_board: str
    """`leaderboard show`."""
    tracked: Mapping[str, Sequence[MetricPoint]]
    exported: Mapping[str, Exported | str]
    """By method; the reason where there is no default."""
    compared: Mapping[tuple[str, str, str], Mapping[str, Any] | str]
    """`compare --json` by the two methods and the variant; the error where there is one."""
    single: Mapping[tuple[str, int, str, str], float | None]
    """Numbers of one run, its retain model and its start model as `score` and `attack` compute
    them, by the id of the record that each is read from, epoch, variant and column."""
    errors: Mapping[str, str]
    """Messages of commands that ended with an error."""
    plan: Mapping[str, Any]
    """Content of `plan.json`."""


def run(*arguments: str) -> tuple[int, str, str]:
    """Run a command; returns its exit code, output and messages."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    return code, out.getvalue(), err.getvalue()


@contextlib.contextmanager
def read_once() -> Generator[None, None, None]:
    """Let commands share the results of a folder, which are frozen: reading takes most time."""
    read = Results.read
    known: dict[str, Results] = {}

    def cached(folder: str | Path) -> Results:
        if str(folder) not in known:
            known[str(folder)] = read(folder)
        return known[str(folder)]

    with mock.patch.object(Results, "read", cached):
        yield


@dataclass(frozen=True)
class Questions:
    """What is asked about a folder besides its own files."""

    methods: Sequence[str]
    """Methods that are exported."""
    pairs: Sequence[tuple[str, str]] = ()
    """Methods that are compared."""
    variants: Sequence[str] = ()
    """Variants under which they are compared, too."""

    @classmethod
    def of(cls, plan: Mapping[str, Any]) -> Questions:
        """Ask about every method of a plan, compare two, and do that under one attack as well."""
        runs = [run["spec"] for run in plan["runs"]]
        methods = sorted({MethodSpec.model_validate(run["method"]).label for run in runs})
        pairs = [(methods[0], methods[1])] if len(methods) > 1 else []
        attacks = [attack_from_spec(spec) for spec in _attacks_of(plan)]
        variants = [
            variant(spec.name, attack.points()[-1])
            for spec, attack in zip(_attacks_of(plan), attacks, strict=True)
        ]
        return cls(methods, pairs, variants[:1])


def _attacks_of(plan: Mapping[str, Any]) -> list[AttackSpec]:
    return [AttackSpec.model_validate(spec) for spec in plan["config"]["attacks"]]


def views_of(folder: Path, *, with_page: bool = True) -> Views:
    """Write all views of a folder, and read them.

    Args:
        folder: Of the sweep. Files are written into it.
        with_page: Whether the page is parsed.
    """
    errors: dict[str, str] = {}

    def output(name: str, *arguments: str) -> str:
        code, out, err = run(*arguments)
        if code == 2:
            errors[name] = err.strip()
            return ""
        return out

    output("report", "report", str(folder))
    plan = _json(folder / "plan.json")
    with read_once():
        return _views(folder, plan, output, errors, with_page=with_page)


def _views(
    folder: Path,
    plan: Mapping[str, Any],
    output: Callable[..., str],
    errors: Mapping[str, str],
    *,
    with_page: bool,
) -> Views:
    questions = Questions.of(plan)
    board_file = folder / "board.jsonl"
    output("leaderboard export", "leaderboard", "export", str(folder), "--out", str(board_file))
    shown = ""
    board: list[Mapping[str, Any]] = []
    if board_file.is_file():
        lines = board_file.read_text(encoding="utf-8").splitlines()
        board = [json.loads(line) for line in lines]
        shown = output("leaderboard show", "leaderboard", "show", str(board_file))
    best = {
        kind: output(f"report --table {kind}", "report", str(folder), "--table", kind)
        for kind in ("csv", "markdown")
    }
    scorecard = folder / "scorecard.tex"
    output("report --latex", "report", str(folder), "--latex", str(scorecard))
    selection = folder / "selection.json"
    page_file = folder / "report.html"
    page = None
    if with_page and page_file.is_file():
        page = Page.read(page_file.read_text(encoding="utf-8"))
    return Views(
        results=_csv(folder / "results.csv"),
        attacks=_csv(folder / "attacks.csv"),
        selection=json.loads(selection.read_text("utf-8")) if selection.is_file() else None,
        tuning=_csv(folder / "tuning.csv"),
        conclusion=_json(folder / "conclusion.json"),
        page=page,
        best_csv=[*csv.DictReader(io.StringIO(best["csv"]))],
        best_markdown=best["markdown"],
        scorecard=scorecard.read_text("utf-8") if scorecard.is_file() else "",
        board=board,
        shown_board=shown,
        tracked=_tracked(folder),
        exported={method: _exported(folder, method) for method in questions.methods},
        compared=dict(_compared(folder, questions)),
        single=_single(folder, plan),
        errors=errors,
        plan=plan,
    )


def _csv(file: Path) -> list[dict[str, str]]:
    if not file.is_file():
        return []
    with file.open(encoding="utf-8", newline="") as lines:
        return [*csv.DictReader(lines)]


def _json(file: Path) -> Mapping[str, Any]:
    read: Mapping[str, Any] = json.loads(file.read_text("utf-8")) if file.is_file() else {}
    return read


def _tracked(folder: Path) -> dict[str, Sequence[MetricPoint]]:
    """What MLflow would get."""
    collected: list[CollectingTracker] = []

    def tracker() -> CollectingTracker:
        collected.append(CollectingTracker())
        return collected[-1]

    def load(*_: object) -> Any:
        return tracker

    # The summary has the numbers of the page, which are read there. A planted fault may leave it
    # without numbers, and the runs are compared all the same.
    with (
        mock.patch.object(sweep_tracker, "load", load),
        mock.patch.object(sweep_tracker, "summary_of", return_value=SweepSummary("", {}, {})),
    ):
        sweep_tracker.replay(folder)
    return {id_: made.points for id_, made in collected[-1].runs.items()}


def _exported(folder: Path, method: str) -> Exported | str:
    try:
        choice = exported_model.choose(folder, method)
    except UnlearnbenchError as error:
        return str(error)
    return Exported(choice.record.id, choice.row.epoch)


def _compared(
    folder: Path, questions: Questions
) -> Iterator[tuple[tuple[str, str, str], Mapping[str, Any] | str]]:
    for a, b in questions.pairs:
        for name in ("", *questions.variants):
            under = ("--under", name) if name else ()
            code, out, err = run("compare", a, b, "--in", str(folder), "--json", *under)
            yield (a, b, name), err.strip() if code else json.loads(out)


def _single(folder: Path, plan: Mapping[str, Any]) -> dict[tuple[str, int, str, str], float | None]:
    """Judge the first run with evaluations as one model, beside its retain and start model."""
    records = read_records(folder)
    planned = {planned_run["id"] for planned_run in plan["runs"]}
    runs = [r for r in records if r.id in planned and r.status == "finished" and r.evaluations]
    if not runs:
        return {}
    run = runs[0]
    epoch = max(run.evaluations)
    models: dict[ModelRole, dict[str, Evaluation]] = {}
    sources: dict[tuple[str, str], tuple[str, int]] = {}
    for record in records:
        role = next(role for role in ModelRole if role.kind == record.kind)
        if record.panel != run.panel or (record.kind == "run" and record is not run):
            continue
        at = epoch if record.kind == "run" else 0
        if at in record.evaluations:
            models.setdefault(role, {})[PLAIN] = record.evaluations[at]
            sources[role.value, PLAIN] = record.id, at
        for of_epoch, name in record.attacked_evaluations:
            if of_epoch == at:
                evaluation = record.attacked_evaluations[of_epoch, name]
                models.setdefault(role, {})[name] = evaluation
                sources[role.value, name] = record.id, at
    benchmark = benchmark_of(plan["config"]["data"], stored=True)
    made = records_of(models, benchmark, run.forget_fraction)
    table = table_of(made, named_metrics(plan["config"]))
    return {
        (*sources[row.run_id, row.variant], row.variant, column): value
        for row in (*table.rows, *table.attacked)
        for column, value in row.metrics.items()
    }
