"""The files of the page: plain HTML, CSS and modules, nothing from elsewhere, and a policy that allows nothing more."""

from __future__ import annotations

from importlib import resources
from typing import Final

__all__ = ["FILES", "page_file"]

TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_FOLDER: Final = resources.files("toolscout") / "web"
FILES: Final = ("/", *sorted(f"/web/{each.name}" for each in _FOLDER.iterdir() if each.name != "index.html"))


def page_file(path: str) -> tuple[bytes, str, dict[str, str]]:
    """Content, media type and headers of one of `FILES`."""
    name = path.removeprefix("/web/") if path != "/" else "index.html"
    media = f"{TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return (_FOLDER / name).read_bytes(), media, {"Content-Security-Policy": POLICY}
