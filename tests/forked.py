"""Processes for tests, forked from one that has imported torch: the imports take seconds."""

import multiprocessing
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    [
        "accelerate",
        # What Ray imports and may be forked; Ray itself may not.
        "fsspec",
        "google.protobuf.message_factory",
        "IPython.core.interactiveshell",
        "jsonschema",
        "pandas",
        "requests",
        "rich.layout",
        "torch.distributed.fsdp",
        "transformers.models.auto.modeling_auto",
        "transformers.models.llama.modeling_llama",
        "unlearnbench.runs.run",
        "unlearnbench.testing.forked",
    ]
)


def start(
    program: str,
    arguments: Sequence[str] = (),
    *,
    output: Path | None = None,
    environment: Mapping[str, object] | None = None,
) -> BaseProcess:
    """Start a Python program with these arguments and further environment variables.

    output  gets what the process writes to standard output and error
    """
    variables = {name: str(value) for name, value in (environment or {}).items()}
    how = (program, arguments, output, os.environ | variables)
    process = CONTEXT.Process(target=_run, args=how)
    process.start()
    return process


def wait(processes: Sequence[BaseProcess], seconds: float = 300) -> list[int | None]:
    """Wait for processes to end; returns their exit codes, None of one that still runs."""
    for process in processes:
        process.join(seconds)
    return [process.exitcode for process in processes]


def launch(program: str, arguments: Sequence[str], folder: Path, world: int) -> list[Path]:
    """Run a program in `world` processes; returns the file that each has written."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = [folder / f"{world}-{rank}.json" for rank in range(world)]
    running: list[BaseProcess] = []
    for rank, file in enumerate(files):
        group: dict[str, object] = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world}
        group |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        environment = group if world > 1 else {}
        running.append(start(program, [*arguments, str(file)], environment=environment))
    assert wait(running) == [0] * world
    return files


def _run(
    program: str, arguments: Sequence[str], output: Path | None, environment: Mapping[str, str]
) -> None:
    os.environ.clear()
    os.environ.update(environment)
    sys.argv = ["-c", *arguments]
    if output is not None:
        with output.open("wb") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
    exec(compile(program, "<program>", "exec"), {"__name__": "__main__"})
