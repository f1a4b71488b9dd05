"""The model that a process has in memory, put back to the weights that a run starts from.

Loading builds a model anew and reads its weights; a process that has a model of the same
architecture only needs the weights, which the system keeps in its page cache after the first time.
A model that several processes share is put back part by part, and stays as it is shared.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from unlearnbench.errors import ModelError
from unlearnbench.group import of_all, world
from unlearnbench.models.loading import Source, load_model
from unlearnbench.settings import ModelSettings
from unlearnbench.sharding import is_sharded, parted


class WarmModel:
    """One model at most; whoever takes it has it alone until it is given back."""

    def __init__(self) -> None:
        self._kept: tuple[str, Any] | None = None
        self.restored = 0
        """How many models were put back rather than loaded."""

    def take(self, source: Source, settings: ModelSettings, sharing: str = "") -> Any:
        """The model of `source` to be trained: as `load_model` returns it, or shared already.

        sharing  how several processes will share it; one that was shared in another way is not it

        Collective: all processes have one that is put back, or all load.
        """
        kept, self._kept = self._kept, None
        wanted = _architecture(source, settings, sharing)
        # Its memory must be free before another model takes its place.
        model = kept[1] if kept is not None and kept[0] == wanted else None
        del kept
        restored = all(of_all(model is not None and _restore(model, source)))
        if model is None or not restored:
            del model
            return load_model(source, settings, train=True)
        self.restored += 1
        return model.train()

    def give_back(
        self, model: Any, source: Source, settings: ModelSettings, sharing: str = ""
    ) -> None:
        """Keep what `take` returned, unless adapters or data parallelism have changed it."""
        from accelerate.utils import extract_model_from_parallel

        architecture = _architecture(source, settings, sharing)
        own = extract_model_from_parallel(model)
        # FSDP has settled which weights take gradients; another run may train others.
        as_it_was = is_sharded(own) and all(p.requires_grad for p in own.parameters())
        if architecture is not None and (world() == 1 or as_it_was):
            # What accelerate leaves on it; it would not wrap the forward pass again.
            for name in ("forward", "_original_forward", "_is_accelerate_prepared"):
                own.__dict__.pop(name, None)
            own.zero_grad(set_to_none=True)
            self._kept = architecture, own.requires_grad_(True)


warm_model = WarmModel()
"""The process's own."""


def _architecture(source: Source, settings: ModelSettings, sharing: str) -> str | None:
    """What two models have in common that differ in their weights alone; None: not known."""
    folder = _local(source)
    if folder is None or settings.lora is not None:
        return None
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # Where it was saved, and by which version, makes no other model.
    kept = {k: v for k, v in config.items() if k not in ("_name_or_path", "transformers_version")}
    how = ("dtype", "attention", "trust_remote_code", "gradient_checkpointing")
    return json.dumps([kept, [getattr(settings, name) for name in how], sharing], sort_keys=True)


def _local(source: Source) -> Path | None:
    """The folder of the weights: the source's own, or where the hub's cache has put them."""
    try:
        return source.files(weights=True)
    except ModelError:  # which loading reports
        return None


def _restore(model: Any, source: Source) -> bool:
    """Copy the weights of `source` into `model`; False where they are not its own one by one."""
    import torch
    from safetensors import safe_open

    folder = _local(source)
    held: dict[str, Any] = dict(model.state_dict(keep_vars=True))
    files = [] if folder is None else sorted(folder.glob("*.safetensors"))
    readers: list[Any] = [safe_open(file, framework="pt") for file in files]
    names = {name: reader for reader in readers for name in reader.keys()}  # noqa: SIM118
    known = {id(held[name]) for name in names if name in held}
    # Tied weights are saved once and stand in the model under two names.
    if names.keys() - held.keys() or any(id(value) not in known for value in held.values()):
        return False
    with torch.no_grad():
        for name, reader in names.items():
            held[name].copy_(parted(reader.get_tensor(name), held[name]))
    return True
