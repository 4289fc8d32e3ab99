"""Grammars that hold texts to a form, by the library llguidance: which tokens may follow each prefix.

A grammar is made from a JSON schema, a regular expression or a list of choices, and for one tokenizer. Where
it allows one continuation only, the library allows only the tokens with which the tokenizer writes it (forced
tokens). The end of text is allowed where the grammar accepts the text.

A row's parser follows its text. On a draft tree it goes down each path and then back, so it reads no text
twice.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from dare_job.errors import ConfigError, install_hint
from pools.tree import ROOT

# Of JSON, unless the schema's x-guidance says otherwise: as json.dumps writes it. With free white space, less
# is forced, and a model may write white space without end.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def _library():
    try:
        import llguidance.hf
    except ImportError as error:
        raise ConfigError(f"decode.schema needs the package llguidance ({error}): "
                          f"{install_hint('schema')}, on the driver and where executors run") from None
    return llguidance


def definition(kind: str, value: str | Sequence[str]) -> str:
    """Return the library's text of a grammar.

    Parameters
    ----------
    kind : {"json", "regex", "choices"}
    value
        JSON schema as text, regular expression, or texts.

    Raises
    ------
    ConfigError
        The library is not installed, or does not accept the value; the message is the library's.
    """
    library = _library()
    if kind == "json":
        text = library.LLMatcher.grammar_from_json_schema(value, defaults=_JSON_STYLE)
    else:
        text = library.grammar_from("regex", value) if kind == "regex" else (
            library.grammar_from("choice", json.dumps(list(value))))
    failed, messages = library.LLMatcher.validate_grammar_with_warnings(text)
    if failed:
        raise ConfigError(messages[0])
    return text


def token_table(tokenizer, vocabulary: int = 0, eos: Sequence[int] = ()):
    """Return the library's table of a tokenizer's tokens, which all grammars of a model share.

    Parameters
    ----------
    vocabulary : int
        Tokens with an embedding or a logit; those without a text are never allowed.
    eos : sequence of int
        End-of-text tokens; empty: that of the tokenizer.

    Raises
    ------
    ConfigError
        The library is not installed, or does not support the tokenizer.
    """
    eos = [token for token in eos if token < len(tokenizer)]
    try:
        return _library().hf.from_tokenizer(tokenizer, max(vocabulary, len(tokenizer)), eos or None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"decode.schema: llguidance does not support this model's tokenizer, "
                          f"{type(tokenizer).__name__} ({error}); leave decode.schema out") from None


class Grammar:
    """A grammar for the tokens of a model. Requests share it.

    Parameters
    ----------
    text : str
        As from ``definition``.
    table
        As from ``token_table``.

    Attributes
    ----------
    eos : frozenset of int
        End-of-text tokens.
    tokens, words : int
        Tokens of the table; W, the int32 of a mask.

    Raises
    ------
    ConfigError
        The library does not accept the grammar.
    """

    def __init__(self, text: str, table):
        self._text, self._table = text, table
        self.eos, self.tokens = frozenset(table.eos_tokens), table.vocab_size
        self.words = -(-self.tokens // 32)
        self._start = self._compile()
        if self._start.is_error():
            raise ConfigError(f"decode.schema: {self._start.get_error()}")

    def _compile(self):
        library = _library()
        return library.LLMatcher(self._table, self._text, log_level=0,
                                 limits=library.LLParserLimits(verbose_errors=False))

    def matcher(self):
        """Return the library's parser at the start of a text. Parsers share what they learn of the tokens."""
        return self._start.deep_copy()

    def forget(self) -> None:
        """Forget what parsers have learned, which the library limits."""
        self._start = self._compile()


