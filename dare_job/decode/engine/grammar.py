"""Grammars that hold texts to a form, by the library llguidance: which tokens may follow each prefix.

A grammar is made from a JSON schema, a regular expression or a list of choices, and for one tokenizer. Where
it allows one continuation only, the library allows only the tokens with which the tokenizer writes it (forced
tokens). The end of text is allowed where the grammar accepts the text.

A row's parser follows its text. On a draft tree it goes down each path and then back, so it reads no text
twice. Drafts lose the tokens that the grammar forbids and get those that it forces, which verification is
certain to accept. The scores of all other tokens after a node are -inf, as ``generate`` has them with the
logits processor ``GrammarProcessor``.
"""

import json
from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import LogitsProcessor

from dare_job.decode.model.tree import Tree
from dare_job.errors import ConfigError, install_hint
from pools.tree import ROOT, SOURCE_NONE, DraftBatch

# Of JSON, unless the schema's x-guidance says otherwise: as json.dumps writes it. With free white space, less
# is forced, and a model may write white space without end.
_JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_ALL, _NONE = -1, 0  # masks: 32 tokens that are allowed, and that are not


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
    words : int
        W, the int32 of a mask.

    Raises
    ------
    ConfigError
        The library does not accept the grammar.
    """

    def __init__(self, text: str, table):
        self._text, self._table = text, table
        self.eos, self.words = frozenset(table.eos_tokens), -(-table.vocab_size // 32)
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
    failure : str, optional
        Why the library cannot parse the text any further.
    """

    def __init__(self, grammar: Grammar):
        self.grammar, self.failure = grammar, None
        self._matcher, self._text, self._ended = grammar.matcher(), [], False

    def follow(self, text: np.ndarray) -> None:
        """Go on to the end of a text int32 (n,), of which the first tokens were followed before."""
        new = [] if self._ended else text[len(self._text) :].tolist()
        if new:
            self._ended = new[-1] in self.grammar.eos
            self._text += new
            if not self._ended:
                self._matcher.consume_tokens(new)

    def allowed_prefix(self, tokens: np.ndarray) -> int:
        """Return how many of the first tokens int32 (n,), with an embedding each, may follow the text."""
        return self._matcher.validate_tokens(tokens.tolist())

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
        for node in self._visit(tokens, _children(parents)):
            if not self._matcher.is_error():
                self._matcher.unsafe_compute_mask_ptr(address + (node + 1) * size, size)
            if self._matcher.is_error():
                if node == ROOT:
                    self.failure = self._matcher.get_error()
                masks[0 if node == ROOT else 1 :] = _NONE
                self._restart()
                return

    def constrain(self, drafts: "_DraftRow", nodes: int, depth: int) -> "_DraftRow":
        """Return drafts without forbidden tokens and with forced ones, best first.

        Parameters
        ----------
        nodes, depth : int
            Maximum number of nodes, and longest path.
        """
        matcher, eos = self._matcher, self.grammar.eos
        children, kept = _children(drafts.parents), []
        levels, rest = {ROOT: 0}, {}  # rest: the forced tokens after a node, where they are known
        for node in self._visit(drafts.tokens, children):
            if node != ROOT:
                levels[node] = levels[drafts.parents[node]] + 1
                kept.append(node)
            forced = rest.pop(node, None) or matcher.compute_ff_tokens()
            only = sorted(eos) if matcher.is_stopped() else forced[:1]
            if matcher.is_error():
                self._restart()
                break
            if levels[node] == depth:
                children[node] = []
            elif only:
                children[node] = [drafts.child(node, token, children[node], len(only)) for token in only]
                rest[children[node][0]] = forced[1:]
            ending = [child for child in children[node] if drafts.tokens[child] in eos]
            kept += ending if ending and matcher.is_accepting() else []
        return drafts.select(sorted(kept, key=lambda node: -drafts.scores[node])[:nodes])

    def _visit(self, tokens: Sequence[int], children: dict[int, list[int]]) -> Iterator[int]:
        """Yield the nodes that the grammar allows, depth first, with the parser after each.

        Not those that end the text. The caller may change a node's children before it goes on.
        """
        matcher, depth, eos = self._matcher, 0, self.grammar.eos
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

    def _restart(self) -> None:
        """Parse the text again after a failure, which ends the library's parser."""
        self.grammar.forget()
        self._matcher = self.grammar.matcher()
        self._matcher.consume_tokens(self._text)


def _children(parents: Sequence[int]) -> dict[int, list[int]]:
    children = defaultdict(list)
    for node, parent in enumerate(parents):
        children[parent].append(node)
    return children


