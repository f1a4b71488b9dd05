"""Presets fill a cluster; the processes of a run stay together; idle GPUs are reported."""

import pytest

from unlearnbench.base.errors import UnlearnbenchError
from unlearnbench.config.loader import load_config
from unlearnbench.config.resources import Resources
from unlearnbench.config.schema import SweepConfig
from unlearnbench.sweep.ray_cluster import lacking_resources, run_slots
from unlearnbench.sweep.worker_group import runs_that_fit, strategy

NODE = {"CPU": 192.0, "GPU": 8.0}
PRESETS = ("tofu_llama2_7b", "tofu_phi_1_5", "tofu_llama3_2_1b")


def on_cluster(preset: str, *more: str) -> SweepConfig:
    return load_config(preset, ["ray.address=auto", *more])


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("gpus", [1, 2, 4])
def test_presets_use_every_gpu_of_a_cluster(preset: str, gpus: int) -> None:
    config = on_cluster(preset, f"resources.gpu={gpus}")
    assert run_slots(config, [NODE] * 4) == 32 // gpus


@pytest.mark.parametrize(
    ("preset", "slots"),
    [*zip(PRESETS, (4, 8, 8), strict=True), ("tofu_llama2_7b_one_gpu", 8)],
)
def test_presets_use_every_gpu_of_one_machine(preset: str, slots: int) -> None:
    config = load_config(preset)
    assert run_slots(config, [NODE]) == slots
    assert run_slots(load_config(preset, ["ray.concurrent=2"]), [NODE]) == 2


def test_processes_of_a_run_share_a_machine_that_is_large_enough() -> None:
    four = Resources(gpu=4)
    partly_busy = [{"CPU": 96.0, "GPU": 6.0}] * 2
    assert strategy(partly_busy, four) == "STRICT_PACK"
    assert runs_that_fit(partly_busy, four) == 2  # not a third from what is left of both
    small = [{"CPU": 96.0, "GPU": 2.0}] * 2
    assert strategy(small, four) == "PACK"
    assert runs_that_fit(small, four) == 1


def test_a_run_that_fits_nowhere_is_an_error() -> None:
    with pytest.raises(UnlearnbenchError, match=r"no room for a run of "):
        run_slots(on_cluster("tofu_phi_1_5", "resources.gpu=16"), [NODE])


@pytest.mark.parametrize("gpu", ["auto", "0.5"])
def test_a_share_of_a_gpu_on_a_machine_without_one_is_an_error(gpu: str) -> None:
    config = load_config("tofu_phi_1_5", [f"resources.gpu={gpu}"])
    line = (
        rf"^a run of \S+ shares a GPU \(resources\.gpu: {gpu}\), and this machine has no GPU; take "
        r"a machine with one, or compute on the CPU with --set resources\.gpu=0$"
    )
    with pytest.raises(UnlearnbenchError, match=line):
        run_slots(config, [{"CPU": 8.0}])
    assert lacking_resources(config, gpus=1, cores=8) == []


def test_measured_runs_have_a_gpu_each_at_first() -> None:
    assert run_slots(load_config("tofu_phi_1_5", ["resources.gpu=auto"]), [NODE]) == 8
