"""Foreign words become the English words that lie nearest to them."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from toolscout.encoders.gloss import GLOSSES_FILE, NO_GLOSS, Glossary, describe_glosses, find_glosses
from toolscout.encoders.static import STATIC_ENCODER_FOLDER, StaticEncoder, load_static
from toolscout.errors import StoreError


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


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("获取 BBC 新闻", ["get", "news"]),
        ("Obtiene la descripción de un producto", ["description", "product"]),
        ("Returns the news of today", []),
        ("Finds El Niño events", []),
        ("", []),
    ],
)
def test_only_a_text_that_is_plainly_foreign_has_glosses(text: str, words: list[str]) -> None:
    glosses = Glossary(load_static()).list_words(text)
    assert set(words) <= set(glosses) and bool(words) == bool(glosses)


def test_the_shipped_glosses_are_the_nearest_words() -> None:
    encoder, shipped = load_static(), load_file(STATIC_ENCODER_FOLDER / "multilingual" / GLOSSES_FILE)["glosses"]
    pieces = np.random.default_rng(0).choice(len(shipped), 400, replace=False).tolist()
    assert find_glosses(encoder, pieces).tolist() == shipped[pieces].tolist()
    assert 0.5 < (shipped != NO_GLOSS).mean() < 0.8


@pytest.mark.parametrize("fault", ["missing", "cut", "other encoder", "too few"])
def test_glosses_of_another_table_are_refused(tmp_path: Path, fault: str) -> None:
    encoder = StaticEncoder(Path(shutil.copytree(STATIC_ENCODER_FOLDER, tmp_path / "static")))
    file, facts = encoder.multilingual_folder / GLOSSES_FILE, describe_glosses(encoder)
    glosses = load_file(file)["glosses"]
    if fault == "missing":
        file.unlink()
    elif fault == "cut":
        file.write_bytes(file.read_bytes()[:1000])
    elif fault == "other encoder":
        save_file({"glosses": glosses}, file, metadata=facts | {"encoder": "another"})
    else:
        save_file({"glosses": glosses[:-1]}, file, metadata=facts)
    with pytest.raises(StoreError, match=r"glosses\.safetensors is damaged, or was made for another encoder"):
        Glossary(encoder).translate("新闻")
