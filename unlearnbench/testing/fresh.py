"""The fresh-process check, and the process: a row computed before must change no number."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any

import torch

from unlearnbench.api.plugin_code import address, describe, import_class
from unlearnbench.runtime.fresh_process import FreshError, fresh_process
from unlearnbench.testing.check import Outcome, check, fault, not_applicable, passed
from unlearnbench.testing.invariance import apart
from unlearnbench.testing.tiny_lab import TinyLab


@check(
    "fresh-process",
    why="A scale that is fixed by the first batch, or a cache that outlives a run, gives each "
    "process of a sweep its own numbers, and a resumed run others than an uninterrupted one.",
    fix="Keep nothing between calls: values that pass from step to step belong in `state`, those "
    "of the whole step in `statistics`.",
)
def fresh(lab: TinyLab) -> Outcome:
    """A fresh process that has seen another row first gives the same loss and gradient."""
    kind = type(lab.method)
    if "<locals>" in kind.__qualname__ or kind.__module__ == "__main__":
        return not_applicable("another process cannot import a class of a function or a notebook")
    try:
        found = fresh_process().answer(begin(lab))
    except (FreshError, TypeError) as error:  # TypeError: values that JSON cannot hold
        return not_applicable(f"no other process could be used: {error}")
    if "error" in found:
        return fault(f"in a fresh process: {found['error']}")
    here = lab.whole
    for what, a, b in (
        ("loss", here.loss, found["loss"]),
        ("gradient's norm", here.norm, found["norm"]),
    ):
        if apart(a, b, here.norm):
            return fault(
                f"the {what} is {a:.6g} here, {b:.6g} in a fresh process that has seen another "
                "row first: something is kept from an earlier call"
            )
    return passed(f"loss {here.loss:.6g} in both")


def begin(lab: TinyLab) -> int:
    """Start the measurement in a fresh process, while other checks run here.

    Raises: FreshError, TypeError, as `FreshProcess.begin`.
    """
    if lab.fresh is None:
        request = {"path": sys.path, "class": address(type(lab.method))}
        lab.fresh = fresh_process().begin({**request, "values": lab.method.model_dump()})
    return lab.fresh


def serve() -> None:
    """Answer each line of standard input from a process forked for it, which is then fresh."""
    torch.set_num_threads(1)  # no thread has been started when this process is forked
    from unlearnbench.testing.tiny_lab import _learned  # pyright: ignore[reportPrivateUsage]

    _learned(2)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # a method's own output must not mix with the answers
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
        found = json.loads(text or json.dumps({"error": "the process died"}))
        out.write(json.dumps({**found, "number": request["number"]}) + "\n")
        out.flush()


def _answer(request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        sys.path[:] = request["path"]
        kind = import_class(*request["class"])
        lab = TinyLab(kind.model_validate(request["values"]))
        lab.measure([lab.draws[-1:]])
        measured = lab.measure()
        return {"loss": measured.loss, "norm": measured.norm}
    except BaseException as error:  # a plug-in may raise anything; the answer names it
        return {"error": describe(error)}
