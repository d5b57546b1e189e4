from __future__ import annotations

import base64

import pytest

PIXEL = base64.b64decode(  # a picture of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture
def unpainted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Charts are built but not painted, for tests of what the page says: painting takes nearly all of the time."""
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, file, **options: file.write(PIXEL))
