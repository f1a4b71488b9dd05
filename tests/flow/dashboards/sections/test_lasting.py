"""Forgetting given back by attacks: sentences, figures, the table's columns, and the answers."""

from __future__ import annotations

import importlib
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from unlearnbench.analysis import results
from unlearnbench.analysis.sampled_leaks import leak_columns
from unlearnbench.analysis.worst_prompt import worst_prompt
from unlearnbench.api.attack import PromptAttack
from unlearnbench.api.observations import Evaluation
from unlearnbench.evaluation.benchmark_schema import recorded_schema
from unlearnbench.results import attack_variants
from unlearnbench.testing import made_up_set

from .. import attacked_records
from ..attacked_records import RETAIN, SAMPLES, STEPS, answers_under, under_attacks
from ..conftest import PROFILE, context_of, with_tokens

if TYPE_CHECKING:
    from collections.abc import Iterator

    from unlearnbench.results.records import Record

    from ..conftest import Fabric

lasting: Any = importlib.import_module("unlearnbench_dashboards.sections.lasting")
scorecard: Any = importlib.import_module("unlearnbench_dashboards.sections.scorecard")
plot: Any = importlib.import_module("unlearnbench_dashboards.sections.lasting.plot")
palette: Any = importlib.import_module("unlearnbench_dashboards.figures.palette")
SECTION: Any = lasting.Lasting()
ONE = ((0.8, -5.0),)


@pytest.fixture(scope="module")
def records(fabric: Fabric) -> tuple[Record, ...]:
    """Three seeds of two methods and a method at inference time, under every kind of attack."""
    runs = [
        fabric.run(method, points=ONE, seed=s) for method in ("idk", "npo+nll") for s in range(3)
    ]
    eco = replace(fabric.run("eco", points=ONE), learning_rate=None)
    return under_attacks([fabric.reference("fine-tuned"), fabric.reference("retain"), *runs, eco])


