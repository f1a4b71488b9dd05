"""Which files hold the rows of a source: a file, a folder, or a repository of the hub.

Splits and configurations are found by the rules of the package `datasets`: by the `configs:` of a
README.md or, if it has none, by the names of files. The rules are applied to a folder of empty
files that have the names of the real ones. A repository's files can therefore be chosen before any
of them is downloaded, and code of a repository is never seen. Files that are no tables are ignored.
"""

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from glob import escape
from pathlib import Path
from typing import Any

from unlearnbench.base import hub
from unlearnbench.base.errors import DataError, did_you_mean, shortened
from unlearnbench.base.table_formats import FORMATS_TEXT, TableFile, format_of
from unlearnbench.base.table_streams import quiet

_CARDS = ("README.md", ".huggingface.yaml")
"""Files that say what a repository's configurations and splits are."""
_SAVED_DATASET = "state.json"
"""File that `Dataset.save_to_disk` writes."""
_SAVED_DATASETS = "dataset_dict.json"
"""File that `DatasetDict.save_to_disk` writes."""
_MOST_LISTED = 20
_ONLY_SPLIT = "train"
"""Name that `datasets` gives to the split of a single file."""


@dataclass(frozen=True)
class FilesOfSplits:
    """The files of each split, and how to read them."""

    by_split: Mapping[str, tuple[str, ...]]
    """Paths inside the folder or repository."""
    separator: str | None = None
    header: tuple[str, ...] | None = None
    member: str | None = None
    """See `TableFile` for these three, which a README.md can state."""

    def file(self, inside: str, path: Path, name: str) -> TableFile:
        """Return a file as it is to be read.

        Args:
            inside: Path inside the folder or repository.
            path: Path on this machine.
            name: Name for messages.

        Raises:
            DataError: The file is no table.
        """
        format = format_of(inside)
        if format is None:
            raise DataError(f"{name}: no table ({FORMATS_TEXT})")
        return TableFile(path, name, format, self.separator, self.header, self.member)


def is_saved_dataset(folder: Path) -> bool:
    """Whether `save_to_disk` wrote the folder."""
    return (folder / _SAVED_DATASET).is_file() or (folder / _SAVED_DATASETS).is_file()


def single_file(path: Path, label: str) -> dict[str, tuple[TableFile, ...]]:
    """Return the files of each split of a source that is one file.

    Args:
        path: Path of the file.
        label: Name for messages.
    """
    format = format_of(path.name)
    if format is None:
        suffix = path.suffix or "no suffix"
        raise DataError(f"{label}: unknown format ({suffix}); use {FORMATS_TEXT}")
    return {_ONLY_SPLIT: (TableFile(path, label, format),)}


def files_of_folder(
    folder: Path, label: str, config: str | None
) -> dict[str, tuple[TableFile, ...]]:
    """Return the files of each split of a folder on this machine.

    Args:
        folder: The folder.
        label: Name for messages.
        config: Configuration. None for the only or default one.
    """
    names: list[str] = []
    for parent, _, file_names in os.walk(folder):
        inside = Path(parent).relative_to(folder)
        names += [(inside / name).as_posix() for name in file_names]
    layout = _files_of_splits(names, folder, label, config)
    files_of_split: dict[str, tuple[TableFile, ...]] = {}
    for split, paths in layout.by_split.items():
        files = [layout.file(path, folder / path, f"{label}/{path}") for path in paths]
        files_of_split[split] = tuple(files)
    return files_of_split


def files_of_repository(
    repository: hub.Repository, config: str | None
) -> dict[str, tuple[str, ...]]:
    """Return the files of each split of a repository. They need not be on this machine.

    Raises:
        HubError: The hub cannot be asked.
        DataError: There is no such configuration, or no table.
    """
    return dict(_layout_of_repository(repository, config).by_split)


def fetched(
    repository: hub.Repository, config: str | None, files: Sequence[str]
) -> tuple[TableFile, ...]:
    """Download files of a repository, unless they are in the hub's cache.

    Raises:
        HubError: The hub cannot be asked.
    """
    layout = _layout_of_repository(repository, config)
    # Brackets and stars in a name are no patterns.
    patterns = tuple(escape(path) for path in files)
    folder = hub.snapshot(repository, patterns, subfolders=True)
    return tuple(layout.file(path, folder / path, f"{repository.name}/{path}") for path in files)


def _layout_of_repository(repository: hub.Repository, config: str | None) -> FilesOfSplits:
    """Find the files of each split of a repository. Only its cards are downloaded."""
    folder = hub.snapshot(repository, _CARDS)
    return _files_of_splits(hub.files(repository), folder, repository.name, config)


def _files_of_splits(
    names: Iterable[str], folder: Path, label: str, config: str | None
) -> FilesOfSplits:
    """Find the files of each split by the rules of `datasets`.

    Args:
        names: Paths of all files inside the folder or repository.
        folder: Folder that contains the cards.
        label: Name for messages.
        config: Configuration. None for the only or default one.

    Raises:
        DataError: There is no table, or the card names something that cannot be read.
    """
    tables = sorted(name for name in names if format_of(name) is not None)
    if not tables:
        raise DataError(f"{label}: nothing to read; there is no file of {FORMATS_TEXT}")
    _refuse_files_elsewhere(folder, label)
    quiet()
    with tempfile.TemporaryDirectory(prefix="unlearnbench-") as temporary:
        root = Path(temporary).resolve() / "data"
        _make_empty_copy(tables, folder, root)
        builder_config = _builder_config(root, Path(temporary) / "cache", label, config)
        by_split = {
            str(split): tuple(os.path.relpath(file, root) for file in files)
            for split, files in builder_config.data_files.items()
        }
    named = {name for names in by_split.values() for name in names}
    strange = sorted(named - {*tables})
    if strange:
        raise DataError(f"{label}: its README.md names {strange[0]}, which is no table in it")
    _refuse_several_formats(by_split, tables, label, folder)
    return FilesOfSplits(by_split, **_stated_options(folder, builder_config.name, label))


