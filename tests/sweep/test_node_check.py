"""Nodes that differ from the driver's machine are found."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from unlearnbench.errors import UnlearnbenchError
from unlearnbench.runtime.gpu_inventory import gpus_of_machine
from unlearnbench.runtime.provenance import versions
from unlearnbench.sweep.node_check import (
    NodeReport,
    check_versions,
    differences,
    gpu_differences,
    report_node,
)

HERE = NodeReport(
    "a", {"python": "3.11.7", "torch": "2.13.0", "peft": "0.18"}, {"npo": "own 1"}, ""
)


@pytest.mark.parametrize(
    ("there", "expected"),
    [
        (HERE, []),
        (
            replace(HERE, versions=HERE.versions | {"torch": "2.12.0"}),
            ["torch 2.12.0 there, 2.13.0 here"],
        ),
        (
            replace(HERE, versions={"python": "3.11.7", "torch": "2.13.0", "ray": "2"}),
            ["peft is missing there, 0.18 here", "ray 2 there, missing here"],
        ),
        (replace(HERE, methods={}), ["no entry point of method 'npo' there, own 1 offers it here"]),
        (
            replace(HERE, methods={"npo": "own 2"}),
            ["method 'npo' is from own 2 there, from own 1 here"],
        ),
    ],
)
def test_what_differs_is_named(there: NodeReport, expected: list[str]) -> None:
    assert differences(there, HERE) == expected


def test_gpus_that_differ_are_named() -> None:
    gpu = {"GPU": "NVIDIA H100", "NVIDIA driver": "580.65", "CUDA of torch": "13.0"}
    first = replace(HERE, gpu=gpu)
    assert differences(first, replace(HERE, gpu={"CUDA of torch": "13.0"})) == []
    assert differences(first, replace(HERE, gpu={"CUDA of torch": "12.8"})) == [
        "torch is built for CUDA 13.0 there, 12.8 here"
    ]
    head = replace(HERE, host="head", gpu={"CUDA of torch": "13.0"})
    assert gpu_differences([head, first, replace(first, host="b")]) == ""
    other = replace(first, host="b", gpu=gpu | {"GPU": "NVIDIA A100", "NVIDIA driver": "570.1"})
    assert gpu_differences([head, first, other]) == (
        "the nodes' GPUs differ, so their numbers agree to rounding only: "
        "GPU NVIDIA A100 on b, NVIDIA H100 on a; NVIDIA driver 570.1 on b, 580.65 on a"
    )


def test_a_node_reports_its_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    place = "unlearnbench.sweep.node_check.gpus_of_machine"
    monkeypatch.setattr(place, lambda: {"GPU": "H100"})
    assert report_node([]).gpu == {"GPU": "H100"}


def test_a_node_needs_no_torch_to_report_and_to_compare_versions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('torch is imported')")
    (package / "version.py").write_text("cuda = '12.6'")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    gpus_of_machine.cache_clear()
    try:
        assert report_node([]).gpu["CUDA of torch"] == "12.6"
    finally:
        gpus_of_machine.cache_clear()
    check_versions(tuple(versions().items()))
    driver = versions() | {"torch": "0.1"}
    with pytest.raises(UnlearnbenchError, match=r"node .*: torch .* there, 0\.1 here"):
        check_versions(tuple(driver.items()))
