"""The comparison of what views say with what an independent recomputation claims.

`disagreements(views, claims)` goes through every view. A view that shows a number rounds it, so the
number has to be the claimed one in as many digits as are shown. A disagreement names the view, the
place, and both values.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tests.numbers.oracle.written_views import Cell, Exported, Page, Row, Table, Views
from tests.oracle.claims import (
    BoardLineClaim,
    Bounds,
    Claims,
    EntryClaim,
    LastingClaim,
    MeanClaim,
    PanelClaim,
    SettingClaim,
)
from tests.oracle.comparison import Comparison
from unlearnbench.api.registry import load

EXACT = 1e-9
"""Relative difference of numbers that are written in full."""
_NUMBER = re.compile(r"[-\u2212]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")
_SCORES = {
    "Forgotten": "forgotten",
    "Removed": "removed",
    "Private": "private",
    "Kept": "kept",
}


@dataclass(frozen=True)
class Disagreement:
    """A view that says something else than the recomputation."""

    view: str
    place: str
    said: object
    claimed: object

    def __str__(self) -> str:
        return f"{self.view}: {self.place}: says {self.said!r}, recomputed {self.claimed!r}"


Found = Iterator[Disagreement]


def same(said: float | None, claimed: float | None, digits: int | None = None) -> bool:
    """Whether a shown number is the claimed one.

    Args:
        said: As shown.
        claimed: As recomputed.
        digits: Decimal places that are shown; None for all.
    """
    if said is None or claimed is None:
        return said is claimed
    if not math.isfinite(said) or not math.isfinite(claimed):
        return said == claimed
    if digits is None:
        return math.isclose(said, claimed, rel_tol=EXACT, abs_tol=EXACT)
    return abs(said - claimed) <= 0.5001 * 10.0**-digits + EXACT * abs(claimed)


def as_shown(text: str) -> tuple[float | None, int]:
    """Return the number of a text and its decimal places."""
    found = _NUMBER.search(text)
    if found is None:
        return None, 0
    number = found[0].replace("\u2212", "-")
    digits = len(number.partition("e")[0].partition(".")[2]) if "." in number else 0
    return float(number), digits


def family_of(label: str) -> str:
    """`npo+nll` of `npo+nll (beta=0.1)`."""
    return label.partition(" (")[0]


def disagreements(views: Views, claims: Claims) -> list[Disagreement]:
    """Return everything that a view says and the recomputation does not, or the other way round."""
    found: list[Disagreement] = []
    found += _errors(views, claims)
    found += _rows("results.csv", views.results, claims, attacked=False)
    found += _rows("attacks.csv", views.attacks, claims, attacked=True)
    found += _best_csv(views, claims)
    found += _markdown("report --table markdown", views.best_markdown, claims)
    found += _scorecard_latex(views, claims)
    found += _selection(views, claims)
    found += _tuning(views, claims)
    found += _conclusion(views, claims)
    found += _board(views, claims)
    found += _shown_board(views, claims)
    found += _tracked(views, claims)
    found += _exported(views, claims)
    found += _compared(views, claims)
    found += _single(views, claims)
    if views.page is not None:
        found += _page(views.page, claims, views.plan)
    return found


_EXPECTED = ("so there is no best setting to print",)
"""Parts of messages of commands that have nothing to show."""


def _errors(views: Views, claims: Claims) -> Found:
    for command, message in views.errors.items():
        has_nothing_to_show = command == "report --latex" and not _has_scores(claims)
        if not has_nothing_to_show and not any(part in message for part in _EXPECTED):
            yield Disagreement(command, "error", message, None)


def _has_scores(claims: Claims) -> bool:
    """Whether a scorecard would have a score of a method.

    One that has only Lasting, or only scores of the start and retain models, may be left out.
    """
    for panel in claims.panels:
        for entry in panel.entries:
            numbers = [_mean(entry.shown, column).mean for column in _SCORES.values()]
            if any(number is not None for number in numbers):
                return True
    return False


# Tables of runs


def moment_of(line: Mapping[str, Any]) -> str:
    """Return the name of the column that says after which epoch, or step, a model was evaluated.

    A table has one of the two.
    """
    (name,) = line.keys() & {"epoch", "step", "Epoch", "Step"}
    return name


def _rows(
    view: str, lines: Sequence[Mapping[str, str]], claims: Claims, *, attacked: bool
) -> Found:
    """Compare every number of a table of runs."""
    fixed = {
        *("method", "model", "forget_fraction", "learning_rate", "seed", "variant"),
        *("epoch", "step"),
        *("kind", "status", "run_id", "hyperparameters"),
    }
    seen: set[tuple[str, int, str]] = set()
    expected: dict[tuple[str, int, str], dict[str, float | None]] = {}
    for (run, epoch, variant, column), value in claims.numbers.items():
        if bool(variant) is attacked:
            expected.setdefault((run, epoch, variant), {})[column] = value
    for line in lines:
        key = line["run_id"], int(line[moment_of(line)]), line.get("variant", "")
        seen.add(key)
        if key not in expected:
            yield Disagreement(view, f"row {key}", "a row", None)
            continue
        numbers = {name: text for name, text in line.items() if name not in fixed}
        for column in numbers.keys() | expected[key].keys():
            text = numbers.get(column, "")
            said = float(text) if text else None
            claimed = expected[key].get(column)
            if claimed is not None and not math.isfinite(claimed):
                claimed = None
            if not same(said, claimed):
                place = f"{line['kind']} {line['method']}, {key}, {column}"
                yield Disagreement(view, place, said, claimed)
    for key in expected.keys() - seen:
        yield Disagreement(view, f"row {key}", None, "a row")


# Best settings


@dataclass(frozen=True)
class _Line:
    """A method in a table of best settings."""

    model: str
    split: str
    family: str
    rate: float | None = None
    epoch: int | None = None
    seeds: tuple[int, ...] = ()
    forgotten: float | None = None
    kept: float | None = None
    forgotten_ends: Bounds | None = None
    kept_ends: Bounds | None = None
    tied: tuple[tuple[float | None, int], ...] = ()
    """Rates and epochs of other settings that are exactly as good. No rule says which is shown."""


def _mean(setting: SettingClaim | None, column: str) -> MeanClaim:
    nothing = MeanClaim(None, None)
    return nothing if setting is None else setting.means.get(column, nothing)


def _lines(panel: PanelClaim) -> list[_Line]:
    """Return what a table of best settings has to show of a panel, in its order."""
    lines: list[_Line] = []
    for entry in panel.entries:
        shown = entry.shown
        first = (panel.model, str(panel.split), entry.method)
        if shown is None or not shown.runs:
            lines.append(_Line(*first))
            continue
        forgotten, kept = _mean(shown, panel.forgotten), _mean(shown, panel.kept)
        lines.append(
            _Line(
                *first,
                rate=shown.learning_rate,
                epoch=shown.epoch,
                seeds=shown.seeds,
                forgotten=forgotten.mean,
                kept=kept.mean,
                forgotten_ends=forgotten.interval,
                kept_ends=kept.interval,
                tied=tuple(
                    (setting.learning_rate, setting.epoch)
                    for setting in panel.settings
                    if setting.key in entry.tied
                ),
            )
        )
    return lines


def _best_csv(views: Views, claims: Claims) -> Found:
    view = "report --table csv"
    said: dict[tuple[str, str], list[_Line]] = {}
    for line in views.best_csv:
        panel = next(
            (
                p
                for p in claims.panels
                if (p.model, str(p.split)) == (line["model"], line["forget_fraction"])
            ),
            None,
        )
        if panel is None:
            yield Disagreement(view, f"{line['model']}, {line['forget_fraction']}", line, None)
            continue

        def number(name: str, line: Mapping[str, str] = line) -> float | None:
            text = line.get(name) or ""
            return float(text) if text else None

        def ends(name: str, line: Mapping[str, str] = line) -> Bounds | None:
            low, high = number(f"{name}_low", line), number(f"{name}_high", line)
            return None if low is None or high is None else (low, high)

        epoch = number(moment_of(line))
        said.setdefault((panel.model, str(panel.split)), []).append(
            _Line(
                panel.model,
                str(panel.split),
                family_of(line["method"]),
                number("learning_rate"),
                None if epoch is None else int(epoch),
                tuple(map(int, (line.get("seeds") or "").split())),
                number(panel.forgotten),
                number(panel.kept),
                ends(panel.forgotten),
                ends(panel.kept),
            )
        )
    for panel in claims.panels:
        yield from _compare_lines(
            view, said.get((panel.model, str(panel.split)), []), _lines(panel), None
        )


def _compare_lines(
    view: str,
    said: Sequence[_Line],
    claimed: Sequence[_Line],
    digits: tuple[int, int] | None,
    *,
    counts_seeds: bool = False,
) -> Found:
    """Compare the lines of a panel, in their order.

    Args:
        view: Name of the view.
        said: Its lines.
        claimed: What they should be.
        digits: Decimal places of what is forgotten and of what is kept; None for all.
        counts_seeds: Whether the view only shows how many seeds there are.
    """
    # Methods without numbers may be missing in a view.
    families = [line.family for line in claimed if line.forgotten is not None]
    said_families = [line.family for line in said if line.forgotten is not None]
    if families != said_families:
        yield Disagreement(view, "methods with numbers, in order", said_families, families)
    waiting = list(claimed)
    for line in said:
        match = _closest(line, waiting)
        if match is None:
            if line.forgotten is not None:  # a method of which no run was evaluated has a line
                place = f"{line.model}, {line.split}, {line.family}"
                yield Disagreement(view, place, "a line", None)
            continue
        waiting.remove(match)
        place = f"{line.model}, {line.split}, {line.family}"
        is_tied = any(
            _rate("" if rate is None else f"{rate:g}") == line.rate and epoch == line.epoch
            for rate, epoch in match.tied
        )
        for name in ("rate", "epoch"):
            if getattr(line, name) != getattr(match, name) and not is_tied:
                yield Disagreement(
                    view, f"{place}, {name}", getattr(line, name), getattr(match, name)
                )
        seeds: object = len(match.seeds) if counts_seeds else match.seeds
        said_seeds: object = len(line.seeds) if counts_seeds else line.seeds
        if said_seeds != seeds:
            yield Disagreement(view, f"{place}, seeds", said_seeds, seeds)
        places = (None, None) if digits is None else digits
        for name, shown in zip(("forgotten", "kept"), places, strict=True):
            if not same(getattr(line, name), getattr(match, name), shown):
                yield Disagreement(
                    view, f"{place}, {name}", getattr(line, name), getattr(match, name)
                )
            ends, expected = getattr(line, f"{name}_ends"), getattr(match, f"{name}_ends")
            agree = (ends is None) == (expected is None) and (
                ends is None or all(same(a, b, shown) for a, b in zip(ends, expected, strict=True))
            )
            if not agree:
                yield Disagreement(view, f"{place}, interval of {name}", ends, expected)


def _closest(line: _Line, waiting: Sequence[_Line]) -> _Line | None:
    """Return the claimed line of a method; of several entries the one with the same setting."""
    of_family = [other for other in waiting if other.family == line.family]
    for other in of_family:
        if (other.rate, other.epoch, other.kept) == (line.rate, line.epoch, line.kept):
            return other
    for other in of_family:
        if (other.rate, other.epoch) == (line.rate, line.epoch):
            return other
    return of_family[0] if of_family else None


def _ends_of(text: str) -> Bounds | None:
    _, bracket, rest = text.partition("[")
    if not bracket:
        return None
    low, high = rest.rstrip("] ").split(",")[:2]
    first, second = as_shown(low)[0], as_shown(high)[0]
    return None if first is None or second is None else (first, second)


def _markdown(
    view: str, text: str, claims: Claims, of: Sequence[PanelClaim] | None = None
) -> Found:
    """Compare a table in Markdown, whose columns are named by labels."""
    panels = claims.panels if of is None else of
    lines = [line for line in text.splitlines() if line.startswith("|")]
    if len(lines) < 2:
        return
    titles = [cell.strip() for cell in lines[0].strip("|").split("|")]
    by_place: dict[tuple[str, str], list[_Line]] = {}
    digits = (2, 3)
    for line in lines[2:]:
        values = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        cells = dict(zip(titles, values, strict=True))
        panel = _panel_of(cells, panels, text)
        if panel is None:
            yield Disagreement(view, "a line", line, None)
            continue
        place = titles.index("Learning rate")
        forgotten, kept = values[place - 2], values[place - 1]
        if cells["Method"] in REFERENCES:
            yield from _reference(view, panel, cells["Method"], forgotten, kept)
            continue
        said_forgotten, forgotten_digits = as_shown(forgotten)
        said_kept, kept_digits = as_shown(kept)
        if said_forgotten is not None:
            digits = forgotten_digits, kept_digits
        count = int(cells["Seeds"] or 0)
        by_place.setdefault((panel.model, str(panel.split)), []).append(
            _Line(
                panel.model,
                str(panel.split),
                family_of(cells["Method"]),
                _rate(cells["Learning rate"]),
                int(cells[moment_of(cells)]) if cells[moment_of(cells)] else None,
                tuple(range(count)),
                said_forgotten,
                said_kept,
                _ends_of(forgotten),
                _ends_of(kept),
            )
        )
    for panel in panels:
        claimed = [_shortened_rate(line) for line in _lines(panel)]
        said = by_place.get((panel.model, str(panel.split)), [])
        yield from _compare_lines(view, said, claimed, digits, counts_seeds=True)


REFERENCES = ("retain model", "start model")
"""Names of lines that are no methods."""


def _reference(view: str, panel: PanelClaim, name: str, forgotten: str, kept: str) -> Found:
    """Compare the line of the retain model or the start model in a table of best settings."""
    numbers = panel.retain if name == "retain model" else panel.start
    for text, column in ((forgotten, panel.forgotten), (kept, panel.kept)):
        said, digits = as_shown(text)
        if not same(said, numbers.get(column), digits):
            place = f"{_label(panel)}, {name}, {column}"
            yield Disagreement(view, place, said, numbers.get(column))


def _rate(text: str) -> float | None:
    return float(text) if text and text not in ("-", "\u2013") else None


def _shortened_rate(line: _Line) -> _Line:
    """The line with the rate in as many digits as views show."""
    if line.rate is None:
        return line
    return replace(line, rate=float(f"{line.rate:g}"))


def _panel_of(
    cells: Mapping[str, str], panels: Sequence[PanelClaim], text: str
) -> PanelClaim | None:
    """The panel of a line.

    Columns of model and split are left out if there is one of them, which the caption names then.
    """
    for panel in panels:
        is_named = "Model" in cells or "Forget" in cells or f"{_label(panel)}." in text
        if not is_named:
            continue
        split = panel.split
        text = split if isinstance(split, str) else f"forget {100 * split:g} %"
        if cells.get("Model", panel.model) == panel.model and cells.get("Forget", text) == text:
            return panel
    return None


# Scorecards


def _expected_scores(entry: EntryClaim) -> dict[str, tuple[float | None, Bounds | None]]:
    scores: dict[str, tuple[float | None, Bounds | None]] = {}
    for title, column in _SCORES.items():
        mean = _mean(entry.shown, column)
        scores[title] = mean.mean, mean.interval
    lasting = entry.lasting
    scores["Lasting"] = (None, None) if lasting is None else (lasting.score, lasting.interval)
    return scores


def _scorecard_latex(views: Views, claims: Claims) -> Found:
    view = "report --latex"
    tables = re.findall(r"\\begin\{table\}.*?\\end\{table\}", views.scorecard, re.DOTALL)
    for table in tables:
        body = table.partition(r"\toprule")[2].partition(r"\bottomrule")[0]
        lines = [line for line in body.splitlines() if "&" in line]
        rows = [[cell.strip() for cell in line.removesuffix(r"\\").split(" & ")] for line in lines]
        titles = [title.strip() for title in rows[0]]
        caption = re.search(r"\\caption\{(.*)\}", table)
        panel = next(
            (p for p in claims.panels if caption and _label(p) in caption[1].replace("\\", "")),
            None,
        )
        if panel is None:
            yield Disagreement(view, "a table", caption and caption[1], None)
            continue
        waiting = list(panel.entries)
        for row in rows[1:]:
            cells = dict(zip(titles, row, strict=False))
            name = row[0].replace("\\", "")
            if name in ("retain model", "start model"):
                numbers = panel.retain if name == "retain model" else panel.start
                for title, column in _SCORES.items():
                    if title in cells:
                        said, digits = as_shown(cells[title])
                        if not same(said, numbers.get(column), digits):
                            yield Disagreement(view, f"{name}, {title}", said, numbers.get(column))
                continue
            entry = next((e for e in waiting if e.method == family_of(name)), None)
            if entry is None:
                if any(_latex_number(cell)[0] is not None for cell in row[1:]):
                    yield Disagreement(view, f"{_label(panel)}, {name}", "a line", None)
                continue
            waiting.remove(entry)
            for title, (mean, ends) in _expected_scores(entry).items():
                if title not in cells:
                    if title == "Lasting" and mean is not None:
                        yield Disagreement(view, f"{_label(panel)}, {name}, {title}", None, mean)
                    continue
                said, digits = _latex_number(cells[title])
                if not same(said, mean, digits):
                    yield Disagreement(view, f"{_label(panel)}, {name}, {title}", said, mean)
                    continue
                # The interval of lasting is over questions if there is one seed.
                is_over_seeds = title != "Lasting" or _reporting_seeds(entry) > 1
                said_ends = _ends_of(cells[title].replace("$^\\dagger$", ""))
                if said is not None and is_over_seeds and not _same_ends(said_ends, ends, digits):
                    place = f"{_label(panel)}, {name}, interval of {title}"
                    yield Disagreement(view, place, cells[title], ends)


def _seeds(entry: EntryClaim) -> tuple[int, ...]:
    return () if entry.shown is None else entry.shown.seeds


def _reporting_seeds(entry: EntryClaim) -> int:
    """Count the seeds that Lasting is of. Under a search, other seeds have chosen the attacker."""
    lasting = entry.lasting
    chosen = None if lasting is None else lasting.attackers.get(lasting.variant or "")
    return len(_seeds(entry)) if chosen is None else len(chosen.reporting)


def _latex_number(cell: str) -> tuple[float | None, int]:
    if cell.startswith("--"):
        return None, 2
    return as_shown(cell.replace(r"\textbf{", "").replace("}", ""))


def _same_ends(said: Bounds | None, claimed: Bounds | None, digits: int | None) -> bool:
    if said is None or claimed is None:
        return said is claimed
    return all(same(a, b, digits) for a, b in zip(said, claimed, strict=True))


def _label(panel: PanelClaim) -> str:
    split = panel.split
    text = split if isinstance(split, str) else f"forget {100 * split:g} %"
    return f"{panel.model}, {text}"


# Choices


def _selection(views: Views, claims: Claims) -> Found:
    view = "selection.json"
    choices = [] if views.selection is None else views.selection["choices"]
    waiting = [
        (panel, entry)
        for panel in claims.panels
        for entry in panel.entries
        if entry.chosen is not None
    ]
    for choice in choices:
        place = (
            f"{choice['model']}, {choice['forget_fraction']}, "
            f"{choice.get('entry') or choice['method']}"
        )
        match = next(
            (
                (panel, entry)
                for panel, entry in waiting
                if (panel.model, panel.split) == (choice["model"], choice["forget_fraction"])
                and entry.method == choice["method"]
                and entry.entry in (choice.get("entry"), choice["method"])
            ),
            None,
        )
        if match is None:
            if choice["runs"]:
                yield Disagreement(view, place, f"chose {choice['setting']}", None)
            continue
        waiting.remove(match)
        panel, entry = match
        chosen, shown = entry.chosen, entry.reported
        assert chosen is not None
        if choice["epoch"] != chosen.epoch or not set(chosen.runs) <= set(choice["runs"]):
            yield Disagreement(
                view,
                f"{place}, choice",
                (choice["epoch"], sorted(choice["runs"])),
                (chosen.epoch, sorted(chosen.runs)),
            )
        if entry.candidates and choice["candidates"] != entry.candidates:
            yield Disagreement(view, f"{place}, candidates", choice["candidates"], entry.candidates)
        for column in (panel.kept, panel.forgotten):
            if not same(choice[column], _mean(chosen, column).mean):
                yield Disagreement(
                    view, f"{place}, {column}", choice[column], _mean(chosen, column).mean
                )
            reported = choice["reported"][column]["mean"]
            # The file states what was reported also if the start model shows nothing.
            if not same(reported, _mean(shown, column).mean):
                yield Disagreement(
                    view, f"{place}, reported {column}", reported, _mean(shown, column).mean
                )
        seeds = () if shown is None else shown.seeds
        says_other_seeds = tuple(choice["reported"]["seeds"]) != tuple(sorted(seeds))
        if says_other_seeds:
            yield Disagreement(view, f"{place}, seeds", choice["reported"]["seeds"], seeds)
    if views.selection is not None:
        for panel, entry in waiting:
            yield Disagreement(view, f"{_label(panel)}, {entry.entry}", None, entry.chosen)


def _tuning(views: Views, claims: Claims) -> Found:
    view = "tuning.csv"
    for line in views.tuning:
        for panel in claims.panels:
            if (panel.model, str(panel.split)) != (line["model"], line["forget_fraction"]):
                continue
            entry = next(
                (
                    e
                    for e in panel.entries
                    if e.method == line["method"] and e.entry in (line["entry"], line["method"])
                ),
                None,
            )
            if entry is None:
                yield Disagreement(view, line["entry"], "a line", None)
                continue
            for column in (panel.kept, panel.forgotten):
                text = line[f"reported_{column}_mean"]
                said = float(text) if text else None
                claimed = _mean(entry.reported, column).mean
                if not same(said, claimed):
                    yield Disagreement(view, f"{line['entry']}, {column}", said, claimed)


# Sentences


def _conclusion(views: Views, claims: Claims) -> Found:
    """Every claimed number of a sentence has to stand in it."""
    view = "conclusion.json"
    said = {(p["model"], p["split"]): p for p in views.conclusion.get("panels", ())}
    for panel in claims.panels:
        sentences = said.get((panel.model, panel.split))
        if sentences is None:
            if any(panel.sentences.values()):
                yield Disagreement(view, _label(panel), None, dict(panel.sentences))
            continue
        for name, numbers in panel.sentences.items():
            text = sentences[name]
            shown = list(_SHOWN.finditer(text))
            for number in numbers:
                if number == 1 and "one seed" in text:
                    continue
                if not any(_reads_as(found, number) for found in shown):
                    yield Disagreement(view, f"{_label(panel)}, {name}", text, number)


_SHOWN = re.compile(
    r"(?P<digits>\d+(?:\.(?P<decimals>\d+))?)(?:e(?P<exponent>[-+]?\d+))?"
    r"(?P<of>(?=\s?%|,\s[-\u2212]?[\d.]+\s%))?"
)
"""A number in a sentence, without its sign. Per cent may stand behind the second of two ends."""


def _reads_as(found: re.Match[str], number: float) -> bool:
    """Whether a number in a sentence is a claimed one, in as many digits as are shown."""
    exponent = int(found["exponent"] or 0)
    decimals = len(found["decimals"] or "")
    said = float(found["digits"]) * 10.0**exponent
    is_count = not decimals and not exponent and found["of"] is None
    if is_count:
        # A p-value is shown in two digits, but "p = 1" stands for all from 0.995.
        is_largest_p = said == 1 and 0.995 <= abs(number) <= 1
        # By the digits alone, "1 step" would be any number from 0.5 to 1.5.
        return is_largest_p or math.isclose(said, abs(number))
    return same(said, abs(number), decimals - exponent)


# The page


def _page(page: Page, claims: Claims, plan: Mapping[str, Any]) -> Found:
    yield from _page_rows(page, claims)
    yield from _page_points(page, claims)
    places = [(panel["model"], panel["fraction"]) for panel in page.data["panels"]]
    by_place = {
        index: next((p for p in claims.panels if p.panel == place), None)
        for index, place in enumerate(map(tuple, places))
    }
    best = [table for table in page.tables if table.attributes.get("id") == "table-declared"]
    if not best:
        best = [table for table in page.tables if table.attributes.get("id") == "table-best"]
    for table in best:
        yield from _page_best(table, by_place)
    for table in page.tables:
        classes = table.attributes.get("class", "").split()
        if "scorecard" in classes:
            yield from _page_scorecard(table, by_place)
        if "lasting" in classes:
            yield from _page_lasting(table, by_place, claims, plan)


def _page_rows(page: Page, claims: Claims) -> Found:
    view = "page: rows of the data"
    names = page.data["columns"]
    for row in page.data["rows"]:
        values = dict(zip(names, row, strict=True))
        for column in page.data["metrics"].keys() & values.keys():
            claimed = claims.numbers.get((values["run_id"], values["epoch"], "", column))
            said = values[column]
            agree = same(said, claimed) or (
                said is not None
                and claimed is not None
                and math.isclose(said, claimed, rel_tol=1e-5, abs_tol=1e-9)
            )
            if not agree:
                place = f"{values['method']}, {values['run_id']}, epoch {values['epoch']}, {column}"
                yield Disagreement(view, place, said, claimed)


def _page_points(page: Page, claims: Claims) -> Found:
    """Compare the points of the trade-off: each is a setting after an epoch."""
    view = "page: trade-off"
    of_lines: dict[tuple[str, int], tuple[PanelClaim, SettingClaim]] = {}
    of_rings: dict[tuple[str, int], tuple[PanelClaim, SettingClaim]] = {}
    for panel in claims.panels:
        for setting in panel.settings:
            for run in setting.runs:
                of_lines[run, setting.epoch] = panel, setting
        for entry in panel.entries:
            shown = entry.shown
            if shown is not None:
                of_rings |= {(run, shown.epoch): (panel, shown) for run in shown.runs}
    for panel_data in page.data["panels"]:
        for trace in panel_data["figure"]["data"]:
            is_ring = str(trace.get("name", "")).startswith("best: ")
            by_run = of_rings if is_ring else of_lines
            keys = trace.get("customdata") or []
            for key, x, y in zip(keys, trace.get("x", ()), trace.get("y", ()), strict=False):
                if not isinstance(key, list) or len(key) < 2 or (key[1], key[0]) not in by_run:
                    continue
                panel, setting = by_run[key[1], key[0]]
                for said, column in ((x, panel.kept), (y, panel.forgotten)):
                    claimed = _mean(setting, column).mean
                    if said is not None and not same(said, claimed):
                        place = f"{setting.method}, {setting.runs}, epoch {setting.epoch}, {column}"
                        yield Disagreement(view, place, said, claimed)


def _page_best(table: Table, by_place: Mapping[int, PanelClaim | None]) -> Found:
    view = "page: best settings"
    said: dict[int, list[_Line]] = {}
    for row, cells in table.lines():
        place = row.attributes.get("data-place", "")
        panel = by_place.get(int(place)) if place else None
        if panel is None or not cells.keys() & {"Epoch", "Step"}:
            continue
        start = table.titles.index("Learning rate")
        forgotten, kept = row.cells[start - 2], row.cells[start - 1]
        if "data-family" not in row.attributes:
            name = row.cells[0].text.strip()
            yield from _reference(view, panel, name, forgotten.text, kept.text)
            continue
        epoch = cells[moment_of(cells)].value
        count = cells["Seeds"].value
        said.setdefault(int(place), []).append(
            _Line(
                panel.model,
                str(panel.split),
                row.attributes["data-family"],
                cells["Learning rate"].value,
                None if epoch is None else int(epoch),
                tuple(range(int(count or 0))),
                forgotten.value,
                kept.value,
            )
        )
    for place_number, panel in by_place.items():
        if panel is not None:
            claimed = [replace(line, forgotten_ends=None, kept_ends=None) for line in _lines(panel)]
            lines = said.get(place_number, [])
            yield from _compare_lines(view, lines, claimed, None, counts_seeds=True)


def _page_scorecard(table: Table, by_place: Mapping[int, PanelClaim | None]) -> Found:
    view = "page: scorecard"
    panel = by_place.get(int(table.place or 0))
    if panel is None:
        return
    waiting = list(panel.entries)
    for row, cells in table.lines():
        family = row.attributes.get("data-family")
        if family is None:
            continue
        entry = _entry_of(row.cells[0], family, waiting)
        if entry is None:
            if any("data-value" in cell.attributes for cell in row.cells):
                yield Disagreement(view, f"{_label(panel)}, {family}", "a line", None)
            continue
        waiting.remove(entry)
        for title, (mean, _) in _expected_scores(entry).items():
            cell = cells.get(title)
            if cell is not None and "data-value" in cell.attributes and not same(cell.value, mean):
                yield Disagreement(
                    view, f"{_label(panel)}, {entry.entry}, {title}", cell.value, mean
                )


def _entry_of(cell: Cell, family: str, entries: Sequence[EntryClaim]) -> EntryClaim | None:
    """The entry of a line: the one whose run the line's button opens, else of the same method."""
    runs = {link.get("data-run") for link in cell.links}
    of_family = [entry for entry in entries if entry.method == family]
    for entry in of_family:
        if entry.shown is not None and runs & set(entry.shown.runs):
            return entry
    return of_family[0] if of_family else None


