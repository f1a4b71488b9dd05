"""Handle SIGTERM, lost workers and a dead Ray.

Workers watch a stop file in the sweep's folder, because Ray cannot ask them to checkpoint and exit:
a worker that finds it while it works sends itself a SIGTERM. The death of Ray shows only in its
processes: a driver without a raylet would wait forever.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from unlearnbench.runtime import signals

STOP_FILE = ".stop"
STOP_SECONDS = 60.0
"""Longest wait after SIGTERM for checkpoints that are being written."""
WATCH_SECONDS = 0.2
PROBE_SECONDS = 2.0
STUCK_SECONDS, STUCK_CODE = 5.0, 2
"""Time after which a driver that waits for a dead GCS is ended, and its exit code."""
KILLED_SECONDS = 5.0
"""Longest wait for a killed process, which a driver or a disk may hold."""
LOST_PROBES = 3
"""Probes in a row without an answer, after which a cluster counts as lost."""


class RayLostError(BaseException):
    """Ray is gone. Not an `Exception`: for those Tune cleans up first, which waits for Ray."""


class TrialMonitor:
    """Checks Ray and SIGTERM from Tune's callbacks: ten times a second and at each event."""

    def __init__(self, folder: Path, retries: int, *, joined: bool) -> None:
        self._file, self._retries = folder / STOP_FILE, retries
        self._health = ClusterHealth() if joined else None
        self._best: dict[str, int] = {}
        """Last epoch by trial."""
        self._ending: set[str] | None = None
        """Trials that have to end, once SIGTERM has come."""
        self._deadline = 0.0

    @property
    def is_stopping(self) -> bool:
        """True if runs end because the sweep was stopped."""
        return self._ending is not None

    def check(self, trials: Any) -> None:
        """Raise RayLostError if Ray is gone, `Stopped` if all trials have ended after a SIGTERM."""
        check_ray(self._health)
        if not signals.sigterm_received():
            return
        if self._ending is None:
            self._ending = {trial.trial_id for trial in trials if trial.status == "RUNNING"}
            self._deadline = time.monotonic() + STOP_SECONDS
            self._file.touch()
        if not self._ending or time.monotonic() > self._deadline:
            raise signals.Stopped

    def epoch_ended(self, trial: Any, epoch: int) -> None:
        """Give a run that has reached a new epoch all its retries again."""
        if epoch > self._best.get(trial.trial_id, 0):
            self._best[trial.trial_id] = epoch
            trial.max_failures = trial.num_failures + self._retries

    def trial_ended(self, trial: Any) -> None:
        """Note the end of a run or its process, which means nothing if Ray is gone."""
        check_ray(self._health)
        if self._ending is not None:
            self._ending.discard(trial.trial_id)


@contextmanager
def stop_file(folder: Path) -> Generator[None, None, None]:
    """Remove the stop file of an earlier command, and this one's at the end."""
    (folder / STOP_FILE).unlink(missing_ok=True)
    try:
        yield
    finally:
        (folder / STOP_FILE).unlink(missing_ok=True)


def check_ray(health: ClusterHealth | None = None) -> None:
    """Raise RayLostError if a process of the local Ray has died, or the cluster is gone."""
    _LastCheck.at = time.monotonic()
    if health is not None:
        health.check()
    for name in ("raylet", "gcs_server"):
        if _died(name):
            raise RayLostError(f"its process {name} died")


class _LastCheck:
    """Time of the main thread's last `check_ray`."""

    at = 0.0


