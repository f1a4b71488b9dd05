"""unlearnbench: compare methods that make a language model forget.

The public names are here, each loaded when it is first used, so that `import unlearnbench` costs
nothing. What a method is made of: `Method`, `Needs`, `LossBatch`, `Predictions`, `Reference`,
`Terms`, `mean_over_union`. What results are read with: `Record`, `read_records`, `read_log`,
`summarize`, `get_profile`. Sweeps: `load_config`, `run_sweep`. Errors: `UnlearnbenchError`.
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
    from unlearnbench.losses import Predictions, Reference, mean_over_union
    from unlearnbench.method import LossBatch, Method, Needs, Terms
    from unlearnbench.records import Record, read_records
    from unlearnbench.sweep import run_sweep

__all__ = [
    "LossBatch",
    "Method",
    "Needs",
    "Predictions",
    "Record",
    "Reference",
    "Terms",
    "UnlearnbenchError",
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
    "Reference": "losses",
    "Terms": "method",
    "UnlearnbenchError": "errors",
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
