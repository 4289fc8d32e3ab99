"""A draft model whose tokenizer splits text differently is refused, even if the vocabularies are equal."""

import json

import pytest
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import LlamaTokenizer, PreTrainedTokenizerFast, PythonBackend

from dare_job.decode.draft.tokenizer_match import first_difference, require_same_tokenizer
from dare_job.errors import ConfigError

WORDS = {word: index for index, word in enumerate(["<unk>", "<eos>", "a", "b", "c", "ab", "bc", "abc", "Ġ"])}
MERGES = [("a", "b"), ("b", "c"), ("ab", "c")]


def _bpe(merges=MERGES, normalizer=None, pre_tokenizer=None, added=(), **fields):
    inner = Tokenizer(models.BPE(WORDS, merges, unk_token="<unk>", **fields))
    if normalizer is not None:
        inner.normalizer = normalizer
    if pre_tokenizer is not None:
        inner.pre_tokenizer = pre_tokenizer
    inner.add_tokens(list(added))
    return _fast(inner)


def _fast(inner: Tokenizer) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<eos>", unk_token="<unk>")


def _unigram(**scores):
    return _fast(Tokenizer(models.Unigram([(word, scores.get(word, -float(n))) for word, n in WORDS.items()],
                                          unk_id=0)))


LOWER, NFC = normalizers.Lowercase(), normalizers.NFC()
WHOLE = AddedToken("abc", normalized=False)


@pytest.mark.parametrize(("ours", "theirs", "message"), [
    (_bpe(), _bpe([MERGES[1], MERGES[0], MERGES[2]]), "merge 1 is 'a b' in T, and 'b c' in D"),
    (_bpe(), _bpe(MERGES[:2]), "merge 3 is 'ab c' in T, and not set in D"),
    (_bpe(), _bpe(normalizer=LOWER), "normalizer 1 is not set in T, and 'Lowercase' in D"),
    (_bpe(normalizer=normalizers.Sequence([NFC, LOWER])), _bpe(normalizer=normalizers.Sequence([LOWER, NFC])),
     "normalizer 1 is 'NFC' in T, and 'Lowercase' in D"),
    (_bpe(pre_tokenizer=pre_tokenizers.ByteLevel(False)), _bpe(pre_tokenizer=pre_tokenizers.ByteLevel()),
     r"pre_tokenizer 1 \(ByteLevel\): add_prefix_space is not set in T, and True in D"),
    (_bpe(byte_fallback=True), _bpe(), "byte_fallback is True in T, and not set in D"),
    (_bpe(), _bpe(ignore_merges=True), "ignore_merges is not set in T, and True in D"),
    (_bpe(), _bpe(added=[WHOLE]), "added token 'abc' is not set in T, and 'matched as a whole' in D"),
    (_bpe(added=[WHOLE]), _bpe(added=[AddedToken("abc", normalized=False, lstrip=True)]),
     "added token 'abc' is 'matched as a whole' in T, and 'matched as a whole, lstrip' in D"),
    (_unigram(), _unigram(ab=-0.5), "the score of 'ab' is -5.0 in T, and -0.5 in D"),
    (_bpe(), _fast(Tokenizer(models.WordLevel(WORDS, unk_token="<unk>"))),
     "the model is 'BPE' in T, and 'WordLevel' in D"),
])
def test_the_first_difference_is_named(ours, theirs, message):
    assert ours.get_vocab() == theirs.get_vocab()
    with pytest.raises(ConfigError, match="D splits text into other tokens than T: " + message):
        require_same_tokenizer(ours, theirs, len(WORDS), ("T", "D"))
    with pytest.raises(ConfigError, match="copy the target's tokenizer files into its folder"):
        require_same_tokenizer(theirs, ours, len(WORDS))


def test_formats_of_older_versions_are_no_difference(tmp_path):
    """An old file format, and parts that change no token ids: offsets, truncation, post-processor."""
    new = _bpe(normalizer=LOWER, pre_tokenizer=pre_tokenizers.ByteLevel(False, trim_offsets=False))
    written = json.loads(new.backend_tokenizer.to_str())
    model = written["model"]
    model["merges"] = [" ".join(pair) for pair in model["merges"]]
    model["continuing_subword_prefix"] = model["end_of_word_suffix"] = ""
    for name in ("byte_fallback", "ignore_merges"):
        del model[name]
    written["normalizer"] = {"type": "Sequence", "normalizers": [written["normalizer"]]}
    written["pre_tokenizer"]["trim_offsets"] = True
    written["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}
    for token in written["added_tokens"]:
        token["normalized"] = not token["normalized"]
    old = Tokenizer.from_str(json.dumps(written))
    old.post_processor = processors.TemplateProcessing("<eos> $A", special_tokens=[("<eos>", 1)])
    assert written["added_tokens"] and old.to_str() != new.backend_tokenizer.to_str()
    require_same_tokenizer(new, _fast(old), len(WORDS))
    new.save_pretrained(tmp_path)
    require_same_tokenizer(new, PreTrainedTokenizerFast.from_pretrained(tmp_path), len(WORDS))


def test_tokenizer_classes_of_different_versions_are_equal():
    """LlamaTokenizer builds the steps that a file of the generic class describes differently."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a", "b", "ab", "▁ab"]
    vocabulary = {word: index for index, word in enumerate(words)}
    merges = [("a", "b"), ("▁", "ab")]
    inner = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    old = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<s>", eos_token="</s>",
                                  unk_token="<unk>")
    for legacy in (True, False):
        new = LlamaTokenizer(vocabulary, merges, legacy=legacy)
        assert new.tokenize("ab abb é") == old.tokenize("ab abb é")
        require_same_tokenizer(new, old, len(vocabulary))
    inner.normalizer = normalizers.Sequence([normalizers.Prepend("_"), normalizers.Replace(" ", "_")])
    assert first_difference(new, _fast(inner))[0] == "pre_tokenizer 1 (Metaspace): replacement"


class _ByLetter(PythonBackend):
    """A tokenizer in Python, without a backend to compare."""

    def __init__(self, lower: bool = False, **options):
        self.lower = lower
        super().__init__(eos_token="<eos>", unk_token="<unk>", **options)

    vocab_size = len(WORDS)

    def get_vocab(self):
        return WORDS

    def _tokenize(self, text, **_):
        return list(text.lower() if self.lower else text)

    def _convert_token_to_id(self, token):
        return WORDS.get(token, 0)

    def _convert_id_to_token(self, index):
        return list(WORDS)[index]


class _Halves:
    def pre_tokenize(self, text):
        text.split(lambda _, part: [part[: len(str(part)) // 2], part[len(str(part)) // 2 :]])


def test_without_a_backend_both_encode_sample_texts():
    upper, lower = _ByLetter(), _ByLetter(lower=True)
    require_same_tokenizer(upper, _ByLetter(), len(WORDS))
    with pytest.raises(ConfigError, match=r"the encoding of 'Ġ' is \[8\] in T, and \[0\] in D"):
        require_same_tokenizer(upper, lower, len(WORDS), ("T", "D"))
    assert first_difference(upper, _bpe()) and first_difference(_bpe(), upper)
    halves = _bpe()
    halves.backend_tokenizer.pre_tokenizer = pre_tokenizers.PreTokenizer.custom(_Halves())
    with pytest.raises(Exception, match="Custom PreTokenizer cannot be serialized"):
        halves.backend_tokenizer.to_str()
    assert first_difference(halves, halves) is None
    assert first_difference(_bpe(), halves)[0].startswith("the encoding of ")