@contextmanager
def gcs_watchdog(warn: Callable[[str], None], *, joined: bool) -> Generator[None, None, None]:
    """End this process if its main thread waits for the answer of a dead GCS.

    Such a call cannot be cancelled, and Ray would end the process after a minute without a message.
    At any other moment `check_ray` notices the death.

    joined  the GCS belongs to another machine or command
    """
    over, health = threading.Event(), ClusterHealth() if joined else None

    def watch() -> None:
        while not over.wait(WATCH_SECONDS):
            if time.monotonic() - _LastCheck.at <= STUCK_SECONDS:
                continue
            if _died("gcs_server") if health is None else not health.answers():
                whose = "Ray's" if health is None else "the cluster's"
                warn(
                    f"{whose} process gcs_server died and this one waits for it; run the same "
                    "command again: finished epochs are kept"
                )
                kill_local_ray()
                os._exit(STUCK_CODE)

    _LastCheck.at = time.monotonic()
    threading.Thread(target=watch, name="gcs-watchdog", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _died(name: str) -> bool:
    return any(process.poll() is not None for process in _started(name))


def _started(name: str) -> list[Any]:
    """The processes called `name` that this one has started for Ray."""
    node = _node()
    return [info.process for info in node.all_processes.get(name, ())] if node is not None else []


def kill_local_ray() -> None:
    """Kill the rest of a local Ray, whose workers must not write while those of the next do."""
    node = _node()
    if node is not None:
        with no_worker_left():
            node.kill_all_processes(check_alive=False, allow_graceful=False)


@contextmanager
def no_worker_left() -> Generator[None, None, None]:
    """Kill what is left of a local Ray's workers, and of their processes, after the `with`.

    Ray does not wait for them when it ends: they would still hold memory, of GPUs as well, when the
    next command starts.
    """
    workers: list[Any] = []
    for raylet in _started("raylet"):
        with suppress(psutil.Error):
            workers += psutil.Process(raylet.pid).children(recursive=True)
    try:
        yield
    finally:
        for worker in workers:
            with suppress(psutil.Error):
                worker.kill()
        end = time.monotonic() + KILLED_SECONDS
        while any(map(_is_alive, workers)) and time.monotonic() < end:
            time.sleep(0.01)


def _is_alive(process: Any) -> bool:
    """False of a zombie too, which stays where a container's first process collects none."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _node() -> Any:
    """Ray's processes that this one has started; Ray has no public interface to them."""
    from ray._private import worker

    return worker._global_node  # pyright: ignore[reportPrivateUsage]


class ClusterHealth:
    """Probes of a joined cluster's head, one every few seconds."""

    def __init__(self) -> None:
        import ray

        address: str = ray.get_runtime_context().gcs_address
        host, _, port = address.rpartition(":")
        self._place, self._next, self._failed = (host, int(port)), 0.0, 0

    def check(self) -> None:
        """Raise RayLostError after `LOST_PROBES` probes in a row without an answer."""
        if time.monotonic() < self._next:
            return
        self._failed = 0 if self._probe() else self._failed + 1
        if self._failed >= LOST_PROBES:
            raise RayLostError(f"its head at {self._place[0]}:{self._place[1]} does not answer")
        self._next = time.monotonic() + PROBE_SECONDS

    def answers(self) -> bool:
        """True if one of `LOST_PROBES` probes in a row is answered."""
        for _ in range(LOST_PROBES):
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


class StopFileWatcher:
    """Ends the work of a worker process when the stop file appears or its raylet dies."""

    def __init__(self, folder: Path) -> None:
        self._file, self._busy, self._parent = folder / STOP_FILE, False, os.getppid()
        signals.install_handler()
        threading.Thread(target=self._watch, name="stop-file", daemon=True).start()

    @contextmanager
    def preemptible(self) -> Generator[None, None, None]:
        """Report a SIGTERM inside the `with` to Ray as a pre-emption, not as a failure."""
        from ray.exceptions import RayActorError

        try:
            with self.interruptible():
                yield
        except signals.Stopped as stop:
            raise RayActorError(error_msg=str(stop), preempted=True) from None

    @contextmanager
    def interruptible(self) -> Generator[None, None, None]:
        """Raise `Stopped` inside the `with` when the stop file appears."""
        try:
            signals.raise_if_stopped()
            self._busy = True
            yield
        finally:
            self._busy = False

    def _watch(self) -> None:
        while True:
            time.sleep(WATCH_SECONDS)
            if os.getppid() != self._parent:
                os._exit(1)  # the raylet is dead, and another worker may be given this run
            if self._busy and self._file.exists() and not signals.sigterm_received():
                os.kill(os.getpid(), signal.SIGTERM)
