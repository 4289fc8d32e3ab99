"""The search that the settings ask for: a recommender's folder, its drafter, and how they work together."""

from collections.abc import Callable, Sequence
from pathlib import Path

from dare_job.config import RecommendSettings
from dare_job.decode.beam.top_k.drafts import BeamDrafter, ModelScorer, Scorer
from dare_job.decode.beam.top_k.leaves import Alike, LeafScorer, Popularity, Transitions
from dare_job.decode.beam.top_k.sampled import DrawnDrafter, SampledTopK
from dare_job.decode.beam.top_k.scheduler import Scheduler
from dare_job.decode.beam.top_k.search import TopK
from dare_job.decode.beam.top_k.trie import Trie, Vocabulary
from dare_job.decode.loading import device as device_of
from dare_job.decode.target import Target
from dare_job.errors import ConfigError
from dare_job.recommend.ids.vocabulary import Recommender

TRIE, POPULARITY, TRANSITIONS = "trie", "popularity", "transitions"
WITHOUT_MODEL = (TRIE, POPULARITY, TRANSITIONS)
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
    """name: of ``WITHOUT_MODEL``, which learn from ``sequences`` of leaves, or the folder of
    ``recommender``.
    """
    if name in WITHOUT_MODEL:
        made = {TRIE: Alike, POPULARITY: Popularity, TRANSITIONS: Transitions}[name]
        weights = made(trie) if name == TRIE else made(trie, sequences())
        return LeafScorer(Vocabulary(trie, [0] * trie.length, device_of(device)), weights)
    model = Target.load(recommender.folder, dtype, device)
    return ModelScorer(model, Vocabulary(trie, list(recommender.first_code_token), model.device))


def search(settings: RecommendSettings, recommender: Recommender, trie: Trie, sequences: Sequences,
           drafter: Recommender | None, device: str) -> TopK:
    """Loads the models. Raises ModelError."""
    target = Target.load(recommender.folder, settings.dtype, device)
    k, made, scheduler = min(settings.k, trie.leaves), None, None  # more beams than ids would find no more
    common = target, trie, recommender.first_code_token, k
    if settings.drafter:
        by_whom = scorer(settings.drafter, trie, sequences, drafter, settings.dtype, device)
        width = 0 if settings.drafter == TRIE else settings.draft_width
        kind = DrawnDrafter if settings.temperature else BeamDrafter
        made = kind(by_whom, trie.length, width, settings.draft_depth, settings.draft_whole)
    if settings.temperature:
        return SampledTopK(*common, settings.temperature, made, settings.verify, settings.scores,
                           seed=settings.seed)
    if made and settings.draft == "auto":
        scheduler = Scheduler(None, trie.length, settings.draft_width)
    return TopK(*common, made, settings.scores, scheduler)
