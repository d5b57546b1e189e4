"""The multilingual table: loaded when needed, deterministic, near the English vectors, refused when damaged."""

from __future__ import annotations

import io
import json
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from toolscout.encoders import ENGLISH, encode_tools
from toolscout.encoders.languages import is_english
from toolscout.encoders.static import (
    LANGUAGES,
    MULTILINGUAL_SUBFOLDER,
    STATIC_ENCODER_FOLDER,
    MultilingualTable,
    StaticEncoder,
    UnigramPieces,
)
from toolscout.errors import StoreError
from toolscout.types import Tool

FOLDER = STATIC_ENCODER_FOLDER / MULTILINGUAL_SUBFOLDER
MAX_WHEEL_BYTES = 12_000_000
TOOLS = {
    "get_forecast": "Weather forecast of a city for the next days.",
    "send_email": "Sends an email to a recipient.",
    "translate_text": "Translates a text into another language.",
    "play_song": "Plays a song or an album.",
    "convert_currency": "Converts an amount of money into another currency.",
    "delete_file": "Deletes a file from the disk.",
    "search_flights": "Finds flights between two airports.",
    "create_event": "Creates an event in the calendar.",
    "find_recipe": "Finds recipes for dishes by their ingredients.",
    "list_customers": "Lists the customers in the database.",
    "reboot_server": "Restarts a server.",
    "resize_image": "Changes the width and height of an image.",
}
# Requests that were written for this test. The table was not fitted on any of them.
REQUESTS = {
    "ar": ("هل سيتساقط الثلج في برلين نهاية الأسبوع؟ توقعات الطقس", "get_forecast"),
    "bn": ("মারিয়াকে ইমেইল পাঠিয়ে বলো আমি দেরি করব", "send_email"),
    "de": ("Schneit es am Wochenende in Berlin?", "get_forecast"),
    "es": ("Mándale un correo a María diciendo que llego tarde", "send_email"),
    "fa": ("این متن را به زبان فرانسوی ترجمه کن", "translate_text"),
    "fr": ("Mets la dernière chanson de Stromae", "play_song"),
    "hi": ("मारिया को ईमेल भेजकर बताओ कि मुझे देर होगी", "send_email"),
    "id": ("terjemahkan kalimat tadi ke bahasa Prancis", "translate_text"),
    "it": ("Cancella il file vecchio dal disco", "delete_file"),
    "ja": ("週末にベルリンで雪は降りますか、天気予報を教えて", "get_forecast"),
    "ko": ("마리아에게 늦는다고 이메일 보내 줘", "send_email"),
    "nl": ("Gooi het oude bestand weg van de schijf", "delete_file"),
    "pl": ("Czy w weekend spadnie śnieg w Berlinie? Prognoza pogody", "get_forecast"),
    "pt": ("Toque a música nova da Anitta", "play_song"),
    "ru": ("Включи музыку, новый альбом Земфиры", "play_song"),
    "tr": ("Hafta sonu Berlin'de hava durumu nasıl olacak?", "get_forecast"),
    "uk": ("Видали старий файл з диска", "delete_file"),
    "ur": ("اس متن کا فرانسیسی زبان میں ترجمہ کرو", "translate_text"),
    "vi": ("dự báo thời tiết Berlin cuối tuần này", "get_forecast"),
    "zh": ("给玛丽亚发封邮件说我会迟到", "send_email"),
}


@pytest.fixture(scope="module")
def encoder() -> StaticEncoder:
    return StaticEncoder()


def test_english_texts_do_not_load_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[Path] = []
    load = MultilingualTable.__init__

    def count(self: MultilingualTable, folder: Path, made_for: str) -> None:
        loads.append(folder)
        load(self, folder, made_for)

    monkeypatch.setattr(MultilingualTable, "__init__", count)
    encoder = StaticEncoder()
    encoder.encode(["what is the weather in Oslo?", "brew coffee", "", "2+2"])
    encoder.encode([*TOOLS, *TOOLS.values(), "Zotero: naïve café of the user's ID"], "tool")
    assert loads == []
    encoder.encode(["Wie wird das Wetter morgen?"])
    encoder.encode(["明天天气怎么样"])
    assert loads == [FOLDER], "loaded once, with the first text that is not English"


def test_every_declared_language_has_a_request_here_and_is_declared(encoder: StaticEncoder) -> None:
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    assert set(REQUESTS) == set(LANGUAGES) == set(manifest["languages"])
    assert encoder.languages == ENGLISH | LANGUAGES


