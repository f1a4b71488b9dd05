"""One Ray for the sweeps of this folder that do not end it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from unlearnbench.config.loader import load_config
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep import driver
from unlearnbench.sweep.placement import alive
from unlearnbench.sweep.ray_cluster import ray_session, run_slots


@pytest.fixture(scope="package")
def ray_of_folder() -> Iterator[Any]:
    """Ray with two CPUs, started once for test files that follow one another."""
    with ray_session(load_config("quickstart", ["ray.concurrent=2"]), pytest.fail):
        import ray

        yield ray


@pytest.fixture
def shared_ray(ray_of_folder: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let `run_sweep` in this process use the Ray of the folder."""

    @contextmanager
    def session(config: SweepConfig, _warn: Callable[[str], None]) -> Generator[int, None, None]:
        yield run_slots(config, [node["Resources"] for node in alive()])

    monkeypatch.setattr(driver, "ray_session", session)
    return ray_of_folder
