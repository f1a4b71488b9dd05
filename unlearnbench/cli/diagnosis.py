"""Checks of an installation and its machine: each finds what is there, and never raises."""

from __future__ import annotations

import json
import os
import platform
import shutil
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.request import Request, urlopen

State = Literal["ok", "note", "wrong"]
PROJECT = "unlearnbench"
SHOWN = ("torch", "transformers", "ray", "mlflow", "accelerate", "plotly")
"""Packages whose versions are printed; all others that are needed are checked as well."""
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome", "chrome")
LEAST_DISK = 5e9
"""Free bytes below which a disk is mentioned."""
LEAST_MEMORY = 3e9
"""Bytes that the quickstart uses."""
HUB_SECONDS = 2.0
WALK_SECONDS = 1.0
"""Longest count of a cache's bytes."""


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    topic: str
    text: str
    state: State = "ok"
    """wrong: something that is needed does not work; note: something that may be missed."""
    fix: str = ""


def software() -> Iterator[Finding]:
    """Yield versions, and packages that are missing or too old."""
    from packaging.requirements import Requirement
    from packaging.specifiers import SpecifierSet

    system = platform.system()
    where = f"{system} {platform.release()}, {platform.machine()}"
    if system == "Windows":
        fix = "run it in WSL 2; sweeps, runs and reports lock files as POSIX systems do"
        yield Finding("system", f"{where}: not supported", "wrong", fix)
    elif system == "Darwin":
        fix = "runs use the CPU: Apple's GPUs are not used"
        yield Finding("system", f"{where}: expected to work, not tested", "note", fix)
    else:
        yield Finding("system", where)
    try:
        ours = distribution(PROJECT)
    except PackageNotFoundError:
        fix = "pip install -e . (in a checkout) or pip install unlearnbench"
        yield Finding(PROJECT, "its entry points are not installed", "wrong", fix)
        return
    supported = ours.metadata["Requires-Python"] or ""
    python = platform.python_version()
    fits = SpecifierSet(supported).contains(python, prereleases=True)
    fix = "" if fits else f"install a Python {supported}"
    yield Finding("Python", f"{python}, {sys.prefix}", "ok" if fits else "wrong", fix)
    yield Finding(PROJECT, ours.version)
    for line in ours.requires or ():
        need = Requirement(line)
        if need.marker is not None and not need.marker.evaluate({"extra": ""}):
            continue
        yield from _package(need.name, str(need.specifier), need.name in SHOWN)


def _package(name: str, specifier: str, shown: bool) -> Iterator[Finding]:
    """Yield the version of a package that is needed, if it is `shown` or wrong."""
    from packaging.specifiers import SpecifierSet

    fix = f"pip install '{name}{specifier}'"
    try:
        found = version(name)
    except PackageNotFoundError:
        yield Finding(name, "not installed", "wrong", fix)
        return
    if not SpecifierSet(specifier).contains(found, prereleases=True):
        yield Finding(name, f"{found}, and {specifier} is needed", "wrong", fix)
    elif shown:
        yield Finding(name, found)


def extras() -> Iterator[Finding]:
    """Yield each optional extra, with the line that installs it."""
    from packaging.requirements import Requirement

    try:
        ours = distribution(PROJECT)
    except PackageNotFoundError:
        return
    for extra in ours.metadata.get_all("Provides-Extra") or ():
        if extra in ("dev", "test"):
            continue
        missing: list[str] = []
        for line in ours.requires or ():
            need = Requirement(line)
            if need.marker is None or not need.marker.evaluate({"extra": extra}):
                continue
            if need.marker.evaluate({"extra": ""}):
                continue
            try:
                version(need.name)
            except PackageNotFoundError:
                missing.append(need.name)
        if missing:
            fix = f"pip install '{PROJECT}[{extra}]'"
            yield Finding(f"extra {extra}", f"without {', '.join(missing)}", "note", fix)
        else:
            yield Finding(f"extra {extra}", "installed")


