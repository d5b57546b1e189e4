"""A sentence encoder with two thousand random weights, made in a folder: nothing is downloaded."""

from __future__ import annotations

import json
import string
from pathlib import Path

WORDS = (
    *("rain", "city", "mail", "send", "weather", "file", "copy", "forecast", "message", "folder", "flight", "book"),
    *("hotel", "room", "translate", "text"),
)


def tiny_bert(folder: Path, seed: int = 0, width: int = 16) -> Path:
    """Write the folder of a BERT with random weights, mean pooling and a vocabulary of letters and a few words."""
    import torch
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizerFast

    letters = [*string.ascii_lowercase, *string.digits, *",.:>()_/?"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters, *(f"##{each}" for each in letters), *WORDS]
    (folder / "1_Pooling").mkdir(parents=True)
    made = BertWordPieceTokenizer(vocab={piece: number for number, piece in enumerate(pieces)})
    made.save(str(folder / "tokenizer.json"))
    BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json")).save_pretrained(folder)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        shape = BertConfig(
            vocab_size=len(pieces),
            hidden_size=width,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=2 * width,
            max_position_embeddings=64,
        )
        BertModel(shape).save_pretrained(folder)
    for name, content in {
        "modules.json": [
            {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
            {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
        ],
        "sentence_bert_config.json": {"max_seq_length": 48, "do_lower_case": False},
        "1_Pooling/config.json": {"word_embedding_dimension": width, "pooling_mode_mean_tokens": True},
    }.items():
        (folder / name).write_text(json.dumps(content))
    return folder
