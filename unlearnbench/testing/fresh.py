"""Plug-ins in a fresh process, for checks that compare its numbers with ours."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from unlearnbench.api.benchmark import Benchmark
from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.plugin_code import address, describe, import_class
from unlearnbench.base.fresh_process import fresh_process
from unlearnbench.config.entries import with_tuples
from unlearnbench.models.rows_loading import fingerprint
from unlearnbench.testing.tiny_lab import TinyLab, learned


def begin(plugin: HyperParameters, **more: Any) -> int:
    """Start the measurement in a fresh process, while other checks run here.

    Raises: FreshError, TypeError, as `FreshProcess.begin`.
    """
    request = {"path": sys.path, "class": address(type(plugin)), "values": plugin.model_dump()}
    return fresh_process().begin(request | {"folder": str(Path.cwd())} | more)


def serve() -> None:
    """Answer each line of standard input from a process forked for it, which is then fresh."""
    torch.set_num_threads(1)  # no thread has been started when this process is forked
    learned(2)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a plug-in's own output must not mix with the answers
    for line in sys.stdin:
        read, write = os.pipe()
        child, request = os.fork(), json.loads(line)
        if child == 0:
            os.close(read)
            with os.fdopen(write, "w") as answer:
                json.dump(_answer(request), answer)
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as answer:
            text = answer.read()
        os.waitpid(child, 0)
        measured = json.loads(text) if text else {"error": "the process died"}
        out.write(json.dumps({**measured, "number": request["number"]}) + "\n")
        out.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        sys.path[:] = request["path"]
        os.chdir(request["folder"])
        kind = import_class(*request["class"])
        plugin = kind.model_validate(with_tuples(request["values"]))
        if isinstance(plugin, Benchmark):
            return {"fingerprint": fingerprint(plugin.load(tuple(request["splits"])))}
        lab = TinyLab(plugin)
        lab.measure([lab.draws[-1:]])  # another row first
        measured = lab.measure()
        return {"loss": measured.loss, "norm": measured.norm}
    except BaseException as error:  # a plug-in may raise anything; the answer names it
        return {"error": describe(error)}
