"""Time the evaluator against the usual way, and compare numbers: python -m benchmarks.evaluation

Speed depends on the state of the model: one that has memorised the answers generates them, an
unlearned one departs at the first words, a random one never ends. Each is measured.
The order of two logits closer than rounding is arbitrary: another batch shape may reverse it, and
the answers then differ from there on. Such an answer is counted as a tie, and its ROUGE taken from
the plain evaluation; an answer that departs anywhere else is a difference.
"""

import math
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from unlearnbench.api.benchmark import Question
from unlearnbench.api.metric import SCORED_ONLY
from unlearnbench.api.observations import Evaluation, SetEvaluation, SetName
from unlearnbench.api.profile import Profile
from unlearnbench.config.entries import benchmark_of
from unlearnbench.config.precision import Precision
from unlearnbench.config.profiles import get_profile
from unlearnbench.evaluation.evaluator import Evaluator
from unlearnbench.evaluation.predictor import tie_gap
from unlearnbench.evaluation.sets import evaluation_sets
from unlearnbench.evaluation.summary import plan_of, summarize
from unlearnbench.models.limits import pad_id
from unlearnbench.models.loading import load_model
from unlearnbench.models.rows_loading import load_benchmark
from unlearnbench.models.source import Source
from unlearnbench.models.templates import TEMPLATES
from unlearnbench.models.whole_model import load_tokenizer
from unlearnbench.runs.evaluate_model import data_settings, model_settings

from .models import QUICK, SIZES, in_states
from .plain_evaluator import PlainEvaluator, PlainResult
from .timer import Work, begin, end, now, options_of, peak_bytes, spread

Sets = Mapping[SetName, Sequence[Question]]
WAYS = ("plain", "fast")
# bf16 has 8 bits: its logits differ with the batch's shape in the third digit.
ALLOWED = {torch.float32: 1e-5, torch.float64: 1e-9, torch.bfloat16: 3e-2}
"""Largest difference of a metric, by the weights' type."""


def evaluators(
    sets: Sets, tokenizer: Any, profile: Profile, dtype: str = "float32"
) -> tuple[PlainEvaluator, Evaluator]:
    """The evaluator of the usual way, and ours."""
    arguments = (sets, tokenizer, TEMPLATES["plain"], profile, pad_id(tokenizer))
    precision: Precision = "bf16" if dtype == "bfloat16" else "fp32"
    return PlainEvaluator(*arguments), Evaluator(*arguments, precision=precision)


@dataclass(frozen=True)
class Agreement:
    """The result of comparing two evaluations."""

    agree: bool
    largest_difference: float | None
    """Over all metrics; None if a metric is defined in one evaluation only."""
    where: str
    """The metric with that difference."""
    ties: int
    """Answers that depart where two logits are equal up to rounding."""
    different_answers: int
    """Answers that depart anywhere else."""


def compare(model: Any, plain: PlainEvaluator, slow: PlainResult, fast: Evaluation) -> Agreement:
    """Compare metrics and answers of two evaluations of `model`; `plain` gave the first."""
    dtype = next(model.parameters()).dtype
    ties = different = 0
    sets: dict[SetName, SetEvaluation] = {}
    for name, reference in slow.evaluation.sets.items():
        seen = fast.sets[name]
        answers = fast.answers[name] if fast.answers is not None else ()
        pairs = list(zip(slow.answers[name], answers, strict=True))
        departs = np.array([a != b for a, b in pairs])
        for i in np.flatnonzero(departs):
            gaps = top_gaps(model, plain.prompts[name][i], pairs[i][0])
            same = [a == b for a, b in zip(*pairs[i], strict=False)]
            tie = bool(gaps[[*same, False].index(False)] <= tie_gap(dtype))
            ties, different = ties + tie, different + (not tie)
        sets[name] = replace(
            seen,
            rouge1_recall=np.where(departs, reference.rouge1_recall, seen.rouge1_recall),
            rouge_l_recall=np.where(departs, reference.rouge_l_recall, seen.rouge_l_recall),
        )
    ours = summarize(replace(fast, sets=sets), None, plain.profile)
    theirs = summarize(plain.exactly(model, slow.evaluation), None, plain.profile)
    # The plain way has no values by token, which the benchmark's own metrics do not read.
    differ = {key: difference(ours[key], theirs[key]) for key in plan_of(plain.profile).own}
    where = max(differ, key=lambda key: differ[key])
    agree = differ[where] <= ALLOWED[dtype] and not different
    finite = differ[where] if math.isfinite(differ[where]) else None
    return Agreement(agree, finite, where, ties, different)


