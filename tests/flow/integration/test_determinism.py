"""Runs repeat to the last bit; processes are set up before they use a GPU."""

import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from unlearnbench.api.plugin_code import plugin_code
from unlearnbench.base.errors import PluginError, TrainingError
from unlearnbench.config.method_specs import method_spec
from unlearnbench.config.plan import make_plan
from unlearnbench.config.resources import Resources
from unlearnbench.config.run_spec import RunSpec
from unlearnbench.config.schema import MethodGrid, ModelSettings
from unlearnbench.config.training_settings import TrainingSettings
from unlearnbench.models.device import cuda_variables, deterministic
from unlearnbench.models.packed_attention import has_varlen_kernel
from unlearnbench.models.token_sampling import Distribution, choose
from unlearnbench.sweep.ray_cluster import worker_variables

from ..plan.test_plan import config

ALLOCATOR = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
REPEATS = TrainingSettings(batch_size=4, deterministic=True)
Flags = tuple[int, bool, bool, str | None]


def flags() -> Flags:
    cudnn = torch.backends.cudnn
    mode = torch.get_deterministic_debug_mode()
    flash = os.environ.get("FLASH_ATTENTION_DETERMINISTIC")
    return mode, cudnn.deterministic, cudnn.benchmark, flash


ON: Flags = (2, True, False, "1")
"""The mode is 2 where an operation without a deterministic form is an error, not a warning."""


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No variable of the caller's, nor any left behind."""
    for name in (*ALLOCATOR, "CUBLAS_WORKSPACE_CONFIG"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    before = flags()
    yield
    assert flags() == before


def without_deterministic_form() -> Tensor:
    """One of the few operations that have none on a CPU either."""
    return torch.zeros(4).put_(torch.tensor([0, 0]), torch.ones(2))


def test_an_error_inside_a_method_names_the_operation() -> None:
    with (
        pytest.raises(TrainingError, match=r"training.deterministic: put_ does not") as error,
        deterministic(True),
        plugin_code("the loss of Own"),
    ):
        without_deterministic_form()
    assert isinstance(error.value.__cause__, PluginError)
    with pytest.raises(RuntimeError, match="another"), deterministic(True):
        raise RuntimeError("another")


def test_it_is_part_of_a_run_and_the_default_changes_no_id() -> None:
    run: RunSpec = make_plan(config(), "f").runs[0]
    training = run.training.model_copy(update={"deterministic": True})
    other = run.model_copy(update={"training": training})
    assert run.id != other.id
    assert "deterministic" not in run.identity["training"]
    assert other.identity["training"]["deterministic"] is True


def test_attention_without_padding_is_left_out() -> None:
    tensor: Any = SimpleNamespace(device=SimpleNamespace(type="cuda"), dtype=torch.bfloat16)
    assert has_varlen_kernel(tensor)
    with deterministic(True):
        assert not has_varlen_kernel(tensor)


def test_sampling_sums_where_it_is_deterministic(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    logits, uniform = torch.randn(8, 50), torch.rand(8)
    expected = choose(logits, Distribution(), uniform)
    moved: list[Tensor] = []

    def cpu(tensor: Tensor) -> Tensor:
        moved.append(tensor)
        return tensor

    monkeypatch.setattr(Tensor, "cpu", cpu)
    assert torch.equal(choose(logits, Distribution(), uniform), expected)
    assert not moved
    with deterministic(True):
        assert torch.equal(choose(logits, Distribution(), uniform), expected)
    assert [tensor.shape for tensor in moved] == [logits.shape, uniform.shape]


class TestVariables:
    def test_of_workers(self) -> None:
        on_cpus = worker_variables(config())
        assert (on_cpus["OMP_NUM_THREADS"], on_cpus["MKL_NUM_THREADS"]) == ("1", "1")
        assert on_cpus["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] == "1", "a run without GPUs sees none"
        extra = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
        assert worker_variables(config(resources=Resources(gpu=1))) == on_cpus | extra
        large = ModelSettings(name="large", base="tiny", resources=Resources(cpu=3))
        assert worker_variables(config(models=(large,)))["OMP_NUM_THREADS"] == "3"

    @pytest.mark.parametrize("own", [True, False])
    def test_of_workers_whose_runs_repeat(self, own: bool) -> None:
        methods = (
            MethodGrid(specs=(method_spec("ce-u", {}),)),
            MethodGrid(specs=(method_spec("npo", {}),), training=REPEATS if own else None),
        )
        training = TrainingSettings() if own else REPEATS
        how = config(resources=Resources(gpu=1), methods=methods, training=training)
        assert worker_variables(how)["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"

    def test_of_the_user_stay(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
        monkeypatch.setenv("PYTORCH_ALLOC_CONF", "max_split_size_mb:64")
        expected = {
            "PYTORCH_ALLOC_CONF": "max_split_size_mb:64",
            "CUBLAS_WORKSPACE_CONFIG": ":16:8",
        }
        assert cuda_variables(deterministic=True) == expected
        monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
        monkeypatch.delenv("PYTORCH_ALLOC_CONF")
        assert cuda_variables() == {}
