"""Contracts that plug-in authors implement, one per file, and the registry of plug-ins.

The names below are loaded at their first use: listing plug-ins imports no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlearnbench.api.attack import (
        Attack,
        AttackRows,
        AttackTools,
        PromptAttack,
        SamplingAttack,
        WeightAttack,
    )
    from unlearnbench.api.benchmark import (
        Benchmark,
        Dataset,
        Headline,
        HeadlineMetric,
        MetricUse,
        Question,
        Split,
    )
    from unlearnbench.api.defender_rows import DefenderRows
    from unlearnbench.api.inference_method import Prompt, Prompts, PromptWrapper, Shift, Wrapper
    from unlearnbench.api.membership import MembershipInference
    from unlearnbench.api.method import LossBatch, Method, Needs, Part, References, Sampling, Terms
    from unlearnbench.api.metric import Metric, MetricColumn, MetricInputs, Summary
    from unlearnbench.api.observation import Observation
    from unlearnbench.api.observations import AnswerTokens, SetEvaluation
    from unlearnbench.api.retain_terms import retain_kl, retain_nll

__all__ = [
    "AnswerTokens",
    "Attack",
    "AttackRows",
    "AttackTools",
    "Benchmark",
    "Dataset",
    "DefenderRows",
    "Headline",
    "HeadlineMetric",
    "LossBatch",
    "MembershipInference",
    "Method",
    "Metric",
    "MetricColumn",
    "MetricInputs",
    "MetricUse",
    "Needs",
    "Observation",
    "Part",
    "Prompt",
    "PromptAttack",
    "PromptWrapper",
    "Prompts",
    "Question",
    "References",
    "Sampling",
    "SamplingAttack",
    "SetEvaluation",
    "Shift",
    "Split",
    "Summary",
    "Terms",
    "WeightAttack",
    "Wrapper",
    "retain_kl",
    "retain_nll",
]

_TORCH_FREE = ("attack", "benchmark", "defender_rows", "membership", "metric", "observations")
_WITH_TORCH = ("inference_method", "method", "retain_terms")


def __getattr__(name: str) -> Any:
    for module in (*_TORCH_FREE, *_WITH_TORCH) if name in __all__ else ():
        if (value := getattr(import_module(f"{__name__}.{module}"), name, None)) is not None:
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
