"""Drafters that read the text alone, without a model: prompt look-up, a suffix automaton, and n-grams. `text_index` has
their indexes.
"""

import json
from pathlib import Path
from typing import Mapping, Sequence

import torch
from safetensors.torch import save_file
from torch import Tensor

from lib.drafters.drafter import UNKNOWN, TextDrafter, partial_draft, static
from lib.drafters.heads.files import NGRAMS, read
from lib.drafters.registry import folder_of
from lib.drafters.text_index import LookupIndex, NgramIndex, NgramTables, SuffixAutomaton
from lib.trees.tree import ROOT, Tree
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
        """The nodes of the shape that have a candidate."""
        tokens, contexts = [text.context[-1]] + [UNKNOWN] * static(shape).budget, {ROOT: text.context}
        for node in range(shape.size):  # parents precede their children
            if node in contexts and (children := shape.children(node)):
                candidates = text.candidates(contexts[node])
                for child, rank in zip(children, shape.rank[list(children)].tolist()):
                    if rank < len(candidates):
                        tokens[child] = candidates[rank]
                        contexts[child] = text.context_after(contexts[node], tokens[child])
        return partial_draft(shape, tokens)

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
    """Tables that `save_tables` wrote, context.N [E, N] and said.N [E]. ValueError where they do not fit the target."""
    vocabulary, (settings, tensors) = target.config.get_text_config().vocab_size, read(Path(folder))
    if (settings.get("kind"), settings.get("vocab_size")) != (NGRAMS, vocabulary):
        raise ValueError(f"{folder} holds {settings.get('kind')!r} of a target with vocab_size "
                         f"{settings.get('vocab_size')}, not {NGRAMS!r} of one with {vocabulary}; name another folder")
    orders = []
    for n in range(1, 1 + sum(name.startswith("context.") for name in tensors)):
        contexts, tokens = (tensors.get(f"{name}.{n}", torch.empty(0)).long() for name in ("context", "said"))
        numbers = torch.cat([contexts.flatten(), tokens.flatten()])
        if contexts.shape != (*tokens.shape, n) or not ((0 <= numbers) & (numbers < vocabulary)).all():
            raise ValueError(f"{folder}: context.{n} is {list(contexts.shape)} and said.{n} {list(tokens.shape)}, not "
                             f"[E, {n}] and [E] of tokens below {vocabulary}; count the tables anew")
        orders.append(dict(zip(map(tuple, contexts.tolist()), tokens.tolist())))
    return NgramTables(tuple(orders), vocabulary)
