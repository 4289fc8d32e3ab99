"""A tiny BERT with random weights, made in the test: a folder as the hub has it."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

WORDS = ["likes", "dislikes", "old", "new", "quiet", "loud", "drama", "comedy", "western", "space", "love",
         "crime", "music", "war", "films", "with", "a", "the", "and", "of", "prefers", "watches", "never"]
EMBEDDINGS = "embeddings.word_embeddings.weight"


def tiny_bert(folder: Path, seed: int = 0, positions: int = 32, dim: int = 16) -> Path:
    """Write a BERT of two layers, ``positions`` tokens at most, and its tokenizer."""
    torch.manual_seed(seed)
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS, *letters, *(f"##{letter}" for letter in letters)]
    vocabulary = {word: number for number, word in enumerate(dict.fromkeys(known))}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = [(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=special)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=positions, unk_token="[UNK]", pad_token="[PAD]",
        cls_token="[CLS]", sep_token="[SEP]").save_pretrained(folder)
    config = BertConfig(vocab_size=len(vocabulary), hidden_size=dim, num_hidden_layers=2,
                        num_attention_heads=2, intermediate_size=2 * dim, max_position_embeddings=positions)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    assert json.loads((folder / "config.json").read_text())["model_type"] == "bert"
    return folder


def with_dense(folder: Path, bert: Path, reads: int = 16) -> Path:
    """Write a BERT as sentence-transformers does, with a last module that has weights of its own.

    reads  numbers that the last module expects: 16 are what ``tiny_bert`` gives
    """
    from sentence_transformers import SentenceTransformer, models

    modules = [models.Transformer(str(bert)), models.Pooling(16), models.Dense(16, 8)]
    SentenceTransformer(modules=modules).save(str(folder), create_model_card=False)
    if reads != 16:
        torch.manual_seed(0)
        models.Dense(reads, 8).save(str(folder / "2_Dense"))
    return folder


def in_pickle(file: Path) -> Path:
    """Replace ``model.safetensors`` by the same tensors as ``pytorch_model.bin``."""
    weights = load_file(file)
    file.unlink()
    torch.save(weights, file.with_name("pytorch_model.bin"))
    return file.with_name("pytorch_model.bin")


def without_numbers(bert: Path, word: str) -> None:
    """Make the embedding of a word NaN."""
    weights = load_file(bert / "model.safetensors")
    vocabulary = json.loads((bert / "tokenizer.json").read_text())["model"]["vocab"]
    weights[EMBEDDINGS][vocabulary[word]] = float("nan")
    save_file(weights, bert / "model.safetensors", {"format": "pt"})


def mean_pooled(folder: Path, text: str) -> torch.Tensor:
    """The reference: one text alone, so without padding; the mean of its last hidden states."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    with torch.no_grad():
        found = model(**tokenizer(text, return_tensors="pt")).last_hidden_state
    return found[0].mean(0)
