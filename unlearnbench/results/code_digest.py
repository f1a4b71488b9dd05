"""Digests of the code that computes numbers. They ignore comments, docstrings and layout.

If the code of a number has changed, the number is computed again. A better comment changes no
number, so comments and docstrings are removed before code is hashed.
"""

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import lru_cache
from importlib.util import find_spec, resolve_name
from pathlib import Path

from unlearnbench.api.plugin_code import source_file
from unlearnbench.api.registry import plugin_files
from unlearnbench.base.atomic import write_text
from unlearnbench.base.hashing import user_cache

_PACKAGE = Path(__file__).parents[1]
"""Folder of this package."""
_CODE_OF_NUMBERS = (
    "api",
    "stats",
    "metrics",
    "benchmarks",
    "config/metric_plan.py",
    "evaluation/summary.py",
)
"""Folders and files of this package whose code computes numbers."""
_NOT_OF_PLUGINS = frozenset({_PACKAGE.name, "abc", "builtins", "pydantic", "typing"})
"""Packages of a plug-in's base classes that are no code of its own. See `own_code` for this one."""
Text = tuple[str, bytes]
"""Name and content of a file."""
_DIGITS = 16
"""Number of hexadecimal digits of a digest."""


@lru_cache(maxsize=1)
def own_code() -> str:
    """Return the digest of this package's code that computes numbers."""
    files: list[Path] = []
    for name in _CODE_OF_NUMBERS:
        path = _PACKAGE / name
        files += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return code_digest((str(file.relative_to(_PACKAGE)), file.read_bytes()) for file in files)


def plugin_code_digest(plugin: type) -> str:
    """Return the digest of the code of a plug-in: its class, the bases, and what they import.

    Imports are followed within the plug-in's package, or within the folder of a plug-in file.

    Returns:
        Hexadecimal digits. Empty for a plug-in of this package, whose code `own_code` covers.
    """
    texts: dict[str, bytes] = {}
    for base in plugin.__mro__:
        if _top_package(base.__module__) not in _NOT_OF_PLUGINS:
            texts.update(_texts_of_class(base))
    return code_digest(texts.items()) if texts else ""


def _top_package(module: str) -> str:
    """Return `torch` for `torch.nn.functional`."""
    return module.partition(".")[0]


def _texts_of_class(plugin_class: type) -> Iterable[Text]:
    """Return the files that define a class, and what it imports."""
    file = source_file(plugin_class)
    for path, texts in plugin_files():
        # The texts are as registered, because the file may have changed on the disk since then.
        if str(path) == file:
            return texts
    return _texts_of_package(plugin_class.__module__)


@lru_cache(maxsize=256)
def _texts_of_package(module: str) -> tuple[Text, ...]:
    """Return the texts of a module, and of all modules of its package that it needs."""
    package = _top_package(module)
    texts: dict[str, bytes] = {}
    waiting = [module]
    known = {module}
    while waiting:
        name = waiting.pop()
        file = _file_of_module(name)
        if file is None or not file.is_file():
            continue
        texts[name] = file.read_bytes()
        # Relative imports of a package begin in the package, those of a module in its parent.
        parent = name if file.name == "__init__.py" else name.rpartition(".")[0]
        for imported in _imported_names(texts[name], parent):
            if _top_package(imported) == package and imported not in known:
                known.add(imported)
                waiting.append(imported)
    return tuple(sorted(texts.items()))


def _file_of_module(name: str) -> Path | None:
    """Return the file of a module; None if the name is no module, or if it has no file.

    Args:
        name: Name of a module, or of a class or function in one: `from a import b` gives `a.b`.
    """
    module = sys.modules.get(name)
    if module is not None:
        file = getattr(module, "__file__", None)
        return None if file is None else Path(file)
    # An import inside a function may not have been executed yet.
    with suppress(ImportError, ValueError, AttributeError):
        spec = find_spec(name)
        if spec is not None and spec.origin is not None:
            return Path(spec.origin)
    return None


def _imported_names(text: bytes, package: str) -> Iterator[str]:
    """Yield the names of imported modules, and of everything that is imported from them.

    Args:
        text: Source of a module.
        package: Package that its relative imports begin in.
    """
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

    To parse a package takes a tenth of a second. Digests are therefore kept in the user's cache, by
    the hash of the files' bytes.
    """
    texts = sorted(texts)
    return _kept_digest(_hash_of(texts), tuple(texts))


@lru_cache(maxsize=64)
def _kept_digest(exact_hash: str, texts: tuple[Text, ...]) -> str:
    """Return the digest of files from the cache, or compute it and keep it there.

    Args:
        exact_hash: Hash of the files with their comments.
        texts: The files, sorted.
    """
    # Versions of Python may write the same code differently.
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    kept = user_cache("code") / f"{exact_hash}-{version}"
    with suppress(OSError, ValueError):
        digest = kept.read_text(encoding="ascii")
        if len(digest) == _DIGITS:
            return digest
    digest = _hash_of((name, _without_comments(text)) for name, text in texts)[:_DIGITS]
    with suppress(OSError):
        write_text(kept, digest)
    return digest


def _hash_of(texts: Iterable[Text]) -> str:
    """Hash the names, lengths and contents of files, in their order."""
    digest = hashlib.sha256()
    for name, text in texts:
        digest.update(f"{name} {len(text)}\n".encode() + text)
    return digest.hexdigest()


def _without_comments(text: bytes) -> bytes:
    """Return Python code without comments, docstrings and layout. Other text is unchanged."""
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
    """Whether a statement is only a text, such as the docstring of a class or of an attribute."""
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
