"""The files of the page: HTML, CSS and JavaScript modules. Its content policy forbids anything from elsewhere."""

from __future__ import annotations

from importlib import resources
from typing import Final

__all__ = ["FILES", "read_page_file"]

MEDIA_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE_CONTENT_POLICY: Final = "; ".join(
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
_FOLDER: Final = resources.files("toolscout.server") / "web"
FILES: Final = ("/", *sorted(f"/web/{file.name}" for file in _FOLDER.iterdir() if file.name != "index.html"))


def read_page_file(path: str) -> tuple[bytes, str, dict[str, str]]:
    """Read the content, media type and headers of one of `FILES`."""
    name = path.removeprefix("/web/") if path != "/" else "index.html"
    media = f"{MEDIA_TYPES[name.rpartition('.')[2]]}; charset=utf-8"
    return (_FOLDER / name).read_bytes(), media, {"Content-Security-Policy": PAGE_CONTENT_POLICY}