@pytest.mark.parametrize("language", sorted(REQUESTS))
def test_a_request_finds_the_english_tool(encoder: StaticEncoder, language: str) -> None:
    tools = [Tool(id=f"x/{name}", name=name, description=description) for name, description in TOOLS.items()]
    rows = encode_tools(lambda texts: encoder.encode(texts, "tool"), tools)
    text, wanted = REQUESTS[language]
    assert not is_english(text, encoder.pieces.is_word)
    cosines = rows @ encoder.encode([text])[0]
    assert tools[int(np.argmax(cosines))].name == wanted


def test_a_text_has_the_same_vector_alone_in_a_batch_and_the_next_time(encoder: StaticEncoder) -> None:
    texts = [text for text, _ in REQUESTS.values()]
    mixed = [text for pair in zip(texts, TOOLS.values(), strict=False) for text in pair]
    together = encoder.encode(mixed)
    assert all(np.array_equal(StaticEncoder().encode([mixed[i]])[0], together[i]) for i in (0, 1, 6))
    assert np.allclose(np.linalg.norm(together, axis=1), 1)


def test_unknown_scripts_and_letters_in_a_row_give_zeros(encoder: StaticEncoder) -> None:
    assert not encoder.encode(["ⵜⴰⵎⴰⵣⵉⵖⵜ ⵜⴰⵎⴰⵣⵉⵖⵜ", "ꦗꦮ", "qzxv wvut plonkh", "xyzzy plugh"]).any()
    assert encoder.encode(["Zahnarzttermin", "Wetter", "天气"]).any(axis=1).all()
    assert encoder.multilingual.encode([]).shape == (0, encoder.dim)


def test_tools_that_are_plainly_in_another_language_are_found_too(encoder: StaticEncoder) -> None:
    rows = encoder.encode(["Löscht eine Datei von der Festplatte und aus dem Papierkorb", "删除磁盘上的文件"], "tool")
    delete, play = encoder.encode(["delete a file", "play a song"])
    assert (rows @ delete > rows @ play).all()


def test_words_are_split_into_the_most_probable_pieces() -> None:
    pieces = ["▁wetter", "▁wet", "ter", "bericht", "be", "richt", "天气", "天", "气"]
    split = UnigramPieces(pieces, np.array([-5, -4, -3, -6, -2, -3, -4, -3, -3], dtype=np.float32))
    assert split("WETTER, Wetterbericht! 天气") == [0, 0, 4, 5, 6]
    assert split("x" * 10_000) == [] == split("12 + 3?")
    assert split("wetter " * 10, limit=3) == [0, 0, 0]


def test_the_card_names_sources_and_licences_and_the_files_fit_the_wheel() -> None:
    manifest = json.loads((FOLDER / "manifest.json").read_text())
    assert set(manifest["packages"].values()) <= {"Apache-2.0", "BSD-3-Clause", "MIT", "Unicode-3.0"}
    card = (FOLDER / "README.md").read_text()
    assert all(f"* {name} " in card for name in manifest["packages"])
    wheel = io.BytesIO()
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in FOLDER.iterdir():
            archive.write(file, file.name)
    assert wheel.tell() < MAX_WHEEL_BYTES


def test_a_damaged_table_or_one_of_another_encoder_is_refused(tmp_path: Path, encoder: StaticEncoder) -> None:
    with pytest.raises(StoreError, match="made for the encoder .*, not for another"):
        MultilingualTable(FOLDER, "another")
    cut = Path(shutil.copytree(FOLDER, tmp_path / "cut"))
    (cut / "vectors.safetensors").write_bytes((FOLDER / "vectors.safetensors").read_bytes()[:1000])
    short = Path(shutil.copytree(FOLDER, tmp_path / "short"))
    (short / "pieces.txt").write_text("▁one\ntwo")
    wide = Path(shutil.copytree(FOLDER, tmp_path / "wide"))
    tensors = load_file(FOLDER / "vectors.safetensors")
    save_file({**tensors, "codes": tensors["codes"].astype(np.int16)}, wide / "vectors.safetensors")
    for folder in (tmp_path / "nothing", cut, short, wide):
        with pytest.raises(StoreError, match=r"multilingual table in .* is damaged"):
            MultilingualTable(folder, encoder.fingerprint)
