"""Writes searches and calls in the bookshop, for the pages on learning.

python examples/shop/traffic.py week.jsonl             a journal to import
python examples/shop/traffic.py --topic new.jsonl      searches for things that the shop doesn't sell, to import
python examples/shop/traffic.py my-queries             a dataset folder to train on
"""

import datetime
import itertools
import json
import random
import sys
from pathlib import Path

REQUESTS = {
    "get_stock": ("is {} available", "do you have {}", "can I pick {} up today", "how soon could I have {}"),
    "track_order": ("where is {}", "has {} left the warehouse", "I am waiting for {}", "{} is late"),
    "send_invoice": ("proof of purchase for {}", "papers for {}", "the tax office wants {}", "what I paid for {}"),
    "cancel_order": ("I changed my mind about {}", "no {} after all", "{} was a mistake", "leave out {}"),
    "refund_order": ("{} is torn", "{} was a bad buy", "I did not like {}", "{} came twice"),
}
THINGS = ("Dune", "Emma", "Ulysses", "my novel", "the atlas", "order A-1001", "the cookbook", "the last parcel")
NEW_REQUESTS = ("a gift card for {}", "a writing course for {}", "who teaches {} to paint", "tickets for {} and me")
PEOPLE = ("my sister", "two children", "a friend", "my parents", "somebody who likes to travel", "a class of twelve")
CALLERS = 20
SEARCHES = 900
NEW_SEARCHES = 300
TESTED = 40


def make_events() -> list[dict[str, object]]:
    """Make one search and one successful call for each of the requests; the order is always the same."""
    chance, time = random.Random(7), datetime.datetime(2026, 11, 1, 9, tzinfo=datetime.timezone.utc)
    asked = [(text.format(thing), tool) for tool, texts in REQUESTS.items() for text, thing in
             itertools.product(texts, THINGS)]  # fmt: skip
    events: list[dict[str, object]] = []
    for number in range(SEARCHES):
        query, tool = chance.choice(asked)
        time += datetime.timedelta(minutes=11)
        common = {"schema": 1, "at": time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
                  "caller": f"agent-{number % CALLERS}", "search_id": f"{number:032x}"}  # fmt: skip
        shown = [f"shop/{name}" for name in REQUESTS]
        events.append({**common, "event": "search", "query": query, "shown": shown})
        events.append({**common, "event": "call", "tool": f"shop/{tool}", "ok": True, "ms": 20})
    return events


def make_new_searches() -> list[dict[str, object]]:
    """Make searches of the week after, for a topic that no tool of the shop serves. Nobody calls a tool."""
    chance, time = random.Random(8), datetime.datetime(2026, 11, 9, 9, tzinfo=datetime.timezone.utc)
    asked = [text.format(person) for text in NEW_REQUESTS for person in PEOPLE]
    events: list[dict[str, object]] = []
    for number in range(NEW_SEARCHES):
        time += datetime.timedelta(minutes=11)
        at = time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        events.append({"schema": 1, "at": at, "caller": f"agent-{number % CALLERS}", "search_id": f"a{number:031x}",
                       "event": "search", "query": chance.choice(asked), "shown": []})  # fmt: skip
    return events


def write_dataset(folder: Path) -> None:
    """Write each request once as a query to train on, with the tool that it needs."""
    (folder / "qrels").mkdir(parents=True)
    texts: dict[str, str] = {}
    for event in make_events():
        if event["event"] == "search":
            query = str(event["query"])
        else:
            texts[query] = str(event["tool"]).removeprefix("shop/")
    names = sorted(set(texts.values()))
    write_lines(folder / "corpus.jsonl", [{"_id": name, "title": name, "text": name} for name in names])
    write_lines(folder / "queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts)])
    rows = [f"q{n}\t{tool}\t1\n" for n, tool in enumerate(texts.values())]
    for part, chosen in (("train", rows[:-TESTED]), ("test", rows[-TESTED:])):
        (folder / "qrels" / f"{part}.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(chosen))


def write_lines(file: Path, entries: list[dict[str, object]]) -> None:
    file.write_text("".join(json.dumps(entry) + "\n" for entry in entries))


if __name__ == "__main__":
    target = Path(sys.argv[-1])
    if target.suffix == ".jsonl":
        write_lines(target, make_new_searches() if "--topic" in sys.argv else make_events())
    else:
        write_dataset(target)
