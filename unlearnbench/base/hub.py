"""Repositories of the hub: a name becomes a commit once, and every process reads that commit.

The commits that a sweep was planned with are in its `plan.json` and travel to its workers. Files
come from the hub's cache (`HF_HOME`) without a request, wherever it has them.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from unlearnbench.base.console import download_bar

SMALL = ("*.json", "*.txt", "*.model", "*.tiktoken", "*.jinja", "*.py")
"""Config and tokenizer of a model; the tables of a data set."""
WEIGHTS = ("*.safetensors",)


class HubError(Exception):
    """A repository cannot be read from the hub or its cache; the text is the reason."""

    def __init__(self, reason: str, *, answered: bool) -> None:
        super().__init__(reason)
        self.answered = answered
        """True if the hub was reached, and refused."""


@dataclass(frozen=True)
class Repository:
    """A model or a data set of the hub, at a revision."""

    kind: Literal["model", "dataset"]
    name: str
    revision: str | None = None
    """Branch, tag or commit; None is `main`."""

    @property
    def label(self) -> str:
        """Name in plans and records: `model org/name@main`."""
        return f"{self.kind} {self.name}@{self.revision or 'main'}"


_commits: dict[str, str] = {}


def pin(commits: Mapping[str, str]) -> None:
    """Read these commits in this process from now on, by the labels of their repositories."""
    _commits.update(commits)


def pinned() -> dict[str, str]:
    """The commits that this process reads, by label."""
    return dict(_commits)


def commits_of(repositories: Iterable[Repository]) -> dict[str, str]:
    """The commits that this process reads of these, by label; unknown ones are left out."""
    labels = (repository.label for repository in repositories)
    return {label: _commits[label] for label in labels if label in _commits}


def newest_commit(repository: Repository, *, cached: bool = False) -> str:
    """The commit that the revision is at on the hub; without a hub, when it was last seen.

    cached   do not ask the hub

    Raises: HubError.
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
    except Exception as error:  # of the transport, the library or the disk: all become a HubError
        raise _refusal(repository, error) from error
    return revision.resolved


def snapshot(
    repository: Repository, patterns: tuple[str, ...], *, subfolders: bool = False
) -> Path:
    """Return the folder of the files that match, at the commit that is read.

    Args:
        repository: Model or data set.
        patterns: Of paths inside the repository, as fnmatch takes them.
        subfolders: Whether files of subfolders count, too. In a model's repository they are such
            as the checkpoints of its training.

    Raises:
        HubError: The files are neither in the cache nor to be had.
    """
    if repository.label not in _commits:
        _commits[repository.label] = newest_commit(repository)
    return _snapshot(repository, _commits[repository.label], patterns, subfolders)


def licence(repository: Repository) -> str | None:
    """The licence that the repository states; None where none is, or the hub does not answer."""
    from huggingface_hub import HfApi

    _quiet()
    try:
        card = (
            HfApi().model_info(repository.name, revision=repository.revision, timeout=10).card_data
        )
    except Exception:  # of the transport or the library: all mean that it is not known
        return None
    result = None if card is None else card.get("license")
    return result if isinstance(result, str) else None


def root_files(repository: Repository) -> list[str] | None:
    """Names in the repository's root, once `snapshot` was called; None where only the hub knows."""
    tree = _tree(repository)
    return None if tree is None else [path for path in tree if "/" not in path]


def files(repository: Repository) -> list[str]:
    """Return the paths of all files of a repository, at the commit that is read.

    The hub is not asked once `snapshot` was called. If the cache was filled by a version of the
    hub's library that kept no list, the paths of the cached files are returned.

    Raises:
        HubError: The repository is neither in the cache nor to be had.
    """
    folder = snapshot(repository, ("README.md",))
    tree = _tree(repository)
    if tree is not None:
        return tree
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]


def _tree(repository: Repository) -> list[str] | None:
    from huggingface_hub import get_cached_repo_tree
    from huggingface_hub.errors import CachedRepoTreeNotFoundError

    commit = _commits.get(repository.label)
    try:
        tree = get_cached_repo_tree(repository.name, repo_type=repository.kind, revision=commit)
    except CachedRepoTreeNotFoundError:
        return None
    return [file.path for file in tree]


@lru_cache(maxsize=64)  # looking through the cache takes longer than some runs' set-up
def _snapshot(
    repository: Repository, commit: str, patterns: tuple[str, ...], subfolders: bool
) -> Path:
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
    except Exception as error:  # of the transport, the library or the disk: all become a HubError
        raise _refusal(repository, error) from error
    return Path(download)


def _refusal(repository: Repository, error: Exception) -> HubError:
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
    """Turn off the hub's progress bars and retry messages; failures become errors of ours."""
    from huggingface_hub.utils.tqdm import disable_progress_bars

    disable_progress_bars()
    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)
