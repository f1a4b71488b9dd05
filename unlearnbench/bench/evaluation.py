"""`unlearnbench bench evaluation`: the evaluator against the usual way, in turn, in one process.

A claim about speed holds for a state of the model: one that has memorised the answers generates
what it is asked for, an unlearned one departs from it at the first words, a random one never ends.
Each is measured, and of each it is shown that the two ways' numbers are the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unlearnbench.bench.agreement import Agreement, compare
from unlearnbench.bench.circumstances import circumstances
from unlearnbench.bench.clock import now
from unlearnbench.bench.exam import Exam, Settings
from unlearnbench.bench.floor import floor, work
from unlearnbench.bench.memory import Work, peak_in_process
from unlearnbench.bench.models import Models, Told, load
from unlearnbench.bench.plain import PlainEvaluator, PlainResult
from unlearnbench.bench.tables import Table, size_of
from unlearnbench.evaluation import rouge
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.models.loading import quiet_transformers

PHASES: tuple[str, ...] = ("scoring", "generation", "total")
WAYS: tuple[str, ...] = ("plain", "fast")

Seconds = dict[str, dict[str, list[float]]]
"""By way and phase, of each repeat."""


def bench_evaluation(
    settings: Settings, repeats: int, folder: Path | None, told: Told
) -> dict[str, Any]:
    """Measure every state `repeats` times each way; returns the result, ready for JSON.

    folder  keeps the prepared models, and has them afterwards; a temporary one without it
    told    gets a line at a time
    """
    quiet_transformers()
    sets = settings.sets()
    states: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if folder is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="unlearnbench-")))
        models = Models(settings, sets, folder, told)
        models.check()
        for state in settings.states:
            model, tokenizer = models.load(state)
            told(f"measuring the {state} model, {repeats} times each way")
            exam = Exam(sets, tokenizer, settings.rules(), settings.precision)
            result: dict[str, Any] = {"state": state} | _measured(model, exam, repeats)
            del model  # what it holds on the device is not the next measurement's
            place = models.folder / state
            peaks = {way: peak(settings, place, way) for way in WAYS}
            states.append(result | {"peak_bytes": peaks})
            ratios = result["ratio"].items()
            told("  " + ", ".join(f"{phase} {ratio:.1f}×" for phase, ratio in ratios))
    return {
        "bench": "evaluation",
        **circumstances(),
        "settings": asdict(settings) | {"repeats": repeats},
        "profile": settings.rules().id,
        "states": states,
    }


def peak(settings: Settings, folder: Path, way: str) -> int | None:
    how: dict[str, Any] = {"way": way, "folder": str(folder), "settings": asdict(settings)}
    return peak_in_process(f"{__name__}:evaluation_of", how, here=settings.quick)


def evaluation_of(how: Mapping[str, Any]) -> Work:
    """The work whose memory is measured: `way` on the model in `folder`."""
    settings = Settings(**how["settings"])
    model, tokenizer = load(Path(how["folder"]), settings.dtype)
    exam = Exam(settings.sets(), tokenizer, settings.rules(), settings.precision)
    begin: Any = getattr(exam.beginning(), how["way"])()
    begin(model)  # imports, thread pools and kernels are nobody's
    evaluator: Any = getattr(exam, how["way"])()
    return next(model.parameters()).device, lambda: evaluator(model)


@dataclass(frozen=True, eq=False)
class _Pair:
    """Both evaluations of one repeat, and how long they took."""

    slow: PlainResult
    fast: Evaluation
    seconds: dict[str, dict[str, float]]
    """By way and phase."""


def _measured(model: Any, exam: Exam, repeats: int) -> dict[str, Any]:
    plain, fast = exam.plain(), exam.fast()
    begin = exam.beginning()  # imports, thread pools and kernels are nobody's
    begin.plain()(model)
    begin.fast()(model)
    first = _pair(model, plain, fast)
    pairs = [first, *(_pair(model, plain, fast) for _ in range(repeats - 1))]
    seconds: Seconds = {
        way: {phase: [pair.seconds[way][phase] for pair in pairs] for phase in PHASES}
        for way in WAYS
    }
    agreement = compare(model, plain, first.slow, first.fast)
    return _result(model, plain, first, seconds, agreement)


def _pair(model: Any, plain: PlainEvaluator, fast: Callable[[Any], Evaluation]) -> _Pair:
    device = next(model.parameters()).device
    slow = plain(model)
    for member in vars(rouge).values():  # what an earlier repeat has taught is no merit of this one
        if hasattr(member, "cache_clear"):
            member.cache_clear()
    begin = now(device)
    found = fast(model)
    total = now(device) - begin
    # The pass that scores also verifies drafts: what the whole takes beyond it is generation.
    scoring = total if found.statistics is None else found.statistics.scoring_seconds
    took = {
        "plain": (slow.scoring, slow.generation, slow.scoring + slow.generation),
        "fast": (scoring, total - scoring, total),
    }
    seconds = {way: dict(zip(PHASES, values, strict=True)) for way, values in took.items()}
    return _Pair(slow, found, seconds)


def _result(
    model: Any, plain: PlainEvaluator, first: _Pair, seconds: Seconds, agreement: Agreement
) -> dict[str, Any]:
    medians = {
        way: {phase: statistics.median(values) for phase, values in phases.items()}
        for way, phases in seconds.items()
    }
    questions = [rows for set_ in plain.rows.values() for rows in set_]
    scored = sum(row.scored for rows in questions for row in dict.fromkeys(rows))
    generated = sum(len(a) + 1 for answers in first.slow.answers.values() for a in answers)
    todo = work(questions)
    least = floor(model, todo)
    statistic = first.fast.statistics
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
        "agreement": asdict(agreement),
        "statistics": None
        if statistic is None
        else asdict(statistic) | {"ties": len(statistic.ties)},
    }


def tables(result: dict[str, Any]) -> tuple[Table, Table]:
    """Seconds by state and phase; then everything else by state."""
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
    return Table(columns, seconds, title), Table(("", *names), facts)


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
    known = None not in peaks.values() and peaks["plain"] > 0
    yield "fast of plain", f"{peaks['fast'] / peaks['plain']:.2f}" if known else "not known"
    how = state["statistics"]
    if how is not None:
        share = how["drafted"] / max(how["generated"], 1)
        yield "tokens from drafts", f"{share:.0%} of {how['generated']}"
        yield "decoding steps", f"{how['steps']}, {how['steps_saved']} saved"
    found = state["agreement"]
    verdict, largest = "agree" if found["agree"] else "DIFFER", found["largest_difference"]
    told = f"to {largest:.1e}" if largest is not None else f"in {found['where']}"
    yield "metrics", f"{verdict} {told}"
    yield "other answers", f"{found['ties']} at a tie, {found['different_answers']} elsewhere"
