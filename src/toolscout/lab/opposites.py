"""Finds pairs of tools of one server that do opposite things: `add_label` and `remove_label`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final

from toolscout.encoders import split_identifiers
from toolscout.types import Tool

__all__ = ["find_opposites"]

_VERB_PAIRS: Final = """
    add/remove add/delete create/delete create/remove create/destroy insert/delete upload/download import/export
    push/pull get/set read/write read/delete send/receive start/stop enable/disable lock/unlock mute/unmute
    follow/unfollow subscribe/unsubscribe open/close show/hide encode/decode encrypt/decrypt compress/decompress
    increase/decrease increment/decrement approve/reject accept/reject accept/decline deposit/withdraw buy/sell
    like/unlike pin/unpin archive/unarchive archive/restore block/unblock ban/unban star/unstar connect/disconnect
    mount/unmount install/uninstall activate/deactivate publish/unpublish assign/unassign attach/detach link/unlink
    watch/unwatch join/leave login/logout pause/resume play/pause play/stop load/save store/retrieve stake/unstake
    mint/burn expand/collapse undo/redo allow/deny grant/revoke register/unregister promote/demote wrap/unwrap
    tag/untag group/ungroup merge/split raise/lower check/uncheck select/deselect freeze/unfreeze suspend/resume
    complete/reopen close/reopen commit/rollback backup/restore delete/restore serialize/deserialize zip/unzip
    upvote/downvote enter/exit clear/fill add/subtract multiply/divide invite/remove stage/unstage claim/unclaim
    bookmark/unbookmark bind/unbind launch/terminate start/kill reserve/release acquire/release book/cancel
    schedule/cancel place/cancel
"""
VERB_PAIRS: Final = tuple(tuple(pair.split("/")) for pair in _VERB_PAIRS.split())


def find_opposites(tools: Sequence[Tool]) -> Iterator[tuple[Tool, Tool]]:
    """Yield pairs of tools with the same path whose names differ only by opposite verbs.

    A plural `s` does not count as a difference. The pairs come in the order of the verbs and then of the tools.
    """
    verbs = {verb for pair in VERB_PAIRS for verb in pair}
    places: defaultdict[tuple[tuple[str, ...], str, tuple[str, ...]], list[Tool]] = defaultdict(list)
    for tool in tools:
        words = split_identifiers(tool.name).replace("-", " ").lower().split()
        for number, verb in enumerate(words):
            if verb in verbs:
                rest = tuple(word.rstrip("s") for word in (*words[:number], "*", *words[number + 1 :]))
                places[tool.path, verb, rest].append(tool)
    for left, right in VERB_PAIRS:
        for (path, verb, rest), firsts in list(places.items()):
            if verb == left:
                yield from ((first, second) for first in firsts for second in places.get((path, right, rest), ()))
