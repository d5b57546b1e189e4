"""Everything that the OpenAPI document allows, and much that it does not: no fault, no leak, answers as described."""

from __future__ import annotations

import contextlib
import json
import os
from typing import Any

import pytest

from server.conftest import KEYS
from server.test_access import BOBS
from toolscout.testing import TOOLS

FULL = os.environ.get("TOOLSCOUT_FULL") == "1"
EXAMPLES = 300 if FULL else 12
LEAKS = [
    mark
    for name, (text, *_) in TOOLS.items()
    if name not in BOBS
    for mark in (f'"description":"{text}"', f'"id":"{name}"', f'["{name}"')
]


def fuzz(operation: Any, mode: Any, caller: str) -> set[int]:
    """Ask for one operation in many ways. Returns the statuses that came."""
    from hypothesis import HealthCheck, Phase, given, settings
    from hypothesis.errors import Unsatisfiable

    headers = {"Authorization": f"Bearer {KEYS[caller]}", "Host": "localhost"}
    seen: set[int] = set()

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def ask(case: Any) -> None:
        answer = case.call(headers=headers)
        seen.add(answer.status_code)
        if operation.path != "/ready":
            assert answer.status_code < 500, answer.text
            case.validate_response(answer, headers=headers, checks=checks(answer.status_code))
        if caller == "bob":
            assert not any(mark in answer.text for mark in LEAKS), answer.text

    with contextlib.suppress(Unsatisfiable):  # nothing can be wrong about an operation that takes nothing
        ask()
    return seen


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("caller", ["ann", "bob"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_fuzzing_finds_no_fault_and_no_leak(guarded: Any, caller: str) -> None:
    import schemathesis
    from schemathesis import GenerationMode

    @schemathesis.serializer("application/x-ndjson")
    def lines(_: Any, value: Any) -> bytes:
        return value if isinstance(value, bytes) else json.dumps(value).encode(errors="replace")

    schema = schemathesis.openapi.from_asgi("/openapi.json", guarded.app, headers={"host": "localhost"})
    seen: dict[str, set[int]] = {}
    for result in schema.get_all_operations():
        operation = result.ok()
        for mode in GenerationMode.POSITIVE, GenerationMode.NEGATIVE:
            seen.setdefault(operation.path, set()).update(fuzz(operation, mode, caller))
    assert len(seen) >= 22 and seen["/v1/search"] >= {200, 422}


def checks(status: int) -> list[Any]:
    """What holds for each answer."""
    from schemathesis.checks import not_a_server_error
    from schemathesis.specs.openapi import checks as described

    found = [
        not_a_server_error,
        described.status_code_conformance,
        described.content_type_conformance,
        described.response_schema_conformance,
    ]
    if status != 413:  # a refusal too, of what is too long to be read at all, but the check does not know it
        found.append(described.negative_data_rejection)
    return found
