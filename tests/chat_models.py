"""A byte-level tokenizer trained here, and chat templates of the structure of known model families."""

from functools import lru_cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin|>", "<|header|>", "<|/header|>", "<|eot|>",
           "<bos>", "<turn>", "</turn>")
NOT_SPECIAL = ("<think>", "</think>", "  ")  # added, but not special; the last one is ordinary text
CORPUS = ("You are a helpful assistant.", "Watched, newest first: Heat (1995), rated 5; Alien (1979).",
          "system user assistant thinking", "Today is 02 January 2026.", "\n\nWhich films does he like?")

CHATML = """\
{%- if messages[0].role == 'system' %}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% else %}<|im_start|>system
You are a made-up assistant.<|im_end|>
{% endif %}
{%- for message in messages if message.role != 'system' %}<|im_start|>{{ message.role }}
{{ message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""

REASONING = """\
{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content.split('</think>')[-1] if message.role == 'assistant' else message.content }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% if enable_thinking is defined and enable_thinking is false %}<think>

</think>

{% endif %}{% endif %}"""

ALWAYS_THINKS = CHATML.replace("assistant\n{% endif %}", "assistant\n<think>\n{% endif %}")

DATED = """\
{{- bos_token }}
{%- set today = strftime_now('%d %B %Y') if strftime_now is defined else '?' %}
{%- set system = messages[0].content | trim if messages[0].role == 'system' else '' %}
{%- set messages = messages[1:] if messages[0].role == 'system' else messages %}<|header|>system<|/header|>

Today is {{ today }}.

{{ system }}<|eot|>
{%- for message in messages %}<|header|>{{ message.role }}<|/header|>

{{ message.content | trim }}<|eot|>
{%- endfor %}
{%- if add_generation_prompt %}<|header|>assistant<|/header|>

{% endif %}"""

NO_SYSTEM = """\
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{ raise_exception('no system message') }}{% endif %}
{%- for message in messages %}<turn>{{ 'model' if message.role == 'assistant' else message.role }}
{{ message.content | trim }}</turn>
{% endfor %}
{%- if add_generation_prompt %}<turn>model
{% endif %}"""

WITHOUT_ENDS = """\
{%- for message in messages %}### {{ message.role }}:
{{ message.content }}

{% endfor %}
{%- if add_generation_prompt %}### assistant:
{% endif %}"""

TEMPLATES = {"chatml": CHATML, "reasoning": REASONING, "always thinks": ALWAYS_THINKS, "dated": DATED,
             "no system": NO_SYSTEM, "without ends": WITHOUT_ENDS}


@lru_cache(maxsize=1)
def _trained() -> str:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIAL])
    tokenizer.add_tokens([AddedToken(name, special=False, normalized=False) for name in NOT_SPECIAL])
    return tokenizer.to_str()


def tokenizer_with(template: str | None, bos: bool = False) -> PreTrainedTokenizerFast:
    """The tokenizer with a chat template. bos: it adds ``<bos>`` to a text."""
    inner = Tokenizer.from_str(_trained())
    if bos:
        inner.post_processor = processors.TemplateProcessing(
            single="<bos> $A", special_tokens=[("<bos>", inner.token_to_id("<bos>"))])
    made = PreTrainedTokenizerFast(tokenizer_object=inner, bos_token="<bos>", eos_token="<|im_end|>",
                                   pad_token="<|endoftext|>")
    made.chat_template = template
    return made
