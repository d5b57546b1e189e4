"""Log lines of the service and the gateway as JSON objects, one a line, for collectors of logs."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Final

import msgspec

from toolscout.access.telemetry import current_trace
from toolscout.types import clean

__all__ = ["JsonLines", "start_logs"]

MAX_LOG_CHARS: Final = 10_000
_log: Final = logging.getLogger("toolscout.program")


class JsonLines(logging.Formatter):
    """Formats a record as a JSON object: at, level, logger, message, and the trace if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Format one record. Line breaks inside are escaped, so that one record is one line."""
        line: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage()[:MAX_LOG_CHARS],
        }
        if record.exc_info:
            line["error"] = self.formatException(record.exc_info)[:MAX_LOG_CHARS]
        trace = current_trace()
        if trace is not None:
            line["trace_id"], line["span_id"] = trace
        return msgspec.json.encode(clean(line)).decode()


def start_logs(form: str, say: Callable[[str], None]) -> Callable[[str], None]:
    """Set the form of log lines of this process. Returns what writes a sentence in this form.

    Args:
        form: `text` or `json`. `text` changes nothing.
        say: writes a sentence as text.
    """
    if form != "json":
        return say
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    for name in ("toolscout", "uvicorn"):
        logging.getLogger(name).setLevel(logging.INFO if name == "toolscout" else logging.WARNING)
    return lambda text: _log.info("%s", text)