@pytest.fixture(scope="module", autouse=True)
def white_box() -> Iterator[None]:
    """Relearning runs the weights alone, whichever attack of that name is installed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(results, "is_white_box", "relearning".__eq__)
        yield


@pytest.fixture(scope="module")
def context(records: tuple[Record, ...]) -> Any:
    return context_of(*records)


def test_it_is_rendered_with_the_intervals_of_numbers_under_attack(context: Any) -> None:
    html = SECTION.render(context.report)
    assert 'title="relearning, 13 steps [' in html


def test_sentences_and_numbers(context: Any) -> None:
    values = SECTION.values(context)
    ((panel, lines, attacks, leaks, worst),) = values["panels"]
    assert values["measure"] == "Extraction strength, forget"
    assert [one.attack for one in attacks] == [
        *("assistant-prefix", "paraphrase", "quantization", "relearning", "second-turn"),
    ]
    assert "of what idk at learning rate 0.0001" in lines[0]
    assert any("eco, epoch 1, is bypassed, not robust: it leaves" in line for line in lines)
    assert (values["stepped"], values["leak_label"]) == ({"relearning"}, "leak@16")
    assert worst is None
    (idk,) = (one for one in panel.best if one.setting.family == "idk")
    assert idk.worst.variant == "relearning@13"
    nf4 = next(one for one in attacks if one.attack == "quantization").of(idk)
    assert nf4.variant == "quantization@nf4", "of two points, the one that gives more back"
    assert leaks[idk.setting.key] == pytest.approx((0.3, 0.35))
    assert leaks["start model"][0] == pytest.approx(0.9)


def test_sampling_stands_in_the_table_by_the_best_of_its_samples(
    records: tuple[Record, ...],
) -> None:
    """Beside ROUGE-L of the greedy answer, and not by extraction strength, which cannot move."""

    def with_best(record: Record) -> Record:
        plain = tuple(
            replace(one, metrics={**one.metrics, "rouge_forget": 0.3}) for one in record.epochs
        )
        attacked = tuple(
            replace(one, metrics={**one.metrics, "expected_best_forget": 0.4})
            if one.variant == "sampling"
            else one
            for one in record.attacked
        )
        return replace(record, epochs=plain, attacked=attacked)

    report = context_of(*map(with_best, records)).report
    html = SECTION.render(report)
    assert 'title="Best of k samples, ROUGE-L, forget">Sampling</th>' in html
    assert "by Best of k samples, ROUGE-L, forget, compared with ROUGE-L, forget of the" in html
    (panel,) = report.lasting
    under = next(item for item in panel.settings[0].under if item.variant == "sampling")
    assert (under.before, under.after) == pytest.approx((0.3, 0.4))


@pytest.mark.parametrize(
    ("metrics", "bounded"),
    [
        ({}, True),
        ({"leak-at-k": {"k": 4}}, False),
        ({"sampling-bounds": {"threshold": 0.5}}, False),
        ({"leak-at-k": {"k": 4, "threshold": 0.5}, "sampling-bounds": {"k": 4}}, False),
        ({"leak-at-k": {"k": 4}, "sampling-bounds": {"k": 4}}, True),
        ({"sampling-bounds": {"alpha": 0.05}}, True),
    ],
)
def test_a_bound_stands_beside_the_number_that_it_bounds(
    metrics: dict[str, dict[str, float]], bounded: bool
) -> None:
    schema = recorded_schema({}, PROFILE, None, metrics)
    column, bound = leak_columns(schema)
    assert (column, bound) == ("leak_at_k_forget", "leak_at_k_bound" if bounded else "")


def test_a_bound_of_another_set_is_none() -> None:
    """The bound is of the set `forget`, which is not the first forget set of MUSE."""
    schema = recorded_schema({"source": "muse"}, PROFILE)
    first = schema.sets("forget")[0]
    assert first != "forget"
    assert leak_columns(schema) == (f"leak_at_k_{first}", "")


def test_of_two_attacks_that_sample_one_is_shown_for_all_models(
    records: tuple[Record, ...],
) -> None:
    others = [
        replace(
            record,
            attacked=(
                *record.attacked,
                *(
                    replace(
                        result,
                        variant="twice",
                        metrics={**result.metrics, "leak_at_k_forget": 0.77},
                    )
                    for result in record.attacked
                    if result.variant == "sampling"
                ),
            ),
        )
        for record in records
    ]
    both, one = context_of(*others), context_of(*records)
    (two,), (expected,) = both.report.lasting, one.report.lasting
    assert lasting.leaked(both, two) == lasting.leaked(one, expected)


@pytest.mark.parametrize(
    ("back", "points"),
    [({}, ["nf4"]), ({"quantization@int8": 0.5, "quantization@nf4": 0.1}, ["int8", "nf4"])],
)
def test_references_stand_at_the_points_of_the_settings_beside_them(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch, back: dict[str, float], points: list[str]
) -> None:
    """Of two points, each setting shows the one at which most comes back."""
    if back:
        monkeypatch.setitem(attacked_records.BACK, "npo+nll", back)
    runs = [
        fabric.run(method, points=ONE, seed=s) for method in ("idk", "npo+nll") for s in range(3)
    ]
    references = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    made = context_of(*under_attacks([*references, *runs]))
    (panel,) = made.report.lasting
    column = next(one for one in lasting.columns(panel) if one.attack == "quantization")
    variants = [f"quantization@{point}" for point in points]
    assert {column.of(setting).variant for setting in panel.settings} == {*variants}
    for models in (panel.retain, panel.start):
        names = points if len(points) > 1 else [""]
        assert column.references(panel, models) == [
            (name, models[variant]) for name, variant in zip(names, variants, strict=True)
        ]
    html = SECTION.render(made.report)
    assert ("<small>int8</small>" in html) is (len(points) > 1)
    assert lasting.point_label("relearning@13") == "13 steps"


def test_the_curve_of_the_best_setting_is_at_its_epoch_and_others_at_their_last(
    fabric: Fabric,
) -> None:
    references = under_attacks([fabric.reference("fine-tuned"), fabric.reference("retain")])
    (run,) = under_attacks([fabric.run("idk", points=((0.8, -4.0), (0.8, -5.0)))])
    at_first_epoch = tuple(replace(result, epoch=1) for result in run.attacked)
    both = replace(run, attacked=(*at_first_epoch, *run.attacked))
    other = replace(both, id="other", spec={**run.spec, "batch_size": 3})
    (panel,) = context_of(*references, both, other).report.lasting
    (best,) = panel.best
    assert (best.setting.rows[0].run_id, best.setting.epoch) == (run.id, 1)
    style = palette.Style.of([row for item in panel.settings for row in item.setting.rows])
    ((_, figure),) = plot.relearning(panel, "relearning", style)
    drawn = [line["customdata"][0][:2] for line in figure["data"] if "customdata" in line]
    assert sorted(drawn) == [[run.id, 1], ["other", 2]]


def test_figures_have_both_references_and_open_answers(context: Any) -> None:
    ((figures),) = SECTION.data(context)
    curves = dict(figures["curves"])
    assert list(curves) == ["eco", "idk", "npo+nll"]
    start, retain, line = curves["idk"]["data"]
    assert (start["name"], retain["name"]) == ("start model", "retain model")
    assert line["x"] == [0, *STEPS[1:]]
    assert line["y"] == sorted(line["y"])
    assert retain["y"] == pytest.approx([RETAIN, *[RETAIN + 0.02] * 4])
    assert line["customdata"][-1][1:] == [1, "relearning@13"]
    assert len(line["error_y"]["array"]) == 5, "intervals over three seeds"


def test_the_worst_prompt_is_taken_question_by_question(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 20
    start, retain, run = (
        with_tokens(one, missed)
        for one, missed in (
            (fabric.reference("fine-tuned", rows=rows), 0.0),
            (fabric.reference("retain", rows=rows), 0.9),
            (fabric.run("idk", points=ONE, rows=rows), 0.8),
        )
    )
    found = list(under_attacks([start, retain, run], ["prompt"]))
    other = with_tokens(replace(run, seed=5), 0.5).evaluations[1]
    changed = {
        **found[-1].attacked_evaluations,
        (1, "second-turn"): answers_under(other, "second-turn"),
    }
    found[-1] = replace(found[-1], attacked_evaluations=changed)

    def as_prompt(_: str) -> type[PromptAttack]:
        return PromptAttack

    monkeypatch.setattr(attack_variants, "attack_class", as_prompt)
    context = context_of(*found)
    (panel,) = context.report.lasting
    label, worst = lasting.worst_of_prompts(context, panel)
    measure, on = context.columns.schema.measures["extraction_strength_forget"]
    by_prompt = [measure.per_example(one.sets[on]) for one in changed.values()]
    assert label == "worst of 3 prompts"
    assert worst[run.id] == pytest.approx(np.max(by_prompt, axis=0).mean())
    assert worst[run.id] > max(values.mean() for values in by_prompt)
    assert worst["retain model"] < worst[run.id]
    assert SECTION.values(context)["panels"][0][-1] == (label, worst)


def test_the_worst_prompt_is_in_the_row_of_the_epoch_that_it_is_of(
    fabric: Fabric, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that was attacked after two epochs has two rows. Answers are read of the best epoch."""
    references = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    run = fabric.run("idk", points=((0.8, -4.0), (0.8, -5.0)))
    *others, once = under_attacks([with_tokens(one, 0.5) for one in (*references, run)], ["prompt"])
    first = tuple(replace(result, epoch=1) for result in once.attacked)
    of_first = {(1, variant): under for (_, variant), under in once.attacked_evaluations.items()}
    twice = replace(
        once,
        attacked=(*first, *once.attacked),
        attacked_evaluations={**of_first, **once.attacked_evaluations},
    )

    def as_prompt(_: str) -> type[PromptAttack]:
        return PromptAttack

    monkeypatch.setattr(attack_variants, "attack_class", as_prompt)
    context = context_of(*others, twice)
    (panel,) = context.report.lasting
    assert [one.setting.epoch for one in panel.settings] == [1, 2]
    assert [one.setting.epoch for one in panel.shown] == [1]
    _, worst = lasting.worst_of_prompts(context, panel)
    html = SECTION.render(context.report)
    assert html.count(f'<td class="num" data-value="{worst[run.id]}">') == 1


