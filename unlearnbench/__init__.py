"""unlearnbench: compare methods that make a language model forget.

The public names are here, each loaded when it is first used, so that `import unlearnbench` costs
nothing. What a method is made of: `Method`, `Needs`, `LossBatch`, `Predictions`, `Terms`,
`mean_over_union`. What models are judged with: `evaluate_model`, `summarize`, `get_profile`. What
results are read with: `Record`, `read_records`, `read_log`. Sweeps: `load_config`, `run_sweep`.
Errors: `UnlearnbenchError`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from unlearnbench.config import load_config
    from unlearnbench.errors import UnlearnbenchError
    from unlearnbench.evaluation.log import read_log
    from unlearnbench.evaluation.metrics import summarize
    from unlearnbench.evaluation.profiles import get_profile
    from unlearnbench.evaluation.standalone import evaluate_model
    from unlearnbench.losses import Predictions, mean_over_union
    from unlearnbench.method import LossBatch, Method, Needs, Terms
    from unlearnbench.records import Record, read_records
    from unlearnbench.sweep import run_sweep

__all__ = [
    "LossBatch",
    "Method",
    "Needs",
    "Predictions",
    "Record",
    "Terms",
    "UnlearnbenchError",
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
    "LossBatch": "method",
    "Method": "method",
    "Needs": "method",
    "Predictions": "losses",
    "Record": "records",
    "Terms": "method",
    "UnlearnbenchError": "errors",
    "evaluate_model": "evaluation.standalone",
    "get_profile": "evaluation.profiles",
    "load_config": "config",
    "mean_over_union": "losses",
    "read_log": "evaluation.log",
    "read_records": "records",
    "run_sweep": "sweep",
    "summarize": "evaluation.metrics",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
