"""Which numbers a benchmark has: its evaluation sets, its own metrics, and those of all benchmarks.

Sources: docs/concepts/metrics.md for the metrics that every benchmark with suitable sets reports,
and the documentation of each benchmark for its own. Only the benchmarks of the random folders and
of the stored folders are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np

from tests.oracle import numbers as metrics
from tests.oracle.numbers import Model, RowMetric, Settings, Values
from tests.oracle.read import Sets

Score = Callable[[Model, Model | None, Model | None, Settings], Values]
"""Numbers of a model, given the retain model and the start model."""


@dataclass(frozen=True)
class Headline:
    """The two numbers that a benchmark is ranked by."""

    kept: str
    forgotten: str
    sign: float
    """1 if a larger number of what is forgotten is better, else −1."""
    has_test: bool = False
    """Whether what is forgotten is the logarithm of a p-value."""
    least_kept: float = 0.0
    """A start model that keeps less than this has learned nothing."""


@dataclass(frozen=True)
class Use:
    """A metric with the sets and the settings by which it is used."""

    metric: str
    sets: tuple[str, ...] = ()
    """Empty for a score of the whole evaluation."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    name: str = ""
    """First part of the columns' names; defaults to the metric's."""

    @property
    def columns(self) -> Mapping[str, str]:
        """Columns by set, of a metric of rows."""
        name = self.name or self.metric.replace("-", "_")
        return {of_set: f"{name}_{of_set}" for of_set in self.sets}


ROW_METRICS: Mapping[str, RowMetric] = {
    "choice-accuracy": metrics.choice_accuracy,
    "compressibility": metrics.compressibility,
    "ed-score": metrics.ed_score,
    "exact-memorization": metrics.exact_memorization,
    "expected-best": metrics.expected_best,
    "extraction-strength": metrics.extraction_strength,
    "extraction-strength-ou": metrics.extraction_strength_ou,
    "fluency": metrics.fluency,
    "leak-at-k": metrics.leak_at_k,
    "option-entropy": metrics.option_entropy,
    "option-probability": metrics.option_probability,
    "paraphrased-probability": metrics.paraphrased_probability,
    "probability": metrics.probability,
    "repetition": metrics.repetition,
    "rouge": metrics.rouge,
    "rouge-f1": metrics.rouge_f1,
    "token-entropy": metrics.token_entropy,
    "truth-ratio": metrics.truth_ratio,
    "truth-ratio-share": metrics.truth_ratio_share,
    "verbatim-leak": metrics.verbatim_leak,
}
ATTACKS_ON_MEMBERSHIP: Mapping[str, RowMetric] = {
    "mia-loss": metrics.mia_loss,
    "mia-zlib": metrics.mia_zlib,
    "mia-min-k": metrics.mia_min_k,
    "mia-min-k-plus-plus": metrics.mia_min_k_plus_plus,
    "mia-grad-norm": metrics.mia_grad_norm,
}


def _membership(
    name: str, model: Model, _retain: Model | None, _start: Model | None, settings: Settings
) -> Values:
    rows = ATTACKS_ON_MEMBERSHIP[name]
    return metrics.membership(name.replace("-", "_"), rows, model, settings, "retain")


SCORES: Mapping[str, Score] = {
    "model-utility": metrics.model_utility,
    "utility": metrics.utility,
    "forget-quality": metrics.forget_quality,
    **{name: partial(_membership, name) for name in ATTACKS_ON_MEMBERSHIP},
    "mia-reference": metrics.mia_reference,
    "forgotten": metrics.forgotten,
    "removed": metrics.removed,
    "kept": metrics.kept,
    "memorization-score-ou": metrics.memorization_score_ou,
    "private": metrics.private,
    "privleak": metrics.privleak,
    "sampling-bounds": metrics.sampling_bounds,
}
"""Scores in an order in which each stands behind those that it reads."""
RELATIVE = {
    *("forget-quality", "mia-reference", "forgotten", "kept", "memorization-score-ou"),
    *("private", "privleak", "removed"),
}
"""Scores that compare a model with the retain model or the start model."""
RELATIVE_TO_RETAIN = frozenset(
    {"forget-quality", "mia-reference", "forgotten", "private", "privleak"}
)
"""Those of them that are undefined without a retain model."""
WITHOUT_RETAIN_MODEL = {
    *("passages", "wmdp", "wmdp-twin", "knowundo", "muse-scalability", "muse-sustainability"),
}
"""Benchmarks that have no retain model."""

