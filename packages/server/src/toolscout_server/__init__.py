"""toolscout over HTTP: search, catalogue, journal and models for programs, and the page for people.

`Service` holds the state shared by requests. `app` builds the ASGI application. `Limits` bounds requests.
"""

from __future__ import annotations

from toolscout_server.app import app
from toolscout_server.service import Limits, Service

__all__ = ["Limits", "Service", "app"]
