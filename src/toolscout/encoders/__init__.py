"""Encoders turn texts into vectors. This file loads them by name; `encoder.py` states their contract."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from toolscout import plugins
from toolscout.encoders.encoder import (
    ENGLISH,
    KNOWN_NAMES,
    Encoder,
    Kind,
    Vectors,
    encode_tools,
    get_languages,
    get_short_weight,
    split_identifiers,
    unit_rows,
)
from toolscout.errors import ConfigError, MissingExtra, UserError, find_nearest, install_line
from toolscout.settings import Settings

__all__ = [
    "ENGLISH",
    "Encoder",
    "Kind",
    "Vectors",
    "describe_encoder",
    "encode_tools",
    "get_languages",
    "get_short_weight",
    "load",
    "split_identifiers",
    "unit_rows",
]


TRANSFORMER: Final = "transformer"  # the plug-in of toolscout-lab; it loads models for torch by their own names


def load(name: str, settings: Settings) -> Encoder:
    """Load the encoder of that name.

    Args:
        name: `static` (bundled), `compact` (the package `toolscout-compact`), `compact:FOLDER` (the same with another
            ONNX folder), `minilm` (all-MiniLM-L6-v2), `minilm:N` (only its first N layers, 1 to 5), `onnx:FOLDER`
            (written by `toolscout export-encoder`), `https://host/v1/embeddings#model` (an OpenAI-compatible endpoint),
            `NAME` or `NAME:ARGUMENT` of a plug-in (group `toolscout.encoders`), or a folder or Hugging Face name that
            sentence-transformers loads. `?query_prompt=…&tool_prompt=…` after the name sets the prompts, except for
            `static`, `compact` and plug-ins.
        settings: have the timeout of endpoints; plug-ins get all settings.

    Raises:
        UserError: if it cannot be loaded; the message says what to do.
    """
    if name == "static":
        from toolscout.encoders.static import load_static

        return load_static()
    if name == "compact" or name.startswith("compact:"):
        from toolscout.encoders.onnx import load_compact

        return load_compact(name.partition(":")[2])
    if name.startswith(("http://", "https://")):
        from toolscout.encoders.remote import RemoteEncoder

        return RemoteEncoder(name, timeout=settings.http_timeout)
    if name.startswith("onnx:"):
        from toolscout.encoders.onnx import OnnxEncoder

        return OnnxEncoder(name.removeprefix("onnx:"))
    plugin_name, _, argument = name.partition(":")
    plugin = plugins.find_plugin(plugins.ENCODER_PLUGINS, plugin_name)
    if plugin is not None and plugin_name != TRANSFORMER:
        return _load_from_plugin(plugin, name, argument, settings)
    may_be_misspelled = name.isalpha() and not Path(name).exists()
    nearest = find_nearest(name, KNOWN_NAMES) if may_be_misspelled else None
    if nearest not in (None, name):
        raise ConfigError(f"encoder {name!r}: there is no such encoder. Did you mean {nearest!r}?")
    transformer = plugins.find_plugin(plugins.ENCODER_PLUGINS, TRANSFORMER)
    if transformer is None:
        raise MissingExtra(f"encoder {name}: a model for torch needs a package. Run  {install_line('train')}")
    loaded: Encoder = plugins.load_function(transformer)(name, settings)
    return loaded


def _load_from_plugin(plugin: plugins.Plugin, name: str, argument: str, settings: Settings) -> Encoder:
    """Load an encoder of a plug-in.

    Args:
        plugin: its entry point names a function `(argument, settings) -> Encoder`.
        name: the encoder's name in the settings.
        argument: the part of the name after the colon.
        settings: passed to the plug-in.

    Raises:
        ConfigError: if the plug-in fails, or its encoder has another name than the one asked for.
    """
    load_encoder = plugins.load_function(plugin)
    try:
        encoder: Encoder = load_encoder(argument, settings)
    except UserError:
        raise
    except Exception as error:
        raise ConfigError(f"encoder {name}: {plugin} failed: {type(error).__name__}: {error}") from error
    if encoder.name != name:
        raise ConfigError(
            f"encoder {name}: {plugin} made an encoder called {encoder.name!r}. A fitted model finds its encoder again "
            f"by the name, so the attribute `name` must be {name!r}."
        )
    return encoder


def describe_encoder(encoder: Encoder) -> dict[str, object]:
    """Describe an encoder in JSON values: name, dimension, languages, prompts, and where it cuts texts.

    `languages` is None if the encoder reads all languages or does not say; `max_tokens` and `max_chars` are None if it
    does not say where it cuts texts.
    """
    languages, prompts = get_languages(encoder), getattr(encoder, "prompts", None)
    return {
        "name": encoder.name,
        "dimension": encoder.dim,
        "languages": None if languages is None else sorted(languages),
        "query_prompt": prompts.query if prompts else "",
        "tool_prompt": prompts.tool if prompts else "",
        "max_tokens": getattr(encoder, "max_tokens", None),
        "max_chars": getattr(encoder, "max_chars", None),
    }
