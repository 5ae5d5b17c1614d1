"""Drafters that read the text alone, without a model: prompt look-up, a suffix automaton, and n-grams. `text_index` has
their indexes.
"""

import json
from pathlib import Path
from typing import Mapping, Sequence

import torch
from safetensors.torch import save_file
from torch import Tensor

from lib.drafters.drafter import TextDrafter, partial_draft, static
from lib.drafters.heads.files import NGRAMS, read
from lib.drafters.registry import folder_of
from lib.drafters.text_index import LookupIndex, NgramIndex, NgramTables, SuffixAutomaton
from lib.trees.tree import Tree
from lib.verify.draft import Draft


class LookupDrafter(TextDrafter):
    """Looks up the text's last n tokens, n from `longest` down to `shortest`, and proposes the tokens after them
    (Saxena 2023).
    """

    def __init__(self, longest: int = 4, shortest: int = 1):
        if not 1 <= shortest <= longest:
            raise ValueError(f"n-grams from {shortest} to {longest}: give 1 <= shortest <= longest")
        self.longest, self.shortest = longest, shortest

    def new_text(self) -> LookupIndex:
        return LookupIndex(self.longest, self.shortest)


class SuffixAutomatonDrafter(TextDrafter):
    """Proposes the tokens after the longest earlier match of the text's suffix, then those after shorter ones, which
    takes amortised constant time per token (Hu et al. 2024, SAM-Decoding, section 3.2).
    """

    new_text = SuffixAutomaton


class NgramDrafter(TextDrafter):
    """Fills a shape token by token from the last few tokens above each node, by n-grams of the text and of tables.

    As llama.cpp's look-up reads a cache of the context and then a static one, and as N-Grammys (Stewart et al. 2024)
    draft from n-grams of the context and of the model. `NgramIndex` has the order of a node's candidates; a node of
    rank r gets the r-th. Where there is none the node and all below it are left out.
    """

    def __init__(self, tables: NgramTables, enough: int = 2, longest: int = 4):
        self.tables, self.enough, self.longest = tables, enough, longest

    @classmethod
    def of(cls, pair, *, folder=None, enough: int = 2, longest: int = 4) -> "NgramDrafter":
        """The drafter of the tables in a folder; without one, of those that ship for the pair's target."""
        return cls(load_tables(folder or folder_of(pair.target_name, NGRAMS), pair.target), enough, longest)

    def new_text(self) -> NgramIndex:
        return NgramIndex(self.tables, self.enough, self.longest)

    def draft(self, text: NgramIndex, shape: Tree) -> Draft:
        return partial_draft(shape, text.fill(static(shape).parents.tolist(), shape.rank.tolist()))

    def read_ahead(self, hidden_states: Sequence[Sequence[Tensor]], texts: Sequence[Tensor], starts: Sequence[int],
                   depth: int) -> tuple[Tensor, Tensor]:
        """As `Drafter.read_ahead`; all probabilities are 0, since n-grams have none."""
        roots = max(1, *(len(text) - 1 - start for text, start in zip(texts, starts)))
        ranks = torch.full((len(texts), roots, depth), -1, dtype=torch.int32)
        for row, (whole_text, start) in enumerate(zip(texts, starts)):
            tokens, text = whole_text.tolist(), self.new_text()
            text.extend(tokens[:start])
            for root in range(start, len(tokens) - 1):
                text.extend([tokens[root]])
                context, following = text.context, tokens[root + 1 : root + 1 + depth]
                ranks[row, root - start, : len(following)] = text.vocabulary
                for d, token in enumerate(following):
                    candidates = text.candidates(context)
                    if token not in candidates:
                        break  # no draft goes on after it
                    ranks[row, root - start, d] = candidates.index(token)
                    context = text.context_after(context, token)
        return ranks, torch.zeros(len(texts), roots, depth)


def save_tables(tables: NgramTables, folder: Path, record: Mapping[str, object]) -> None:
    """Writes config.json and model.safetensors; `record` goes to config.json besides what `load_tables` reads there."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"kind": NGRAMS, "vocab_size": tables.vocabulary, "orders": len(tables.orders), **record}
    (folder / "config.json").write_text(json.dumps(settings, indent=1, sort_keys=True) + "\n")
    dtype = torch.uint16 if tables.vocabulary <= 2**16 else torch.int32
    tensors = {}
    for n, order in enumerate(tables.orders, start=1):
        contexts = sorted(order)
        tensors[f"context.{n}"] = torch.tensor(contexts, dtype=torch.long).reshape(-1, n).to(dtype)
        tensors[f"said.{n}"] = torch.tensor([*map(order.get, contexts)], dtype=torch.long).to(dtype)
    save_file(tensors, folder / "model.safetensors")


def load_tables(folder: str | Path, target) -> NgramTables:
    """Tables that `save_tables` wrote. ValueError as for `NgramTables.of`."""
    return NgramTables.of(folder, *read(Path(folder)), target.config.get_text_config().vocab_size)
