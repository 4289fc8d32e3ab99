"""The search that the settings ask for: a recommender's folder, its drafter, and how they work together."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dare_job.config import RecommendSettings
from dare_job.decode.beam.top_k.drafts import BeamDrafter, ModelScorer, Scorer
from dare_job.decode.beam.top_k.leaves import LeafScorer, Popularity, Transitions
from dare_job.decode.beam.top_k.search import TopK
from dare_job.decode.beam.top_k.trie import Trie, Vocabulary
from dare_job.decode.target import Target
from dare_job.errors import ConfigError
from dare_job.recommend.ids.vocabulary import Recommender

POPULARITY, TRANSITIONS = "popularity", "transitions"
WITHOUT_MODEL = (POPULARITY, TRANSITIONS)
Sequences = Callable[[], Sequence[Sequence[int]]]


def drafter_of(recommender: Recommender, folder: Path) -> Recommender:
    """The small recommender of a folder. Raises ConfigError where it says other ids."""
    found = Recommender.open(folder)
    same = found.ids.items == recommender.ids.items and (found.ids.codes == recommender.ids.codes).all()
    if not same:
        raise ConfigError(f"recommend.drafter = {folder}: its items have other ids than those of "
                          f"{recommender.folder}; train it with the same item_ids.json")
    return found


def scorer(name: str, trie: Trie, sequences: Sequences, recommender: Recommender | None, dtype: str,
           device: str) -> Scorer:
    """name: of ``WITHOUT_MODEL``, which learn from ``sequences`` of leaves, or the folder of ``recommender``."""
    if name == POPULARITY:
        return LeafScorer(Vocabulary(trie, [0] * trie.length), Popularity(trie, sequences()))
    if name == TRANSITIONS:
        return LeafScorer(Vocabulary(trie, [0] * trie.length), Transitions(trie, sequences()))
    model = Target.load(recommender.folder, dtype, device)
    return ModelScorer(model, Vocabulary(trie, list(recommender.first_code_token), model.device))


def search(settings: RecommendSettings, recommender: Recommender, trie: Trie, sequences: Sequences,
           drafter: Recommender | None, dtype: str, device: str) -> TopK:
    """Loads the models. Raises ModelError."""
    target = Target.load(recommender.folder, dtype, device)
    k = min(settings.k, trie.leaves)
    made = None
    if settings.drafter:
        by = scorer(settings.drafter, trie, sequences, drafter, dtype, device)
        made = BeamDrafter(by, trie.length, settings.draft_width, settings.draft_depth)
    return TopK(target, trie, recommender.first_code_token, k, made, settings.scores)