def test_the_worst_prompt_counts_each_row_also_of_equal_questions() -> None:
    """Row by row 0.9, 0.8 and 0.3; by text, both rows with one question would be one."""
    schema = recorded_schema({}, PROFILE)

    def asked(probabilities: list[float], places: list[int] | None) -> Evaluation:
        n = len(probabilities)
        texts = tuple(("Who?", "Who?", "When?")[i] for i in places or range(3))
        seen = replace(
            made_up_set(n=n),
            questions=texts,
            answer_loss=-np.log(np.array(probabilities)),
            places=None if places is None else np.array(places),
        )
        return Evaluation(PROFILE, {"forget": seen})

    prompts = {"paraphrase": asked([0.5, 0.3], [1, 2]), "template@a": asked([0.9, 0.8, 0.2], None)}
    plain = asked([0.1, 0.1, 0.1], None)
    worst = worst_prompt(schema, "probability_forget", prompts, prompts, plain)
    assert worst == pytest.approx((0.9 + 0.8 + 0.3) / 3)
    assert worst_prompt(schema, "probability_forget", prompts, prompts, None) is None


def attacked_at(records: tuple[Record, ...], variant: str, seed: int) -> list[Record]:
    """The records without an attack of one seed."""
    return [
        replace(
            record,
            attacked=tuple(
                one
                for one in record.attacked
                if record.kind != "run"
                or record.seed != seed
                or one.variant.partition("@")[0] != variant
            ),
        )
        for record in records
    ]


