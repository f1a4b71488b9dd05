"""LoRA adapter folders as models: the base model that an adapter names, with the adapter on it.

The adapter is not merged into the base's weights: in bf16 that would round them, and give another
model than the one that was trained.
"""

import json
import warnings
from pathlib import Path
from typing import Any

from unlearnbench.base.errors import ModelError
from unlearnbench.config.schema import ModelSettings
from unlearnbench.models.loading import Source, import_peft, load_model, reading

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(source: Source) -> bool:
    """True if `source` is a folder with an adapter, not a whole model."""
    folder = source.folder
    return (
        folder is not None
        and (folder / CONFIG).is_file()
        and not (folder / "config.json").is_file()
    )


def adapter_base(source: Source) -> Source:
    """The base model of the adapter in `source`.

    A relative folder in its config is looked up from the working directory, then from the
    adapter's folder. Raises: ModelError where the config names none, or a missing folder.
    """
    path = Path(source.place) / CONFIG
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        name, revision = config["base_model_name_or_path"], config.get("revision")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{path}: not an adapter configuration of peft ({error!r})") from None
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{path}: base_model_name_or_path is {name!r}; write the base model's folder or hub "
            "id there"
        )
    beside = Path(source.place) / name
    base = Source(str(beside) if not Path(name).is_dir() and beside.is_dir() else name, revision)
    base.check()
    return base


def check_any_model(source: Source) -> None:
    """Raise ModelError where `source` looks like a folder but has neither model nor adapter."""
    if is_adapter(source):
        adapter_base(source)
    else:
        source.check()


def load_any_model(source: Source, settings: ModelSettings) -> Any:
    """Load a model or an adapter folder for evaluation."""
    if not is_adapter(source):
        return load_model(source, settings)
    if not (Path(source.place) / WEIGHTS).is_file():
        raise ModelError(
            f"{source.place}: no {WEIGHTS}; pickled adapters are not loaded, convert it first"
        )
    peft = import_peft(f"{source.place} is a LoRA adapter, which needs")
    base = load_model(adapter_base(source), settings)
    with reading("adapter", source), warnings.catch_warnings():
        # peft calls transformers by deprecated names: nothing to act on here.
        warnings.simplefilter("ignore", FutureWarning)
        # Missing keys are an error below.
        warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
        model = peft.PeftModel.from_pretrained(base, source.place)
        missing, unexpected = _differences(peft, model, Path(source.place) / WEIGHTS)
    if missing or unexpected:
        which, names = ("missing", missing) if missing else ("unexpected", unexpected)
        raise ModelError(
            f"{source.place}: the adapter does not fit its base model ({len(names)} tensors "
            f"{which}, such as {min(names)}); copy or save the adapter again"
        )
    return model.eval()


def _differences(peft: Any, model: Any, weights: Path) -> tuple[set[str], set[str]]:
    """Names of the tensors that are missing in the file, and of the unexpected ones."""
    from safetensors import safe_open

    expected = set(peft.get_peft_model_state_dict(model))
    with safe_open(weights, framework="pt") as file:
        result = set(file.keys())
    return expected - result, result - expected