def _page_lasting(
    table: Table, by_place: Mapping[int, PanelClaim | None], claims: Claims, plan: Mapping[str, Any]
) -> Found:
    """Compare the lines of the settings that are shown elsewhere, and those of both references."""
    view = "page: does it last"
    panel = by_place.get(int(table.place or 0))
    if panel is None:
        return
    claimed = [entry.lasting for entry in panel.entries if entry.lasting is not None]
    shown_points: dict[str, set[str]] = {}
    names = {load("attacks", spec["name"]).label: spec["name"] for spec in _attacks(plan)}
    for row, cells in table.lines():
        if "Method" not in cells or len(row.cells) < len(table.titles) - 1:
            continue
        # A reason why there is no score takes two columns.
        if "colspan" in row.cells[3].attributes:
            shifted = [*row.cells[:4], Cell(), *row.cells[4:]]
            cells = dict(zip(table.titles, shifted, strict=False))
        if row.attributes.get("class") == "reference":
            name = cells["Method"].text
            for title, attack in names.items():
                if title in cells:
                    of_models = [
                        {**c.retain, **c.own_retain}
                        if name == "retain model"
                        else {**c.start, **c.own_start}
                        for c in claimed
                    ]
                    numbers = {v: pair for of_model in of_models for v, pair in of_model.items()}
                    place = f"{_label(panel)}, {name}, {title}"
                    points = shown_points.get(attack, set())
                    yield from _page_reference(view, place, cells[title], attack, numbers, points)
            continue
        entry = _shown_entry(row, cells, panel)
        if entry is None and "data-family" in row.attributes:
            yield from _page_other_line(view, row, cells, panel, names)
        for title, attack in names.items():
            for point, number, digits in _numbers_at_points(cells.get(title, Cell())):
                shown_points.setdefault(attack, set()).add(point)
                if entry is None or entry.lasting is None:
                    continue
                after = entry.lasting.after
                possible = [v for v in after if v.partition("@")[0] == attack]
                at = [v for v in possible if point in ("", v.partition("@")[2], _in_words(v))]
                if not any(same(number, after[v], digits) for v in at):
                    place = f"{_label(panel)}, {cells['Method'].text}, {title} {point}"
                    yield Disagreement(view, place, number, {v: after[v] for v in at})
        if entry is not None and entry.lasting is not None:
            yield from _page_attackers(
                view, f"{_label(panel)}, {cells['Method'].text}", cells, entry
            )
            said, score = cells["Lasting"].value, entry.lasting.score
            if not same(said, score):
                place = f"{_label(panel)}, {cells['Method'].text}, lasting"
                yield Disagreement(view, place, said, f"{score} ({entry.lasting.reason})")
    yield from _page_steps(view, table, panel, plan)
    yield from _page_leaks(table, panel, claims, plan)


