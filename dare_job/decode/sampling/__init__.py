"""Multi-candidate speculative sampling: draft distributions, and verification rules exact for them.

``warp`` turns logits into probabilities, ``distributions`` samples candidates, ``verify`` verifies the
candidates of a node or a tree with a rule of ``rules``, and ``traversal`` verifies whole paths. The output of
every rule has the target distribution. Shape letters: R rows, V vocabulary, n candidates of a node, N nodes,
T queries of a forward.
"""
