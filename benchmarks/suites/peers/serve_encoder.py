"""Serves toolscout's encoders as an OpenAI-compatible endpoint, for peers that take an encoder over one.

    python serve_encoder.py --port 8095

`model` in a request is the name of an encoder: `minilm-plain`, `static` or `compact`. The protocol does not tell
queries from tools, so every text is encoded as a tool.
"""

from __future__ import annotations

import argparse
import base64
import functools
import json
import tempfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from toolscout.encoders import Encoder, load
from toolscout.settings import load_settings


@functools.cache
def load_encoder(name: str) -> Encoder:
    """Load an encoder once."""
    return load(name, load_settings(home=Path(tempfile.mkdtemp())))


class Endpoint(BaseHTTPRequestHandler):
    """Answers `GET /v1/models` and `POST /v1/embeddings`."""

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Say that the endpoint is there."""
        self.answer({"object": "list", "data": [{"id": "static"}]})

    def do_POST(self) -> None:
        """Encode the texts."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = [body["input"]] if isinstance(body["input"], str) else body["input"]
        rows = load_encoder(body["model"]).encode(texts, "tool")
        encoded = [
            base64.b64encode(row.tobytes()).decode() if body.get("encoding_format") == "base64" else row.tolist()
            for row in rows
        ]
        self.answer({"data": [{"index": place, "embedding": row} for place, row in enumerate(encoded)]})

    def answer(self, value: object) -> None:
        """Send a value as JSON."""
        data = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *words: object) -> None:
        """Log nothing."""


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8095)
    options = parser.parse_args()
    ThreadingHTTPServer(("127.0.0.1", options.port), Endpoint).serve_forever()


if __name__ == "__main__":
    main()
