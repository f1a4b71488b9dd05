"""Settings of resources, Ray and tracking. None of them changes a number or a run's identity."""

import math
import re
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from unlearnbench.config.section import Settings

LOCAL_RUNS = 2
"""Concurrent runs without GPUs on a local Ray, if `ray.concurrent` is not set."""


class Resources(Settings):
    """GPUs, cores and processes of one run."""

    gpu: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        default=0.0,
        description="number of GPUs of a run: a part of one GPU (0.25), or whole GPUs with one "
        "process each; auto: the sweep measures its first runs, and then lets as many runs share a "
        "GPU as fit",
    )
    cpu: float = Field(default=1.0, gt=0, description="number of CPU cores of each process")
    processes: int | None = Field(
        default=None, ge=1, description="number of processes of a run; default: one for each GPU"
    )
    parallel: Literal["fsdp", "ddp"] = Field(
        default="fsdp",
        description="how several processes share the model: fsdp shards weights and optimiser "
        "states, ddp copies them",
    )
    cuda_graphs: bool = Field(
        default=True,
        description="whether a GPU records passes whose shapes come again, and replays them: when "
        "it decodes, and in training steps of small models; false: no recording takes "
        "memory, and the numbers are the same",
    )

    @field_validator("gpu", mode="before")
    @classmethod
    def _is_number_or_auto(cls, gpu: object) -> object:
        """Refuse other values here, because a union has an error for each of its members."""
        if gpu == "auto":
            return gpu
        is_number = isinstance(gpu, int | float) and not isinstance(gpu, bool)
        if is_number and 0 <= float(gpu) < math.inf:  # type: ignore[arg-type]
            return gpu
        raise ValueError(f"expected auto or a number of GPUs, such as 0, 0.5 or 1, got {gpu!r}")

    @model_validator(mode="after")
    def _gpus_suit_processes(self) -> Self:
        """Check that a run has a part of one GPU, or one whole GPU for each process."""
        if self.gpu == "auto":
            if self.world_size > 1:
                raise ValueError(
                    f"gpu: auto is for runs of one process, and a run has {self.processes}; state "
                    f"gpu: {self.processes}, or leave `processes` out"
                )
            return self
        if self.gpu > 1 and self.gpu != int(self.gpu):
            raise ValueError(f"gpu must be a share of one or a whole number, got {self.gpu:g}")
        if self.processes and self.gpu and self.gpu != self.processes:
            raise ValueError(
                f"a process has one GPU: {self.processes} processes cannot have {self.gpu:g} GPUs"
            )
        return self

    @property
    def gpus(self) -> float:
        """Number of GPUs for which a run is planned.

        It is 1 for `gpu: auto`. A run that shares a GPU because of a measurement still computes as
        if it were alone, so that no number depends on the other runs.
        """
        return 1.0 if self.gpu == "auto" else self.gpu

    @property
    def is_measured(self) -> bool:
        """Whether the sweep measures how many runs share a GPU."""
        return self.gpu == "auto"

    @property
    def gpu_text(self) -> str:
        """The setting `gpu` as it is written: `auto`, `0.5`, `2`."""
        return "auto" if self.gpu == "auto" else f"{self.gpu:g}"

    @property
    def world_size(self) -> int:
        """Number of processes of a run."""
        return self.processes or max(1, int(self.gpus))

    @property
    def per_process(self) -> dict[str, float]:
        """Resources of one process, by Ray's names: `{"CPU": 1.0, "GPU": 0.5}`."""
        resources = {"CPU": self.cpu}
        if self.gpus:
            resources["GPU"] = self.gpus / self.world_size
        return resources


class RaySettings(Settings):
    """The Ray cluster, the number of concurrent runs, and retries."""

    address: str | None = Field(
        default=None,
        description="address of a cluster: auto, or host:port; default: a local instance of Ray",
    )
    concurrent: int | None = Field(
        default=None,
        ge=1,
        description="number of runs at a time; default: 2 on this machine, or as many as fit "
        "with GPUs and on a cluster. A larger number is useful for a cluster that "
        "grows",
    )
    retries: int = Field(
        default=1,
        ge=0,
        description="number of times that a run is tried again if it failed for a transient reason",
    )

    @field_validator("address")
    @classmethod
    def _can_be_joined(cls, address: str | None) -> str | None:
        """Refuse an address that is none, or from which a sweep cannot read its records."""
        if address is not None and address.startswith("ray://"):
            raise ValueError(
                "through ray:// a sweep's loop would run inside the cluster, away from its "
                "records; submit the command: `ray job submit --address http://HOST:8265 -- "
                "unlearnbench sweep CONFIG --set ray.address=auto`"
            )
        if address is not None and not re.fullmatch(r"auto|.+:\d+", address):
            raise ValueError(f"expected auto or host:port, got {address!r}")
        return address


class TrackingSettings(Settings):
    """Where runs are tracked, for example in MLflow."""

    enabled: bool = Field(default=True, description="false: nothing is logged")
    tracker: str = Field(default="mlflow", description="name of the plug-in that logs runs")
    uri: str | None = Field(
        default=None,
        description="tracking server; default: MLFLOW_TRACKING_URI, then SQLite in the folder",
    )
    experiment: str | None = Field(
        default=None, description="default: the name of the benchmark's data"
    )
