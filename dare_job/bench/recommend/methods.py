"""The searches that are compared, as plain data, and how each is made."""

from dataclasses import dataclass

from dare_job.bench.recommend.world import World
from dare_job.decode.trie_search.draft_depth import DraftDepth
from dare_job.decode.trie_search.drafts import ModelScorer, Scorer, TrieDrafter
from dare_job.decode.trie_search.item_weights import LeafScorer, PopularityWeights, TransitionWeights
from dare_job.decode.trie_search.node_scores import RAW
from dare_job.decode.trie_search.sampled import SampledTopK, SampledTrieDrafter
from dare_job.decode.trie_search.search import TopK
from dare_job.decode.trie_search.trie import Vocabulary

PLAIN, FORCED, TRIE, POPULARITY, TRANSITIONS = "plain", "forced", "trie", "popularity", "transitions"
STRICT, RELAXED, EXACT = "strict", "relaxed", "exact"
WHOLE = 192


@dataclass(frozen=True)
class Method:
    """A search for the top K items.

    Attributes
    ----------
    drafter
        plain: no drafts; forced: tokens that have no alternative; trie: whole levels; popularity;
        transitions; or a draft model's name.
    verification
        strict (temperature 0), relaxed or exact.
    width, depth
        N, the drafted nodes of a level, and gamma, the number of drafted levels (None: all).
    whole
        Maximum size of levels that are drafted whole.
    """

    drafter: str
    verification: str = STRICT
    k: int = 10
    width: int = 40
    depth: int | None = None
    whole: int = 0
    temperature: float = 0.0
    scores: str = RAW

    @property
    def name(self) -> str:
        """As tables have it: a model's drafts with whole levels are marked."""
        return f"{self.drafter}+whole" if self.whole and self.drafter not in (FORCED, TRIE) else self.drafter

    @property
    def plain(self) -> "Method":
        """The search that it is compared with."""
        return Method(PLAIN, STRICT if self.verification == STRICT else EXACT, self.k, 0, None, 0,
                      self.temperature, self.scores)


class Makers:
    """Makes searches; drafters without a model are trained once."""

    def __init__(self, world: World, seed: int):
        self.world, self.seed, trie = world, seed, world.catalogue.trie
        self._view = Vocabulary(trie, [0] * trie.length, world.target.device)
        self._weights = {
            FORCED: PopularityWeights(trie),
            TRIE: PopularityWeights(trie),
            POPULARITY: PopularityWeights(trie, world.learned),
            TRANSITIONS: TransitionWeights(trie, world.learned),
        }

    def scorer(self, name: str) -> Scorer:
        if name in self._weights:
            return LeafScorer(self._view, self._weights[name])
        recommender, target = self.world.drafts[name]
        return ModelScorer(target, Vocabulary(self.world.catalogue.trie, list(recommender.first_code_token),
                                              target.device))

    def make(self, method: Method, depth: DraftDepth | None = None) -> TopK:
        world, trie, drafter = self.world, self.world.catalogue.trie, None
        common = world.target, trie, world.recommender.first_code_token, method.k
        if method.drafter != PLAIN:
            kind = TrieDrafter if method.verification == STRICT else SampledTrieDrafter
            whole = {FORCED: method.k, TRIE: WHOLE}.get(method.drafter, method.whole)
            width = 0 if method.drafter in (FORCED, TRIE) else method.width
            drafter = kind(self.scorer(method.drafter), trie.length, width, method.depth, whole)
        if method.verification == STRICT:
            return TopK(*common, drafter, method.scores, depth)
        return SampledTopK(*common, method.temperature, drafter, method.verification, method.scores,
                           self.seed)


def tables(drafts: list[str], ks: list[int], widths: list[int], depths: list[int],
           temperatures: list[float]) -> list[Method]:
    """The methods of tables 1 and 2: every drafter at every K, N and gamma at K = 10, each temperature."""
    methods = []
    for k in ks:
        methods += [Method(name, k=k) for name in (FORCED, TRIE)]
        methods += [Method(name, k=k, whole=whole) for name in (POPULARITY, TRANSITIONS, *drafts)
                    for whole in (0, WHOLE)]
    middle = 10 if 10 in ks else ks[-1]
    methods += [Method(name, k=middle, width=width) for name in drafts for width in widths if width != 40]
    methods += [Method(name, k=middle, depth=depth) for name in drafts for depth in depths]
    for temperature in temperatures:
        for k in ks:
            methods += [Method(name, kind, k, temperature=temperature)
                        for name in (TRIE, POPULARITY, *drafts) for kind in (RELAXED, EXACT)]
            methods += [Method(name, kind, k, whole=WHOLE, temperature=temperature)
                        for name in drafts for kind in (RELAXED, EXACT)]
    return methods
