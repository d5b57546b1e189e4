"""Traffic by rule: callers ask in slang, get what is shown, and call what they need."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import lessons
from toolscout.home.catalogue.store import Origin
from toolscout.scout import Scout
from toolscout.types import Tool

TOOLS = lessons.TOOLS
WORDS = {  # tool → how people ask for it; no word of a description is among these
    "weather/forecast": ["umbrella", "sunglasses", "raincoat", "snowman", "drizzle", "parasol"],
    "mail/send": ["grandma", "boss", "everybody", "auntie", "neighbours", "landlord"],
    "travel/hotel": ["pillow", "blanket", "overnight", "downtown", "breakfast", "lobby"],
    "travel/flight": ["island", "ocean", "window", "noon", "luggage", "runway"],
    "files/copy": ["thesis", "backup", "spare", "clone", "twice", "again"],
    "music/play": ["party", "dance", "loud", "guitar", "headphones", "karaoke"],
}
FRAMES = ["i think of {} and {}", "{} or {} today", "what about {} with {}", "{} {} please", "again {} then {}"]


def catalogue(scout: Scout) -> None:
    """The six tools of the lessons, from one source."""
    tools = [Tool(id=f"office/{tool}", name=tool.partition("/")[2], description=text) for tool, text in TOOLS.items()]
    scout.store.put_source(Origin("objects:office", "objects"), "office", kind="objects", tools=tools)


def requests(count: int, seed: int, noise: float = 0.0) -> list[tuple[str, str]]:
    """(request, tool that it needs), `noise` of them with a tool drawn at random."""
    rng = random.Random(seed)
    found = []
    for _ in range(count):
        tool = rng.choice(sorted(WORDS))
        text = rng.choice(FRAMES).format(*rng.sample(WORDS[tool], 2))
        found.append((text, f"office/{rng.choice(sorted(WORDS)) if rng.random() < noise else tool}"))
    return found


def replay(scout: Scout, asked: Iterable[tuple[str, str]], callers: Sequence[str]) -> None:
    """Write searches and the successful calls after them, as a service would, but in one transaction."""
    tools = [f"office/{tool}" for tool in sorted(WORDS)]
    start, events = scout.journal.last(), []
    for number, (text, tool) in enumerate(asked, start):
        caller, search = callers[number % len(callers)], f"s{number}-{start}"
        events.append(("search", caller, {"search_id": search, "query": text, "shown": tools, "recipe": "hybrid"}))
        call = {"search_id": search, "tool": tool, "ok": True, "ms": 1.0, "rank": tools.index(tool) + 1}
        events.append(("call", caller, call))
    scout.journal.append_all(events)


def right(scout: Scout, seed: int, count: int = 200, **how: object) -> float:
    """How often the first hit is the tool that is needed."""
    asked = requests(count, seed)
    found = scout.search_many([text for text, _ in asked], 1, **how)  # type: ignore[arg-type]
    return sum(tool in each.ids for (_, tool), each in zip(asked, found, strict=True)) / count