class _DraftRow:
    """The drafts of one row, as lists that can grow; the fields of ``DraftBatch``."""

    def __init__(self, tokens: list[int], parents: list[int], scores: list[float], sources: list[int]):
        self.tokens, self.parents, self.scores, self.sources = tokens, parents, scores, sources

    @classmethod
    def of(cls, drafts: DraftBatch, row: int) -> "_DraftRow":
        size = drafts.sizes[row]
        drafted = cls(*(part[row, :size].tolist() for part in (drafts.tokens, drafts.parents, drafts.scores,
                                                               drafts.sources)))
        for node, parent in enumerate(drafted.parents):  # descending, so that a parent is selected first
            if parent != ROOT:
                drafted.scores[node] = min(drafted.scores[node], drafted.scores[parent])
        return drafted

    def child(self, parent: int, token: int, children: Sequence[int], count: int) -> int:
        """Return the child of a node with a token, one of ``count`` possible tokens; add it if none of the
        children has it.
        """
        score = (1.0 if parent == ROOT else self.scores[parent]) / count
        for child in children:
            if self.tokens[child] == token:
                self.scores[child] = max(self.scores[child], score)
                return child
        for values, value in ((self.tokens, token), (self.parents, parent), (self.scores, score),
                              (self.sources, SOURCE_NONE)):
            values.append(value)
        return len(self.tokens) - 1

    def select(self, nodes: Sequence[int]) -> "_DraftRow":
        """Return the nodes, each of which comes after its parent."""
        places = {ROOT: ROOT} | {node: place for place, node in enumerate(nodes)}
        tokens, parents, scores, sources = ([values[node] for node in nodes] for values in (
            self.tokens, self.parents, self.scores, self.sources))
        return _DraftRow(tokens, [places[parent] for parent in parents], scores, sources)


def constrain(drafts: DraftBatch, parsers: Sequence[TextParser | None], nodes: np.ndarray,
              depths: np.ndarray) -> DraftBatch:
    """Return the drafts of R rows without forbidden tokens and with forced ones.

    Parameters
    ----------
    drafts : DraftBatch
    parsers : sequence of TextParser
        At the ends of the rows' texts. None: the row's drafts stay.
    nodes, depths : int32 (R,)
        Maximum number of draft nodes, and longest path, of each row.
    """
    rows = [_DraftRow.of(drafts, row) for row in range(drafts.rows)]
    rows = [row if parser is None else parser.constrain(row, *limits) for row, parser, limits in
            zip(rows, parsers, zip(nodes.tolist(), depths.tolist(), strict=True), strict=True)]
    sizes = np.array([len(row.tokens) for row in rows], np.int32)
    shape = len(rows), int(sizes.max(initial=0))
    parts = [np.zeros(shape, kind) for kind in (np.int32, np.int32, np.float32, np.uint8)]
    for place, row in enumerate(rows):
        for part, values in zip(parts, (row.tokens, row.parents, row.scores, row.sources), strict=True):
            part[place, : sizes[place]] = values
    tokens, parents, scores, sources = parts
    return DraftBatch(tokens, parents, sizes, scores, sources)


def forbid(scores: torch.Tensor, tree: Tree, parsers: Sequence[TextParser | None]) -> None:
    """Set the scores float32 (T, V) of forbidden tokens to -inf, in place.

    Parameters
    ----------
    parsers : sequence of TextParser
        Of each row, at the end of its text. None: all tokens are allowed.
    """
    words = _words(parsers)
    if not words:
        return
    tokens, parents, _, starts = tree.host
    masks = np.full((len(tokens), words), _ALL, np.int32)
    for parser, start, end in zip(parsers, starts[:-1].tolist(), starts[1:].tolist(), strict=True):
        if parser is not None:
            nodes = slice(start + 1, end)
            parser.fill_masks(tokens[nodes].tolist(), (parents[nodes] - nodes.start).tolist(),
                              masks[start:end])
    _apply(masks, scores)


def _words(parsers: Sequence[TextParser | None]) -> int:
    return next((parser.grammar.words for parser in parsers if parser is not None), 0)


def _apply(masks: np.ndarray, scores: torch.Tensor) -> None:
    """Set the scores (T, V) of the tokens whose bit in ``masks`` int32 (T, W) is 0 to -inf."""
    columns = min(scores.shape[1], 32 * masks.shape[1])
    if scores.device.type == "cpu":
        forbidden = np.unpackbits(~masks.view(np.uint8), axis=1, count=columns, bitorder="little")
        forbidden = torch.from_numpy(forbidden).view(torch.bool)
    else:
        forbidden = _unpacked(torch.from_numpy(~masks).to(scores.device), columns)
    scores[:, :columns].masked_fill_(forbidden, -torch.inf)


def _unpacked(words: torch.Tensor, columns: int) -> torch.Tensor:
    """Return the first bits, bool (T, columns), of ``words`` int32 (T, W); slower than numpy on a CPU."""
    bits = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> bits) & 1).flatten(1)[:, :columns].bool()


class GrammarProcessor(LogitsProcessor):
    """Holds the rows of ``generate`` to their grammars.

    Parameters
    ----------
    grammars : sequence of Grammar
        Of each row; None: any text.
    prompt : int
        Tokens of the prompts, with padding on the left.
    """

    def __init__(self, grammars: Sequence[Grammar | None], prompt: int):
        self._parsers = [None if grammar is None else TextParser(grammar) for grammar in grammars]
        self._prompt = prompt

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        masks = np.full((len(scores), _words(self._parsers)), _ALL, np.int32)
        for row, (parser, text) in enumerate(zip(self._parsers, input_ids[:, self._prompt :].cpu().numpy(),
                                                 strict=True)):
            if parser is not None:
                parser.follow(text)
                parser.fill_masks((), (), masks[row : row + 1])
        scores = scores.clone()
        _apply(masks, scores)
        return scores
