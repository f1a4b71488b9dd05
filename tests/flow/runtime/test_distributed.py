"""Joining a group: over which interface, for how long one waits, and on which device."""

from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import distributed

from unlearnbench.base import distributed as group
from unlearnbench.sweep.worker_group import rank_variables

NAMES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")


def test_ranks_are_numbered_by_machine() -> None:
    places = [("a", "10.0.0.1"), ("b", "10.0.0.2"), ("a", "10.0.0.1"), ("b", "10.0.0.2")]
    found = rank_variables(places, 29500)
    assert [one["RANK"] for one in found] == ["0", "1", "2", "3"]
    assert [one["LOCAL_RANK"] for one in found] == ["0", "0", "1", "1"]
    assert {one["LOCAL_WORLD_SIZE"] for one in found} == {"2"}
    assert {(one["MASTER_ADDR"], one["MASTER_PORT"]) for one in found} == {("10.0.0.1", "29500")}


@pytest.mark.parametrize("gpus", [0, 1, 8])
def test_gloo_waits_for_hours_and_nccl_for_one(gpus: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second process of a machine takes its second GPU, or the only one that it sees."""
    begun: list[tuple[str, timedelta]] = []
    limits: list[timedelta] = []
    devices: list[int] = []
    backend = SimpleNamespace(_set_default_timeout=limits.append)
    world = SimpleNamespace(_get_backend=Mock(return_value=backend))
    for name, value in {"RANK": 1, "LOCAL_RANK": 1, "WORLD_SIZE": 2, "MASTER_PORT": 1}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("MASTER_ADDR", "10.0.0.1")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(distributed, "group", SimpleNamespace(WORLD=world))

    def init(backend: str, timeout: timedelta, **_: Any) -> None:
        begun.append((backend, timeout))

    monkeypatch.setattr(distributed, "init_process_group", init)
    group.join_group()
    ((backend_name, patience),) = begun
    assert timedelta(hours=1) < patience <= timedelta(days=1)
    assert backend_name == ("cpu:gloo,cuda:nccl" if gpus else "gloo")
    assert limits == ([timedelta(hours=1)] if gpus else [])
    assert devices == {0: [], 1: [0], 8: [1]}[gpus]