COLUMNS_OF_SCORES: Mapping[str, set[str]] = {
    "forget-quality": {"forget_quality", "log10_forget_quality", "ks_statistic", "ks_n"},
    "sampling-bounds": {
        *("leak_rate_bound", "leak_at_k_bound"),
        *("expected_rouge_bound", "rouge_deviation_bound"),
    },
}
"""Columns of scores that are not called like the score."""
READS: Mapping[str, set[str]] = {
    "private": {"mia_loss", "mia_zlib", "mia_min_k", "mia_min_k_plus_plus"},
    "privleak": {"mia_min_k"},
    "kept": {"model_utility", "repetition_forget"},
}
"""Columns that scores read and that may have settings."""

ON_EVERY_BENCHMARK: Mapping[str, frozenset[str]] = {
    "exact-memorization": frozenset({"forget", "retain"}),
    "extraction-strength": frozenset({"forget", "retain"}),
    "extraction-strength-ou": frozenset({"forget"}),
    "paraphrased-probability": frozenset({"forget", "retain"}),
    "truth-ratio-share": frozenset({"forget", "retain"}),
    "repetition": frozenset({"forget", "retain"}),
    "compressibility": frozenset({"forget"}),
    "expected-best": frozenset({"forget"}),
    "leak-at-k": frozenset({"forget"}),
    "ed-score": frozenset({"forget"}),
}
"""Roles of the sets on which every benchmark reports a metric of rows."""
SCORED_ON_EVERY_BENCHMARK: Mapping[str, frozenset[str]] = {
    "forgotten": frozenset({"forget"}),
    "kept": frozenset({"forget"}),
    "memorization-score-ou": frozenset({"forget"}),
    "mia-loss": frozenset({"forget", "holdout"}),
    "mia-zlib": frozenset({"forget", "holdout"}),
    "mia-min-k": frozenset({"forget", "holdout"}),
    "mia-min-k-plus-plus": frozenset({"forget", "holdout"}),
    "mia-reference": frozenset({"forget", "holdout"}),
    "private": frozenset({"forget", "holdout"}),
    "privleak": frozenset({"forget", "holdout"}),
    "sampling-bounds": frozenset({"forget"}),
}
"""Roles that a benchmark needs sets of, for a score that every such benchmark reports."""
IF_NAMED = frozenset({"forget", "retain"})
"""Roles of the sets on which other metrics of rows are reported if a configuration names them."""
ALSO_ON_FACTS = frozenset({"token-entropy"})
"""Such metrics that are also reported on sets of general knowledge."""