def _page_attackers(view: str, place: str, cells: Mapping[str, Cell], entry: EntryClaim) -> Found:
    """Compare the attackers of searches, whose answers the line opens."""
    claimed = {} if entry.lasting is None else entry.lasting.attackers
    for cell in cells.values():
        for link in cell.links:
            name = link.get("data-variant", "")
            attack, _, point = name.partition("@")
            chosen = claimed.get(f"{attack}@tuned")
            if chosen is not None and _OF_SEARCH.fullmatch(point) and name != chosen.variant:
                yield Disagreement(view, f"{place}, attacker", name, chosen.variant)


def _page_other_line(
    view: str,
    row: Row,
    cells: Mapping[str, Cell],
    panel: PanelClaim,
    names: Mapping[str, str],
) -> Found:
    """Compare a line of a setting that may not be shown elsewhere.

    Its label does not tell settings of one method, rate and epoch apart, so that it has to agree
    with one of them.
    """
    place = (
        row.attributes["data-family"],
        cells["Learning rate"].value,
        int(cells[moment_of(cells)].text),
    )

    def is_of_line(setting: SettingClaim | None) -> bool:
        return setting is not None and place == (
            setting.method,
            setting.learning_rate,
            setting.epoch,
        )

    settings = {setting.key: setting for setting in panel.settings if is_of_line(setting)}
    candidates = [
        (settings[runs, epoch], claim)
        for runs, epoch, claim in panel.lasting
        if (runs, epoch) in settings
    ]
    for entry in panel.entries:
        shown = entry.shown
        if shown is not None and entry.lasting is not None and is_of_line(shown):
            candidates.append((shown, entry.lasting))
    claims_of_panel = [
        *(claim for _, _, claim in panel.lasting),
        *(entry.lasting for entry in panel.entries if entry.lasting is not None),
    ]
    # The page has one column "before" for all settings, whichever attacks a setting lacks.
    columns = {
        measured[0]
        for claim in claims_of_panel
        for measured in claim.measured_by.values()
        if measured is not None
    }
    if not any(
        _agrees_with(setting, claim, cells, names, columns) for setting, claim in candidates
    ):
        said = {title: cell.text for title, cell in cells.items()}
        claimed = [claim for _, claim in candidates]
        yield Disagreement(view, f"{_label(panel)}, {place}", said, claimed)


