"""Pushes models and encoders to the Hugging Face hub, and pulls them from there.

Only the names and sizes of a repository are read before they are checked. The token is the one of `huggingface_hub`:
`HF_TOKEN`, or `hf auth login`. `HF_ENDPOINT` names another hub.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

from toolscout.errors import ConfigError, Denied, NotFound, Unavailable, require
from toolscout.home.models.exchange import ALLOWED_SUFFIXES, check_names, check_package

__all__ = ["HUB_PREFIX", "HubAddress", "pull_from_hub", "push_to_hub"]

HUB_PREFIX: Final = "hf://"


class HubAddress(NamedTuple):
    """A repository of models, and a branch, tag or commit of it; None: its main branch."""

    repository: str
    revision: str | None

    @classmethod
    def parse(cls, text: str) -> HubAddress:
        """Parse `hf://owner/name` or `hf://owner/name@revision`.

        Raises:
            ConfigError: for another form.
        """
        match = re.fullmatch(r"hf://([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?", text)
        if match is None:
            raise ConfigError(f"expected hf://owner/name or hf://owner/name@revision, found {text!r:.200}.")
        return cls(match[1], match[2])

    @property
    def name(self) -> str:
        """The name of the repository without its owner."""
        return self.repository.partition("/")[2]


def push_to_hub(folder: Path, address: HubAddress, *, public: bool) -> str:
    """Push a checked model or encoder as one commit. A repository that is missing is made, private unless `public`.

    Returns:
        The address of the commit.

    Raises:
        NotFound, StoreError: if the folder holds no sound model; then nothing is sent.
        Unavailable, Denied: if the hub cannot be reached, or refuses.
    """
    package = check_package(folder)
    with _explain_errors(address):
        api = _open_api()
        api.create_repo(address.repository, repo_type="model", private=not public, exist_ok=True)
        commit = api.upload_folder(
            repo_id=address.repository,
            folder_path=folder,
            revision=address.revision,
            commit_message=f"{package.kind}: {package.label}",
            ignore_patterns=[".*", "**/.*"],
            delete_patterns=["*"],
        )
    return str(commit.commit_url)


def pull_from_hub(address: HubAddress, folder: Path) -> str:
    """Fetch the files of a repository into an empty folder, after their names and sizes were checked.

    Returns:
        The commit that was fetched.

    Raises:
        NotFound: if the hub has no such repository or revision.
        StoreError: if it holds files that models do not need.
        Unavailable, Denied: if the hub cannot be reached, or refuses.
    """
    with _explain_errors(address):
        api = _open_api()
        info = api.model_info(address.repository, revision=address.revision, files_metadata=True)
    files = [(file.rfilename, file.size or 0) for file in info.siblings or () if not _is_hidden(file.rfilename)]
    check_names(files)
    with _explain_errors(address):
        api.snapshot_download(
            address.repository,
            revision=info.sha,
            local_dir=folder,
            allow_patterns=[f"*{suffix}" for suffix in ALLOWED_SUFFIXES],
            ignore_patterns=[".*", "**/.*"],
            etag_timeout=30,
        )
    shutil.rmtree(folder / ".cache", ignore_errors=True)  # bookkeeping of the library
    return str(info.sha)


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _open_api() -> Any:
    hub = require("huggingface_hub", "hub")
    require("huggingface_hub.utils", "hub").disable_progress_bars()
    return hub.HfApi(library_name="toolscout")


def _list_transport_errors() -> list[type[Exception]]:
    """List the errors of the HTTP clients that the hub's library may use, if they are imported."""
    clients = [sys.modules[name] for name in ("httpx", "httpx2") if name in sys.modules]
    return [client.HTTPError for client in clients]


@contextmanager
def _explain_errors(address: HubAddress) -> Iterator[None]:
    """Turn errors of the hub's library into one sentence each."""
    errors: Any = require("huggingface_hub.errors", "hub")
    name = f"{HUB_PREFIX}{address.repository}"
    try:
        yield
    except (errors.RepositoryNotFoundError, errors.RevisionNotFoundError):
        raise NotFound(f"{name}: the hub shows no such model or revision. Check it, or run  hf auth login") from None
    except (errors.HfHubHTTPError, errors.LocalTokenNotFoundError) as error:
        status = getattr(getattr(error, "response", None), "status_code", None)
        if status in (401, 403) or isinstance(error, errors.LocalTokenNotFoundError):
            raise Denied(f"{name}: the hub refuses access. Run  hf auth login  with a token that may write.") from None
        raise Unavailable(f"{name}: the hub failed: {' '.join(str(error).split())[:200]}. Try again.") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled, OSError, *_list_transport_errors()) as error:
        if "/xet-" in str(error):  # hf_xet asks every hub for a token of this storage
            raise Unavailable(f"{name}: the hub has no Xet storage. Set HF_HUB_DISABLE_XET=1 and try again.") from None
        reason = " ".join(str(error).split())[:120] or type(error).__name__
        raise Unavailable(f"{name}: the hub cannot be reached ({reason}). Check the network and HF_ENDPOINT.") from None
    except RuntimeError as error:  # the library wraps what went wrong with one file
        reason = " ".join(str(error.__cause__ or error).split())[:160]
        raise Unavailable(f"{name}: a file was not sent ({reason}). Try again.") from None