@dataclass(frozen=True)
class Benchmark:
    """Sets, metrics and headline of a benchmark under a profile."""

    roles: Mapping[str, str]
    """Role of each evaluation set."""
    headline: Headline
    own: tuple[Use, ...]
    """The metrics that it names itself."""
    has_retain: bool = True
    """Whether runs are compared with a retain model."""
    leaves_out: frozenset[str] = frozenset()
    """Scores that are not reported because there is no retain model."""

    def uses(self, chosen: Mapping[str, Settings]) -> Iterator[Use]:
        """Yield all metrics, of which some are chosen by a configuration, or have its settings."""
        yield from self.own
        named = {use.metric for use in self.own}
        for metric in sorted({*ROW_METRICS, *SCORES} - named - self.leaves_out):
            settings = chosen.get(metric, {})
            if metric in ROW_METRICS:
                roles = ON_EVERY_BENCHMARK.get(metric, frozenset())
                if not roles and metric in chosen:
                    on_facts = {"general"} if metric in ALSO_ON_FACTS else set()
                    roles = IF_NAMED | on_facts
                if sets := tuple(name for name, role in self.roles.items() if role in roles):
                    yield Use(metric, sets, settings)
            else:
                needed = SCORED_ON_EVERY_BENCHMARK.get(metric)
                applies = needed is not None and needed <= {*self.roles.values()}
                if applies or metric in chosen:
                    yield Use(metric, (), settings)

    def columns_by_set(self, chosen: Mapping[str, Settings]) -> dict[str, str]:
        """Return the evaluation set of each column that is a mean over one."""
        found: dict[str, str] = {}
        for use in self.uses(chosen):
            found |= {column: of_set for of_set, column in use.columns.items()}
        return found

    def columns_of(self, chosen: Mapping[str, Settings]) -> dict[str, set[str]]:
        """Return the columns of each metric. Those of a score begin with its name."""
        columns: dict[str, set[str]] = {}
        for use in self.uses(chosen):
            name = use.metric.replace("-", "_")
            of_score = COLUMNS_OF_SCORES.get(use.metric, {name, f"{name}_tpr", f"{name}_control"})
            columns.setdefault(use.metric, set()).update(use.columns.values() or of_score)
        return columns

    def changed_columns(
        self, before: Mapping[str, Settings], now: Mapping[str, Settings]
    ) -> set[str]:
        """Return the columns whose metrics have other settings now, or read such a column."""
        names = {
            name
            for name in {*before, *now}
            if dict(before.get(name, {})) != dict(now.get(name, {}))
        }
        columns = self.columns_of(before)
        for name, of_metric in self.columns_of(now).items():
            columns.setdefault(name, set()).update(of_metric)
        changed = {column for name in names for column in columns.get(name, ())}
        uses = {use.metric: use for use in self.uses(now)}
        for name, parts in READS.items():
            of_kept = uses["kept"].settings.get("of", ()) if name == "kept" else ()
            if changed & {*parts, *of_kept}:
                changed |= columns.get(name, set())
        return changed

    def rows_of(self, column: str, chosen: Mapping[str, Settings]) -> tuple[Use, str] | None:
        """Return the metric of rows and the set behind a column; None if it is not such a mean."""
        for use in self.uses(chosen):
            for of_set, name in use.columns.items():
                if name == column:
                    return use, of_set
        return None

    def own_values(self, sets: Sets, chosen: Mapping[str, Settings]) -> Values:
        """Return the numbers of a model that depend on no other model."""
        values: Values = {}
        uses = list(self.uses(chosen))
        for use in uses:
            for of_set, column in use.columns.items():
                if of_set in sets:
                    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
                        rows = ROW_METRICS[use.metric](sets[of_set], use.settings)
                    values[column] = metrics.mean_of_rows(rows)
        by_name = {use.metric: use for use in uses if not use.sets}
        for name, score in SCORES.items():
            if name in by_name and name not in RELATIVE:
                model = Model(sets, dict(values))
                values |= score(model, None, None, by_name[name].settings)
        return values

    def values(
        self,
        model: Model,
        retain: Model | None,
        start: Model | None,
        chosen: Mapping[str, Settings],
    ) -> Values:
        """Return all numbers of a model; None where they are undefined or not finite."""
        values = dict(model.own)
        by_name = {use.metric: use for use in self.uses(chosen) if not use.sets}
        for name, score in SCORES.items():
            if name in by_name and name in RELATIVE:
                values |= score(model, retain, start, by_name[name].settings)
        return {
            column: value if value is not None and np.isfinite(value) else None
            for column, value in values.items()
        }