def _agrees_with(
    setting: SettingClaim,
    claim: LastingClaim,
    cells: Mapping[str, Cell],
    names: Mapping[str, str],
    columns: Collection[str],
) -> bool:
    """Whether a line has the score of a setting, and its numbers before and under attacks.

    Args:
        setting: That the line may be of.
        claim: How long the setting lasts.
        cells: Of the line, by title.
        names: Attacks by title.
        columns: That the attacks of the panel are measured by, before them.
    """
    if not same(cells["Lasting"].value, claim.score):
        return False
    # The column has the plain number, also if an attack leaves rows out.
    before = cells["before"].value
    if columns and not any(same(before, _mean(setting, column).mean) for column in columns):
        return False
    for title, attack in names.items():
        of_attack = {v: n for v, n in claim.after.items() if v.partition("@")[0] == attack}
        gains = [
            None if after is None or first is None else after - first
            for after, first in ((after, claim.before[v]) for v, after in of_attack.items())
        ]
        for is_small, text in cells.get(title, Cell()).pieces:
            change = re.fullmatch(r"[-+\u2212]\d+\.\d+", text) if is_small else None
            if change is not None:
                said, digits = as_shown(text.removeprefix("+"))
                if not any(same(said, gain, digits) for gain in gains):
                    return False
        for point, number, digits in _numbers_at_points(cells.get(title, Cell())):
            possible = [
                after
                for variant, after in of_attack.items()
                if point in ("", variant.partition("@")[2], _in_words(variant))
            ]
            if not any(same(number, after, digits) for after in possible):
                return False
    return True