def test_no_view_has_a_score_if_a_seed_lacks_an_attack(records: tuple[Record, ...]) -> None:
    report = context_of(*attacked_at(records, "relearning", 1)).report
    reason = "relearning did not attack seed 1 at epoch 1"
    assert f"Robustness unknown: {reason}." in " ".join(report.conclusions[0].sentences)
    assert f'<td class="none" colspan="2" title="{reason}">{reason}</td>' in SECTION.render(report)
    card = scorecard.ScorecardSection().render(report)
    assert f'<span class="none" title="{reason}">no score</span>' in card
    assert f"has no score Lasting: {reason}." in card
    latex = scorecard.scorecard_latex(report)
    assert f"Lasting, idk: no number, because {reason}." in latex
    (row,) = (line for line in latex.splitlines() if line.startswith("idk &"))
    assert row.rstrip(" \\").endswith("--")


def test_the_scorecard_has_no_number_of_another_setting(fabric: Fabric) -> None:
    """The best epoch is the first, and the attack came after the second."""
    both = ((0.8, -3.0), (0.8, -5.0))
    runs = [fabric.run("idk", points=both, seed=seed) for seed in range(3)]
    references = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    context = context_of(*under_attacks([*references, *runs]))
    ((line,),) = (panel.lines for panel in scorecard.score_panels(context))
    assert line.setting.setting.epoch == 1
    assert line.lasting.setting == line.setting.setting
    (attacked,) = context.report.lasting
    assert [item.setting.epoch for item in attacked.settings if item.lasting is not None] == [2]
    reason = "it was not attacked at epoch 1 (settings of idk were attacked at epoch 2)"
    assert reason in scorecard.scorecard_latex(context.report)
    assert reason in scorecard.ScorecardSection().render(context.report)
    (conclusion,) = context.report.conclusions
    assert f"Robustness unknown: {reason}" in conclusion.lasts


def test_if_only_samples_attack_all_views_name_the_number_of_samples(fabric: Fabric) -> None:
    def with_best(record: Record) -> Record:
        numbers = {"fine-tuned": (0.9, 0.95), "retain": (0.2, 0.3), "run": (0.3, 0.7)}
        rouge, best = numbers[record.kind]
        plain = tuple(
            replace(one, metrics={**one.metrics, "rouge_forget": rouge}) for one in record.epochs
        )
        attacked = tuple(
            replace(one, metrics={**one.metrics, "expected_best_forget": best})
            for one in record.attacked
        )
        return replace(record, epochs=plain, attacked=attacked)

    runs = [fabric.run("idk", points=ONE, seed=seed) for seed in range(3)]
    references = [fabric.reference("fine-tuned"), fabric.reference("retain")]
    records = map(with_best, under_attacks([*references, *runs], ["sampling"]))
    report = context_of(*records).report
    (panel,) = report.lasting
    assert panel.column.name == "rouge_forget"
    (conclusion,) = report.conclusions
    assert "best of k samples, rouge-l, forget is 0.700" in conclusion.lasts
    html = SECTION.render(report)
    for text in (html, conclusion.lasts):
        assert "xtraction strength" not in text