def benchmark_of(
    data: Mapping[str, Any], profile: str, model: Mapping[str, Any] | None = None
) -> Benchmark:
    """Return a benchmark; TOFU's for records of versions that stored no name.

    Args:
        data: The section `data` of a configuration.
        profile: Id of the evaluation rules, `tofu+rows=6@1a2b3c4d`.
        model: The section of a model. One of a user's own may have neither a base nor a retain
            model.
    """
    rules = profile.partition("@")[0].partition("+")[0]
    source = data.get("source") or "tofu"
    if source == "questions":
        has_retain = not model or model.get("base") is not None or bool(model.get("retain"))
        return _questions(rules, data, has_retain=has_retain)
    found = BENCHMARKS[source](rules, data)
    return replace(found, has_retain=source not in WITHOUT_RETAIN_MODEL)


def _tofu(rules: str, _data: Mapping[str, Any]) -> Benchmark:
    """Maini et al. 2024, arXiv:2401.06121; epsilons of open-unlearning@d3d7cf9."""
    epsilon = 1e-10 if rules == "open-unlearning" else 0.0
    ratio = {"mean": "arithmetic" if rules == "tofu-paper" else "geometric", "epsilon": epsilon}
    facts = ("real_authors", "world_facts")
    is_kept = ("retain", *facts)
    parts = tuple(f"{m}_{s}" for s in is_kept for m in ("probability", "rouge", "truth_ratio"))
    return Benchmark(
        roles={
            "retain": "retain",
            "real_authors": "general",
            "world_facts": "general",
            "forget": "forget",
            "holdout": "holdout",
        },
        headline=Headline("model_utility", "log10_forget_quality", 1.0, True, 0.2),
        own=(
            Use("model-utility", settings={"of": parts}),
            Use("forget-quality", settings=ratio),
            Use("rouge", (*is_kept, "forget")),
            Use("probability", ("retain", "forget")),
            Use("option-probability", facts, {"epsilon": epsilon}, "probability"),
            Use("truth-ratio", is_kept, {**ratio, "form": "advantage"}),
            Use("truth-ratio", ("forget",), {**ratio, "form": "closeness"}),
        ),
    )


def _passages(rules: str, _data: Mapping[str, Any]) -> Benchmark:
    """Continuations, questions and whole passages, see docs/concepts/forgotten.md."""
    epsilon = 1e-10 if rules == "open-unlearning" else 0.0
    answered = ("retain", "forget", "continuation")
    texts = ("retain_text", "forget_text")
    attacked = {"members": "forget_text", "control": "retain_text"}
    kept = ("rouge_retain", "probability_world_facts", "repetition_continuation")
    return Benchmark(
        roles={
            "retain": "retain",
            "retain_text": "retain",
            "world_facts": "general",
            "forget": "forget",
            "continuation": "forget",
            "forget_text": "forget",
            "holdout": "holdout",
        },
        headline=Headline("rouge_retain", "rouge_continuation", -1.0),
        own=(
            Use("kept", settings={"of": kept}),
            Use("rouge", answered),
            Use("extraction-strength", ("forget", "continuation", *texts)),
            Use("probability", (*answered, *texts)),
            Use("option-probability", ("world_facts",), {"epsilon": epsilon}, "probability"),
            Use("choice-accuracy", ("world_facts",)),
            *(
                Use(f"mia-{name}", settings=attacked)
                for name in ("loss", "zlib", "min-k", "min-k-plus-plus")
            ),
        ),
    )


def _muse(rules: str, _data: Mapping[str, Any]) -> Benchmark:
    """Shi et al. 2024, arXiv:2407.06460; stems as open-unlearning has them, and our own rules."""
    stemmer = {"stemmer": rules in ("open-unlearning", "unlearnbench")}
    attacked = {"members": "privleak", "control": "privleak_retain", "share": 0.4}
    return Benchmark(
        roles={
            "knowmem_retain": "retain",
            "knowmem": "forget",
            "verbmem": "forget",
            "privleak_retain": "retain",
            "privleak": "forget",
            "holdout": "holdout",
        },
        headline=Headline("rouge_f1_knowmem_retain", "rouge_f1_verbmem", -1.0),
        own=(
            Use("rouge-f1", ("knowmem_retain", "knowmem", "verbmem"), stemmer),
            Use("mia-min-k", settings=attacked),
            Use("privleak"),
        ),
    )


