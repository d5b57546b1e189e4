"""Telling English from other languages: by script, function words, and the words that the bundled encoder knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolscout.encoders.languages import ENGLISH_WORDS, OTHER_WORDS, is_english, is_foreign
from toolscout.encoders.static import StaticEncoder, WordPieces

DEV = Path(__file__).parents[2] / "benchmarks" / "suites" / "languages_dev" / "queries.jsonl"
MIN_ENGLISH_SHARE = 0.95


@pytest.fixture(scope="module")
def pieces() -> WordPieces:
    return StaticEncoder().pieces


def read_dev() -> list[tuple[str, str]]:
    lines = map(json.loads, DEV.read_text(encoding="utf-8").splitlines())
    return [(line["text"], line["metadata"]["kind"]) for line in lines]


def test_no_request_in_another_language_counts_as_english(pieces: WordPieces) -> None:
    assert [text for text, kind in read_dev() if kind != "en" and is_english(text, pieces.is_word)] == []


def test_nearly_every_english_request_counts_as_english(pieces: WordPieces) -> None:
    english = [text for text, kind in read_dev() if kind == "en"]
    assert sum(is_english(text, pieces.is_word) for text in english) >= MIN_ENGLISH_SHARE * len(english)


@pytest.mark.parametrize(
    "text",
    [
        "brew coffee",
        "Who was Leonardo da Vinci?",
        "what does 你好 mean",
        "getUserById",
        "weather in La Paz",
        "2+2",
        "Send the report to mary@beispiel.de and look at https://www.einkaufen.de/das/ist/es",
        "TELL ME A JOKE",
    ],
)
def test_names_addresses_and_single_foreign_words_leave_a_text_english(text: str, pieces: WordPieces) -> None:
    assert is_english(text, pieces.is_word)


@pytest.mark.parametrize(
    "text",
    [
        "погода в Москве",
        "メールを送って email",
        "météo à Lyon",
        "putar musik dangdut",
        "zet de wekker op zeven uur",
        "Erzähl mir einen Witz über Philosophen, bitte",
        "qual é a capital do Brasil?",
    ],
)
def test_script_function_words_and_unknown_words_tell_other_languages(text: str, pieces: WordPieces) -> None:
    assert not is_english(text, pieces.is_word)


def test_a_word_is_whole_only_if_one_piece_begins_and_ends_it(pieces: WordPieces) -> None:
    assert pieces.is_word("weather") and not pieces.is_word("##s") and not pieces.is_word("a")
    assert not pieces.is_word("termine") and not pieces.is_word("")


def test_no_word_stands_on_both_sides() -> None:
    assert not ENGLISH_WORDS & OTHER_WORDS


@pytest.mark.parametrize(
    "text", ["delete memo", "Github repository", "auntie neighbours please", "list calendar events", "2+2", ""]
)
def test_keywords_are_no_other_language_though_nothing_proves_english(text: str, pieces: WordPieces) -> None:
    assert not is_foreign(text, pieces.is_word)


@pytest.mark.parametrize("text", ["Wetter Berlin morgen", "buscar vuelos baratos", "天气", "quel temps fait-il"])
def test_script_function_words_or_unknown_words_make_a_query_foreign(text: str, pieces: WordPieces) -> None:
    assert is_foreign(text, pieces.is_word)


def test_requests_of_the_development_suite_are_read_in_their_language(pieces: WordPieces) -> None:
    for text, language in read_dev():
        assert is_foreign(text, pieces.is_word) is (language != "en"), text