def _make_empty_copy(names: Iterable[str], folder: Path, root: Path) -> None:
    """Make a folder of empty files, with the cards of the original.

    Args:
        names: Paths of the files inside the folder.
        folder: Folder that contains the cards.
        root: Folder to make.
    """
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    for card in _CARDS:
        if (folder / card).is_file():
            (root / card).write_bytes((folder / card).read_bytes())


def _builder_config(root: Path, cache: Path, label: str, config: str | None) -> Any:
    """Return what `datasets` would read.

    Args:
        root: Folder of files.
        cache: Folder for files of `datasets`.
        label: Name for messages.
        config: Configuration. None for the only or default one.

    Returns:
        A BuilderConfig of `datasets`, with the name of the configuration and `data_files` by split.

    Raises:
        DataError: There is no such configuration, or several and no default.
    """
    import datasets

    try:
        configs = datasets.get_dataset_config_names(str(root))
        if config is not None and config not in configs:
            hint = did_you_mean(config, configs) or f"; it has {_listed(configs)}"
            raise DataError(f"{label}: no configuration {config!r}{hint}")
        default = datasets.get_dataset_default_config_name(str(root))
        if config is None and default is None and len(configs) > 1:
            raise DataError(
                f"{label}: name one of its configurations, as {label}:{configs[0]}; "
                f"it has {_listed(configs)}"
            )
        return datasets.load_dataset_builder(str(root), config, cache_dir=str(cache)).config
    except DataError:
        raise
    except Exception as error:  # YAML and the rules about names raise errors of many types.
        reason = " ".join(str(error).replace(str(root), label).split())[:300]
        raise DataError(f"{label}: its files cannot be told apart ({reason})") from error


def _refuse_several_formats(
    by_split: Mapping[str, tuple[str, ...]], tables: Sequence[str], label: str, folder: Path
) -> None:
    """Refuse a folder with tables of several formats.

    `datasets` would read only the format that most files have. If a card names files, the others
    are left out on purpose, and nothing is refused.

    Raises:
        DataError: There are several formats.
    """
    cards = [folder / card for card in _CARDS if (folder / card).is_file()]
    if any(b"data_files" in card.read_bytes() for card in cards):
        return
    read = {name for names in by_split.values() for name in names}
    formats_read = {format_of(name) for name in read}
    others = [name for name in tables if name not in read and format_of(name) not in formats_read]
    if others:
        formats = filter(None, map(format_of, tables))
        listed = sorted({format.value for format in formats})
        raise DataError(
            f"{label}: it has tables of several formats ({', '.join(listed)}), such as "
            f"{min(read)} and {others[0]}; name one file"
        )


def _refuse_files_elsewhere(folder: Path, label: str) -> None:
    """Refuse a card that names addresses, whose content belongs to no commit of the repository."""
    for keys in _configurations(folder, label):
        named = str(keys.get("data_files", ""))
        if "://" in named:
            raise DataError(
                f"{label}: its README.md names files of another place ({shortened(named)}), which "
                "are not read; download them, and name the folder"
            )


_GENERAL_KEYS = ("config_name", "data_files", "data_dir", "default", "version", "description")
"""Keys of a card that say which files belong to a configuration, and not how to read them."""


def _stated_options(folder: Path, config: str, label: str) -> dict[str, Any]:
    """Return how a card wants the files of a configuration to be read.

    Returns:
        Values of `FilesOfSplits.separator`, `header` and `member`.

    Raises:
        DataError: The card states something that would be left out.
    """
    options: dict[str, Any] = {}
    for name, value in _keys_of_card(folder, config, label).items():
        if name in ("sep", "delimiter"):
            options["separator"] = value
        elif name in ("names", "column_names"):
            options["header"] = tuple(value)
        elif name == "field":
            options["member"] = value
        elif name not in (*_GENERAL_KEYS, "features"):
            raise DataError(
                f"{label}: its README.md reads files with {name!r}, which is not supported; load "
                "it with the package datasets, and use a folder of save_to_disk"
            )
    return options


def _keys_of_card(folder: Path, config: str, label: str) -> dict[str, Any]:
    """Return what the cards state about a configuration, by key; empty if nothing."""
    for keys in _configurations(folder, label):
        if keys.get("config_name") == config:
            return keys
    return {}


def _configurations(folder: Path, label: str) -> list[dict[str, Any]]:
    """Return the `configs` of the cards. If several cards state some, the last one counts.

    Raises:
        DataError: A card cannot be read.
    """
    import yaml
    from huggingface_hub import DatasetCard

    stated: Any = []
    for card in _CARDS:
        path = folder / card
        if not path.is_file():
            continue
        try:
            if card == "README.md":
                content = DatasetCard.load(path).data.to_dict()
            else:
                content = yaml.safe_load(path.read_text("utf-8")) or {}
        except (ValueError, yaml.YAMLError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(f"{label}/{card}: its head is no YAML ({reason})") from error
        stated = content.get("configs") or stated
    # `datasets` says later what is wrong with other values.
    return [keys for keys in stated if isinstance(keys, dict)]


def _listed(names: Sequence[str]) -> str:
    """List at most twenty names: `a, b, c and 5 more`."""
    hidden = len(names) - _MOST_LISTED
    more = f" and {hidden} more" if hidden > 0 else ""
    return ", ".join(names[:_MOST_LISTED]) + more
