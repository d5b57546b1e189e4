"""Checks that the Hugging Face hub has a model, before sentence-transformers looks for it.

sentence-transformers asks the hub for many files in turn, and repeats each question. A name that does not exist, or a
hub that cannot be reached, would take it more than a minute.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any, Final

from toolscout.errors import ConfigError, require

__all__ = ["KNOWN_NAMES", "check_hub", "explain_unknown"]

KNOWN_NAMES: Final = ("static", "compact", "minilm")
HUB_TIMEOUT_S: Final = 5.0
BARE_OWNER: Final = "sentence-transformers"
"""Owner of a model whose name is written without one; sentence-transformers looks there too."""
_ADVICE: Final = (
    f"Choose {', '.join(KNOWN_NAMES)}, a folder, or a model of the Hugging Face hub as owner/name "
    "(a private one needs HF_TOKEN)"
)


def explain_unknown(name: str) -> ConfigError:
    """Return the error for a name that no encoder has."""
    return ConfigError(f"encoder {name!r}: there is no such encoder. {_ADVICE}.")


def check_hub(name: str, location: str) -> None:
    """Ask the hub once whether it has a model. Folders, and models that were downloaded before, are not asked for.

    A hub that refuses access is left to sentence-transformers, whose message says how to get it.

    Args:
        name: the encoder, as the user wrote it.
        location: what sentence-transformers would load.

    Raises:
        ConfigError: if the hub has no such model, the name cannot be one, or the hub does not answer within seconds.
    """
    if Path(location).exists():
        return
    if importlib.util.find_spec("huggingface_hub") is None:  # nothing was downloaded
        if location.isalpha():
            raise explain_unknown(name)
        return  # the loader says what to install
    repositories = [location] if "/" in location else [f"{BARE_OWNER}/{location}", location]
    if any(map(_is_downloaded, repositories)):
        return
    if location.isalpha():
        raise explain_unknown(name)
    errors: Any = require("huggingface_hub.errors", "train")
    api: Any = require("huggingface_hub", "train").HfApi(library_name="toolscout")
    for repository in repositories:
        try:
            api.model_info(repository, timeout=HUB_TIMEOUT_S)
            return
        except (errors.GatedRepoError, errors.DisabledRepoError):
            return
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            continue
        except errors.HfHubHTTPError:
            return
        except Exception as error:  # the HTTP client's own, which differs between versions of the library
            raise ConfigError(
                f"encoder {name!r}: the Hugging Face hub cannot be reached ({type(error).__name__}). Check the "
                "network and HF_ENDPOINT, or choose static, compact or a folder."
            ) from None
    raise explain_unknown(name)


def _is_downloaded(repository: str) -> bool:
    """Tell whether the cache of the hub holds files of a model."""
    constants: Any = require("huggingface_hub.constants", "train")
    cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME") or constants.HF_HUB_CACHE
    return (Path(cache) / f"models--{repository.replace('/', '--')}" / "snapshots").is_dir()
