"""N-grams of the text itself, and behind them those that the target was seen to follow before; no model.

As llama.cpp's look-up asks a cache of the context and then a static one, and as Stewart et al. 2024 (The N-Grammys)
draft from n-grams of the context and of the model.
"""

from itertools import islice
from typing import Iterator, Sequence

import torch
from torch import Tensor

from lib.drafters.ngram_tables import NgramTables
from lib.drafters.partial_draft import UNKNOWN, part_filled
from lib.drafters.protocol import static
from lib.drafters.text_state import FollowsTexts
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft, Draws


class NgramDrafter(FollowsTexts):
    """Fills a shape token by token from the last few tokens above each node.

    First stands what followed them when they last stood in the text, of matches from `longest` tokens down to `enough`;
    then what the tables say, the longest context first; then the text's shorter matches. A node of rank r gets the r-th
    distinct one; where there is none the node and all below it are left out. With `enough` above `longest` the tables
    are asked alone.
    """

    leaves_out = True  # nodes of a shape, so that what verifying it whole costs cannot be seen of its rounds

    def __init__(self, tables: NgramTables, enough: int = 2, longest: int = 4):
        if longest < 1 or enough < 1:
            raise ValueError(f"matches of {enough} to {longest} tokens; give 1 or more")
        self.tables, self.enough, self.longest = tables, enough, longest

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Reads the prompts int64[T]."""
        self.texts = [self._read(prompt.tolist()) for prompt in prompts]
        self.drafts: list[Draft] = []

    def propose(self, shape: Tree, draws: Draws) -> list[Draft]:
        """The shape as far as the n-grams fill it."""
        shape = static(shape)
        self.drafts = [part_filled(shape, self._tokens(shape, text)) for text in self.texts]
        return self.drafts

    @property
    def name_or_path(self) -> str:
        """The folder of the tables, where they came from one."""
        return self.tables.name_or_path

    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """What the n-grams say d + 1 tokens ahead of every root of known texts, as `lib.replay.ahead.ReadsAhead` asks; all
        probabilities are 0, since they have none.
        """
        most = max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
        ranks = torch.full((len(texts), most, depth), -1, dtype=torch.int32)
        for row, (known, start) in enumerate(zip(texts, starts)):
            tokens = known.tolist()
            text = self._read(tokens[:start])
            for root in range(start, len(tokens) - 1):
                text.extend([tokens[root]])
                keys = text.keys
                for d, token in enumerate(tokens[root + 1 : root + 1 + depth]):
                    said = list(dict.fromkeys(self._candidates(text, keys)))
                    ranks[row, root - start, d] = said.index(token) if token in said else self.tables.vocabulary
                    keys = text.behind(keys, token)
        return ranks, torch.zeros(len(texts), most, depth)

    def _read(self, tokens: list[int]) -> "_Text":
        text = _Text(self.tables, self.enough, self.longest)
        text.extend(tokens)
        return text

    def _tokens(self, shape: Tree, text: "_Text") -> list[int]:
        """A token a node, the root's first; UNKNOWN where there is none."""
        parents, ranks = shape.parents.tolist(), shape.rank.tolist()
        tokens, keys = [text.last] + [UNKNOWN] * shape.budget, {ROOT: text.keys}
        for node, token in enumerate(tokens):  # as far as they are filled: parents stand before their children
            if token == UNKNOWN or not (below := shape.children(node)):
                continue
            if node != ROOT:
                keys[node] = text.behind(keys[parents[node]], token)
            said, most = self._candidates(text, keys[node]), ranks[below[-1]] + 1
            distinct = list(islice(dict.fromkeys(said) if most > 1 else said, most))
            for child in below:
                if ranks[child] < len(distinct):
                    tokens[child] = distinct[ranks[child]]
        return tokens

    def _candidates(self, text: "_Text", keys: Sequence[int]) -> Iterator[int]:
        """What may stand behind a context, the surest first; some more than once."""
        for known, n in text.asked:
            if n <= len(keys) and (token := known.get(keys[n - 1])) is not None:
                yield token


class _Text:
    """A growing text, what last followed each of its n-grams of up to `longest` tokens, and in which order it and the
    tables are asked.
    """

    def __init__(self, tables: NgramTables, enough: int, longest: int):
        self.vocabulary, self.most = tables.vocabulary, max(longest, len(tables.orders))
        self.known: list[dict[int, int]] = [{} for _ in range(longest if enough <= longest else 0)]
        self.keys: tuple[int, ...] = ()  # of the last 1, 2, .. tokens, as tables number them
        own, said = ([*reversed([*zip(known, range(1, self.most + 1))])] for known in (self.known, tables.orders))
        sure = [each for each in own if each[1] >= enough]
        self.asked = [*sure, *said, *own[len(sure) :]]  # with the tokens of their contexts

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, each behind the n-grams before it."""
        for token in tokens:
            for known, key in zip(self.known, self.keys):
                known[key] = token
            self.keys = self.behind(self.keys, token)

    @property
    def last(self) -> int:
        """The text's last token."""
        return self.keys[0]

    def behind(self, keys: Sequence[int], token: int) -> tuple[int, ...]:
        """The keys of a context with a token more."""
        return token, *[key * self.vocabulary + token for key in keys[: self.most - 1]]
