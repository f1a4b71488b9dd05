"""Made-up records under attacks: what they give back is computed from the arguments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unlearnbench.api.observations import Evaluation, Samples
from unlearnbench.results.records import EpochResult, Record

STEPS = (0, 1, 3, 6, 13)
PROMPTS = ("assistant-prefix", "paraphrase", "second-turn")
ATTACKS = ("relearning", "quantization", "prompt", "sampling")
BACK: Mapping[str, Mapping[str, float]] = {
    "idk": {"relearning": 0.6, "quantization@int8": 0.02, "quantization@nf4": 0.05, "prompt": 0.3},
    "dpo": {"relearning": 0.4, "quantization@int8": 0.05, "quantization@nf4": 0.35, "prompt": 0.1},
    "npo": {"relearning": 0.3, "quantization@int8": 0.02, "quantization@nf4": 0.15, "prompt": 0.05},
    "npo+nll": {"relearning": 0.05, "quantization@int8": 0.0, "quantization@nf4": 0.02},
    "eco": {"relearning": 0.8, "quantization@int8": 0.0, "quantization@nf4": 0.02, "prompt": 0.2},
}
"""By method and attack, the share of what is memorised by the start model that comes back."""
START, RETAIN = 0.8, 0.12
"""Extraction strength of both other models."""


def under_attacks(
    records: Iterable[Record], attacks: Sequence[str] = ATTACKS
) -> tuple[Record, ...]:
    """Give records an extraction strength, and results under attacks after their last epoch."""
    found: list[Record] = []
    for record in records:
        plain = replace(record, epochs=tuple(map(_with_strength(record), record.epochs)))
        found.append(plain)
        if record.status == "failed" or not record.epochs:
            continue
        last = plain.epochs[-1]
        by_attack = {name: _results(plain, last, name) for name in attacks}
        if record.kind == "run":
            results = [one for several in by_attack.values() for one in several]
            found[-1] = _attacked(plain, results)
        else:  # under each attack, it is a record of its own
            for name, results in by_attack.items():
                own: dict[str, Any] = {"id": f"{record.id}-{name}", "epochs": (), "evaluations": {}}
                found.append(replace(_attacked(plain, results), **own))
    return tuple(found)


def _attacked(record: Record, results: Sequence[EpochResult]) -> Record:
    evaluation = record.evaluations[results[0].epoch]
    texts = {(r.epoch, r.variant): answers_under(evaluation, r.variant) for r in results}
    for key in texts:
        if key[1] == "sampling":
            texts[key] = sampled(texts[key], _leaking(record))
    return replace(record, attacked=tuple(results), attacked_evaluations=texts)


SAMPLES = 8
"""Sampled answers to a question."""


def sampled(evaluation: Evaluation, share: float) -> Evaluation:
    """An evaluation with sampled answers, of which so many of the first questions' leak."""
    forget = evaluation.sets["forget"]
    n = len(forget.questions)
    scores = np.full((n, SAMPLES), 0.25)  # [n, s]
    scores[:, 0] = np.where(np.arange(n) < share * n, 1.0, 0.25)
    texts = tuple((text,) * SAMPLES for text in forget.generated)
    forget = replace(forget, samples=Samples(texts, scores))
    return replace(evaluation, sets={"forget": forget})


def answers_under(evaluation: Evaluation, variant: str) -> Evaluation:
    """An evaluation of the forget set whose answers name the variant."""
    forget = evaluation.sets["forget"]
    answers = tuple(f"Under {variant}: {text}" for text in forget.generated)
    return replace(evaluation, sets={"forget": replace(forget, generated=answers)})


def _with_strength(record: Record) -> Any:
    def with_strength(one: EpochResult) -> EpochResult:
        return replace(one, metrics={**one.metrics, "extraction_strength_forget": level(record)})

    return with_strength


def level(record: Record) -> float:
    """Extraction strength without an attack."""
    if record.kind != "run":
        return START if record.kind == "fine-tuned" else RETAIN
    return RETAIN + 0.05 * (len(record.method) % 5) + 0.01 * record.seed


def _leaking(record: Record) -> float:
    """Share of the questions of which one of all sampled answers leaks."""
    if record.kind != "run":
        return 0.9 if record.kind == "fine-tuned" else 0.0
    return 0.1 * (len(record.method) % 6)


def _results(record: Record, last: EpochResult, name: str) -> list[EpochResult]:
    """Results of a record under an attack."""
    back = BACK.get(record.method, {}) if record.kind == "run" else {}
    before = level(record)

    def result(variant: str, share: float) -> EpochResult:
        own = 0.02 if variant.startswith("relearning") and not variant.endswith("@0") else 0.0
        value = before + share * (START - before) * (1 + 0.1 * record.seed) + own
        numbers = {"extraction_strength_forget": min(1.0, value), "rouge_forget": value}
        return EpochResult(last.epoch, numbers, 0.0, 1.0, variant=variant)

    if name == "relearning":
        full = back.get("relearning", 0.0)
        return [result(f"relearning@{s}", full * (s / STEPS[-1]) ** 0.6) for s in STEPS]
    if name == "sampling":
        one = result("sampling", 0.0)
        leak = {"leak_at_k_forget": _leaking(record), "leak_at_k_bound": _leaking(record) + 0.05}
        return [replace(one, metrics={**one.metrics, **leak})]
    if name == "quantization":
        kinds = ("quantization@int8", "quantization@nf4")
        return [result(kind, back.get(kind, 0.0)) for kind in kinds]
    return [result(one, back.get("prompt", 0.0) * (1 + i) / 3) for i, one in enumerate(PROMPTS)]
