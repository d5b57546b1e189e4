#!/usr/bin/env python
"""Writes the English word that stands for each piece of the multilingual table, where one lies near.

    python scripts/make_glosses.py

Run it whenever the bundled encoder or the multilingual table changes; `make_multilingual.py` does so. It takes a minute
on one core. See `toolscout.encoders.gloss`.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

from toolscout.encoders.gloss import GLOSSES_FILE, describe_glosses, find_glosses
from toolscout.encoders.static import StaticEncoder


def write_glosses(encoder: StaticEncoder) -> None:
    """Write the glosses beside the multilingual table of an encoder."""
    from safetensors.numpy import save_file

    glosses = find_glosses(encoder, range(len(encoder.multilingual.pieces)))
    file = encoder.multilingual_folder / GLOSSES_FILE
    save_file({"glosses": glosses}, file, metadata=describe_glosses(encoder))
    file.chmod(0o644)


if __name__ == "__main__":
    write_glosses(StaticEncoder())
