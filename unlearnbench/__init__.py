"""unlearnbench: compare methods that make a language model forget.

The public names, each loaded at its first use, so that `import unlearnbench` is fast.
Methods: `Method`, `Wrapper`, `PromptWrapper`, `Needs`, `LossBatch`, `Predictions`, `Terms`,
`mean_over_union`; more in `unlearnbench.api`. Evaluation: `evaluate_model`, `summarize`,
`get_profile`. Results: `Record`, `read_records`, `read_log`. Sweeps: `load_config`, `run_sweep`.
Errors: `UnlearnbenchError`.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlearnbench.api.inference_method import PromptWrapper, Wrapper
    from unlearnbench.api.method import LossBatch, Method, Needs, Terms
    from unlearnbench.base.errors import UnlearnbenchError
    from unlearnbench.config.loader import load_config
    from unlearnbench.config.profiles import get_profile
    from unlearnbench.evaluation.logs import read_log
    from unlearnbench.evaluation.summary import summarize
    from unlearnbench.losses.predictions import Predictions, mean_over_union
    from unlearnbench.results.records import Record, read_records
    from unlearnbench.runs.evaluate_model import evaluate_model
    from unlearnbench.sweep.driver import run_sweep

__all__ = [
    "LossBatch",
    "Method",
    "Needs",
    "Predictions",
    "PromptWrapper",
    "Record",
    "Terms",
    "UnlearnbenchError",
    "Wrapper",
    "evaluate_model",
    "get_profile",
    "load_config",
    "mean_over_union",
    "read_log",
    "read_records",
    "run_sweep",
    "summarize",
]

_HOME = {
    "LossBatch": "api.method",
    "Method": "api.method",
    "Needs": "api.method",
    "Predictions": "losses.predictions",
    "PromptWrapper": "api.inference_method",
    "Record": "results.records",
    "Terms": "api.method",
    "UnlearnbenchError": "base.errors",
    "Wrapper": "api.inference_method",
    "evaluate_model": "runs.evaluate_model",
    "get_profile": "config.profiles",
    "load_config": "config.loader",
    "mean_over_union": "losses.predictions",
    "read_log": "evaluation.logs",
    "read_records": "results.records",
    "run_sweep": "sweep.driver",
    "summarize": "evaluation.summary",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
