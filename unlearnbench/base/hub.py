"""Repositories of the hub: a name becomes a commit once, and every process reads that commit.

The commits that a sweep was planned with are in its `plan.json` and travel to its workers. Files
that the hub's cache (`HF_HOME`) has are read from there without a request.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from unlearnbench.base.console import download_bar

SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py")
"""Config and tokenizer of a model, and the tables of a data set."""
WEIGHTS = ("*.safetensors",)
"""Weights of a model."""


class HubError(Exception):
    """A repository cannot be read from the hub or its cache. The text is the reason."""

    def __init__(self, reason: str, *, answered: bool) -> None:
        """State the reason, and whether the hub was reached and refused (`answered`)."""
        super().__init__(reason)
        self.answered = answered


@dataclass(frozen=True)
class Repository:
    """A model or a data set of the hub, at a revision."""

    kind: Literal["model", "dataset"]
    name: str
    revision: str | None = None
    """Branch, tag or commit. None for `main`."""

    @property
    def label(self) -> str:
        """Name in plans and records: `model org/name@main`."""
        return f"{self.kind} {self.name}@{self.revision or 'main'}"


def looks_like_folder(name: str) -> bool:
    """Whether a name can only be meant as a folder, because no id of the hub is like it."""
    return name.startswith((".", "/", "~")) or name.count("/") > 1


_commits: dict[str, str] = {}
"""Commits that this process reads, by the labels of their repositories."""


def pin(commits: Mapping[str, str]) -> None:
    """Read certain commits in this process from now on.

    Args:
        commits: Commits by the labels of their repositories.
    """
    _commits.update(commits)


def pinned() -> dict[str, str]:
    """Return the commits that this process reads, by label."""
    return dict(_commits)


def commits_of(repositories: Iterable[Repository]) -> dict[str, str]:
    """Return the commits that this process reads of some repositories, by label.

    Repositories that it has not read from are left out.
    """
    labels = (repository.label for repository in repositories)
    return {label: _commits[label] for label in labels if label in _commits}


def newest_commit(repository: Repository, *, cached: bool = False) -> str:
    """Return the commit of a repository's revision on the hub.

    If the hub does not answer, this is the commit at which the revision was last seen.

    Args:
        repository: Model or data set.
        cached: Whether to return the commit last seen without asking the hub.

    Raises:
        HubError: The commit is not known.
    """
    from huggingface_hub import HfApi

    _quiet()
    try:
        revision = HfApi().resolve_revision(
            repository.name,
            repo_type=repository.kind,
            revision=repository.revision,
            local_files_only=cached,
        )
    except Exception as error:  # The transport, the library and the disk raise many types.
        raise _hub_error(repository, error) from error
    return revision.resolved


def snapshot(
    repository: Repository, patterns: tuple[str, ...], *, subfolders: bool = False
) -> Path:
    """Return the folder of the files that match, at the commit that is read.

    Args:
        repository: Model or data set.
        patterns: Patterns of paths inside the repository, as fnmatch takes them.
        subfolders: Whether files of subfolders count, too. In a model's repository these are, for
            example, the checkpoints of its training.

    Raises:
        HubError: The files are not in the cache, and the hub does not send them.
    """
    if repository.label not in _commits:
        _commits[repository.label] = newest_commit(repository)
    return _snapshot(repository, _commits[repository.label], patterns, subfolders)


def licence(repository: Repository) -> str | None:
    """Return the licence that a repository states.

    Returns:
        None if it states none, or if the hub does not answer.
    """
    from huggingface_hub import HfApi

    _quiet()
    try:
        info = HfApi().model_info(repository.name, revision=repository.revision, timeout=10)
        card = info.card_data
    except Exception:  # The transport and the library raise many types.
        return None
    stated = None if card is None else card.get("license")
    return stated if isinstance(stated, str) else None


def root_files(repository: Repository) -> list[str] | None:
    """Return the names of the files in a repository's root, after `snapshot` was called.

    Returns:
        None if the cache has no list of files, so that only the hub knows them.
    """
    tree = _tree(repository)
    return None if tree is None else [path for path in tree if "/" not in path]


def files(repository: Repository) -> list[str]:
    """Return the paths of all files of a repository, at the commit that is read.

    After `snapshot` was called, the hub is not asked. If the cache was filled by a version of the
    hub's library that kept no list, the paths of the cached files are returned.

    Raises:
        HubError: The repository is not in the cache, and the hub does not send it.
    """
    folder = snapshot(repository, ("README.md",))
    tree = _tree(repository)
    if tree is not None:
        return tree
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _tree(repository: Repository) -> list[str] | None:
    """Return the paths of all files from the cache; None if it has no list of them."""
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    commit = _commits.get(repository.label)
    try:
        tree = get_cached_repo_tree(repository.name, repo_type=repository.kind, revision=commit)
    except CachedRepoTreeNotFoundError:
        return None
    return [file.path for file in tree]


# To look through the cache takes longer than the set-up of some runs.
@lru_cache(maxsize=64)
def _snapshot(
    repository: Repository, commit: str, patterns: tuple[str, ...], subfolders: bool
) -> Path:
    """Return the folder of the files that match at a commit, after a download if needed."""
    from huggingface_hub import snapshot_download

    _quiet()
    try:
        with download_bar(f"downloading {repository.name}") as show:
            options: dict[str, Any] = {}
            if show is not None:
                from unlearnbench.base.hub_progress import counting_bar

                options["tqdm_class"] = counting_bar(show)
            download: str = snapshot_download(
                repository.name,
                repo_type=repository.kind,
                revision=commit,
                allow_patterns=list(patterns),
                ignore_patterns=None if subfolders else ["*/*"],
                **options,
            )
    except Exception as error:  # The transport, the library and the disk raise many types.
        raise _hub_error(repository, error) from error
    return Path(download)


def _hub_error(repository: Repository, error: Exception) -> HubError:
    """Return the error to raise in place of one of the hub's library."""
    from huggingface_hub.errors import (
        GatedRepoError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    if isinstance(error, GatedRepoError):
        reason = f"it is gated: accept its terms at {_address(repository)}, and set HF_TOKEN"
    elif isinstance(error, RepositoryNotFoundError):
        reason = f"the hub has no such {repository.kind}, or it is private and wants HF_TOKEN"
    elif isinstance(error, RevisionNotFoundError):
        reason = f"it has no revision {repository.revision!r}"
    else:
        return HubError(_unreachable_text(error), answered=False)
    return HubError(reason, answered=True)


def _unreachable_text(error: Exception) -> str:
    """Say why the hub did not answer, in a few words if the reason is common."""
    text = " ".join(str(error).split())
    if "offline mode is enabled" in text.lower() or "OfflineModeIsEnabled" in text:
        return "the variable HF_HUB_OFFLINE is set, and the cache does not have it"
    if "could not be reached" in text and "local cache" in text:
        return "the hub could not be reached, and the cache does not have it"
    return text[:300] or type(error).__name__


def _address(repository: Repository) -> str:
    """Return the address of the repository's page."""
    from huggingface_hub import constants

    folder = "datasets/" if repository.kind == "dataset" else ""
    return f"{constants.ENDPOINT}/{folder}{repository.name}"


def _quiet() -> None:
    """Turn off the hub's progress bars and retry messages. Its failures become our errors."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
