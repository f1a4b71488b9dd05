"""Phrases that several sentences share: names of settings, the rule of choice, lists, intervals.

Each fact is worded once, so that page, terminal and tracker say the same. Whole sentences are in
the modules on top of this one: `best_text`, `method_order`, `attack_text`, `comparison_text` and
`model_text`.
"""

from collections.abc import Sequence

from unlearnbench.analysis.best_settings import UTILITY_SHARE
from unlearnbench.analysis.settings import Setting
from unlearnbench.analysis.start_model import p_value
from unlearnbench.api.benchmark import Headline, HeadlineMetric
from unlearnbench.base.number_text import float_text
from unlearnbench.evaluation.benchmark_schema import BenchmarkSchema
from unlearnbench.results.attack_variants import is_choice, is_tuned, step_of, trial_of

NAMED = 4
"""Most methods that a sentence names."""


def counted(count: int, noun: str) -> str:
    """Return `1 seed`, `3 seeds`."""
    return f"{count} {noun}{'s' * (count != 1)}"


def listed_seeds(seeds: Sequence[int]) -> str:
    """Return `seed 0`, or `seeds 0, 1`."""
    return f"seed{'s' * (len(seeds) != 1)} {', '.join(map(str, seeds))}"


def named_first(names: Sequence[str]) -> str:
    """Return `a, b`; if there are more than `NAMED`, the first ones and a count of the others."""
    listed = ", ".join(names[:NAMED])
    more = len(names) - NAMED
    return f"{listed} and {more} more" if more > 0 else listed


def listed_names(names: Sequence[str]) -> str:
    """Return `a, b and c`; if there are more than `NAMED`, as `named_first`."""
    if len(names) > NAMED or len(names) < 2:
        return named_first(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def between(ends: tuple[float, float] | None, number_format: str = ".3f") -> str:
    """Return ` [0.120, 0.340]`, with a space before it; empty without an interval."""
    if ends is None:
        return ""
    low, high = ends
    return f" [{low:{number_format}}, {high:{number_format}}]"


def rate_of(setting: Setting) -> str:
    """Return `npo at learning rate 1e-05`."""
    rate = setting.learning_rate
    if rate is None:
        return setting.method
    return f"{setting.method} at learning rate {float_text(rate)}"


def setting_name(setting: Setting) -> str:
    """Return `npo at learning rate 1e-05, epoch 3`."""
    return f"{rate_of(setting)}, {setting.when}"


def variant_label(variant: str) -> str:
    """Return `relearning, 13 steps` for `relearning@13`; `logit-lens, 50` for `logit-lens@50`.

    Of an attack that searches, `relearning@t3.13` is `relearning, attacker 3, 13 steps`, and
    `relearning@tuned` is `relearning, chosen attacker`.
    """
    attack, _, point = variant.partition("@")
    step = step_of(variant)
    if step is not None:
        return f"{attack}, {counted(step, 'step')}"
    trial = trial_of(variant)
    if trial is not None:
        part = ", rows of the choice" if is_choice(variant) else ""
        return f"{attack}, attacker {trial.number}, {counted(trial.step, 'step')}{part}"
    if is_tuned(variant):
        return f"{attack}, chosen attacker"
    return f"{attack}, {point}" if point else attack


def quality_text(metric: HeadlineMetric, value: float) -> str:
    """Return the number of what is forgotten in a sentence: `p = 0.82` of a test, or `0.123`.

    Args:
        metric: The headline metric.
        value: Its number. If the metric is a test, this is the logarithm of p.
    """
    return f"p = {p_value(value)}" if metric.test else metric.text(value)


def share_kept(headline: Headline, share: float = UTILITY_SHARE) -> str:
    """Return the condition of every best setting: `at least 80 % of the start model's utility`."""
    return f"at least {100 * share:g} % of the start model's {headline.kept.plain_short}"


def best_rule(headline: Headline, share: float = UTILITY_SHARE, value: str = "") -> str:
    """Return the rule behind every best setting, see `Panel.best`.

    Args:
        headline: The two numbers that methods are ranked by.
        share: Share of the start model's number of what is kept.
        value: The best value, to be shown in brackets.
    """
    forgotten = headline.forgotten
    shown_value = f" ({value})" if value else ""
    return (
        f"the {forgotten.best_word} {forgotten.name}{shown_value} among settings that keep "
        f"{share_kept(headline, share)}"
    )


# What the data of a sweep leave open. Every view that shows numbers of a sweep says it.


def without_retain_model(schema: BenchmarkSchema) -> str:
    """Return what stays unknown without a retain model; empty if there is one."""
    if schema.has_retain:
        return ""
    if not schema.could_have_retain:
        return "This benchmark has no retain model, so over-forgetting cannot be seen."
    return (
        "Without a retain model, which never saw the forget rows, it is not known how much a model "
        f"should forget: {schema.headline.forgotten.plain_label} 1 is not the aim, and "
        "over-forgetting cannot be seen. Name a base model to close this gap (`base` in YAML, "
        "`--base` of `configs new`): a retain model is trained from it."
    )


def missing_for_privacy(schema: BenchmarkSchema) -> str:
    """Return what is missing to know whether the rest is private.

    Empty if nothing is missing, and for benchmarks that can never answer this question.
    """
    unknown = "Whether what is left is private is not known"
    if "holdout" in schema.absent:
        also = "" if schema.has_retain else ", and a retain model"
        return (
            f"{unknown}: this needs rows like the forget rows that no model has seen (`holdout` in "
            f"the section `data` of YAML, `--holdout-rows` of commands){also}."
        )
    if schema.could_have_retain and schema.sets("holdout"):
        return (
            f"{unknown}: this needs a retain model, because holdout rows may differ from the "
            "forget rows in themselves, so that no number of a membership attack is an aim."
        )
    return ""