def _attacks(plan: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    attacks: Sequence[Mapping[str, Any]] = plan["config"].get("attacks", ())
    return attacks


_TRAINING = ("relearning", "fine-tuning")
"""Attacks whose points are steps."""
_OF_SEARCH = re.compile(r"tuned|t\d+\.\d+|attacker \d+, \d+ steps?|chosen attacker")
"""Points of a search, by name and in words: all of them are the attacker that was chosen."""


def _in_words(variant: str) -> str:
    """The point of a variant as the page names it: `13 steps`."""
    attack, _, point = variant.partition("@")
    if _OF_SEARCH.fullmatch(point):
        return "tuned"
    if attack not in _TRAINING:
        return point
    return "1 step" if point == "1" else f"{point} steps"


def _numbers_at_points(cell: Cell) -> Iterator[tuple[str, float, int]]:
    """Yield (point, number, decimal places) of a cell such as `nf4 0.123 +0.01`.

    A cell whose point is not written names it where its answers are opened.
    """
    point = ""
    for is_small, text in cell.pieces:
        number, digits = as_shown(text)
        if is_small:
            point = text
        elif number is not None:
            is_point = point and not re.fullmatch(r"[-+\u2212]\d+\.\d+", point)
            yield (point if is_point else _linked_point(cell)), number, digits
            point = ""


def _linked_point(cell: Cell) -> str:
    for link in cell.links:
        if "data-variant" in link:
            return _in_words(link["data-variant"])
        label = re.split(r" \[| min-max", link.get("title", "").removesuffix(": answers"))[0]
        _, _, point = label.partition(", ")
        if point:
            return "tuned" if _OF_SEARCH.fullmatch(point) else point
    return ""


def _page_reference(
    view: str,
    place: str,
    cell: Cell,
    attack: str,
    numbers: Mapping[str, tuple[float | None, float | None]],
    shown_points: set[str],
) -> Found:
    """Compare the numbers of a reference, which has one for each point of the lines above it."""
    of_attack = {v: pair[1] for v, pair in numbers.items() if v.partition("@")[0] == attack}
    if not of_attack:
        return  # no setting that is claimed was attacked
    said_points: set[str] = set()
    for point, number, digits in _numbers_at_points(cell):
        said_points.add(point)
        # A number without a point is to be at the point of the lines above it.
        points = {point} if point else shown_points
        at = [v for v in of_attack if points & {v.partition("@")[2], _in_words(v)} or not points]
        if not any(same(number, of_attack[v], digits) for v in at):
            yield Disagreement(view, f"{place} {point}", number, {v: of_attack[v] for v in at})
    known = {_in_words(v) for v, value in of_attack.items() if value is not None}
    for point in shown_points - said_points:
        is_said = "" in said_points and len(shown_points) == 1
        if point in known and not is_said:
            yield Disagreement(view, place, sorted(said_points), f"a number at {point!r}, too")


def _page_steps(view: str, table: Table, panel: PanelClaim, plan: Mapping[str, Any]) -> Found:
    """Only attacks that train have a curve over steps."""
    trains = any(spec["name"] in _TRAINING for spec in _attacks(plan))
    if not trains:
        for title in ("area", "steps to half"):
            if title in table.titles:
                yield Disagreement(view, f"{_label(panel)}, columns", title, "no attack trains")
        for row in table.rows:
            for cell in row.cells:
                if re.search(r"\d+ steps?\b", cell.text):
                    place = f"{_label(panel)}, {row.cells[0].text}"
                    yield Disagreement(view, place, cell.text, "no attack trains")


def _page_leaks(table: Table, panel: PanelClaim, claims: Claims, plan: Mapping[str, Any]) -> Found:
    """Compare leak@k, which stands next to its own bound or next to none."""
    view = "page: leaks"
    title = next((title for title in table.titles if title.startswith("leak@")), None)
    if title is None:
        return
    roles = plan["benchmark"]["roles"]
    forget = next(name for name, role in roles.items() if role == "forget")
    metrics = plan["config"]["evaluation"]["metrics"]
    rules = {"k": 16, "threshold": 0.8}
    of_leak = rules | metrics.get("leak-at-k", {})
    of_bound = rules | {
        name: value for name, value in metrics.get("sampling-bounds", {}).items() if name in rules
    }
    if title != f"leak@{of_leak['k']}":
        yield Disagreement(view, f"{_label(panel)}, title", title, of_leak["k"])
    sampled = next(spec["name"] for spec in _attacks(plan) if spec["name"] == "sampling")
    for row, cells in table.lines():
        entry = _shown_entry(row, cells, panel)
        cell = row.cells[-1]
        if entry is None or entry.shown is None or not cell.text or cell.value is None:
            continue
        place = f"{_label(panel)}, {cells['Method'].text}"
        small = [as_shown(text)[0] for is_small, text in cell.pieces if is_small]
        if small and of_leak != of_bound:
            yield Disagreement(view, place, cell.text, f"{of_leak} and {of_bound} differ")
        for said, column in (
            (cell.value, f"leak_at_k_{forget}"),
            *((s, "leak_at_k_bound") for s in small),
        ):
            numbers = [
                claims.numbers.get((run, entry.shown.epoch, sampled, column))
                for run in entry.shown.runs
            ]
            known = [number for number in numbers if number is not None]
            mean = math.fsum(known) / len(known) if known and len(known) == len(numbers) else None
            if not same(said, mean, 3):
                yield Disagreement(view, f"{place}, {column}", said, mean)


def _shown_entry(row: Row, cells: Mapping[str, Cell], panel: PanelClaim) -> EntryClaim | None:
    """The entry whose setting a line of attacked settings is about; None for other settings."""
    family = row.attributes.get("data-family")
    if family is None or not cells.keys() & {"Epoch", "Step"}:
        return None
    label = cells["Method"].text.removesuffix(" bypassed")
    rate, epoch = cells["Learning rate"].value, int(cells[moment_of(cells)].text)
    for entry in panel.entries:
        shown = entry.shown
        is_it = (
            shown is not None
            and entry.method == family
            and (shown.learning_rate, shown.epoch) == (rate, epoch)
            and _is_shown(label, entry, panel)
        )
        if is_it:
            return entry
    return None


def _is_shown(label: str, entry: EntryClaim, panel: PanelClaim) -> bool:
    """Whether a label can only mean the entry's setting."""
    shown = entry.shown
    assert shown is not None
    others = [
        setting
        for setting in panel.settings
        if setting.method == shown.method
        and (setting.learning_rate, setting.epoch) == (shown.learning_rate, shown.epoch)
    ]
    return len(others) == 1 and family_of(label) == shown.method


# Boards, trackers, exports, comparisons


def _board(views: Views, claims: Claims) -> Found:
    view = "leaderboard export"
    for line in views.board:
        for result in (*line["epochs"], *line.get("attacked", ())):
            variant = result.get("variant", "")
            for column, stated in result["metrics"].items():
                key = line["id"], result["epoch"], variant, column
                value = None if isinstance(stated, dict) else stated
                claimed = claims.numbers.get(key)
                if not same(value, claimed):
                    yield Disagreement(view, str(key), value, claimed)
            for column in claims.columns:
                key = line["id"], result["epoch"], variant, column
                if claims.numbers.get(key) is not None and column not in result["metrics"]:
                    yield Disagreement(view, str(key), "no number", claims.numbers[key])


def _shown_board(views: Views, claims: Claims) -> Found:
    """Compare `leaderboard show` of the folder alone with the lines of each profile."""
    view = "leaderboard show"
    tables = re.split(r"^best of each method, by (.*)$", views.shown_board, flags=re.MULTILINE)
    for profile, text in zip(tables[1::2], tables[2::2], strict=True):
        name = profile.rpartition(", ")[2]
        lines = next((lines for key, lines in claims.boards.items() if name in key), ())
        rows = [line for line in text.splitlines() if line.startswith("|")]
        titles = [cell.strip() for cell in rows[0].strip("|").split("|")] if rows else []
        waiting = list(lines)
        for row in rows[2:]:
            values = [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]]
            cells = dict(zip(titles, values, strict=True))
            place = titles.index("Learning rate")
            said_forgotten, forgotten_digits = as_shown(values[place - 2])
            said_kept, kept_digits = as_shown(values[place - 1])
            if cells["Method"] in REFERENCES:
                panel = _panel_of_board(cells, text, claims)
                if panel is not None:
                    pair = values[place - 2], values[place - 1]
                    yield from _reference(view, panel, cells["Method"], *pair)
                continue
            family = family_of(cells["Method"])
            of_method = [
                line
                for line in waiting
                if family_of(line.method) == family
                and cells.get("Model", line.model) == line.model
                and cells.get("Forget", _split_text(line.split)) == _split_text(line.split)
            ]
            same_epoch = [line for line in of_method if _is_at(line, cells)]
            match = next(iter(same_epoch or of_method), None)
            if match is None:
                if said_forgotten is not None:
                    yield Disagreement(view, row, "a line", None)
                continue
            waiting.remove(match)
            where = f"{match.model}, {match.split}, {family}"
            if int(cells["Seeds"] or 0) != len(match.seeds):
                yield Disagreement(view, f"{where}, seeds", cells["Seeds"], match.seeds)
            if not same(said_forgotten, match.forgotten, forgotten_digits):
                yield Disagreement(view, f"{where}, forgotten", said_forgotten, match.forgotten)
            if not same(said_kept, match.kept, kept_digits):
                yield Disagreement(view, f"{where}, kept", said_kept, match.kept)
            moment = cells[moment_of(cells)]
            if moment != ("" if match.epoch is None else str(match.epoch)):
                yield Disagreement(view, f"{where}, epoch", moment, match.epoch)
        for line in waiting:
            if line.forgotten is not None:
                yield Disagreement(view, f"{line.model}, {line.split}, {line.method}", None, line)


