"""Recognises toolscout's own gateway in a configuration file, so that a home never reads itself."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Final

from toolscout.errors import SourceError
from toolscout.location import Home, describe_home
from toolscout.sources.clients import Entry, spell_entry

__all__ = ["GATEWAY_NAME", "find_own_gateways", "runs_gateway"]

GATEWAY_NAME: Final = "toolscout"  # of the program, and the name that a gateway reports to its clients
_HOME_VARIABLE: Final = "TOOLSCOUT_HOME"


def runs_gateway(command: str, args: Sequence[str]) -> bool:
    """Return whether a command line runs `toolscout gateway`, also through `uvx`, `python -m` or a shell."""
    texts = [word for text in (command, *args) for word in text.split()]  # one text may be a whole line for a shell
    words = [re.split(r"[@=<>~\[]", re.split(r"[/\\]", text)[-1])[0] for text in texts]  # no versions and extras
    programs = [word.removesuffix(".exe") for word in words]
    return GATEWAY_NAME in programs and "gateway" in words[programs.index(GATEWAY_NAME) :]


def find_own_gateways(entries: Mapping[str, Entry], home: Home) -> list[str]:
    """List the names of the entries that start a gateway of this home, or of no home that they name.

    A gateway at a URL is not recognised, because its address says nothing about its home.
    """
    return [name for name, entry in entries.items() if _starts_own_gateway(entry, home)]


def _starts_own_gateway(entry: Entry, home: Home) -> bool:
    try:
        fields, _ = spell_entry(entry)
    except SourceError:  # `parse_server` says what is wrong with it
        return False
    command, args, env = fields.get("command"), fields.get("args"), fields.get("env")
    texts = [str(text) for text in args] if isinstance(args, list) else []
    if not isinstance(command, str) or not runs_gateway(command, texts):
        return False
    named = _read_home(texts) or (env.get(_HOME_VARIABLE) if isinstance(env, Mapping) else None)
    if not isinstance(named, str):
        return True
    own_home = describe_home(home)
    return named == own_home or os.path.realpath(os.path.expanduser(named)) == os.path.realpath(own_home)


def _read_home(args: Sequence[str]) -> str | None:
    """Return the value of `--home` among arguments, one of which may be a whole line for a shell."""
    words: list[str] = []
    for text in args:
        try:
            words += shlex.split(text) if " --home" in text else [text]
        except ValueError:  # no line for a shell
            words.append(text)
    for word, next_word in zip(words, [*words[1:], None], strict=True):
        if word == "--home":
            return next_word
        if word.startswith("--home="):
            return word.removeprefix("--home=")
    return None
