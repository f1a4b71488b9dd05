"""The schema of TOFU: evaluation sets, metrics under the rules of a profile, and the headline."""

from collections.abc import Mapping
from typing import ClassVar

from unlearnbench.api.benchmark import Headline, HeadlineMetric, HeadlineTest, MetricUse
from unlearnbench.api.metric import Role
from unlearnbench.api.profile import Profile
from unlearnbench.benchmarks.authors import AuthorSettings

ROLES: Mapping[str, Role] = {
    "retain": "retain",
    "real_authors": "general",
    "world_facts": "general",
    "forget": "forget",
    "holdout": "holdout",
}
"""Role of each evaluation set, in the order of a table's columns."""
HEADLINE = Headline(
    kept=HeadlineMetric("model_utility", "Model Utility", "utility"),
    forgotten=HeadlineMetric(
        "log10_forget_quality",
        "log₁₀ Forget Quality",
        "log₁₀ FQ",
        digits=2,
        test=HeadlineTest(
            "ks-truth-ratio",
            label="Forget Quality",
            short="FQ",
            p_value="forget_quality",
            distance="ks_statistic",
            questions="ks_n",
        ),
    ),
    # A harmonic mean of nine numbers, so that one near zero makes it near zero. TOFU's published
    # start models have 0.5 to 0.75, models of random weights 0.00 to 0.01.
    least_kept=0.2,
)
"""Model Utility and Forget Quality."""
_FACTS = ("real_authors", "world_facts")
_KEPT = ("retain", *_FACTS)
_TEXT_MODELS = ("sentence-similarity", "answer-entailment")
"""Metrics that name a model, without which the scores of the protocol closer-look do not exist."""


class TofuSchema(AuthorSettings):
    """Base of benchmarks with TOFU's evaluation sets and metrics."""

    roles: ClassVar[Mapping[str, Role]] = ROLES
    headline: ClassVar[Headline] = HEADLINE

    def metrics(self, profile: Profile) -> tuple[MetricUse, ...]:
        """Return Model Utility, Forget Quality and their parts: Maini et al. 2024, section 2.2.

        With the protocol closer-look, those of Yuan et al. 2025 follow.
        """
        ratio = {"mean": profile.perturbed_mean, "epsilon": profile.truth_ratio_epsilon}
        options = {"epsilon": profile.options_epsilon}
        parts_of_utility: list[str] = []
        for name in _KEPT:
            parts_of_utility += [f"probability_{name}", f"rouge_{name}", f"truth_ratio_{name}"]
        return (
            MetricUse("model-utility", settings={"of": tuple(parts_of_utility)}),
            MetricUse("forget-quality", settings=ratio),
            MetricUse("rouge", (*_KEPT, "forget")),
            MetricUse("probability", ("retain", "forget")),
            MetricUse("option-probability", _FACTS, options, name="probability"),
            MetricUse("truth-ratio", _KEPT, ratio | {"form": "advantage"}),
            MetricUse("truth-ratio", ("forget",), ratio | {"form": "closeness"}),
            *(_closer_look() if profile.protocol == "closer-look" else ()),
        )


def _closer_look() -> tuple[MetricUse, ...]:
    """Return token entropy, and the two scores if both text models are named."""
    return (
        MetricUse("six-metric-utility", if_named=_TEXT_MODELS),
        MetricUse("forget-efficacy", if_named=_TEXT_MODELS),
        MetricUse("token-entropy", (*_KEPT, "forget")),
    )