def _panel_of_board(cells: Mapping[str, str], board: str, claims: Claims) -> PanelClaim | None:
    """The panel of a line of a board.

    The columns of model and split are left out if the board has one of them. The text below the
    table names it: the sweep may have other panels, from which no line is on the board.
    """
    found: PanelClaim | None = None
    for panel in claims.panels:
        split = _split_text(panel.split)
        is_model = cells.get("Model", panel.model) == panel.model
        if is_model and cells.get("Forget", split) == split:
            if f"{panel.model}, {split}" in board:
                return panel
            found = found or panel
    return found


def _split_text(split: float | str) -> str:
    return split if isinstance(split, str) else f"forget {100 * split:g} %"


def _is_at(line: BoardLineClaim, cells: Mapping[str, str]) -> bool:
    rate = _rate(cells["Learning rate"])
    has_rate = line.learning_rate == rate or (
        rate is not None
        and line.learning_rate is not None
        and float(f"{line.learning_rate:g}") == rate
    )
    return has_rate and cells[moment_of(cells)] == str(line.epoch)


_OF_TRAINING = ("train/", "system/", "at_a_glance/loss")


def _tracked(views: Views, claims: Claims) -> Found:
    view = "MLflow"
    for run, points in views.tracked.items():
        said = {
            (point.name, point.step): point.value
            for point in points
            if not point.name.startswith(_OF_TRAINING)
        }
        claimed = claims.tracked.get(run, {})
        for key in said.keys() | claimed.keys():
            if not same(said.get(key), claimed.get(key)):
                yield Disagreement(view, f"{run}, {key}", said.get(key), claimed.get(key))
    for run in claims.tracked.keys() - views.tracked.keys():
        yield Disagreement(view, run, None, "a run")


