"""Fits the weights that tell claims of rank and addresses to the reader from what tools say about themselves.

    python benchmarks/fit_claims.py --data DIR [--out src/toolscout/search/data/claims.json]

Positive sentences are those of `claims.txt`. Negative ones are the sentences of honest tools in toucan (every second
server) and in the datasets `FITTED_ON`; of these, only the tools are read. A logistic regression on the vectors of the
bundled encoder separates them. The threshold is the rating that a share `MAX_ACCUSED_SHARE` of other honest tools
exceeds: the other servers of toucan, livemcpbench and mcpproxy_golden.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from pathlib import Path
from typing import Final

import numpy as np

from toolscout.encoders.static import load_static
from toolscout.search.claims import BUNDLED_CLAIMS, CLAIMS_FORMAT, ENCODED_AS, list_sentences, rate_tools
from toolscout.sources.folder import read_tools
from toolscout.types import Tool
from toolscout_lab.training.logistic import logistic

CLAIMS: Final = Path(__file__).with_name("claims.txt")
FITTED_ON: Final = (
    *("bfcl", "seal_tools_in", "toolbench", "hammerbench", "numpybank", "toollinkos", "metatool", "ultratool"),
    *("toollens", "requests_tldr", "requests_aws"),
)
CHOSEN_ON: Final = ("livemcpbench", "mcpproxy_golden")
SERVERS: Final = "tool_corpora/toucan"
MAX_ACCUSED_SHARE: Final = 0.002
RIDGE: Final = 1e-4


def main() -> int:
    """Fit, and write the weights."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=os.environ.get("TOOLSCOUT_DATA"), help="root of the datasets")
    parser.add_argument("--out", type=Path, default=BUNDLED_CLAIMS)
    options = parser.parse_args()
    if not options.data:
        parser.error("Name the data folder with --data or TOOLSCOUT_DATA.")
    root = Path(options.data)
    servers = list(read_tools(root / SERVERS, "d").tools)
    seen = [tool for tool in servers if _is_fitted(tool)]
    others = [tool for tool in servers if not _is_fitted(tool)]
    for name in FITTED_ON:
        seen += read_tools(root / name, "d").tools
    for name in CHOSEN_ON:
        others += read_tools(root / name, "d").tools
    claims = [line for line in CLAIMS.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    honest = sorted({sentence for tool in seen for sentence in list_sentences(tool)})
    encoder = load_static()
    rows = encoder.encode([*claims, *honest], ENCODED_AS)
    labels = np.arange(len(rows)) < len(claims)
    mass = np.where(labels, 0.5 / len(claims), 0.5 / len(honest))
    weights = logistic(rows, labels, RIDGE, mass)
    weights = np.round(weights, 4)
    threshold = np.sort(rate_tools(others, weights))[::-1][int(MAX_ACCUSED_SHARE * len(others))]
    about = {
        "command": "python benchmarks/fit_claims.py",
        "claims": len(claims),
        "honest sentences": len(honest),
        "tools for the threshold": len(others),
    }
    model = {
        "format": CLAIMS_FORMAT,
        "about": about,
        "encoder": encoder.fingerprint,
        "weights": weights.tolist(),
        "threshold": round(float(threshold), 4),
    }
    options.out.write_text(json.dumps(model) + "\n")
    sys.stdout.write(json.dumps(about | {"threshold": model["threshold"]}) + "\n")
    return 0


def _is_fitted(tool: Tool) -> bool:
    server = tool.id.split("/")[1]
    return hashlib.blake2b(server.encode()).digest()[0] % 2 == 0


if __name__ == "__main__":
    raise SystemExit(main())
