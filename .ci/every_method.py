"""Add what configs/every_method.yaml lacks of the built-in methods, each with its defaults.

`make fix` does it, so that a new method is one file and its entry point; who knows better settings
for the tiny model writes them there.
"""

import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
CONFIG = ROOT / "configs" / "every_method.yaml"


def completed(text: str, methods: set[str]) -> str:
    """The configuration with an entry for each of the methods."""
    entries: list[Any] = yaml.safe_load(text)["methods"]
    named = {entry if isinstance(entry, str) else entry["method"] for entry in entries}
    lines = "".join(f"  {name},\n" for name in sorted(methods - named))
    return text.replace("\n]\n", f"\n{lines}]\n", 1)


def built_in() -> set[str]:
    """Names of the methods that come with the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {*project["project"]["entry-points"]["unlearnbench.methods"]}


if __name__ == "__main__":
    CONFIG.write_text(completed(CONFIG.read_text(encoding="utf-8"), built_in()), encoding="utf-8")
