"""Low-rank updates of a given model (LoRA, Hu et al. 2021) by peft; the codes' embeddings are trained."""

from dare_job.errors import ConfigError
from dare_job.recommend.ids.vocabulary import Recommender


def added(model, rank: int, recommender: Recommender):
    """The model with updates of a rank on all its linear layers, and nothing else trained but code tokens.

    Raises ConfigError where peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError:
        raise ConfigError(f"--lora {rank} needs peft (pip install 'dare-job[recommend]')") from None
    codes = [int(first) + code for first, size in
             zip(recommender.first_code_token, recommender.ids.sizes, strict=True) for code in range(size)]
    return get_peft_model(model, LoraConfig(
        r=rank, lora_alpha=2 * rank, lora_dropout=0.0, target_modules="all-linear",
        trainable_token_indices=codes, task_type="CAUSAL_LM"))


def merged(model):
    """The plain model with the updates in its weights."""
    return model.merge_and_unload()
