"""Drafted beam search over item ids: accepted steps, forward passes saved, time, and Recall and NDCG."""
