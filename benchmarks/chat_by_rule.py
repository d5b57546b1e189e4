"""Makes prompts that need no tool, by rule: small talk, knowledge, writing, code, riddles.

`fit_decision.py` learns from them beside the prompts of Arena-Hard and Self-Instruct. The phrases, in
`chat_phrases.txt`, were written for this project; no prompt of any dataset was copied. The same seed gives the same
prompts.
"""

from __future__ import annotations

import random
import re
from pathlib import Path
from typing import Final

__all__ = ["make_chat"]

PHRASES: Final = Path(__file__).resolve().with_name("chat_phrases.txt")
SLOT: Final = re.compile(r"\{(\w+)\}")
MAX_DRAWS_EACH: Final = 20  # per prompt wanted; the same prompt may be drawn again


def make_chat(count: int, seed: int = 0) -> list[str]:
    """Return `count` different prompts, in random order; fewer where the phrases give no more.

    Args:
        count: how many.
        seed: of the draw.
    """
    draw, phrases = random.Random(f"chat {seed}"), read_phrases()
    prompts = dict.fromkeys(phrases["fixed"])
    for _ in range(MAX_DRAWS_EACH * count):
        if len(prompts) >= count:
            break
        prompts[SLOT.sub(lambda slot: draw.choice(phrases[slot[1]]), draw.choice(phrases["templates"]))] = None
    chosen = list(prompts)
    draw.shuffle(chosen)
    return chosen[:count]


def read_phrases() -> dict[str, list[str]]:
    """Return section → its lines."""
    phrases: dict[str, list[str]] = {}
    for line in PHRASES.read_text(encoding="utf-8").splitlines():
        if line.startswith("["):
            lines = phrases.setdefault(line.strip("[]"), [])
        elif line and not line.startswith("#"):
            lines.append(line)
    return phrases
