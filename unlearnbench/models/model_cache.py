"""A cache of the process's last model, restored to the weights that the next run starts from.

Loading builds a model and reads its weights. A process with a model of the same architecture only
copies the weights, which the system's page cache has after the first time. A model that several
processes share is restored shard by shard, and stays shared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unlearnbench.config.schema import ModelSettings
from unlearnbench.errors import ModelError
from unlearnbench.models.loading import Source, load_model
from unlearnbench.runtime.distributed import all_gather, world_size
from unlearnbench.runtime.fsdp import is_sharded, local_shard


class ModelCache:
    """One model at most. `acquire` hands it out, and `release` puts it back for the next run."""

    def __init__(self) -> None:
        self._cached: tuple[str, Any] | None = None
        self.restored = 0
        """Number of models that were restored instead of loaded."""

    def acquire(self, source: Source, settings: ModelSettings, sharing: str = "") -> Any:
        """The model of `source` for training, restored from the cache or loaded. Collective.

        sharing  how several processes share it; one that is shared in another way does not match

        Either all processes restore, and get a model that is shared already, or all load.
        """
        cached, self._cached = self._cached, None
        architecture = _architecture(source, settings, sharing)
        # Another model's memory must be free before the next one is loaded.
        model = cached[1] if cached is not None and cached[0] == architecture else None
        del cached
        restored = all(all_gather(model is not None and _restore(model, source)))
        if model is None or not restored:
            del model
            return load_model(source, settings, train=True)
        self.restored += 1
        return model.train()

    def release(
        self, model: Any, source: Source, settings: ModelSettings, sharing: str = ""
    ) -> None:
        """Cache what `acquire` returned, unless adapters or data parallelism have changed it."""
        from accelerate.utils import extract_model_from_parallel

        architecture = _architecture(source, settings, sharing)
        own = extract_model_from_parallel(model)
        # FSDP has fixed which weights take gradients; another run may train others.
        unchanged = is_sharded(own) and all(p.requires_grad for p in own.parameters())
        if architecture is not None and (world_size() == 1 or unchanged):
            # Left by accelerate, which would not wrap the forward pass again.
            for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
                own.__dict__.pop(name, None)
            own.zero_grad(set_to_none=True)
            self._cached = architecture, own.requires_grad_(True)


model_cache = ModelCache()
"""The cache of this process."""


def _architecture(source: Source, settings: ModelSettings, sharing: str) -> str | None:
    """A key that two models share if only their weights differ; None if they cannot be cached."""
    folder = _local(source)
    if folder is None or settings.lora is not None:
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # The same model may be saved at another place or by another version.
    shape = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version")}
    how = ("dtype", "attention", "trust_remote_code", "gradient_checkpointing")
    return json.dumps([shape, [getattr(settings, name) for name in how], sharing], sort_keys=True)


def _local(source: Source) -> Path | None:
    """The folder of the weights: the source's own, or where the hub's cache has put them."""
    try:
        return source.files(weights=True)
    except ModelError:  # loading reports it
        return None


def _restore(model: Any, source: Source) -> bool:
    """Copy the weights of `source` into `model`; False where the tensors are not the same ones."""
    import torch
    from safetensors import safe_open

    folder = _local(source)
    tensors: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    readers: list[Any] = [safe_open(file, framework="pt") for file in files]
    names = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118
    restored = {id(tensors[name]) for name in names if name in tensors}
    # Tied weights are saved once and stand in the model under two names.
    if names.keys() - tensors.keys() or any(id(t) not in restored for t in tensors.values()):
        return False
    with torch.no_grad():
        for name, reader in names.items():
            tensors[name].copy_(local_shard(reader.get_tensor(name), tensors[name]))
    return True
