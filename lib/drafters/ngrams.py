"""N-grams of the text itself, then those of tables counted on the target's own text; no model.

As llama.cpp's look-up reads a cache of the context and then a static one, and as Stewart et al. 2024 (The N-Grammys)
draft from n-grams of the context and of the model. The tables' files are config.json and model.safetensors.
"""

import json
from dataclasses import dataclass
from itertools import islice
from operator import attrgetter
from pathlib import Path
from typing import Iterator, Mapping, Sequence

import torch
from safetensors.torch import save_file
from torch import Tensor

from lib.drafters.drafter import UNKNOWN, TextDrafter, partial_draft, static
from lib.drafters.heads.store import NGRAMS, check_folder_of, read
from lib.trees.tree import ROOT, Tree
from lib.verify.draft import Draft


@dataclass(frozen=True)
class NgramTables:
    """The target's most frequent next token after 1, 2, ... tokens: orders[n - 1] maps contexts of n tokens to it.

    A context's key is a number with its tokens as digits in base V, the last token the lowest. A longer context has an
    entry only where shorter ones give another token, so the longest has to be read first. vocabulary: V, the target's.
    name_or_path: the folder that the tables were read from.
    """

    orders: tuple[Mapping[int, int], ...]
    vocabulary: int
    name_or_path: str = ""

    def __post_init__(self):
        if self.vocabulary ** len(self.orders) >= 2**63:
            raise ValueError(f"contexts of {len(self.orders)} tokens of {self.vocabulary} have no number of 64 bits; "
                             "give tables of shorter ones")

    def favourite(self, keys: Sequence[int]) -> int:
        """The next token after the longest context that has one; keys: of the last 1, 2, ... tokens. -1 for none."""
        tokens = (order.get(key) for order, key in reversed([*zip(self.orders, keys)]))
        return next((token for token in tokens if token is not None), -1)


