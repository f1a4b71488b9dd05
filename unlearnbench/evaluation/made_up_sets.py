"""Made-up observations, to try metrics on before any training; always the same."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from unlearnbench.api.metric import EvaluatedModel, MetricInputs
from unlearnbench.api.metric_engine import MetricPlan, columns_of, computed
from unlearnbench.api.observation import Observation
from unlearnbench.api.observations import AnswerTokens, Samples, SetEvaluation
from unlearnbench.api.registry import offers
from unlearnbench.base.errors import PluginError

_WORDS = ("the", "author", "was", "born", "in", "a", "small", "town", "and", "writes", "novels")
_LARGE = 50.0
"""Nats of a token that is next to impossible."""
SAMPLES = 20
"""Sampled answers to each question, as many as by default."""


def made_up_set(
    knows: float = 0.5, *, n: int = 6, seed: int = 0, empty: bool = False, samples: int = SAMPLES
) -> SetEvaluation:
    """n examples with three perturbed answers each; every other answer was cut before its EOS.

    knows  how well the model does, between 0 and 1
    empty  the first answer has no token but EOS
    """
    rng = np.random.default_rng(seed)
    lengths = rng.integers(3, 13, n)
    ended = np.arange(n) % 2 == 0
    if empty:
        lengths[0] = 1
    total = int(lengths.sum())
    loss = rng.exponential(0.1 + 3 * (1 - knows), total).astype(np.float32)
    tokens = AnswerTokens(
        lengths=lengths,
        ended=ended,
        loss=loss,
        hit=rng.random(total) < knows,
        tied=np.zeros(total, dtype=np.bool_),
        mean_logprob=(-1 - rng.random(total)).astype(np.float32),
        logprob_variance=(1 + rng.random(total)).astype(np.float32),
    )
    means = np.array([part.mean(dtype=np.float64) for part in tokens.by_answer(loss, eos=True)])
    texts = [*map(" ".join, rng.choice(_WORDS, (n, 9)).tolist())]
    faults = map(" ".join, rng.choice(_WORDS, (n, 5)).tolist())
    known = rng.random(n) < knows
    greedy = [t if knew else w for t, w, knew in zip(texts, faults, known, strict=True)]
    rouge = np.clip(knows + rng.uniform(-0.2, 0.2, n), 0, 1)
    drawn = rng.choice(_WORDS, (n, samples, 4)).tolist()
    return SetEvaluation(
        questions=tuple(f"question {i}" for i in range(n)),
        generated=tuple(greedy),
        references=tuple(texts),
        answer_loss=means,
        answer_tokens=lengths,
        base_loss=means + rng.uniform(0, 0.2, n),
        base_tokens=lengths,
        perturbed_loss=1.5 + rng.random((n, 3)),
        perturbed_tokens=np.repeat(lengths[:, None], 3, axis=1),
        rouge1_recall=rouge,
        rouge_l_recall=rouge * 0.9,
        token_columns=tokens,
        grad_norm=means * rng.uniform(2, 3, n),
        start_loss=rng.exponential(1, n),
        samples=Samples(
            tuple(tuple(map(" ".join, answers)) for answers in drawn),
            np.clip(knows + rng.uniform(-0.4, 0.4, (n, samples)), 0, 1),
        ),
        **_of_questions(n),
    )


def _of_questions(n: int) -> dict[str, Any]:
    labels = tuple((f"half {i % 2}",) for i in range(n))
    return {"options": (_WORDS[:4],) * n, "answer_index": np.arange(n) % 4, "labels": labels}


def perfect_set(n: int = 4, *, tokens: int = 200) -> SetEvaluation:
    """A model that knows every answer word for word, and gives false ones no weight."""
    return _extreme(n, tokens, knows=True)


def hopeless_set(n: int = 4, *, tokens: int = 200) -> SetEvaluation:
    """A model that knows no answer at all, and finds false ones certain."""
    return _extreme(n, tokens, knows=False)


def _extreme(n: int, tokens: int, *, knows: bool) -> SetEvaluation:
    loss, loss_of_false = (0.0, _LARGE) if knows else (_LARGE, 0.0)
    total, lengths = n * tokens, np.full(n, tokens)
    texts = tuple(" ".join(np.roll(_WORDS, i)) for i in range(n))
    return SetEvaluation(
        questions=tuple(f"question {i}" for i in range(n)),
        generated=texts if knows else ("",) * n,
        references=texts,
        answer_loss=np.full(n, loss),
        answer_tokens=lengths,
        base_loss=np.full(n, loss + 1e-9),  # it differs: there is a paraphrase
        base_tokens=lengths,
        perturbed_loss=np.full((n, 3), loss_of_false),
        perturbed_tokens=np.full((n, 3), tokens),
        rouge1_recall=np.full(n, float(knows)),
        rouge_l_recall=np.full(n, float(knows)),
        token_columns=AnswerTokens(
            lengths=lengths,
            ended=np.ones(n, dtype=np.bool_),
            loss=np.full(total, loss, dtype=np.float32),
            hit=np.full(total, knows),
            tied=np.zeros(total, dtype=np.bool_),
            mean_logprob=np.full(total, -2, dtype=np.float32),
            logprob_variance=np.ones(total, dtype=np.float32),
        ),
        grad_norm=np.full(n, loss),
        start_loss=np.full(n, loss),
        samples=Samples(
            tuple((text if knows else "",) * SAMPLES for text in texts),
            np.full((n, SAMPLES), float(knows)),
        ),
        **_of_questions(n),
    )


def observed(seen: SetEvaluation, observations: Sequence[Observation]) -> SetEvaluation:
    """The set with further observations, of made-up logits that give its tokens' losses.

    They depend on a token's loss alone, and are NaN where it is.
    """
    if not observations:
        return seen
    import torch

    loss = torch.tensor(seen.tokens.loss)
    logits = torch.linspace(-2, 2, 1 << 12).repeat(len(loss), 1)
    probability = loss.nan_to_num().neg().exp().clamp(1e-6, 1 - 1e-6)
    logits[:, 0] = logits[:, 1:].logsumexp(1) + probability.logit()
    labels = torch.zeros(len(loss), dtype=torch.long)
    columns = {
        o.name: o.per_token(logits, labels).float().masked_fill(loss.isnan(), torch.nan).numpy()
        for o in observations
    }
    return replace(seen, token_columns=replace(seen.tokens, observed=columns))


def made_up_models(
    names: Mapping[str, object], observations: Sequence[Observation] = (), samples: int = SAMPLES
) -> tuple[dict[str, SetEvaluation], ...]:
    """The sets `names` of three models: of a run, of its retain model, and of its start model."""
    return tuple(
        {
            name: observed(made_up_set(knows, seed=seed, samples=samples), observations)
            for seed, name in enumerate(names)
        }
        for knows in (0.5, 0.3, 0.9)
    )


def try_metrics(plan: MetricPlan, sets: Iterable[str] = (), samples: int = SAMPLES) -> None:
    """Compute every metric once. Raises: PluginError with a line for each that is at fault.

    sets     further evaluation sets of the benchmark, which only summaries read
    samples  answers to each question that attacks will sample
    """
    faults = [str(fault) for fault in plan.faults]
    names = dict.fromkeys([*(name for item in plan.measures for name in item.sets), *sets])
    models = made_up_models(names, plan.observations, samples)
    known = [dict[str, float | None](), dict[str, float | None](), dict[str, float | None]()]
    for measure in plan.measures:
        try:
            for values, seen in zip(known, models, strict=True):
                for name in measure.sets:
                    values[f"{measure.name}_{name}"] = value = measure.value(seen[name])
                    if value is None:
                        raise PluginError(
                            f"metric {measure.name!r} is undefined on ordinary observations of a "
                            f"set {name!r}: a value is NaN or infinite"
                        )
        except PluginError as error:
            faults.append(str(error))
    retain, start = (EvaluatedModel(s, v) for s, v in zip(models[1:], known[1:], strict=True))
    for summary in plan.in_order:
        try:
            values = computed(
                summary, MetricInputs(EvaluatedModel(models[0], known[0]), retain, start)
            )
            known[0] |= values
            # Later ones read these.
            known[1] |= computed(summary, MetricInputs(retain))
            known[2] |= computed(summary, MetricInputs(start))
            part = [item.name for item in columns_of(summary) if item.name in plan.own]
            if part and all(values.get(name) is None for name in part):
                faults.append(
                    f"metric {type(summary).__name__}: {', '.join(part)} is undefined on ordinary "
                    "observations: its settings name sets or columns that the benchmark has not"
                )
        except PluginError as error:
            faults.append(str(error))
    used = {item.name for item in plan.measures} | {
        name.replace("-", "_") for name in plan.summaries
    }
    faults += [
        f"metric {offer.name!r} of {offer.package} has no `roles` that this benchmark's sets have, "
        'so that no set would report it; add `roles = frozenset({"forget"})`, or name it in '
        "`evaluation.metrics`"
        for offer in offers("metrics")
        if offer.digest
        and not used & {offer.name, offer.name.replace("-", "_")}
        and not plan.faults
    ]
    if faults:
        raise PluginError("\n".join(dict.fromkeys(faults)))
