"""`unlearnbench bench evaluation`: the evaluator against the usual way, in turn, in one process.

A claim about speed holds for a state of the model: one that has memorised the answers generates
what it is asked for, an unlearned one departs from it at the first words, a random one never ends.
Each is measured, and of each it is shown that the two ways' numbers are the same.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from unlearnbench.bench.agreement import Agreement, compare
from unlearnbench.bench.clock import now
from unlearnbench.bench.exam import Exam, Settings
from unlearnbench.bench.floor import floor, work
from unlearnbench.bench.memory import peak_memory
from unlearnbench.bench.models import Models, Told
from unlearnbench.bench.plain import PlainEvaluator, PlainResult
from unlearnbench.evaluation import rouge
from unlearnbench.evaluation.result import Evaluation
from unlearnbench.models.loading import quiet_transformers
from unlearnbench.provenance import git_state, provenance, versions

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
            exam = Exam(sets, tokenizer, settings.rules())
            result: dict[str, Any] = {"state": state} | _measured(model, exam, repeats)
            del model  # what it holds on the device is not the next measurement's
            peaks = {way: peak_memory(settings, models.folder / state, way) for way in WAYS}
            states.append(result | {"peak_bytes": peaks})
            ratios = result["ratio"].items()
            told("  " + ", ".join(f"{phase} {ratio:.1f}×" for phase, ratio in ratios))
    return {
        "bench": "evaluation",
        **_circumstances(),
        "settings": asdict(settings) | {"repeats": repeats},
        "profile": settings.rules().id,
        "states": states,
    }


def _circumstances() -> dict[str, Any]:
    made = provenance(data="")
    return {
        "date": made["started"],
        "device": made["device"],
        "platform": made["platform"],
        "threads": torch.get_num_threads(),
        "git": git_state(),
        "versions": versions(),
    }


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
