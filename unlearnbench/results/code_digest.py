"""Digests of the code behind numbers, which ignore comments, docstrings and layout.

A number is computed again when its code has changed. A better comment changes no number, so code is
compared as it is without comments and docstrings.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

import unlearnbench
from unlearnbench.api.plugin_code import source_file
from unlearnbench.api.registry import plugin_files
from unlearnbench.base.atomic import write_text
from unlearnbench.base.hashing import user_cache

_OWN = unlearnbench.__name__
_BEHIND_NUMBERS = (
    "api",
    "stats",
    "metrics",
    "benchmarks",
    "config/metric_plan.py",
    "evaluation/summary.py",
)
"""Folders and files of this package whose code numbers are computed by."""
_WITHOUT_CODE_OF_NUMBERS = frozenset({_OWN, "abc", "builtins", "pydantic", "typing"})
"""Packages of bases of plug-ins. The code of this package is hashed as a whole."""
Text = tuple[str, bytes]
"""Name and content of a file."""


@lru_cache(maxsize=1)
def own_code() -> str:
    """Return the digest of this package's code behind numbers."""
    package = Path(unlearnbench.__file__).parent
    files: list[Path] = []
    for name in _BEHIND_NUMBERS:
        place = package / name
        files += sorted(place.rglob("*.py")) if place.is_dir() else [place]
    return code_digest((str(file.relative_to(package)), file.read_bytes()) for file in files)


def plugin_code_digest(plugin: type) -> str:
    """Return the digest of the code of a plug-in's class, with its bases and what they import.

    Imports are followed within the package, or within the folder of a plug-in file. The digest is
    empty for a plug-in of this package, see `own_code`.
    """
    texts: dict[str, bytes] = {}
    for kind in plugin.__mro__:
        if kind.__module__.partition(".")[0] not in _WITHOUT_CODE_OF_NUMBERS:
            texts.update(_texts_behind(kind))
    return code_digest(texts.items()) if texts else ""


def _texts_behind(kind: type) -> Iterable[Text]:
    file = source_file(kind)
    for path, texts in plugin_files():
        # As registered, since the file may have changed on the disk after that.
        if str(path) == file:
            return texts
    return _texts_of_package(kind.__module__)


@lru_cache(maxsize=256)
def _texts_of_package(module: str) -> tuple[Text, ...]:
    """Return the texts of a module, and of the modules of its package that it imports."""
    package = module.partition(".")[0]
    texts: dict[str, bytes] = {}
    waiting = [module]
    seen = {module}
    while waiting:
        name = waiting.pop()
        file = _file_of_module(name)
        if file is None or not file.is_file():
            continue
        texts[name] = file.read_bytes()
        parent = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imported_names(texts[name], parent):
            if imported.partition(".")[0] == package and imported not in seen:
                seen.add(imported)
                waiting.append(imported)
    return tuple(sorted(texts.items()))


def _file_of_module(name: str) -> Path | None:
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return None if file is None else Path(file)
    # What is imported inside a function may not have been imported yet. A name may also be that of
    # a class or function in a module.
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


def _imported_names(text: bytes, package: str) -> Iterator[str]:
    """Yield the names of imported modules, and of what is imported from them."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):
                module = resolve_name("." * node.level + (node.module or ""), package)
                yield module
                yield from (f"{module}.{alias.name}" for alias in node.names)


def code_digest(texts: Iterable[Text]) -> str:
    """Return 16 hex digits for some files, equal if only comments or docstrings differ.

    Parsing a package takes a tenth of a second, so digests are kept in the user's cache, by the
    hash of the files' bytes.
    """
    texts = sorted(texts)
    exact = hashlib.sha256()
    for name, text in texts:
        exact.update(f"{name} {len(text)}\n".encode() + text)
    return _kept_digest(exact.hexdigest(), tuple(texts))


@lru_cache(maxsize=64)
def _kept_digest(exact: str, texts: tuple[Text, ...]) -> str:
    # Versions of Python may write the same code differently.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = user_cache("code") / f"{exact}-{version}"
    with suppress(OSError, ValueError):
        digest = kept.read_text(encoding="ascii")
        if len(digest) == _DIGITS:
            return digest
    code = hashlib.sha256()
    for name, text in texts:
        plain = _without_comments(text)
        code.update(f"{name} {len(plain)}\n".encode() + plain)
    digest = code.hexdigest()[:_DIGITS]
    with suppress(OSError):
        write_text(kept, digest)
    return digest


_DIGITS = 16


def _without_comments(text: bytes) -> bytes:
    """Return Python code without comments, docstrings and layout; other text as it is."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return text
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [statement for statement in body if not _is_text(statement)]  # type: ignore[attr-defined]
    return ast.unparse(tree).encode()


def _is_text(statement: object) -> bool:
    """Whether a statement is a text alone, such as the docstring of a class or of an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
