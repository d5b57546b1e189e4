"""An encoder: hashes the three-letter pieces of words, so misspelled words stay similar. It needs no model."""

import zlib
from collections.abc import Sequence

import numpy as np

from toolscout.encoders import Encoder, Kind, Vectors, split_identifiers, unit_rows
from toolscout.errors import ConfigError
from toolscout.settings import Settings


class PieceEncoder:
    """Counts the pieces of words. Each piece adds 1 to one of the `dim` numbers of a vector."""

    cheap = True  # so fast that toolscout needn't cache its vectors
    languages: frozenset[str] | None = None  # it reads every language

    def __init__(self, name: str, dim: int) -> None:
        """Take the name under which users ask for it, and the length of a vector."""
        self.name, self.dim = name, dim
        self.fingerprint = f"pieces/1/{dim}"  # changes whenever a text would get another vector

    def encode(self, texts: Sequence[str], kind: Kind = "query") -> Vectors:
        """Encode texts as `(n, dim)` float32 unit rows; queries and tools alike."""
        rows = np.zeros((len(texts), self.dim), dtype=np.float32)
        for row, text in zip(rows, texts, strict=True):
            for word in split_identifiers(text).casefold().split():
                for start in range(len(word)):
                    piece = f"<{word}>"[start : start + 3]
                    row[zlib.crc32(piece.encode()) % self.dim] += 1
        return unit_rows(rows)


def load_encoder(argument: str, settings: Settings) -> Encoder:
    """Make the encoder of `pieces` or `pieces:DIM`."""
    if argument and not (argument.isdecimal() and 1 <= int(argument) <= 8192):
        raise ConfigError(f"pieces:{argument}: write the length of a vector after the colon, from 1 to 8192")
    return PieceEncoder(f"pieces:{argument}" if argument else "pieces", int(argument or 512))


if __name__ == "__main__":
    from toolscout.testing import check_encoder

    encoder = load_encoder("256", Settings())
    check_encoder(encoder)
    wrong, right, other = encoder.encode(["wheather forcast", "weather forecast", "send a letter"])
    print(f"{encoder.name}: misspelled {wrong @ right:.2f}, unrelated {wrong @ other:.2f}")
