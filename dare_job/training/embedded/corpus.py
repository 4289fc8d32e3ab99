"""Endless training data: prompt and text of users and items of fresh synthetic data sets, in batches.

Trains the embedded model's tokenizer: a byte-level BPE, so that any text makes the round trip.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator

import numpy as np
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from dare_job.data.sample_world.foreign import foreign_examples
from dare_job.data.sample_world.simulate import DAYS, Example, item_examples, simulate, user_examples
from dare_job.prompts.sets import PromptSet
from dare_job.training.batches import IGNORED, Batch, padded

FIRST_TRAINING_SEED = 1_000_000  # worlds for use and evaluation have smaller seeds, so none was trained on
BOS, EOS, PAD = "<|bos|>", "<|eos|>", "<|pad|>"
_WIDTH_STEP = 32
_DRILL_WIDTH = 256
_USERS, _ITEMS = 400, 300
_FOREIGN = 100


def worlds(prompts: PromptSet, seed: int) -> Iterator[list[Example]]:
    """Examples of one fresh world after another, without end; profiles as of the last or an earlier day.

    With each come examples of titles from outside, so that a real catalogue's are copied too.
    """
    rng = np.random.default_rng((FIRST_TRAINING_SEED, seed))
    while True:
        world = simulate(_USERS, _ITEMS, FIRST_TRAINING_SEED + int(rng.integers(2**40)))
        end_day = int(rng.integers(2, DAYS + 1))  # early days: short histories
        yield [*user_examples(world, prompts, end_day), *item_examples(world, prompts, DAYS),
               *foreign_examples(_FOREIGN, prompts, rng)]


def batches(parts: Iterator[list[Example]], tokenizer: PreTrainedTokenizerFast, batch_tokens: int,
            seed: int) -> Iterator[Batch]:
    """Batches of at most ``batch_tokens`` tokens, padding included, the same for the same parts and seed.

    Examples are shuffled within a part. Widths are multiples of 32 and each width has one batch size: the
    CPU's matrix kernels are compiled again for every new shape, which costs up to a second.
    """
    rng = np.random.default_rng(seed)
    waiting: dict[int, list[tuple[list[int], list[int]]]] = defaultdict(list)
    for examples in parts:
        prompt_ids = tokenizer([x.prompt for x in examples])["input_ids"]
        text_ids = tokenizer([x.text for x in examples], add_special_tokens=False)["input_ids"]
        for i in rng.permutation(len(examples)):
            prompt, text = prompt_ids[i], text_ids[i] + [tokenizer.eos_token_id]
            width = -(-(len(prompt) + len(text)) // _WIDTH_STEP) * _WIDTH_STEP
            waiting[width].append((prompt, text))
            if len(waiting[width]) == max(1, batch_tokens // width):
                yield padded(waiting.pop(width), width, tokenizer.pad_token_id)


def copy_drills(first_id: int, vocabulary: int, batch_tokens: int, seed: int) -> Iterator[Batch]:
    """Batches of random tokens that repeat: each row is one random segment over and over, without end.

    Nothing but copying predicts them, so a small model learns to copy in minutes, and any token rather than
    the words of one grammar. Ids are drawn from ``first_id`` to ``vocabulary - 1``. Only tokens that repeat
    an earlier segment are targets.
    """
    rng = np.random.default_rng((seed, 1))
    rows = max(1, batch_tokens // _DRILL_WIDTH)
    while True:
        tokens = np.empty((rows, _DRILL_WIDTH + 1), np.int64)
        targets = np.full((rows, _DRILL_WIDTH), IGNORED, np.int64)
        for row, length in enumerate(rng.integers(4, _DRILL_WIDTH // 2, size=rows)):
            segment = rng.integers(first_id, vocabulary, size=length)
            tokens[row] = np.resize(segment, _DRILL_WIDTH + 1)
            targets[row, length:] = tokens[row, length + 1 :]
        yield Batch(torch.from_numpy(tokens[:, :-1].copy()), torch.from_numpy(targets))


def train_tokenizer(texts: Iterable[str], vocabulary: int, context_tokens: int) -> PreTrainedTokenizerFast:
    """A tokenizer with at most ``vocabulary`` entries that puts BOS before every text.

    All 256 bytes are in the vocabulary, whatever ``texts`` hold. ``add_special_tokens=False`` leaves BOS out.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[PAD, BOS, EOS], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, padding_side="left",
        model_max_length=context_tokens, clean_up_tokenization_spaces=False)


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, int | None]:
    """The special tokens that a model's configurations name."""
    return {name: getattr(tokenizer, name) for name in ("bos_token_id", "eos_token_id", "pad_token_id")}