def _exported(views: Views, claims: Claims) -> Found:
    view = "export"
    for method, choice in views.exported.items():
        entries = [
            (panel, entry)
            for panel in claims.panels
            for entry in panel.entries
            if entry.method == method
        ]
        if len({panel.panel for panel, _ in entries}) != 1:
            continue  # the command asks for a run then
        possible = [
            (entry.shown.runs[0], entry.shown.epoch)
            for _, entry in entries
            if entry.shown is not None and entry.shown.runs
        ]
        if isinstance(choice, Exported):
            # Of several entries, the choice is taken that was best on the seeds of the choice.
            is_possible = (choice.run, choice.epoch) in possible
            if not is_possible and not _is_tied(choice, entries):
                yield Disagreement(view, method, (choice.run, choice.epoch), possible)
        elif "ran on several models or splits" in choice:
            continue  # a run that failed has a row there
        elif possible and all(entry.shown or not entry.chosen for _, entry in entries):
            # The entry that was best on the seeds of the choice may have no other runs yet.
            yield Disagreement(view, method, choice, possible)


def _is_tied(choice: Exported, entries: Sequence[tuple[PanelClaim, EntryClaim]]) -> bool:
    """Whether a run is of a setting that is as good as the one that is claimed."""
    for panel, entry in entries:
        for setting in panel.settings:
            is_it = setting.epoch == choice.epoch and choice.run in setting.runs
            columns = (panel.kept, panel.forgotten)
            if is_it and all(
                same(_mean(setting, column).mean, _mean(entry.shown, column).mean)
                for column in columns
            ):
                return True
    return False


