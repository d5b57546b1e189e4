"""Find pairs of tools of one server whose names differ by opposite verbs: `add_label` and `remove_label`.

    python benchmarks/suites/find_opposites.py --data DATA_ROOT > candidates.jsonl

Writes one JSON line for each candidate pair: the verbs, both ids, the first words of both descriptions. The lines
of `opposites.jsonl` were chosen from these one by one. Names are split at underscores, hyphens and capital
letters. The two names must be equal but for the verb; a plural `s` does not count. A tool without a description of
its own is left out.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

MAX_TEXT_CHARS = 160
CORPUS = Path("tool_corpora", "toucan", "corpus.jsonl")
CRAWLER_TEXT = re.compile(r"\s*Deploy Server\b")  # the crawler's page header in place of a description
VERBS = """
    add/remove add/delete create/delete create/remove create/destroy insert/delete upload/download import/export
    push/pull get/set read/write send/receive start/stop start/end enable/disable lock/unlock mute/unmute
    follow/unfollow subscribe/unsubscribe open/close show/hide encode/decode encrypt/decrypt compress/decompress
    zip/unzip increase/decrease increment/decrement approve/reject accept/reject accept/decline deposit/withdraw
    buy/sell like/unlike pin/unpin archive/unarchive archive/restore block/unblock ban/unban star/unstar
    connect/disconnect mount/unmount install/uninstall activate/deactivate publish/unpublish assign/unassign
    attach/detach link/unlink watch/unwatch join/leave login/logout pause/resume play/pause play/stop begin/end
    load/save load/unload store/retrieve stake/unstake mint/burn expand/collapse undo/redo cordon/uncordon
    allow/deny grant/revoke register/unregister register/deregister favorite/unfavorite up/down forward/back
    previous/next prev/next first/last promote/demote lend/borrow borrow/repay supply/withdraw wrap/unwrap
    tag/untag group/ungroup merge/split raise/lower turn_on/turn_off on/off check/uncheck select/deselect
    freeze/unfreeze retweet/unretweet subscribe/cancel suspend/resume suspend/unsuspend complete/reopen
    complete/uncomplete close/reopen resolve/reopen resolve/unresolve commit/rollback backup/restore
    delete/restore delete/undelete trash/untrash long/short max/min highest/lowest incoming/outgoing parse/format
    serialize/deserialize stringify/parse save/unsave vote/unvote upvote/downvote enter/exit enter/leave
    zoom_in/zoom_out in/out scale_up/scale_down clear/fill add/subtract multiply/divide shutdown/startup
    boot/shutdown escape/unescape hide/unhide share/unshare invite/kick invite/remove apply/revert
    ascending/descending gainers/losers top/bottom before/after sign/verify checkin/checkout check_in/check_out
    stage/unstage claim/unclaim bookmark/unbookmark snooze/unsnooze draft/publish public/private bind/unbind
    launch/terminate start/kill run/stop grow/shrink inflate/deflate tokenize/detokenize minify/beautify
    flatten/unflatten associate/disassociate crosspost/delete follow/block read/unread send/delete send/cancel
    place/cancel create/cancel book/cancel schedule/cancel schedule/unschedule forward/reverse
    geocode/reverse_geocode reserve/release acquire/release hold/release set/unset set/clear set/reset set/remove
    show/close encode/parse bridge_in/bridge_out to/from ascend/descend sent/received deposits/withdrawals
    followers/following
"""
OPPOSITES = [tuple(tuple(side.split("_")) for side in pair.split("/")) for pair in VERBS.split()]
SIDES = {verb for pair in OPPOSITES for verb in pair}


def split_name(name: str) -> list[str]:
    spaced = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", " ", name)
    return [word.lower() for word in re.split(r"[^A-Za-z0-9]+", spaced) if word]


def mark_verbs(words: list[str]) -> Iterator[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Yield (verb, the name with the verb replaced by a mark) for each place where one of `VERBS` stands."""
    for start in range(len(words)):
        for end in (start + 1, start + 2):
            verb = tuple(words[start:end])
            if end <= len(words) and verb in SIDES:
                rest = [*words[:start], "*", *words[end:]]
                yield verb, tuple(word.rstrip("s") for word in rest)


def find_pairs(tools: list[dict[str, Any]]) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Yield (verbs, tool of the first verb, tool of the second verb) for the tools of one server."""
    places: dict[tuple[tuple[str, ...], tuple[str, ...]], list[dict[str, Any]]] = defaultdict(list)
    for tool in tools:
        for place in mark_verbs(split_name(tool["title"])):
            places[place].append(tool)
    for left, right in OPPOSITES:
        for (verb, rest), firsts in places.items():
            if verb == left:
                for first, second in product(firsts, places.get((right, rest), [])):
                    yield f"{'_'.join(left)}/{'_'.join(right)}", first, second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="the folder with the datasets")
    corpus = parser.parse_args().data / CORPUS
    servers: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for line in corpus.read_text(encoding="utf-8").splitlines():
        tool = json.loads(line)
        if not CRAWLER_TEXT.match(tool["text"]):
            servers[tool["_id"].split("/", 1)[0]].append(tool)
    for server in sorted(servers):
        for verbs, first, second in find_pairs(servers[server]):
            texts = [" ".join(tool["text"].split())[:MAX_TEXT_CHARS] for tool in (first, second)]
            pair = {"verbs": verbs, "ids": [first["_id"], second["_id"]], "texts": texts}
            sys.stdout.write(json.dumps(pair, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