def machine() -> Iterator[Finding]:
    """Yield cores and memory."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield Finding("cores", f"{cores}")
    try:
        import psutil

        memory = psutil.virtual_memory()
    except Exception as error:  # broken, or a system that it does not know
        yield Finding("memory", f"unknown: {error}", "note")
        return
    text = f"{memory.total / 1e9:.1f} GB, {memory.available / 1e9:.1f} GB free"
    if memory.available < LEAST_MEMORY:
        fix = "end other programs, or --set ray.concurrent=1"
        yield Finding("memory", f"{text}; the quickstart uses 3 GB", "note", fix)
    else:
        yield Finding("memory", text)


def places(output: Path, hub: Path) -> Iterator[Finding]:
    """Yield disk space, and whether results and caches can be written and read.

    output  folder of all sweeps
    hub     cache of models and data from the hub
    """
    for topic, folder, fix in (
        ("results", output, "start in a folder of yours, or --set output=DIR"),
        ("hub's cache", hub, "set HF_HOME to a folder that you can write"),
    ):
        yield from _place(topic, folder, fix)
    yield from _prepared(output / "cache")


def _place(topic: str, folder: Path, fix: str) -> Iterator[Finding]:
    """Yield whether a folder, or the one that it will be made in, can be written and read."""
    try:
        near = next(one for one in (folder, *folder.absolute().parents) if os.path.lexists(one))
        if not near.is_dir():
            yield Finding(topic, f"{folder}: {near} is not a folder", "wrong", f"move it, or {fix}")
            return
        next(near.iterdir(), None)
        with tempfile.TemporaryFile(dir=near):
            pass
        free = shutil.disk_usage(near).free
    except OSError as error:
        reason = error.strerror or str(error)
        yield Finding(topic, f"{folder}: cannot be used: {reason}", "wrong", fix)
        return
    size = _size(folder) if folder.exists() else "not there yet"
    text = f"{folder}: writable, {free / 1e9:.0f} GB free, {size}"
    if free < LEAST_DISK:
        text = f"{folder}: {free / 1e9:.1f} GB free; models and checkpoints take more"
        yield Finding(topic, text, "note", f"unlearnbench cache clear, or {fix}")
    else:
        yield Finding(topic, text)


def _size(folder: Path) -> str:
    """Bytes below a folder, as far as they can be counted in `WALK_SECONDS`."""
    end, total, folders = time.monotonic() + WALK_SECONDS, 0, [folder]
    while folders and time.monotonic() < end:
        with suppress(OSError), os.scandir(folders.pop()) as found:
            for one in found:
                if one.is_dir(follow_symlinks=False):
                    folders.append(Path(one.path))
                else:
                    total += one.stat(follow_symlinks=False).st_size
    return f"{'more than ' if folders else ''}{total / 1e9:.2g} GB in it"


def _prepared(cache_folder: Path) -> Iterator[Finding]:
    """Yield prepared models that no run can use, and a cache that cannot be read."""
    models = cache_folder / "models"
    try:
        folders = [one for one in models.iterdir() if one.is_dir() and one.name[0] != "."]
    except FileNotFoundError:
        yield Finding("prepared models", f"{models}: none yet")
        return
    except OSError as error:
        fix = f"make it readable, or remove {cache_folder}: it is made again"
        yield Finding("prepared models", f"{models}: {error.strerror}", "wrong", fix)
        return
    damaged: list[str] = []
    for folder in folders:
        try:
            files: Mapping[str, str] = json.loads((folder / "prepared.json").read_text())["files"]
            if not all((folder / name).is_file() for name in files):
                damaged.append(folder.name)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            damaged.append(folder.name)
    if damaged:
        text = f"{len(damaged)} of {len(folders)} damaged: {', '.join(sorted(damaged)[:3])}"
        fix = f"unlearnbench cache clear models/{min(damaged)} (else they are prepared again)"
        yield Finding("prepared models", text, "note", fix)
    else:
        yield Finding("prepared models", f"{len(folders)} in {models}")


def hub_access(endpoint: str) -> Finding:
    """Ask whether the hub answers within `HUB_SECONDS`; without it, local files work."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        return Finding("hub", "offline, by HF_HUB_OFFLINE: what is cached works", "note")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with urlopen(Request(endpoint, method="HEAD"), timeout=HUB_SECONDS):
                return Finding("hub", f"{endpoint} answers")
    except HTTPError as error:  # an answer, if not the page
        return Finding("hub", f"{endpoint} answers ({error.code})")
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        text = f"{endpoint}: no answer ({reason}); local models, data and what is cached work"
        return Finding("hub", text, "note", "for models from the hub: a network, or HF_ENDPOINT")


def browser() -> Finding:
    """The browser that draws figures as SVG, PNG and PDF."""
    path = os.environ.get("BROWSER_PATH") or next(filter(None, map(shutil.which, BROWSERS)), None)
    try:
        version("kaleido")
    except PackageNotFoundError:
        fix = f"pip install '{PROJECT}[figures]'"
        return Finding("figures", "as .html only: kaleido is not installed", "note", fix)
    if path is None:
        fix = "install Chromium, or set BROWSER_PATH"
        return Finding("figures", "as .html only: no Chrome or Chromium is found", "note", fix)
    return Finding("figures", f"as .svg, .png, .pdf by {path}")


def exit_code(findings: Sequence[Finding]) -> int:
    """0 if everything that is needed works, else 1."""
    return int(any(one.state == "wrong" for one in findings))
