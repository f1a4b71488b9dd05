"""Where the text of a configuration comes from: a file, or a package that ships it."""

from __future__ import annotations

import importlib.resources
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from unlearnbench.api import registry
from unlearnbench.base.errors import ConfigError, PluginError, Problem, did_you_mean

NEAR_FILE = 0.8
"""Least similarity of a file's name at which it is suggested. It is high because both names contain
the suffix."""
_SUFFIXES = (".yaml", ".yml")
_EDITOR_LINE = "# yaml-language-server:"
"""Begins a comment that names the JSON schema for editors."""


@dataclass(frozen=True)
class ConfigSource:
    """The text of a configuration and its origin."""

    name: str
    """Name in messages: `quickstart.yaml`, or the path as the user wrote it."""
    text: str
    folder: Path | None
    """Folder that `extends` is relative to; None for a shipped configuration."""
    package: str = ""
    """Package that ships the configuration; empty for a file."""

    @property
    def purpose(self) -> str:
        """The first comment, which describes the configuration; empty if the text has none."""
        lines = self.text.lstrip().splitlines() or [""]
        if lines[0].startswith(_EDITOR_LINE) and len(lines) > 1:
            del lines[0]
        return lines[0].lstrip("# ").strip() if lines[0].startswith("#") else ""


def shipped_configs() -> dict[str, ConfigSource]:
    """Return the configurations of all installed packages, by name, sorted.

    Raises:
        PluginError: Two packages have a configuration of the same name.
    """
    configs: dict[str, ConfigSource] = {}
    for offer in registry.offers("configs"):
        package = registry.load("configs", offer.name)
        for file in importlib.resources.files(package).iterdir():
            if not file.name.endswith(_SUFFIXES):
                continue
            name = file.name.rpartition(".")[0]
            if name in configs:
                raise PluginError(
                    f"config {name!r} is offered by more than one package: "
                    f"{configs[name].package} and {offer.source}; uninstall one"
                )
            text = file.read_text(encoding="utf-8")
            configs[name] = ConfigSource(file.name, text, None, offer.source)
    return dict(sorted(configs.items()))


def find_config(name_or_path: str, beside: Path | None = None) -> ConfigSource:
    """Find a configuration.

    Args:
        name_or_path: Name of a shipped configuration, or path of a file.
        beside: Folder that a path is relative to. Default: the working directory.

    Raises:
        ConfigError: There is none, or the file cannot be read.
    """
    looks_like_path = name_or_path.endswith(_SUFFIXES) or "/" in name_or_path
    path = (beside or Path()) / name_or_path
    if looks_like_path and path.is_file():
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            problem = Problem(name_or_path, "", f"cannot be read: {error}")
            raise ConfigError([problem]) from None
        return ConfigSource(str(path), text, path.parent)

    shipped = shipped_configs()
    if looks_like_path:
        reason = _no_file_text(path, shipped)
    elif name_or_path in shipped:
        return shipped[name_or_path]
    else:
        near = did_you_mean(path.name, shipped) or ";"
        reason = (
            f"no such config{near} `unlearnbench configs list` shows the configs, and a file's "
            "name ends in .yaml"
        )
    raise ConfigError([Problem(name_or_path, "", reason)])


def _no_file_text(path: Path, shipped: Iterable[str]) -> str:
    """Say that there is no such file, and name what may have been meant."""
    near = ""
    if path.stem in shipped:
        near = f"; the config that is installed is called {path.stem!r}, without a suffix"
    elif path.parent.is_dir():
        files = [file.name for file in path.parent.iterdir() if file.suffix in _SUFFIXES]
        near = did_you_mean(path.name, files, NEAR_FILE)
    end = "" if near.endswith("?") else ";"
    return (
        f"no such file{near}{end} `unlearnbench configs list` shows the configs that are installed"
    )
