"""`unlearnbench bench evaluation`: the evaluator against the usual way, in turn, in one process.

Speed depends on the state of the model: one that has memorised the answers generates them, an
unlearned one departs at the first words, a random one never ends. Each is measured, and for each
the numbers of the two ways are compared.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unlearnbench.api.observations import Evaluation
from unlearnbench.bench.agreement import compare
from unlearnbench.bench.evaluation_case import EvaluationBenchSettings, EvaluationCase
from unlearnbench.bench.measured_models import MeasuredModels, load
from unlearnbench.bench.measurement import PrintLine, ResultTable, circumstances, now, size_of
from unlearnbench.bench.metric_cost import cost_table, forget_overlap, metric_cost
from unlearnbench.bench.peak_in_process import Work, peak_in_process
from unlearnbench.bench.plain_evaluator import PlainEvaluator, PlainResult
from unlearnbench.bench.roofline import floor, work
from unlearnbench.evaluation.evaluate_model import data_settings
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.models.loading import quiet_transformers

PHASES: tuple[str, ...] = ("scoring", "generation", "total")
WAYS: tuple[str, ...] = ("plain", "fast")

Pair = tuple[PlainResult, Evaluation, dict[str, tuple[float, ...]]]
"""Both evaluations of one repeat, and the seconds of `PHASES` by way."""


def bench_evaluation(
    settings: EvaluationBenchSettings, repeats: int, folder: Path | None, print_line: PrintLine
) -> dict[str, Any]:
    """Measure every state `repeats` times each way; returns the result, ready for JSON.

    folder      where prepared models are stored for later calls; a temporary folder by default
    print_line  called with each line of progress
    """
    quiet_transformers()
    sets = settings.sets()
    states: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unlearnbench-")))
        models = MeasuredModels(settings, sets, folder, print_line)
        models.check()
        for state in settings.states:
            model, tokenizer = models.load(state)
            print_line(f"measuring the {state} model, {repeats} times each way")
            case = EvaluationCase(sets, tokenizer, settings.rules(), settings.precision)
            result: dict[str, Any] = {"state": state} | _measured(model, case, repeats)
            result["metric_cost"] = metric_cost(model, case, data_settings(settings.data), repeats)
            del model  # its memory must not count in the next measurement
            place = models.folder / state
            states.append(result | {"peak_bytes": {w: peak(settings, place, w) for w in WAYS}})
            ratios = [f"{phase} {ratio:.1f}×" for phase, ratio in result["ratio"].items()]
            print_line(f"  {', '.join(ratios)}")
    return {
        "bench": "evaluation",
        **circumstances(),
        "settings": asdict(settings) | {"repeats": repeats},
        "profile": settings.rules().id,
        "states": states,
    }


def peak(settings: EvaluationBenchSettings, folder: Path, way: str) -> int | None:
    """Peak memory in bytes of one way; None if not known."""
    how: dict[str, Any] = {"way": way, "folder": str(folder), "settings": asdict(settings)}
    return peak_in_process(evaluation_of, how, here=settings.quick)


def evaluation_of(how: Mapping[str, Any]) -> Work:
    """Prepare the work whose memory is measured: `way` on the model in `folder`."""
    settings = EvaluationBenchSettings(**how["settings"])
    model, tokenizer = load(Path(how["folder"]), settings.dtype)
    case = EvaluationCase(settings.sets(), tokenizer, settings.rules(), settings.precision)
    begin: Any = getattr(case.warm_up(), how["way"])()
    begin(model)  # imports, thread pools and kernels are not counted
    evaluator: Any = getattr(case, how["way"])()
    return model.device, lambda: evaluator(model)


def _measured(model: Any, case: EvaluationCase, repeats: int) -> dict[str, Any]:
    plain, fast = case.plain(), case.fast()
    begin = case.warm_up()  # imports, thread pools and kernels are not counted
    begin.plain()(model)
    begin.fast()(model)
    pairs = [_pair(model, plain, fast) for _ in range(repeats)]
    seconds = {
        way: dict(zip(PHASES, zip(*(took[way] for *_, took in pairs), strict=True), strict=True))
        for way in WAYS
    }
    medians = {
        way: {phase: statistics.median(values) for phase, values in phases.items()}
        for way, phases in seconds.items()
    }
    slow, found, _ = pairs[0]
    questions = [rows for set_ in plain.rows.values() for rows in set_]
    scored = sum(row.scored for rows in questions for row in dict.fromkeys(rows))
    generated = sum(len(a) + 1 for answers in slow.answers.values() for a in answers)
    todo = work(questions)
    least = floor(model, todo)
    how = found.statistics
    return {
        "parameters": sum(p.numel() for p in model.parameters()),
        "questions": {name: len(rows) for name, rows in plain.rows.items()},
        "seconds": seconds,
        "median_seconds": medians,
        "ratio": {
            phase: medians["plain"][phase] / max(medians["fast"][phase], 1e-9) for phase in PHASES
        },
        "tokens": {"scored": scored, "generated": generated, "distinct": todo.positions},
        "tokens_per_second": {w: (scored + generated) / medians[w]["total"] for w in medians},
        "floor": {
            "flop": least.flop,
            "flop_per_second": least.rate,
            "seconds": least.seconds,
            "scoring_above": medians["fast"]["scoring"] / least.seconds - 1,
        },
        "agreement": asdict(compare(model, plain, slow, found)),
        "statistics": None if how is None else asdict(how) | {"ties": len(how.ties)},
    }


def _pair(model: Any, plain: PlainEvaluator, fast: Evaluator) -> Pair:
    slow = plain(model)
    forget_overlap()
    begin = now(model.device)
    found = fast(model)
    total = now(model.device) - begin
    # The scoring pass also verifies drafts; generation is the time beyond it.
    scoring = total if found.statistics is None else found.statistics.scoring_seconds
    took: dict[str, tuple[float, ...]] = {
        "plain": (slow.scoring, slow.generation, slow.scoring + slow.generation),
        "fast": (scoring, total - scoring, total),
    }
    return slow, found, took


def tables(result: dict[str, Any]) -> tuple[ResultTable, ...]:
    """Seconds by state and phase; everything else by state; then the cost of metrics."""
    states = result["states"]
    questions = sum(states[0]["questions"].values())
    title = (
        f"{states[0]['parameters'] / 1e6:.3g}M parameters, {result['settings']['dtype']}, "
        f"{questions} questions, profile {result['profile']}"
    )
    seconds = [row for state in states for row in _seconds(state)]
    columns = ("model", "phase", "plain", "fast", "faster")
    names = [state["state"] for state in states]
    lines = [dict(_facts(state)) for state in states]
    facts = [(key, *(line[key] for line in lines)) for key in lines[0]]
    costs = cost_table({state["state"]: state["metric_cost"] for state in states})
    return ResultTable(columns, seconds, title), ResultTable(("", *names), facts), costs


def _seconds(state: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for phase, ratio in state["ratio"].items():
        plain, fast = (state["median_seconds"][way][phase] for way in ("plain", "fast"))
        name = state["state"] if phase == "scoring" else ""
        yield name, phase, f"{plain:.3g} s", f"{fast:.3g} s", f"{ratio:.2f}×"


def _facts(state: dict[str, Any]) -> Iterator[tuple[str, str]]:
    rates, least, peaks = state["tokens_per_second"], state["floor"], state["peak_bytes"]
    yield "tokens/s, plain", f"{rates['plain']:.0f}"
    yield "tokens/s, fast", f"{rates['fast']:.0f}"
    yield "scoring's arithmetic", f"{least['flop'] / 1e9:.4g} GFLOP"
    yield "matrix products here", f"{least['flop_per_second'] / 1e9:.0f} GFLOP/s"
    yield "so its floor", f"{least['seconds']:.3g} s"
    yield "fast scoring above it", f"{least['scoring_above']:.0%}"
    for way, size in peaks.items():
        yield f"peak memory, {way}", size_of(size)
    defined = None not in peaks.values() and peaks["plain"] > 0
    yield "fast of plain", f"{peaks['fast'] / peaks['plain']:.2f}" if defined else "not known"
    how = state["statistics"]
    if how is not None:
        share = how["drafted"] / max(how["generated"], 1)
        yield "tokens from drafts", f"{share:.0%} of {how['generated']}"
        yield "decoding steps", f"{how['steps']}, {how['steps_saved']} saved"
    found = state["agreement"]
    verdict, largest = "agree" if found["agree"] else "DIFFER", found["largest_difference"]
    detail = f"to {largest:.1e}" if largest is not None else f"in {found['where']}"
    yield "metrics", f"{verdict} {detail}"
    yield "other answers", f"{found['ties']} at a tie, {found['different_answers']} elsewhere"
