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

    first, second = _contender(a, folder, under), _contender(b, folder, under)
    result = comparison.compare(first, second, TOLERANCE if within is None else within)
    tests = sum(panel.test is not None for panel in result.panels)
    verdicts = [verdict(panel, result.a, result.b, tests) for panel in result.panels]
    headline, console = result.headline, Console()
    chooses = first.chooses or second.chooses
    rule = compare_rule(result.tolerance, headline, chooses=chooses)
    schemas = [row.schema for side in (first, second) for row in side.rows[:1]]
    open_questions = [*dict.fromkeys(filter(None, map(without_retain_model, schemas)))]
    if as_json:
        more = {"rule": rule, "under": under, "open": open_questions}
        console.print_json(_json(result, verdicts) | more)
        return
    for lines in verdicts:
        for line in lines:
            console.paragraph(line)
        console.print()
    for line in result.only_one:
        console.paragraph(f"Not compared: {line}.")
    sides = [side for panel in result.panels for side in (panel.a, panel.b) if side is not None]
    units = {side.unit for side in sides}
    if rows := [row for panel in result.panels for row in _rows(panel, names_unit=len(units) > 1)]:
        # One sweep may be by epochs and the other one by steps.
        when = sides[0].unit.value if len(units) == 1 else "after"
        # The sentences above name the model and the split if there is only one panel.
        named = ("model", "forget") if len(result.panels) > 1 else ()
        rows = [row[2 - len(named) :] for row in rows]
        columns = (
            *(*named, "side", "setting", "learning rate", when),
            *(headline.kept.plain_label, headline.forgotten.plain_short),
            *(("D", "seeds") if headline.forgotten.test else ("seeds",)),
        )
        console.table(columns, rows, keys=columns.index("setting") + 1)
        console.print()
    console.paragraph(rule)
    for line in open_questions:
        console.paragraph(line)


def _contender(text: str, folder: str, under: str | None) -> Contender:
    """Find A or B, in `folder` or in the folder that it names itself; `under` an attack."""
    from unlearnbench.analysis.lasting import find_variant
    from unlearnbench.analysis.named_contender import find_contender, with_retain_term
    from unlearnbench.analysis.results import Results

    path, query = named_in(text, folder)
    results, variant = Results.read(path), ""
    full = with_retain_term(query, results.methods_tried)
    label = text.removesuffix(query) + full
    if full != query:
        Console().note(f"{text}: taken as {label} (only variant in this sweep)")
    if under is not None:
        variant = find_variant(under, [*dict.fromkeys(row.variant for row in results.attacked)])
        label += f" under {variant}"
    return find_contender(full, label, results, variant)


def _rows(panel: PanelComparison, *, names_unit: bool) -> list[tuple[Any, ...]]:
    if panel.a is None or panel.b is None:
        return []
    test = panel.test
    distances = (round(test.distance_a, 4), round(test.distance_b, 4)) if test else (None, None)
    return [
        (
            *(panel.model, panel.forget_fraction, name, side.setting, side.learning_rate),
            *(side.when if names_unit else side.epoch,),
            *(round(side.utility, 4), round(side.quality, 4)),
            *((distance,) if panel.headline.forgotten.test else ()),
            len(side.seeds),
        )
        for name, side, distance in zip("AB", (panel.a, panel.b), distances, strict=True)
    ]


def _json(result: Comparison, verdicts: list[tuple[str, ...]]) -> dict[str, Any]:
    from unlearnbench.config.unit import Unit

    panels: list[dict[str, Any]] = [
        asdict(panel) | {"better": panel.better and panel.better.name, "told": list(lines)}
        for panel, lines in zip(result.panels, verdicts, strict=True)
    ]
    for panel in panels:
        for side in filter(None, (panel["a"], panel["b"])):
            if side["unit"] is Unit.EPOCH:
                # As in the files of earlier versions.
                del side["unit"]
    return asdict(result) | {"panels": panels}
