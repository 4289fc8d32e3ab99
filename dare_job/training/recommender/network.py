"""The network of a recommender: a small new Llama, or a given causal model with tokens for codes.

Low-rank updates of a given model (LoRA, Hu et al. 2021) by peft; the codes' embeddings are trained.
"""

from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch.nn.functional import dropout
from transformers import (
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from dare_job.decode.model import loading
from dare_job.errors import ConfigError, install_hint
from dare_job.models.files import resolve
from dare_job.recommend.item_ids import ItemIds
from dare_job.recommend.vocabulary import RECORD, Recommender, extend
from dare_job.training.recommender.settings import Settings

_SPECIAL = ("<pad>", "<s>", "</s>", "<unk>")
_DROPPED = ("mlp", "self_attn")  # modules of a layer whose output is dropped from


def add_lora(model, rank: int, recommender: Recommender):
    """Add low-rank updates to all linear layers; only they and the codes' embeddings are trained.

    Raises
    ------
    ConfigError
        peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError(f"--lora {rank} needs peft: {install_hint('recommend')}") from None
    codes = [int(first) + code for first, size in
             zip(recommender.first_code_token, recommender.ids.sizes, strict=True) for code in range(size)]
    return get_peft_model(model, LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear",
        trainable_token_indices=codes, task_type="CAUSAL_LM"))


def new_model(ids: ItemIds, settings: Settings, folder: Path) -> tuple[torch.nn.Module, object, Recommender]:
    """Model, tokenizer and record of a new Llama whose vocabulary is the codes."""
    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(_SPECIAL)}, "<unk>"))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, pad_token="<pad>", bos_token="<s>",
                                        eos_token="</s>", unk_token="<unk>")
    first = extend(tokenizer, ids)
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    torch.manual_seed(settings.seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=settings.width, intermediate_size=5 * settings.width // 2,
        num_hidden_layers=settings.layers, num_attention_heads=settings.heads,
        num_key_value_heads=settings.heads, tie_word_embeddings=True,
        max_position_embeddings=(settings.history + 2) * ids.length + 2, **special))
    model.generation_config = GenerationConfig(do_sample=False, **special)
    return model, tokenizer, Recommender(folder, ids, first, settings.history, begin=(1,))


def existing_model(name: str, ids: ItemIds,
                   settings: Settings) -> tuple[torch.nn.Module, object, Recommender]:
    """Model, tokenizer and record of a model from a folder or the hub.

    A recommender whose ids have these sizes keeps its code tokens.

    Raises
    ------
    ConfigError
        The model has too few positions for the history.
    ModelError
        The model is missing or damaged.
    """
    folder = resolve(name, setting="--base")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    torch.manual_seed(settings.seed)
    model = loading.load(folder, "float32", trust_remote_code=False)
    recommender = _coded(model, tokenizer, folder, ids, settings)
    _require_positions(model, recommender)
    return model, tokenizer, recommender


def _coded(model: torch.nn.Module, tokenizer, folder: Path, ids: ItemIds, settings: Settings) -> Recommender:
    """The model's record; model and tokenizer get tokens for codes, in place, if they lack them."""
    if (folder / RECORD).is_file():
        known = Recommender.open(folder)
        if known.ids.sizes == ids.sizes:
            return replace(known, ids=ids, max_history_items=settings.history)
    first = extend(tokenizer, ids)
    model.resize_token_embeddings(max(len(tokenizer), model.get_input_embeddings().num_embeddings))
    start = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    return Recommender(folder, ids, first, settings.history, () if start is None else (start,))


def _require_positions(model: torch.nn.Module, recommender: Recommender) -> None:
    """Check that a prompt of the longest history and one more item fit the model's positions."""
    positions = getattr(model.config.get_text_config(decoder=True), "max_position_embeddings", None)
    length, around = recommender.ids.length, len(recommender.begin) + len(recommender.separator)
    items = recommender.max_history_items
    tokens = around + (items + 1) * length
    if positions is not None and tokens > positions:
        max_items = (positions - around) // length - 1
        raise ConfigError(f"--history {items}: with the recommended item these are {tokens} tokens, and the "
                          f"model has {positions} positions: "
                          + (f"set it to at most {max_items}" if max_items > 0 else "use another model"))


@contextmanager
def extra_dropout(model: torch.nn.Module, share: float):
    """Apply dropout to the embeddings and to the outputs of attention and feed-forward while training."""
    def hook(module, _, output):
        first, *rest = output if isinstance(output, tuple) else (output,)
        first = dropout(first, share, module.training)
        return (first, *rest) if isinstance(output, tuple) else first

    places = [model.get_input_embeddings(),
              *(module for name, module in model.named_modules() if name.rpartition(".")[2] in _DROPPED)]
    hooks = [place.register_forward_hook(hook) for place in places] if share else []
    try:
        yield
    finally:
        for handle in hooks:
            handle.remove()
