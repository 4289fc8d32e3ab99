"""No drafts: plain decoding."""

from pools.tree import DraftBatch, empty


class NoDrafter:
    """Empty trees for every row."""

    def draft(self, requests, context, lengths, budgets, depths, least=0.0) -> DraftBatch:
        return empty(len(requests))
