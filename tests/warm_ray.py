"""Workers of Ray for tests, forked from a process that has imported torch.

Ray starts a worker by a program that sets its environment up, imports Ray, and is replaced by the
worker, which imports all that a run needs: six seconds of a core for each. Here that program asks
for a fork of a process that has imported torch. Tests of how workers start, end and find their code
use Ray's own program.
"""

import json
import os
import runpy
import signal
import socket
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

from .forked import CONTEXT

if TYPE_CHECKING:
    from unlearnbench.config.schema import SweepConfig

_ASK = """\
import json, os, socket, sys, time
words = [one for one in sys.argv[1:] if one not in ("-s", "-S")]
name = "--serialized-runtime-env-context="
context = json.loads(next((one[len(name):] for one in words if one.startswith(name)), "{{}}"))
environment = dict(os.environ) | (context.get("env_vars") or {{}})
words = [one for one in words if not one.startswith((name, "--language="))]
with socket.socket(socket.AF_UNIX) as server:
    while server.connect_ex({address!r}):
        time.sleep(0.05)  # it is still importing
    server.sendall(json.dumps([words, environment, os.getcwd()]).encode())
"""


@contextmanager
def warm_workers() -> Generator[None, None, None]:
    """Fork the workers of each Ray that is started inside."""
    from ray._private import ray_constants

    with TemporaryDirectory(prefix="warm") as folder, pytest.MonkeyPatch.context() as patch:
        address, program = Path(folder, "socket"), Path(folder, "ask.py")
        program.write_text(_ASK.format(address=str(address)))
        # A path that is absolute is taken as it is.
        patch.setattr(ray_constants, "SETUP_WORKER_FILENAME", str(program))
        server = CONTEXT.Process(target=_serve, args=(str(address),))
        server.start()
        try:
            yield
        finally:
            server.terminate()
            server.join()


@contextmanager
def running_ray(config: "SweepConfig") -> Generator[int, None, None]:
    """In place of `ray_session`: the Ray that runs in this process already.

    Yields:
        The number of runs at a time.
    """
    from unlearnbench.sweep.ray_cluster import run_slots
    from unlearnbench.sweep.worker_group import alive

    yield run_slots(config, [node["Resources"] for node in alive()])


def _serve(address: str) -> None:
    """Fork a worker for each request."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for a worker
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(address)
        server.listen(64)
        while True:
            request, _ = server.accept()
            with request, request.makefile("rb") as lines:
                words, environment, folder = json.load(lines)
            if os.fork() == 0:
                break
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    sys.argv = words
    runpy.run_path(words[0], run_name="__main__")
