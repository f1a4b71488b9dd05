"""A failure of a process is reported as what it is, in whatever phase it comes."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.flow.sweep.shown_sweep import sweep
from unlearnbench.api import registry
from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.resources import RaySettings
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.results.records import read_records
from unlearnbench.sweep import trial_messages, tune_adapters
from unlearnbench.sweep.failure_texts import reason_in

from .test_driver import a_config, fake_pipeline


def raised(error: BaseException) -> str:
    """The traceback of an error, as Python writes it."""
    try:
        raise error
    except BaseException as caught:
        return "".join(traceback.format_exception(caught))


def chained() -> str:
    try:
        try:
            raise OSError("the first one")
        except OSError as first:
            raise KeyError("the cause") from first
    except KeyError as error:
        return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (raised(ValueError("no such layer")), "ValueError: no such layer"),
        (raised(ValueError("two\nlines\n  and a third")), "ValueError: two lines and a third"),
        (raised(UnlearnbenchError("no model")), "UnlearnbenchError: no model"),
        (raised(KeyError()), "KeyError"),
        (chained(), "KeyError: 'the cause'"),
        ("", "no message"),
        ("Trainable runner reuse failed", "Trainable runner reuse failed"),
        ("\x1b[36mray::Run.train()\x1b[39m (pid=1)\nray.exceptions.X: y", "X: y"),
    ],
)
def test_an_exception_is_named_by_type_and_message(text: str, reason: str) -> None:
    assert reason_in(text) == reason


def test_a_long_message_is_cut() -> None:
    assert len(reason_in(raised(ValueError("word " * 1000)))) == 500


DIED = "its process died without an exception (Worker unexpectedly exits"
ENDED = "its process ended without an exception (Worker exits with an exit code 3)"
ENDINGS: dict[str, tuple[Callable[[], object], str]] = {
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), DIED),
    "crashed": (lambda: os.kill(os.getpid(), signal.SIGSEGV), DIED),
    "left": (lambda: sys.exit(3), ENDED),
    "raised": (lambda: int("a\nb"), "ValueError: invalid literal for int() with base 10: 'a"),
}
"""What a process does, and the beginning of its reason; self-contained, since Ray pickles them."""


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize("phase", ["start", "call"])
@pytest.mark.parametrize("kind", ENDINGS)
def test_the_end_of_a_process_is_reported_as_ray_saw_it(kind: str, phase: str) -> None:
    import ray
    from ray.exceptions import RayError

    end, expected = ENDINGS[kind]

    def build() -> Any:
        class Actor:  # inside: a worker cannot import this file
            def __init__(self) -> None:
                if phase == "start":
                    end()

            def call(self) -> None:
                if phase == "call":
                    end()

        return Actor

    actor = ray.remote(num_cpus=0.1)(build()).remote()
    with pytest.raises(RayError) as caught:
        ray.get(actor.call.remote())
    reason = reason_in(str(caught.value))
    assert reason.startswith(expected)
    assert "memory usage" not in reason, "no guess at the cause"
    assert "\n" not in reason


def unreadable() -> Any:
    """A function whose pickled form raises an error where another process reads it."""
    driver = os.getpid()

    class Unreadable:  # inside: a worker cannot import this file
        state = "some"

        def __call__(self, *_: object) -> Any: ...

        def __getstate__(self) -> str:
            return self.state

        def __setstate__(self, state: str) -> None:
            if os.getpid() != driver:  # Tune reads what it has written in its own process
                raise KeyError("no such function")

    return Unreadable()


def failing() -> Any:
    """A function that raises an error."""

    def fail(*_: object) -> Any:
        raise ZeroDivisionError("of mine")

    return fail


def killed() -> Any:
    """A function that ends its process."""

    def kill(*_: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    return kill


PHASES = ("unpickle", "configuration", "plug-in", "set-up")


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize("phase", PHASES)
def test_an_error_while_a_worker_starts_is_the_reason_of_its_run(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_tasks(*_: object) -> tuple[()]:
        return ()

    # Without preparations, which would report the first two errors before a run is started.
    pipeline = replace(fake_pipeline(tmp_path / "marks"), tasks=no_tasks)
    expected = ""
    if phase == "unpickle":
        pipeline = replace(pipeline, run_epochs=unreadable())
        expected = "KeyError: 'no such function'"
    if phase == "configuration":
        of_run = trial_messages.parameters

        def without_keys(run: RunSpec) -> dict[str, str]:
            return {**of_run(run), "spec": "{}"}

        monkeypatch.setattr(tune_adapters, "parameters", without_keys)
        expected = "ValidationError: 11 validation errors for RunSpec data Field required"
    if phase == "plug-in":
        (tmp_path / "mine.py").write_text(PLUGIN.format(os.getpid()), encoding="utf-8")
        registry.register_file(tmp_path / "mine.py")
        expected = "PluginError: plug-in 'mine' of mine.py"
    if phase == "set-up":
        pipeline = replace(pipeline, run_epochs=failing())
        expected = "ZeroDivisionError: of mine"
    config = a_config(tmp_path / "out", (1e-5,), forget_fractions=(0.1,))
    result, lines = sweep(config, pipeline)
    assert result.failed == 1, lines
    (record,) = (r for r in read_records(result.folder) if r.status == "failed")
    assert (record.error or "").startswith(expected)
    assert any(f"failed: {expected}" in line for line in lines)


PLUGIN = """
import os
from unlearnbench.api.method import Method, Needs
if os.getpid() != {}:
    1 / 0

class Mine(Method):
    family = "own"
    needs = Needs(parts=frozenset({{"forget"}}))
    def loss(self, batch): return batch.forget.token_logprobs.sum()
"""


@pytest.mark.long
@pytest.mark.usefixtures("shared_ray")
@pytest.mark.parametrize(
    ("execute", "reason"),
    [
        (unreadable(), "KeyError: 'no such function'"),
        (failing(), "ZeroDivisionError: of mine"),
        (killed(), "its process died without an exception"),
    ],
)
def test_an_error_while_a_preparation_starts_is_its_reason(
    execute: Any, reason: str, tmp_path: Path
) -> None:
    pipeline = replace(fake_pipeline(tmp_path / "marks"), execute=execute)
    with pytest.raises(UnlearnbenchError) as caught:
        sweep(a_config(tmp_path / "out", ray=RaySettings(retries=0)), pipeline)
    assert str(caught.value).startswith(f"prepare base: {reason}")