class TextParser:
    """The parser of one text.

    Attributes
    ----------
    matcher
        The library's parser, at the end of the text.
    failure : str, optional
        Why the library cannot parse the text any further.
    """

    def __init__(self, grammar: Grammar):
        self.grammar, self.failure = grammar, None
        self.matcher, self._text, self._ended = grammar.matcher(), [], False

    def follow(self, text: np.ndarray) -> None:
        """Go on to the end of a text int32 (n,), of which the first tokens were followed before."""
        new = [] if self._ended else text[len(self._text) :].tolist()
        if new:
            self._ended = new[-1] in self.grammar.eos
            self._text += new
            if not self._ended:
                self.matcher.consume_tokens(new)

    def allowed_prefix(self, tokens: np.ndarray) -> int:
        """Return how many of the first tokens int32 (n,), with an embedding each, may follow the text."""
        return self.matcher.validate_tokens(tokens.tolist())

    def forced_end(self) -> int | None:
        """Return the end-of-text token if nothing else may follow the text.

        None if other tokens may follow, also if these are end-of-text tokens.
        """
        matcher, eos = self.matcher, self.grammar.eos
        return next(iter(eos)) if len(eos) == 1 and matcher.is_stopped() and not matcher.is_error() else None

    def fill_masks(self, tokens: Sequence[int], parents: Sequence[int], masks: np.ndarray) -> None:
        """Fill in which tokens may follow the nodes of a tree.

        Parameters
        ----------
        tokens, parents : sequence of int (N,)
            Of the nodes after the root, which is the end of the text; parents as in ``DraftBatch``.
        masks : int32 (N + 1, W)
            A bit for each token, first the root's mask; all ones before. Nodes that the grammar forbids keep
            them. If the parser fails at a node, no token is allowed there and after other nodes.
        """
        if self._ended:
            return
        address, size = masks.ctypes.data, masks.strides[0]
        for node in self.visit(tokens, children_of(parents)):
            if not self.fill_mask(node, address + (node + 1) * size, size):
                masks[0 if node == ROOT else 1 :] = 0
                return

    def allows(self, token: int) -> bool:
        """Return whether a token may follow a node while ``visit`` is there.

        False also for end-of-text tokens, and if the parser fails: these need a mask.
        """
        if token in self.grammar.eos or token >= self.grammar.tokens:
            return False
        forced = self.matcher.compute_ff_tokens()  # a mask has the first one only
        return token == forced[0] if forced else self.matcher.validate_tokens([token]) == 1

    def fill_mask(self, node: int, address: int, size: int) -> bool:
        """Fill in which tokens may follow a node while ``visit`` is there. False: the parser fails.

        Parameters
        ----------
        address, size : int
            Where the mask goes, in bytes.
        """
        if not self.matcher.is_error():
            self.matcher.unsafe_compute_mask_ptr(address, size)
        if not self.matcher.is_error():
            return True
        if node == ROOT:
            self.failure = self.matcher.get_error()
        self.restart()
        return False

    def visit(self, tokens: Sequence[int], children: dict[int, list[int]]) -> Iterator[int]:
        """Yield the nodes that the grammar allows, depth first, with the parser after each.

        Not those that end the text. The caller may change a node's children before it goes on.
        """
        matcher, depth, eos = self.matcher, 0, self.grammar.eos
        yield ROOT
        stack = [(child, 1) for child in reversed(children[ROOT])]
        while stack:
            node, level = stack.pop()
            if level <= depth:
                matcher.rollback(depth - level + 1)
                depth = level - 1
            if tokens[node] not in eos and matcher.try_consume_tokens([tokens[node]]):
                depth = level
                yield node
                stack += [(child, level + 1) for child in reversed(children[node])]
        if depth:
            matcher.rollback(depth)

    def restart(self) -> None:
        """Parse the text again after a failure, which ends the library's parser."""
        self.grammar.forget()
        self.matcher = self.grammar.matcher()
        self.matcher.consume_tokens(self._text)


def children_of(parents: Sequence[int]) -> dict[int, list[int]]:
    """Return the children of each node, and of ROOT, by the nodes' parents."""
    children = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children
