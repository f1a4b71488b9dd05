"""LoRA adapter folders as models: the base that an adapter names, with the adapter around it.

The adapter is not merged into the base's weights: in bf16 that would round them, and the model
would not be the one that was trained.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

from unlearnbench.errors import ModelError
from unlearnbench.models.loading import Source, load_model, reading
from unlearnbench.optional import optional
from unlearnbench.settings import ModelSettings

CONFIG = "adapter_config.json"
WEIGHTS = "adapter_model.safetensors"


def is_adapter(source: Source) -> bool:
    """Whether `source` is a folder with an adapter in it, not a whole model."""
    folder = source.folder
    return (
        folder is not None
        and (folder / CONFIG).is_file()
        and not (folder / "config.json").is_file()
    )


def base_of(source: Source) -> Source:
    """The model that the adapter in `source` was trained around.

    A folder that its config names relatively is looked for where the command runs, then beside
    the adapter. Raises ModelError where the config names none, or a folder that is not there.
    """
    place = Path(source.place) / CONFIG
    try:
        config = json.loads(place.read_text(encoding="utf-8"))
        name, revision = config["base_model_name_or_path"], config.get("revision")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelError(f"{place}: no adapter configuration of peft ({error!r})") from None
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{place}: base_model_name_or_path is {name!r}; write the base model's folder or hub "
            "id there"
        )
    beside = Path(source.place) / name
    base = Source(str(beside) if not Path(name).is_dir() and beside.is_dir() else name, revision)
    try:
        base.check()
    except ModelError as error:
        raise ModelError(
            f"{place}: the adapter's base model is not there ({error}); correct "
            "base_model_name_or_path"
        ) from None
    return base


def check_any_model(source: Source) -> None:
    """Raise ModelError where `source` looks like a folder and holds neither model nor adapter."""
    if is_adapter(source):
        base_of(source)
    else:
        source.check()


def load_any_model(source: Source, settings: ModelSettings) -> Any:
    """`load_model` for what may also be an adapter folder; ready to be evaluated."""
    if not is_adapter(source):
        return load_model(source, settings)
    if not (Path(source.place) / WEIGHTS).is_file():
        raise ModelError(
            f"{source.place}: no {WEIGHTS}; pickled adapters are not loaded, convert it first"
        )
    try:
        peft = optional("peft")
    except ImportError:
        raise ModelError(
            f"{source.place} is a LoRA adapter, which needs peft: pip install 'unlearnbench[lora]'"
        ) from None
    base = load_model(base_of(source), settings)
    try:
        with reading("adapter", source), warnings.catch_warnings():
            # peft asks transformers by names that are on their way out: nothing to act on here.
            warnings.simplefilter("ignore", FutureWarning)
            # What it warns of is an error below.
            warnings.filterwarnings("ignore", "Found missing adapter keys", UserWarning)
            model = peft.PeftModel.from_pretrained(base, source.place)
            missing, unexpected = _differences(peft, model, Path(source.place) / WEIGHTS)
    except ModelError as error:
        cause = error.__cause__
        if not isinstance(cause, ValueError | RuntimeError | KeyError | TypeError):
            raise
        reason = str(cause).strip().partition("\n")[0]
        raise ModelError(
            f"{source.place}: the adapter does not fit its base model ({reason})"
        ) from None
    if missing or unexpected:
        which, names = ("missing", missing) if missing else ("unexpected", unexpected)
        raise ModelError(
            f"{source.place}: the adapter does not fit its base model ({len(names)} tensors "
            f"{which}, such as {min(names)}); copy or save the adapter again"
        )
    return model.eval()


def _differences(peft: Any, model: Any, weights: Path) -> tuple[set[str], set[str]]:
    """Names of tensors that the adapter should have and has not, and the reverse."""
    from safetensors import safe_open

    wanted = set(peft.get_peft_model_state_dict(model))
    with safe_open(weights, framework="pt") as file:
        there = set(file.keys())
    return wanted - there, there - wanted