def difference(first: float | None, second: float | None) -> float:
    """How far two values of a metric are apart; infinite if only one is defined."""
    if first is None or second is None:
        return 0.0 if first is second else math.inf
    return abs(first - second)


@torch.no_grad()
def top_gaps(model: Any, prompt: Sequence[int], answer: Sequence[int]) -> np.ndarray[Any, Any]:
    """[len(answer) + 1] lead of the largest logit over the second, at each step of an answer."""
    device = next(model.parameters()).device
    ids = torch.tensor([[*prompt, *answer]], device=device)
    logits = model(input_ids=ids).logits[0, len(prompt) - 1 :].double()
    top = logits.topk(2, dim=1).values
    gaps: np.ndarray[Any, Any] = (top[:, 0] - top[:, 1]).cpu().numpy()
    return gaps


def questions_of(data: str, forget: float, profile: Profile, quick: bool) -> Sets:
    """The questions by set, but for sets that are only scored: all are answered."""
    benchmark = data_settings(data)
    if quick and data == "synthetic":
        few = {"authors": 4, "questions_per_author": 2, "pretraining_authors": 0}
        benchmark, forget = benchmark_of(few), 0.5
    sets = evaluation_sets(load_benchmark(benchmark, (forget,)), forget, profile)
    return {n: rows for n, rows in sets.items() if benchmark.roles.get(n) not in SCORED_ONLY}


def evaluation_of(folder: str, sets: Sets, profile: Profile, dtype: str, way: str) -> Work:
    """The work whose memory is measured; imports, thread pools and kernels are not counted."""
    source, settings = Source(folder), model_settings(folder, "plain", dtype)
    model, tokenizer = load_model(source, settings), load_tokenizer(source, settings)
    few = {name: rows[:2] for name, rows in sets.items()}
    evaluators(few, tokenizer, profile, dtype)[WAYS.index(way)](model)
    evaluator = evaluators(sets, tokenizer, profile, dtype)[WAYS.index(way)]
    return lambda: evaluator(model)


def main(words: list[str] | None = None) -> int:
    """Measure each state of a model."""
    parser = options_of(__doc__)
    parser.add_argument("--size", choices=SIZES, default="tiny")
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--data", default="synthetic", help="a benchmark, or a folder of files")
    parser.add_argument("--forget", type=float, default=0.1)
    parser.add_argument("--profile", default="tofu")
    parser.add_argument("--rows", type=int, help="the most of a set")
    options = begin(parser, words)
    quick = options.size in QUICK
    length = 40 if quick else None
    profile = get_profile(options.profile, rows=options.rows, max_length=length)
    sets = questions_of(options.data, options.forget, profile, quick)
    states: list[dict[str, Any]] = []
    agree = True
    for state, model, tokenizer in in_states(options.size, sets, getattr(torch, options.dtype)):
        few = {name: rows[:2] for name, rows in sets.items()}
        for evaluator in evaluators(few, tokenizer, profile, options.dtype):
            evaluator(model)  # imports, thread pools and kernels are not counted
        plain, fast = evaluators(sets, tokenizer, profile, options.dtype)
        seconds: dict[str, list[float]] = {way: [] for way in WAYS}
        slow, seen = plain(model), fast(model)
        for _ in range(options.repeats):
            slow = plain(model)
            start = now()
            seen = fast(model)
            seconds["fast"].append(now() - start)
            seconds["plain"].append(slow.scoring + slow.generation)
        found = compare(model, plain, slow, seen)
        agree &= found.agree
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
            order = (evaluation_of, folder, sets, profile, options.dtype)
            peaks = {way: peak_bytes(*order, way, here=quick) for way in WAYS}
        spreads = {way: spread(values) for way, values in seconds.items()}
        states.append(
            {
                "state": state,
                "questions": {name: len(rows) for name, rows in sets.items()},
                "seconds": spreads,
                "faster": spreads["plain"]["median"] / spreads["fast"]["median"],
                "peak_bytes": peaks,
                "agreement": vars(found),
            }
        )
    return end(options, agree, states=states)


if __name__ == "__main__":
    sys.exit(main())
