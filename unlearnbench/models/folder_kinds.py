"""Folders that trainers write and that no model can be loaded from.

transformers reads a folder with `config.json` and whole weights. Distributed training writes shards
of weights instead, and a trainer's output folder contains a folder for each checkpoint. The
functions here recognise such folders, and say what they contain and what to do.
"""

import json
import re
import shlex
from pathlib import Path

_PREFIXES = re.compile(r"^(?:(?:_orig_mod|module)\.)+")
"""Prefixes that `torch.compile` and data parallelism put in front of the names of weights."""
_CHECKPOINT = re.compile(r"checkpoint-(\d+)$")
_FINISH = "copy config.json and the tokenizer of the trained model into OUT"
_RENAME = (
    "import glob, re, shutil; from safetensors.torch import load_file, save_file; "
    'r = lambda text, start="": re.sub(start + r"((_orig_mod|module)[.])+", "", text); '
    'shutil.copytree(a, b); [save_file({r(k, "^"): v for k, v in load_file(a + f).items()}, '
    'b + f, metadata={"format": "pt"}) for f in glob.glob("*.safetensors", root_dir=a)]; '
    '[open(b + f, "w").write(r(open(a + f).read())) for f in glob.glob("*.index.json", root_dir=a)]'
)
"""Python that copies the folder `a` to `b` without the prefixes.

transformers' `key_mapping` does not help, because it puts the prefixes back when a model is saved.
"""


def other_kind(folder: Path) -> str | None:
    """Return a line that says what a folder holds instead of a model, and what to do.

    For example, "it holds checkpoints, not one model: give one of them, such as
    out/checkpoint-200". The result is None if the folder is of no known kind.
    """
    zero = _zero_checkpoint(folder)
    if zero is not None:
        place = shlex.quote(str(zero))
        return (
            "it holds shards of DeepSpeed ZeRO, not whole weights: put them together by "
            # Not with --safe_serialization, which fails if weights are tied.
            f"`python {shlex.quote(str(zero / 'zero_to_fp32.py'))} {place} OUT`, {_FINISH}, and "
            "give OUT (which is pickled; the next message says how to convert it)"
        )
    shards = _fsdp_shards(folder)
    if shards is not None:
        return (
            "it holds shards of FSDP, not whole weights: put them together by "
            f"`accelerate merge-weights {shlex.quote(str(shards))} OUT`, {_FINISH}, and give OUT"
        )
    checkpoints = _checkpoints(folder)
    if checkpoints:
        newest = checkpoints[-1]
        reason = None if _is_model(newest) else other_kind(newest)
        if reason is not None:
            return f"it holds checkpoints, not one model. The newest is {newest}: {reason}"
        return f"it holds checkpoints, not one model: give one of them, such as {newest}"
    if (folder / "plan.json").is_file() and (folder / "records").is_dir():
        return (
            "it is the folder of a sweep, which holds no weights: `unlearnbench export METHOD --in "
            f"{shlex.quote(str(folder))} --to OUT` writes a run's model"
        )
    gguf_files = sorted(folder.glob("*.gguf"))
    if gguf_files:
        return f"its weights are in a GGUF file: give the file, such as {gguf_files[0]}"
    models_inside = [path for path in sorted(folder.iterdir()) if _is_model(path)]
    if models_inside:
        return f"the model is in a folder inside it: give {models_inside[0]}"
    return None


def has_other_weights(folder: Path) -> bool:
    """Whether a folder has weights in a form that is not loaded: pickled, or in shards."""
    if any(folder.glob("*.safetensors")):
        return False
    return any(folder.glob("*.bin")) or other_kind(folder) is not None


def prefixed_names(folder: Path) -> str | None:
    """Return a line on what to do if all names of weights have the same prefix of a wrapper.

    The result is None if they do not.
    """
    from safetensors import safe_open

    names: set[str] = set()
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names.update(file.keys())
    prefixes: set[str] = set()
    for name in names:
        match = _PREFIXES.match(name)
        prefixes.add("" if match is None else match[0])
    if len(prefixes) != 1 or "" in prefixes:
        return None
    (prefix,) = prefixes
    code = f'a, b = {json.dumps(str(folder) + "/")}, "OUT/"; {_RENAME}'
    return (
        f"the names of all weights begin with {prefix!r}, which torch.compile or data parallelism "
        f"puts there; write a folder OUT without it, and give that: python -c {shlex.quote(code)}"
    )


def _is_model(folder: Path) -> bool:
    """Whether a folder has the files that a model or an adapter is loaded from."""
    has_config = (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()
    return has_config and any(folder.glob("*.safetensors"))


def _zero_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of DeepSpeed ZeRO that a folder is, or is a part of."""
    if any(folder.glob("*_model_states.pt")):
        return folder.parent  # a folder such as `global_step100`
    has_states = any(folder.glob("*/*_model_states.pt"))
    return folder if has_states else None


def _fsdp_shards(folder: Path) -> Path | None:
    """Return the folder of FSDP's shards that a folder is, or contains."""
    if any(folder.glob("*.distcp")):
        return folder
    shard_folders = sorted({path.parent for path in folder.glob("*/*.distcp")})
    of_models = [path for path in shard_folders if not path.name.startswith("optimizer")]
    return of_models[0] if of_models else None


def _checkpoints(folder: Path) -> list[Path]:
    """Return the folders of checkpoints in a folder, the newest last."""
    numbered: list[tuple[int, Path]] = []
    for path in folder.iterdir():
        match = _CHECKPOINT.match(path.name)
        if match is not None and path.is_dir():
            numbered.append((int(match[1]), path))
    return [path for _, path in sorted(numbered)]