def _muse_requests(rules: str, data: Mapping[str, Any]) -> Benchmark:
    """Those of MUSE without PrivLeak, since there is no model that was retrained."""
    muse = _muse(rules, data)
    return replace(muse, own=tuple(use for use in muse.own if use.metric != "privleak"))


def _questions(rules: str, data: Mapping[str, Any], *, has_retain: bool) -> Benchmark:
    """A user's own questions (docs, own-data.md): ranked by `removed` without a retain model."""
    epsilon = 1e-10 if rules == "open-unlearning" else 0.0
    ratio = {"mean": "arithmetic" if rules == "tofu-paper" else "geometric", "epsilon": epsilon}
    memorised = tuple(
        f"{name}_forget"
        for name in ("extraction_strength", "exact_memorization", "probability", "rouge")
    )
    kept = ("probability_retain", "rouge_retain", "probability_utility")
    has_wrong_answers = data.get("wrong_answers") is not None
    answered = ("retain", "forget")
    own = [
        Use("utility", settings={"of": kept}),
        Use("kept", settings={"of": ("utility", "repetition_forget")}),
        Use("forgotten" if has_retain else "removed", settings={"of": memorised}),
        Use("extraction-strength", answered),
        Use("exact-memorization", answered),
        Use("rouge", answered),
        Use("probability", answered),
        Use("option-probability", ("utility",), {"epsilon": epsilon}, "probability"),
        Use("choice-accuracy", ("utility",)),
    ]
    if has_wrong_answers:
        own.append(Use("truth-ratio", ("forget",), {**ratio, "form": "closeness"}))
        if has_retain:
            own.append(Use("forget-quality", settings=ratio))
    roles = {"retain": "retain", "utility": "general", "forget": "forget"}
    if data.get("holdout") is not None:
        roles["holdout"] = "holdout"
    return Benchmark(
        roles=roles,
        headline=Headline("utility", "forgotten" if has_retain else "removed", 1.0),
        own=tuple(own),
        has_retain=has_retain,
        leaves_out=frozenset() if has_retain else RELATIVE_TO_RETAIN,
    )


def _knowundo(_rules: str, _data: Mapping[str, Any]) -> Benchmark:
    """Token accuracy of public and private facts."""
    return Benchmark(
        roles={"retention": "retain", "unlearning": "forget"},
        headline=Headline("exact_memorization_retention", "exact_memorization_unlearning", -1.0),
        own=(Use("exact-memorization", ("retention", "unlearning")),),
    )


def _wmdp(_rules: str, data: Mapping[str, Any]) -> Benchmark:
    """Multiple choice, as lm-evaluation-harness has it: `acc` of letters, `acc_norm` of texts."""
    has_texts = data["source"] == "wmdp-twin" or data.get("variant") == "cloze"
    per = "character" if has_texts else "option"
    kept = ("choice_accuracy_mmlu", "choice_accuracy_neighbours")
    return Benchmark(
        roles={"mmlu": "general", "neighbours": "retain", "wmdp": "forget"},
        headline=Headline("choice_accuracy_mmlu", "choice_accuracy_wmdp", -1.0),
        own=(
            Use("kept", settings={"of": kept}),
            *(
                Use("choice-accuracy", (name,), {"per": per})
                for name in ("mmlu", "neighbours", "wmdp")
            ),
            Use("option-entropy", ("wmdp",)),
        ),
    )


BENCHMARKS: Mapping[str, Callable[[str, Mapping[str, Any]], Benchmark]] = {
    "tofu": _tofu,
    "synthetic": _tofu,
    "passages": _passages,
    "muse": _muse,
    "knowundo": _knowundo,
    "muse-scalability": _muse_requests,
    "muse-sustainability": _muse_requests,
    "wmdp": _wmdp,
    "wmdp-twin": _wmdp,
}