def _compared(views: Views, claims: Claims) -> Found:
    """Compare both sides of each comparison, and what is said about their difference."""
    for (a, b, variant), result in views.compared.items():
        view = f"compare{f' --under {variant}' if variant else ''}"
        panels = [] if isinstance(result, str) else result["panels"]
        for panel in claims.panels:
            claimed = claims.comparer(panel.panel, variant).compare(a, b)
            said = next(
                (p for p in panels if (p["model"], p["forget_fraction"]) == panel.panel), None
            )
            place = f"{_label(panel)}, {a} and {b}"
            if said is None or said["a"] is None:
                if claimed is not None:
                    reason = result if isinstance(result, str) else said and said["why_not"]
                    yield Disagreement(view, place, reason, claimed)
                continue
            if claimed is None:
                yield Disagreement(view, place, (said["a"]["runs"], said["b"]["runs"]), None)
                continue
            yield from _compared_panel(view, place, said, claimed)


def _compared_panel(view: str, place: str, said: Mapping[str, Any], claimed: Comparison) -> Found:
    for name, side in (("a", claimed.first), ("b", claimed.second)):
        of_side = said[name]
        said_runs = of_side["epoch"], tuple(of_side["runs"])
        is_tied = same(of_side["utility"], side.kept) and same(of_side["quality"], side.forgotten)
        if said_runs != (side.epoch, side.runs) and is_tied:
            return  # settings that are equally good; no rule says which of them is taken
        if said_runs != (side.epoch, side.runs):
            yield Disagreement(view, f"{place}, {name}", said_runs, (side.epoch, side.runs))
            return
        numbers = {"utility": side.kept, "quality": side.forgotten, "tried": side.tried}
        for key, number in numbers.items():
            if not same(of_side[key], number):
                yield Disagreement(view, f"{place}, {name}, {key}", of_side[key], number)
    if said["equal_utility"] != claimed.has_equal_utility:
        yield Disagreement(
            view, f"{place}, equal utility", said["equal_utility"], claimed.has_equal_utility
        )
    test, over_seeds = said["test"], said["over_seeds"]
    if test is not None:
        for key, side in (("distance_a", claimed.first), ("distance_b", claimed.second)):
            if not same(test[key], side.distance):
                yield Disagreement(view, f"{place}, {key}", test[key], side.distance)
        if claimed.p_value is not None and not same(test["p_value"], claimed.p_value):
            yield Disagreement(view, f"{place}, p", test["p_value"], claimed.p_value)
    said_mean = None if over_seeds is None else over_seeds["mean"]
    # The mean of one pair has no interval, and is not shown.
    if (over_seeds is not None or claimed.interval is not None) and not same(
        said_mean, claimed.difference
    ):
        yield Disagreement(view, f"{place}, difference", said_mean, claimed.difference)
    ends = None if over_seeds is None else (over_seeds["low"], over_seeds["high"])
    if not _same_ends(ends, claimed.interval, None):
        yield Disagreement(view, f"{place}, interval", ends, claimed.interval)


def _single(views: Views, claims: Claims) -> Found:
    """Compare the numbers of models that are judged by themselves with those of the sweep."""
    rows = {(run, epoch, variant) for run, epoch, variant, _ in views.single}
    for key in views.single.keys() | {key for key in claims.numbers if key[:3] in rows}:
        if not same(views.single.get(key), claims.numbers.get(key)):
            said, claimed = views.single.get(key), claims.numbers.get(key)
            yield Disagreement("one model", str(key), said, claimed)


def grouped(found: Sequence[Disagreement]) -> dict[str, int]:
    """Count disagreements by view."""
    counts: dict[str, int] = {}
    for item in found:
        counts[item.view] = counts.get(item.view, 0) + 1
    return counts


def summary(found: Sequence[Disagreement], most: int = 12) -> str:
    """Lines for a failure: counts by view, and the first disagreements."""
    lines = [json.dumps(grouped(found))]
    return "\n".join([*lines, *map(str, found[:most])])
