"""Names the gateway's addresses over HTTP, and what it notes in the ASGI scope of a request."""

from __future__ import annotations

from typing import Final

__all__ = ["CALLER", "CREDENTIAL", "PATH", "PROFILE_PATH"]

CALLER: Final = "toolscout.caller"  # key of the caller in the scope of a request
CREDENTIAL: Final = "toolscout.credential"  # key of what the caller came with
PATH: Final = "/mcp"
PROFILE_PATH: Final = f"{PATH}/p/"  # followed by the name of a profile
