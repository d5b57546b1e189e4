from __future__ import annotations

import threading

import pytest

from toolscout.indexes.words import tokenize


def shared(one: str, other: str) -> set[str]:
    return set(tokenize(one)) & set(tokenize(other))


@pytest.mark.parametrize(
    "written",
    [
        "getUserById",
        "get_user_by_id",
        "get-user-by-id",
        "get.user.by.id",
        "GetUserByID",
        "GET_USER_BY_ID",
        "get user by id",
    ],
)
def test_every_spelling_of_an_identifier_meets_its_words(written: str) -> None:
    assert set(tokenize("get user id")) <= set(tokenize(written))


@pytest.mark.parametrize(
    ("written", "parts"),
    [
        ("HTTPServer", {"http", "server", "httpserver"}),
        ("parseJSONFile", {"pars", "json", "file"}),
        ("YouTube", {"youtub", "tube"}),
        ("sha256", {"sha256", "sha", "256"}),
        ("base64Encode", {"base", "64", "encod"}),
        ("ÜberPrüfung", {"uber", "prufung"}),
    ],
)
def test_joined_up_words_are_found_by_their_parts(written: str, parts: set[str]) -> None:
    assert parts <= set(tokenize(written))


@pytest.mark.parametrize(
    ("one", "other"), [("YouTube", "youtube"), ("URLs", "url"), ("IPv4", "ipv4"), ("MP3s", "mp3s")]
)
def test_a_joined_up_word_is_found_as_a_whole_too(one: str, other: str) -> None:
    assert tokenize(other)[0] in tokenize(one)


@pytest.mark.parametrize(
    ("query", "tool"),
    [
        ("北京明天的天气怎么样", "查询城市天气预报"),
        ("明日の天気", "天気予報を取得する"),
        ("พยากรณ์อากาศวันนี้", "ดูพยากรณ์อากาศ"),
        ("내일 날씨를 알려줘", "날씨 예보"),
        ("कल का मौसम", "मौसम पूर्वानुमान"),
        ("погода завтра", "прогноз погода"),
        ("طقس الغد", "طقس"),
        ("ｗｅａｔｈｅｒ", "weather"),
        ("météo à Orléans", "meteo Orleans"),
    ],
)
def test_queries_in_any_script_meet_tools_in_that_script(query: str, tool: str) -> None:
    assert shared(query, tool)


def test_a_single_character_of_a_script_without_spaces_is_a_term() -> None:
    assert tokenize("雨") == ["雨"]


def test_vowel_signs_stay_within_their_word() -> None:
    assert tokenize("मौसम हिन्दी।", stem=False) == ["मौसम", "हिन्दी"]


def test_japanese_voicing_and_hangul_survive_the_folding_of_accents() -> None:
    assert tokenize("が") == ["が"] and tokenize("한") == ["한"]


def test_accents_are_kept_on_request() -> None:
    assert tokenize("café", fold=False, stem=False) == ["café"] and tokenize("café", stem=False) == ["cafe"]


def test_endings_and_function_words_go_unless_asked_to_stay() -> None:
    assert tokenize("the forecasts") == ["forecast"]
    assert tokenize("the forecasts", stem=False, stopwords=False) == ["the", "forecasts"]


def test_plain_words_are_two_letters_and_more_as_written() -> None:
    words = tokenize("The getUser_id of a X-ray, 3 days", tokenizer="plain", stem=False)
    assert words == ["getuser_id", "ray", "days"]


def test_repeated_words_are_repeated_in_order() -> None:
    assert tokenize("rain sun rain") == ["rain", "sun", "rain"]


@pytest.mark.parametrize("text", ["", "…!?", "\x00\ud800", "__", "🙂"])
def test_text_without_words_has_no_terms(text: str) -> None:
    assert tokenize(text) == []


def test_a_megabyte_of_one_word_is_taken_in_linear_time() -> None:
    assert len(tokenize("aB" * 500_000)) < 5
    assert len(tokenize("天气" * 300_000)) == 599_999


def test_threads_share_the_cache_of_words_safely() -> None:
    texts = [f"runningWord{n} forecasts{n % 7} cities" for n in range(2_000)]
    expected = [tokenize(text, fold=False) for text in texts]
    wrong: list[str] = []

    def work() -> None:
        wrong.extend(text for text, terms in zip(texts, expected, strict=True) if tokenize(text) != terms)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
