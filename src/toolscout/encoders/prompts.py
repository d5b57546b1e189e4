"""Prompts: the texts that some encoders want before each query and each tool.

A model that was trained with prompts ranks worse without them. The table below has the prompts that the models' own
pages state. For another model, or to change them, users write them after the encoder's name:
`NAME?query_prompt=…&tool_prompt=…`, with the special characters of a URL escaped (`%20` is a space, `%0A` a new line).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import parse_qsl

import msgspec

from toolscout.errors import ConfigError

__all__ = [
    "INPUT_TYPE_KEYS",
    "NO_PROMPTS",
    "PROMPT_KEYS",
    "Prompts",
    "choose_prompts",
    "find_known_prompts",
    "split_prompts",
]


class Prompts(msgspec.Struct, frozen=True, kw_only=True):
    """The text that is put before each query or tool."""

    query: str
    tool: str


NO_PROMPTS: Final = Prompts(query="", tool="")
PROMPT_KEYS: Final = ("query_prompt", "tool_prompt")
INPUT_TYPE_KEYS: Final = ("query_input_type", "tool_input_type")  # for endpoints that add the prompts themselves
WEB_SEARCH_TASK: Final = "Given a web search query, retrieve relevant passages that answer the query"
SENTENCE_PROMPT: Final = "Represent this sentence for searching relevant passages: "

#: Pattern of a model's name, without its owner and in small letters → its prompts.
KNOWN_PROMPTS: Final = (
    (r"(multilingual-)?e5-(small|base|large)(-v2)?", Prompts(query="query: ", tool="passage: ")),
    (
        r"(multilingual-e5-large|e5-mistral-7b|gte-qwen(1\.5|2)-(1\.5b|7b))-instruct",
        Prompts(query=f"Instruct: {WEB_SEARCH_TASK}\nQuery: ", tool=""),
    ),
    (r"qwen3-embedding(-(0\.6|4|8)b)?", Prompts(query=f"Instruct: {WEB_SEARCH_TASK}\nQuery:", tool="")),
    (r"bge-(small|base|large)-en(-v1\.5)?", Prompts(query=SENTENCE_PROMPT, tool="")),
    (r"bge-(small|base|large)-zh(-v1\.5)?", Prompts(query="为这个句子生成表示以用于检索相关文章\uff1a", tool="")),
    (r"snowflake-arctic-embed(-(xs|s|m|l|m-long|m-v1\.5))?", Prompts(query=SENTENCE_PROMPT, tool="")),
    (r"snowflake-arctic-embed(2|-(m|l)-v2\.0)", Prompts(query="query: ", tool="")),
    (r"mxbai-embed-large(-v1)?", Prompts(query=SENTENCE_PROMPT, tool="")),
    (r"nomic-embed-text(-v1|-v1\.5|-v2-moe)?", Prompts(query="search_query: ", tool="search_document: ")),
    (
        r"jina-embeddings-v3",
        Prompts(
            query="Represent the query for retrieving evidence documents: ",
            tool="Represent the document for retrieval: ",
        ),
    ),
    (r"embeddinggemma(-300m)?", Prompts(query="task: search result | query: ", tool="title: none | text: ")),
)
_PROMPTS_BEGIN: Final = re.compile(r"\?(?=(?:query|tool)_(?:prompt|input_type)=)")


def find_known_prompts(model: str) -> Prompts:
    """Return the prompts that the model's page states; empty prompts for a model that is not in the table.

    Args:
        model: its name, a path to its folder, or its name at Ollama. An owner before the name and a `:tag` after it are
            ignored.
    """
    _, _, last_part = model.replace("\\", "/").rstrip("/").rpartition("/")
    name = last_part.partition(":")[0].lower()
    return next((prompts for pattern, prompts in KNOWN_PROMPTS if re.fullmatch(pattern, name)), NO_PROMPTS)


def split_prompts(name: str, keys: Sequence[str] = PROMPT_KEYS) -> tuple[str, dict[str, str]]:
    """Split an encoder's name into the name of the model and the prompts after it, key → prompt.

    Raises:
        ConfigError: for a key that is not one of `keys`, or one given twice.
    """
    model, *query = _PROMPTS_BEGIN.split(name, maxsplit=1)  # the query is "key=prompt&…", if there is one
    pairs = parse_qsl(query[0], keep_blank_values=True) if query else []
    prompts: dict[str, str] = {}
    for key, text in pairs:
        if key not in keys or key in prompts:
            raise ConfigError(
                f"encoder: expected ?{'=…&'.join(keys)}=… behind the model, each at most once, found {key!r}. "
                "Write & as %26 and + as %2B inside a prompt"
            )
        prompts[key] = text
    return model, prompts


def choose_prompts(written: dict[str, str], default: Prompts) -> Prompts:
    """Return the prompts of a model.

    Args:
        written: key → prompt that the user wrote after the name (`split_prompts`).
        default: used for queries or tools without a written prompt.
    """
    return Prompts(query=written.get("query_prompt", default.query), tool=written.get("tool_prompt", default.tool))
