"""`unlearnbench compare A B`: which of two methods forgets more at equal utility, and how sure."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from unlearnbench.base.console import Console
from unlearnbench.cli.command import argument, command, new_group, option
from unlearnbench.cli.options import Json, named_in

if TYPE_CHECKING:
    from unlearnbench.analysis.compare import Comparison, PanelComparison
    from unlearnbench.analysis.contender import Contender

app = new_group()


@command(app, "compare")
def compare(
    a: Annotated[
        str, argument("A", "A method, a setting's label, a run's id, or FOLDER:one of these.")
    ],
    b: Annotated[str, argument("B", "What A is compared with, named in the same way.")],
    folder: Annotated[str, option("FOLDER", "The sweep's folder.", "--in")] = "runs/quickstart",
    within: Annotated[
        float | None,
        option("UTILITY", "Difference in utility that is called equal.", min=0, default="0.02"),
    ] = None,
    under: Annotated[
        str | None, option("VARIANT", "Compare under an attack, such as `relearning@13`.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compare how much two methods forget at equal utility, and how sure that is.

    The test is paired over questions. It compares D, the KS distance between a model's truth ratios
    and the retain model's truth ratios. If a benchmark has no such test, its own number is compared
    over seeds. The test accounts for the number of settings from which each side was chosen. Under
    an attack, the utility of a setting is still the utility without the attack.

    Examples:
      unlearnbench compare npo+nll ce-u
      unlearnbench compare ce-u npo --in runs/tofu_tiny --json
      unlearnbench compare "npo lr 5e-05" "npo lr 0.0001" --in runs/mine
      unlearnbench compare runs/mine:npo runs/yours:npo
      unlearnbench compare npo simnpo --under relearning@13
    """
    from unlearnbench.analysis import compare as comparison
    from unlearnbench.analysis.compare import TOLERANCE
    from unlearnbench.analysis.comparison_text import compare_rule, verdict
    from unlearnbench.analysis.wording import without_retain_model

    first = _contender(a, folder, under)
    second = _contender(b, folder, under)
    result = comparison.compare(first, second, TOLERANCE if within is None else within)
    test_count = sum(panel.test is not None for panel in result.panels)
    verdicts = [verdict(panel, result.a, result.b, test_count) for panel in result.panels]
    rule = compare_rule(result.tolerance, result.headline, chooses=first.chooses or second.chooses)
    # All rows of a contender have the same schema.
    schemas = [side.rows[0].schema for side in (first, second) if side.rows]
    unknown = filter(None, map(without_retain_model, schemas))
    open_questions = list(dict.fromkeys(unknown))

    console = Console()
    if as_json:
        document = _document(result, verdicts)
        document |= {"rule": rule, "under": under, "open": open_questions}
        console.print_json(document)
        return
    for sentences in verdicts:
        for sentence in sentences:
            console.paragraph(sentence)
        console.print()
    for place in result.only_one:
        console.paragraph(f"Not compared: {place}.")
    _print_table(result, console)
    console.paragraph(rule)
    for question in open_questions:
        console.paragraph(question)


def _contender(text: str, folder: str, under: str | None) -> Contender:
    """Find A or B.

    Args:
        text: As it was typed: `npo+nll`, `5f0c`, or `runs/mine:npo`.
        folder: The sweep's folder if the text names none.
        under: Attack under which it is compared: `relearning@13`. None means without an attack.
    """
    from unlearnbench.analysis.lasting import find_variant
    from unlearnbench.analysis.named_contender import find_contender, with_retain_term
    from unlearnbench.analysis.results import Results
    from unlearnbench.results.attack_variants import is_choice

    path, query = named_in(text, folder)
    results = Results.read(path)
    # `npo` is taken as `npo+nll` if the sweep has NPO only with this retain term.
    full_query = with_retain_term(query, results.methods_tried)
    label = text.removesuffix(query) + full_query
    if full_query != query:
        Console().note(f"{text}: taken as {label} (only variant in this sweep)")
    variant = ""
    if under is not None:
        names = dict.fromkeys(row.variant for row in results.attacked)
        # On the rows of a choice, no method is compared.
        variants = [name for name in names if not is_choice(name)]
        variant = find_variant(under, variants)
        label += f" under {variant}"
    return find_contender(full_query, label, results, variant)


def _print_table(result: Comparison, console: Console) -> None:
    """Print a line for each side of each panel that has both of them."""
    sides = [side for panel in result.panels for side in (panel.a, panel.b) if side is not None]
    units = {side.unit for side in sides}
    # One sweep may be by epochs and the other one by steps.
    has_one_unit = len(units) == 1
    # The sentences above the table name the model and the split if there is only one panel.
    names_panels = len(result.panels) > 1
    lines: list[tuple[Any, ...]] = []
    for panel in result.panels:
        for cells in _lines_of_panel(panel, has_one_unit=has_one_unit):
            place = (panel.model, panel.forget_fraction) if names_panels else ()
            lines.append((*place, *cells))
    if not lines:
        return
    headline = result.headline
    keys = ("model", "forget", "side", "setting") if names_panels else ("side", "setting")
    columns = (
        *keys,
        "learning rate",
        sides[0].unit.value if has_one_unit else "after",
        headline.kept.plain_label,
        headline.forgotten.plain_short,
        *(("D", "seeds") if headline.forgotten.test else ("seeds",)),
    )
    console.table(columns, lines, keys=len(keys))
    console.print()


def _lines_of_panel(panel: PanelComparison, *, has_one_unit: bool) -> list[tuple[Any, ...]]:
    """Return a line for A and one for B, without model and split; none if one side is missing."""
    if panel.a is None or panel.b is None:
        return []
    test = panel.test
    distance_of_side = {
        "A": None if test is None else round(test.distance_a, 4),
        "B": None if test is None else round(test.distance_b, 4),
    }
    lines: list[tuple[Any, ...]] = []
    for name, side in (("A", panel.a), ("B", panel.b)):
        lines.append(
            (
                name,
                side.setting,
                side.learning_rate,
                side.epoch if has_one_unit else side.when,
                round(side.utility, 4),
                round(side.quality, 4),
                *((distance_of_side[name],) if panel.headline.forgotten.test else ()),
                len(side.seeds),
            )
        )
    return lines


def _document(result: Comparison, verdicts: list[tuple[str, ...]]) -> dict[str, Any]:
    """Return a comparison as JSON, with the verdict on each panel."""
    from unlearnbench.config.unit import Unit

    panels: list[dict[str, Any]] = []
    for panel, sentences in zip(result.panels, verdicts, strict=True):
        document = asdict(panel)
        document["better"] = None if panel.better is None else panel.better.name
        document["told"] = list(sentences)
        for side in (document["a"], document["b"]):
            # Earlier versions knew only epochs, and their files name no unit.
            if side is not None and side["unit"] is Unit.EPOCH:
                del side["unit"]
        panels.append(document)
    return {**asdict(result), "panels": panels}