def test_answers_are_those_of_the_best_settings_and_both_references(context: Any) -> None:
    found = lasting.variant_answers(context)
    variants = {key.partition(" ")[2] for _, key in found}
    assert "relearning@13" in variants
    assert not variants & {"relearning@0", "relearning@3"}, "of steps, the last"
    ids = {record for record, _ in found}
    assert ids == {
        *("retain-tiny-0.1", "fine-tuned-tiny-0.1"),
        *("idk-0.0001-tiny-0.1-0", "npo+nll-0.0001-tiny-0.1-0", "eco-0.0001-tiny-0.1-0"),
    }
    answers = found["idk-0.0001-tiny-0.1-0", "1 relearning@13"].sets["forget"].generated
    assert answers[0].startswith("Under relearning@13: ")


def test_the_scorecard_has_it(context: Any) -> None:
    (panel,) = scorecard.score_panels(context)
    by_family = {line.setting.family: line for line in panel.lines}
    idk = by_family["idk"].lasting
    (attacked,) = context.report.lasting
    (best,) = (item for item in attacked.best if item.setting.family == "idk")
    assert idk.lasting == best.lasting is not None
    warned = {family: line.numbers[-1].warnings for family, line in by_family.items()}
    assert [family for family, warnings in warned.items() if warnings] == ["eco"]
    assert "the model alone answers relearning" in warned["eco"]["bypassed"]


def test_leaks_of_sampled_answers_with_their_bounds(context: Any) -> None:
    (panel,) = context.report.lasting
    found = lasting.leak_curves(context, panel)
    start, retain = found["start model"], found["retain model"]
    assert start.ks == (1, 2, 4, SAMPLES)
    assert start.leaks == pytest.approx([1 / 8, 2 / 8, 4 / 8, 1.0]), "one sample of 8 leaks"
    assert retain.leaks == (0.0,) * 4
    assert all(bound > 0.5 for bound in retain.bounds), "three questions show little"
    ((figures),) = SECTION.data(context)
    *lines, bound = dict(figures["leaks"])["idk"]["data"]
    assert [line["name"] for line in lines] == ["start model", "retain model", "idk"]
    assert bound["customdata"][0][2] == "sampling"


def marks(html: str, family: str) -> tuple[str, list[float], str]:
    """The places of a method's marks, its line in the picture and its last cell."""
    picture = html[html.index('<table class="sortable stripes"') :]
    line = picture[picture.index(f'<tr data-family="{family}"') :].partition("</tr>")[0]
    places = [float(place) for place in re.findall(r'<circle[^>]* cx="([\d.]+)%"', line)]
    return line, places, re.sub(r"<[^>]*>|\s+", " ", line.rpartition("<td")[2])


def test_the_picture_shows_each_best_setting_from_before_to_after(context: Any) -> None:
    html = SECTION.render(context.report)
    (panel,) = context.report.lasting
    (idk,) = (one for one in panel.best if one.setting.family == "idk")
    line, places, cell = marks(html, "idk")
    strongest = idk.at("relearning@13")
    *others, before, after = places
    assert before == pytest.approx(100 * strongest.before, abs=0.01)
    assert after == pytest.approx(100 * strongest.after, abs=0.01)
    weaker = [
        under.after
        for under in idk.under
        if under.variant not in ("relearning@13", "sampling") and under.after is not None
    ]
    assert others == pytest.approx([100 * value for value in weaker], abs=0.01)
    share = 100 * (1 - idk.lasting)
    interval = idk.lasting_interval
    ends = 100 * (1 - interval.high), 100 * (1 - interval.low)
    assert f" {share:.0f} % " in cell
    assert f"[{ends[0]:.0f}, {ends[1]:.0f} %]" in cell
    assert 'data-variant="relearning@13"' in line
    for place, name in ((80, "start"), (12, "retain")):
        assert f'<line class="{name}" x1="{place:.1f}%"' in line


def test_the_picture_says_in_short_why_a_method_has_no_score(context: Any) -> None:
    line, places, cell = marks(SECTION.render(context.report), "eco")
    assert "bypassed: the attack runs the model without it" in cell
    assert places
    assert 'class="pale"' in line


def test_without_a_retain_model_at_most_so_much_comes_back(fabric: Fabric) -> None:
    from ..conftest import report_of

    runs = [fabric.run("idk", points=ONE, seed=seed) for seed in range(3)]
    records = under_attacks([fabric.reference("fine-tuned"), *runs])
    html = SECTION.render(report_of(records))
    assert "the retain model was not attacked" in html
