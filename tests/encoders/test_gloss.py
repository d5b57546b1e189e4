"""Foreign words become the English words that lie nearest to them."""

from __future__ import annotations

import pytest

from toolscout.encoders.gloss import Glossary
from toolscout.encoders.static import load_static


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("获取 BBC 新闻", ["get", "BBC", "news"]),
        ("query_weather: 天气", ["query_weather:", "weather"]),
        ("delete label 新闻", ["delete", "label", "news"]),
        ("поезд", ["train"]),
        ("查询12306余票信息", ["query", "12306", "ticket", "info"]),
        ("", []),
    ],
)
def test_foreign_words_become_english_ones_and_others_stay(text: str, words: list[str]) -> None:
    assert Glossary(load_static()).translate(text).split() == words
