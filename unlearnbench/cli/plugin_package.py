"""The package that `new` writes, for a plug-in of the user's own."""

from __future__ import annotations

import re
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from string import Template

from unlearnbench.api import registry
from unlearnbench.base.errors import PluginError
from unlearnbench.cli.plugin_kinds import with_article, word_of

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")


def write_package(name: str, folder: Path, kind: registry.Kind) -> tuple[Path, ...]:
    """Write the package of a new plug-in into the folder `folder`/`name`.

    The package contains a plug-in that works and has a source and a test, so that an author can
    change one thing at a time and sees at once what a change breaks.

    Args:
        name: Of the plug-in, such as `my-method`. Its module is `my_method`.
        folder: Where the package's folder is created.
        kind: Of the plug-in.

    Returns:
        The files, `pyproject.toml` first.

    Raises:
        PluginError: If no plug-in can have this name, or if the package's folder is not empty.
    """
    word = word_of(kind)
    module = name.replace("-", "_")
    package = folder / name
    if not _NAME.fullmatch(name) or iskeyword(name) or find_spec(module) is not None:
        raise PluginError(
            f"{name!r} cannot be the name of {with_article(word)}: a name begins with a small "
            "letter, has small letters, digits and hyphens between words, and is no keyword or "
            "module of Python; choose another name"
        )
    if package.exists() and any(package.iterdir()):
        raise PluginError(f"{package} exists already, so nothing was written; choose another --out")

    values = {
        "name": name,
        "module": module,
        "kind": kind,
        "a_word": with_article(word),
        "cls": name.title().replace("-", ""),
        "title": name.replace("-", " ").capitalize(),
    }
    file_of_template = {
        "pyproject.toml": package / "pyproject.toml",
        "README.md": package / "README.md",
        f"{word}.py": package / f"{module}.py",
        f"test_{word}.py": package / "tests" / f"test_{module}.py",
    }
    (package / "tests").mkdir(parents=True, exist_ok=True)
    templates = files("unlearnbench.cli") / "packages"
    for template, file in file_of_template.items():
        text = (templates / f"{template}.txt").read_text("utf-8")
        file.write_text(Template(text).substitute(values), encoding="utf-8")
    return tuple(file_of_template.values())