def save(tables: NgramTables, folder: Path, about: Mapping[str, object]) -> None:
    """Writes the tables; `about` goes to config.json besides the settings by which `load` reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"kind": NGRAMS, "vocab_size": tables.vocabulary, "orders": len(tables.orders), **about}
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    dtype = torch.uint16 if tables.vocabulary <= 2**16 else torch.int32
    tensors = {}
    for n, order in enumerate(tables.orders, start=1):
        keys, places = torch.tensor(sorted(order), dtype=torch.long), tables.vocabulary ** torch.arange(n - 1, -1, -1)
        tensors[f"context.{n}"] = (keys[:, None] // places % tables.vocabulary).to(dtype)
        tensors[f"said.{n}"] = torch.tensor([order[key] for key in keys.tolist()], dtype=torch.long).to(dtype)
    save_file(tensors, folder / "model.safetensors")


def load(folder: str | Path, target) -> NgramTables:
    """Tables that `save` wrote, context.N [E, N] and said.N [E]. ValueError where they do not fit the target."""
    vocabulary, (settings, tensors) = target.config.get_text_config().vocab_size, read(folder, Path(folder))
    if settings.get("kind") != NGRAMS or not isinstance(settings.get("orders"), int):
        raise ValueError(f"{folder} holds {settings.get('kind')!r}, not {NGRAMS!r} of some orders; name another folder")
    if settings.get("vocab_size") != vocabulary:
        raise ValueError(f"{folder} was counted of a target with vocab_size {settings.get('vocab_size')}, this one has "
                         f"{vocabulary}; take the tables of this target")
    wanted = {f"{name}.{n}" for n in range(1, settings["orders"] + 1) for name in ("context", "said")}
    if wanted != tensors.keys():
        raise ValueError(f"the tensors of {folder} are not those of its config.json (missing: "
                         f"{', '.join(sorted(wanted - tensors.keys())) or 'none'}; unexpected: "
                         f"{', '.join(sorted(tensors.keys() - wanted)) or 'none'}); count the tables anew")
    entries = [_entries(folder, n, tensors[f"context.{n}"], tensors[f"said.{n}"], vocabulary)
               for n in range(1, settings["orders"] + 1)]
    return NgramTables(tuple(entries), vocabulary, str(folder))


def _entries(folder: str | Path, n: int, context: Tensor, following: Tensor, vocabulary: int) -> dict[int, int]:
    if context.shape != (len(following), n) or following.dim() != 1:
        raise ValueError(f"{folder}: context.{n} is {tuple(context.shape)} and said.{n} {tuple(following.shape)}, not "
                         f"[E, {n}] and [E]; count the tables anew")
    contexts, tokens = context.long(), following.long()
    if len(tokens) and not (0 <= min(contexts.min(), tokens.min()) and max(contexts.max(), tokens.max()) < vocabulary):
        raise ValueError(f"{folder}: order {n} has tokens outside the vocabulary of {vocabulary}; count the "
                         "tables anew")
    keys = (contexts * vocabulary ** torch.arange(n - 1, -1, -1)).sum(-1)
    return dict(zip(keys.tolist(), tokens.tolist()))


class NgramDrafter(TextDrafter):
    """Fills a shape token by token from the last few tokens above each node.

    A node's candidates are, in this order: the tokens after their last occurrence in the text, for matches from
    `longest` tokens down to `enough`; those of the tables, the longest context first; those after the text's shorter
    matches. A node of rank r gets the r-th distinct one; where there is none the node and all below it are left out.
    With `enough` above `longest` only the tables are read.
    """

    name_or_path = property(attrgetter("tables.name_or_path"))

    def __init__(self, tables: NgramTables, enough: int = 2, longest: int = 4):
        if longest < 1 or enough < 1:
            raise ValueError(f"matches of {enough} to {longest} tokens; give 1 or more")
        self.tables, self.enough, self.longest = tables, enough, longest

    @classmethod
    def of(cls, pair, *, folder=None, **options) -> "NgramDrafter":
        """The drafter of the tables in a folder; without one, of those that ship for the pair's target."""
        return cls(load(folder or check_folder_of(pair.target_name, NGRAMS), pair.target), **options)

    def new_text(self) -> "NgramText":
        """An empty text, which reads the tables too."""
        return NgramText(self.tables, self.enough, self.longest)

    def draft(self, text: "NgramText", shape: Tree) -> Draft:
        """The nodes of the shape that have a candidate."""
        parents, ranks = static(shape).parents.tolist(), shape.rank.tolist()
        tokens, keys = [text.keys[0]] + [UNKNOWN] * shape.budget, {ROOT: text.keys}
        for node, token in enumerate(tokens):  # parents stand before their children
            if token == UNKNOWN or not (below := shape.children(node)):
                continue
            if node != ROOT:
                keys[node] = text.keys_after(keys[parents[node]], token)
            candidates, most = text.candidates(keys[node]), ranks[below[-1]] + 1
            distinct = list(islice(dict.fromkeys(candidates) if most > 1 else candidates, most))
            for child in below:
                if ranks[child] < len(distinct):
                    tokens[child] = distinct[ranks[child]]
        return partial_draft(shape, tokens)

    def read_ahead(self, target, texts: Sequence[Tensor], starts: Sequence[int], depth: int) -> tuple[Tensor, Tensor]:
        """As `Drafter.read_ahead`; all probabilities are 0, since n-grams have none."""
        most = max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
        ranks = torch.full((len(texts), most, depth), -1, dtype=torch.int32)
        for row, (whole, start) in enumerate(zip(texts, starts)):
            tokens, text = whole.tolist(), self.new_text()
            text.extend(tokens[:start])
            for root in range(start, len(tokens) - 1):
                text.extend([tokens[root]])
                keys, following = text.keys, tokens[root + 1 : root + 1 + depth]
                ranks[row, root - start, : len(following)] = text.vocabulary
                for d, token in enumerate(following):
                    distinct = list(dict.fromkeys(text.candidates(keys)))
                    if token not in distinct:
                        break  # no draft goes on after it
                    ranks[row, root - start, d] = distinct.index(token)
                    keys = text.keys_after(keys, token)
        return ranks, torch.zeros(len(texts), most, depth)


class NgramText:
    """A growing text, the last token after each of its n-grams of up to `longest` tokens, and the order in which these
    and the tables are read.
    """

    def __init__(self, tables: NgramTables, enough: int, longest: int):
        self.vocabulary, self.most = tables.vocabulary, max(longest, len(tables.orders))
        self.followed: list[dict[int, int]] = [{} for _ in range(longest if enough <= longest else 0)]
        self.keys: tuple[int, ...] = ()  # of the last 1, 2, ... tokens, as in `NgramTables`: first the last token
        own, counted = ([*reversed([*zip(orders, range(1, self.most + 1))])]
                        for orders in (self.followed, tables.orders))
        long = [entry for entry in own if entry[1] >= enough]
        self.sources = [*long, *counted, *own[len(long) :]]  # each with the number of tokens of its contexts

    def extend(self, tokens: Sequence[int]) -> None:
        """Appends tokens, each as the last one after the n-grams before it."""
        for token in tokens:
            for followed, key in zip(self.followed, self.keys):
                followed[key] = token
            self.keys = self.keys_after(self.keys, token)

    def candidates(self, keys: Sequence[int]) -> Iterator[int]:
        """Tokens that may follow a context, the best first; some more than once."""
        for source, n in self.sources:
            if n <= len(keys) and (token := source.get(keys[n - 1])) is not None:
                yield token

    def keys_after(self, keys: Sequence[int], token: int) -> tuple[int, ...]:
        """The keys of a context and one more token."""
        return token, *[key * self.vocabulary + token for key in keys[: self.most - 1]]
