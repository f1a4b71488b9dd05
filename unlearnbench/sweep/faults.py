"""What befalls a sweep from outside: SIGTERM, workers that leave, Ray that dies.

Told to workers by a file in the sweep's folder, since Ray has no word for «keep what you have and
leave»: each watches for it while it works, and takes it as a SIGTERM of its own. Ray's own death
shows only in its processes: a driver without a raylet would wait forever.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unlearnbench import stopping
from unlearnbench.notices import taken

STOP_FILE = ".stop"
STOP_SECONDS = 60.0
"""Longest wait after SIGTERM for checkpoints that are being written."""
LOOK_SECONDS = 0.2
PROBE_SECONDS = 2.0
HELD_SECONDS, HELD_CODE = 5.0, 2
"""After how long a driver that GCS's death holds is ended, and its exit code."""
GONE_PROBES = 3
"""Times in a row that a cluster does not answer, after which it is gone."""


class RayLostError(BaseException):
    """Ray is gone. No `Exception`: for those Tune cleans up first, and waits for the dead."""


class Guard:
    """The driver's eyes: called by Tune's callbacks, ten times a second and at each event."""

    def __init__(self, folder: Path, retries: int, *, joined: bool) -> None:
        self._file, self._retries = folder / STOP_FILE, retries
        self._health = ClusterHealth() if joined else None
        self._best: dict[str, int] = {}
        self._leaving: set[str] | None = None
        """Trials that are to end, once SIGTERM has come."""
        self._deadline = 0.0

    @property
    def is_stopping(self) -> bool:
        """Whether runs end because the sweep does."""
        return self._leaving is not None

    def look(self, trials: Any) -> None:
        """Raise RayLostError where Ray is gone, `Stopped` where all have left after a SIGTERM."""
        check_ray(self._health)
        if not stopping.asked():
            return
        if self._leaving is None:
            self._leaving = {trial.trial_id for trial in trials if trial.status == "RUNNING"}
            self._deadline = time.monotonic() + STOP_SECONDS
            self._file.touch()
        if not self._leaving or time.monotonic() > self._deadline:
            raise stopping.Stopped

    def reached(self, trial: Any, epoch: int) -> None:
        """A run has evaluated `epoch`; a new one gives it all its tries again."""
        if epoch > self._best.get(trial.trial_id, 0):
            self._best[trial.trial_id] = epoch
            trial.max_failures = trial.num_failures + self._retries

    def left(self, trial: Any) -> None:
        """A run ended, or its process did; with Ray gone, what Tune says of it means nothing."""
        check_ray(self._health)
        if self._leaving is not None:
            self._leaving.discard(trial.trial_id)


@contextmanager
def stop_file(folder: Path) -> Generator[None, None, None]:
    """No worker finds an order to stop that was another command's."""
    (folder / STOP_FILE).unlink(missing_ok=True)
    try:
        yield
    finally:
        (folder / STOP_FILE).unlink(missing_ok=True)


def check_ray(health: ClusterHealth | None = None) -> None:
    """Raise RayLostError where a process of the local Ray has died, or the cluster is gone."""
    _Looked.last = time.monotonic()
    if health is not None:
        health.check()
    for name in ("raylet", "gcs_server"):
        if _died(name):
            raise RayLostError(f"its process {name} died")


class _Looked:
    """When the main thread last came by to look."""

    last = 0.0


@contextmanager
def lookout(tell: Callable[[str], None], *, joined: bool) -> Generator[None, None, None]:
    """End this process, with a line, where a question to a dead GCS holds its main thread.

    joined    the GCS is another machine's, or another command's

    Nothing takes the question back; Ray would end the process after a minute, without a word to a
    user. All but such a moment is noticed by `check_ray`.
    """
    over, health = threading.Event(), ClusterHealth() if joined else None

    def look() -> None:
        while not over.wait(LOOK_SECONDS):
            held = time.monotonic() - _Looked.last > HELD_SECONDS
            if held and (_died("gcs_server") if health is None else not health.answers()):
                whose = "Ray's" if health is None else "the cluster's"
                tell(
                    f"{whose} process gcs_server died and holds this one; start the same command "
                    "when Ray can run: it goes on where this one stopped"
                )
                kill_local_ray()
                os._exit(HELD_CODE)

    _Looked.last = time.monotonic()
    threading.Thread(target=look, name="lookout", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _died(name: str) -> bool:
    node = _node()
    infos = node.all_processes.get(name, ()) if node is not None else ()
    return any(info.process.poll() is not None for info in infos)


def kill_local_ray() -> None:
    """End what is left of a local Ray: its workers must not write what others soon will, too."""
    node = _node()
    if node is not None:
        node.kill_all_processes(check_alive=False, allow_graceful=False)


def _node() -> Any:
    """The processes that this one has started for Ray; there is no public way to them."""
    from ray._private import worker

    return worker._global_node  # pyright: ignore[reportPrivateUsage]


class ClusterHealth:
    """Whether the joined cluster's head still takes connections; asked every few seconds."""

    def __init__(self) -> None:
        import ray

        address: str = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        self._place, self._next, self._failed = (host, int(port)), 0.0, 0

    def check(self) -> None:
        """Raise RayLostError after `GONE_PROBES` probes in a row without an answer."""
        if time.monotonic() < self._next:
            return
        self._failed = 0 if self._probe() else self._failed + 1
        if self._failed >= GONE_PROBES:
            raise RayLostError(f"its head at {self._place[0]}:{self._place[1]} does not answer")
        self._next = time.monotonic() + PROBE_SECONDS

    def answers(self) -> bool:
        """Whether one of `GONE_PROBES` probes in a row is answered."""
        for _ in range(GONE_PROBES):
            if self._probe():
                return True
            time.sleep(PROBE_SECONDS)
        return False

    def _probe(self) -> bool:
        try:
            socket.create_connection(self._place, timeout=PROBE_SECONDS).close()
        except OSError:
            return False
        return True


class Worker:
    """What a process of a run does about its own end; one for all runs that it carries out."""

    def __init__(self, folder: Path) -> None:
        self._file, self._busy, self._parent = folder / STOP_FILE, False, os.getppid()
        stopping.install()
        threading.Thread(target=self._watch, name="stop", daemon=True).start()

    @contextmanager
    def at_work(self) -> Generator[None, None, None]:
        """SIGTERM ends what is inside, which then counts as pre-empted and not as a failure."""
        from ray.exceptions import RayActorError

        try:
            with self.busy():
                yield
        except stopping.Stopped as stop:
            raise RayActorError(error_msg=str(stop), preempted=True) from None

    @contextmanager
    def busy(self) -> Generator[None, None, None]:
        """The order to stop is a SIGTERM for what is inside, which raises `Stopped`."""
        try:
            stopping.check()
            self._busy = True
            yield
        finally:
            self._busy = False

    def _watch(self) -> None:
        while True:
            time.sleep(LOOK_SECONDS)
            if os.getppid() != self._parent:
                os._exit(1)  # without a raylet nobody hears of this run, and another may have it
            if self._busy and self._file.exists() and not stopping.asked():
                os.kill(os.getpid(), signal.SIGTERM)


def with_notices(result: dict[str, Any]) -> dict[str, Any]:
    """`result` of a step, with what the worker has to tell."""
    return {**result, "notices": taken()}
