"""Plug-ins in a fresh process, for checks that compare its numbers with ours.

A server that has imported all that plug-ins need forks a process for each request.
"""

import os
import pickle
from collections.abc import Callable
from functools import cache
from multiprocessing import forkserver, get_context
from multiprocessing.connection import Connection
from typing import Any
from unittest.mock import patch

from unlearnbench.api.hyperparameters import HyperParameters
from unlearnbench.api.plugin_code import describe
from unlearnbench.base.socket_paths import short_process_sockets

ANSWER_SECONDS = 120.0
"""Longest wait for an answer. On a busy machine, the imports of the server take long."""
_OTHER_SEED = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"


@cache
def _context() -> Any:
    context = get_context("forkserver")
    context.set_forkserver_preload(["unlearnbench.testing", "unlearnbench.testing.forked"])
    # With another hash seed, sets have another order. With several threads, small computations
    # would only wait for one another.
    variables = patch.dict(os.environ, PYTHONHASHSEED=_OTHER_SEED, OMP_NUM_THREADS="1")
    with variables, short_process_sockets():
        forkserver.ensure_running()
    return context


def begin(measure: Callable[[Any], Any], plugin: HyperParameters) -> Connection:
    """Start `measure(plugin)` in a fresh process, while other checks run here.

    Returns:
        The connection that `end` reads the answer from.
    """
    pipe: tuple[Connection, Connection] = _context().Pipe(duplex=False)
    answer, other_end = pipe
    arguments = (other_end, measure, pickle.dumps(plugin))
    _context().Process(target=_serve, args=arguments, daemon=True).start()
    other_end.close()
    return answer


def _serve(answer: Connection, measure: Callable[[Any], Any], plugin: bytes) -> None:
    """Answer a request in the fresh process; `plugin` is pickled."""
    # A plug-in's own output must not mix with the results.
    os.dup2(2, 1)
    try:
        answer.send(measure(pickle.loads(plugin)))
    except BaseException as error:  # a plug-in may raise anything; the answer names it
        answer.send(f"raised {describe(error)}")


def end(answer: Connection) -> Any:
    """Return the result of the function given to `begin`, or a text that says why there is none."""
    if not answer.poll(ANSWER_SECONDS):
        return f"no answer within {ANSWER_SECONDS:g} s"
    try:
        return answer.recv()
    except EOFError:
        return "the process died"
