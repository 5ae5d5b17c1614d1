"""Drafters that read the text alone, as custom proposers of vLLM 0.32. Copy this file and `lib/drafters/text_index.py`
into a folder of PYTHONPATH, and start vLLM with

    --speculative-config '{"method": "custom_class", "model": "draft_proposer.Ngrams", "num_speculative_tokens": 7}'
    --additional-config '{"draft_proposer": {"tables": "FOLDER"}}'

`Ngrams`, `Sam` and `Combined` draft as their namesakes in `lib.drafters` do for a chain. Their options are "tables",
which `Sam` does not read, and "schedule", as in num_speculative_tokens_per_batch_size, which vLLM does not apply to
custom proposers: [[first batch, last batch, tokens], ...] in ascending order, where a batch counts requests that draft.
"""

import json
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import numpy as np
from safetensors.numpy import load_file

try:
    from text_index import ROOT, NgramIndex, NgramTables, SuffixAutomaton, trie
except ImportError:  # the file has not been copied beside this one
    from lib.drafters.text_index import ROOT, NgramIndex, NgramTables, SuffixAutomaton, trie


class NgramChain(NgramIndex):
    """N-grams, whose draft is a chain."""

    def draft(self, most: int) -> list[int]:
        """Up to `most` tokens, each the best candidate after the text and the draft so far."""
        context, drafted = self.context, []
        while len(drafted) < most and (candidates := self.candidates(context)):
            drafted.append(candidates[0])
            context = self.context_after(context, candidates[0])
        return drafted


class SuffixChain(SuffixAutomaton):
    """A suffix automaton, whose draft is a chain where the longest match has `enough` tokens."""

    def __init__(self, enough: int):
        super().__init__()
        self.enough = enough

    def draft(self, most: int) -> list[int]:
        """The first branch of lib's draft, a tree of `most` nodes: the tokens after the longest match, then after
        shorter ones. It has more branches only where a match is less than `most` tokens before the end of the text.
        """
        if self.matched() < self.enough:
            return []
        parents, tokens = trie(self.tokens[-1], self.continuations(most), most)
        branch = [ROOT]
        while branch[-1] in parents:
            branch.append(parents.index(branch[-1]))
        return [tokens[node] for node in branch[1:]]


class Proposer:
    """Drafts for vLLM's rows of tokens, which have no names and move between rounds: a row continues a text of an
    earlier round with which it begins, or is read anew. A kind has the `indexes` of a new text, of which the first that
    has a draft gives it.
    """

    reads_tables = True

    def __init__(self, vllm_config):
        options = (vllm_config.additional_config or {}).get("draft_proposer", {})
        if unknown := ", ".join(options.keys() - {"tables", "schedule"}):
            raise ValueError(f"draft_proposer has no option {unknown}; give tables and schedule")
        self.schedule = options.get("schedule", [])
        self.num_tokens = vllm_config.speculative_config.num_speculative_tokens
        self.window, vocabulary = vllm_config.model_config.max_model_len, vllm_config.model_config.get_vocab_size()
        self.tables = read_tables(options.get("tables", ""), vocabulary) if self.reads_tables else None
        self.texts: dict[int, SimpleNamespace] = {}  # tokens and indexes, by the last row of each

    def load_model(self, *_) -> None:
        """There is none."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """A draft for each row that has just sampled tokens, which its own tokens include, and [] for the others."""
        batch, drafts, earlier = sum(map(bool, sampled_token_ids)), [], dict(self.texts)
        most = next((tokens for first, _, tokens in reversed(self.schedule) if first <= batch), self.num_tokens)
        for slot, sampled in enumerate(sampled_token_ids):
            row = token_ids_cpu[slot, : num_tokens_no_spec[slot]]
            room = min(most, self.num_tokens, self.window - len(row) - 1)  # a place for the target's own next token
            if not sampled or room <= 0:
                drafts.append([])
                continue
            texts = (text for text in chain([earlier.get(slot)], earlier.values())
                     if text and np.array_equal(row[: len(text.tokens)], text.tokens))
            text = next(texts, None) or SimpleNamespace(tokens=row[:0], indexes=self.indexes())
            new_tokens = row[len(text.tokens) :].tolist()
            for index in text.indexes:
                index.extend(new_tokens)
            text.tokens, self.texts[slot] = row.copy(), text
            drafts.append(next(filter(None, (index.draft(room) for index in text.indexes)), []))
        return drafts


class Ngrams(Proposer):
    """N-grams of the text of 4 to 2 tokens, then those of the tables, then the text's shorter ones."""

    def indexes(self):
        return [NgramChain(self.tables, enough=2, longest=4)]


class Sam(Proposer):
    """The tokens after the longest earlier match."""

    reads_tables = False

    def indexes(self):
        return [SuffixChain(enough=1)]


class Combined(Ngrams):
    """The tokens after the longest earlier match where it has 4 tokens, elsewhere those of `Ngrams`."""

    def indexes(self):
        return [SuffixChain(enough=4), *super().indexes()]


def read_tables(folder: str, vocabulary: int) -> NgramTables:
    """Tables from files that `lib.drafters.text_drafters.save_tables` wrote."""
    settings = json.loads(path.read_text()) if (path := Path(folder, "config.json")).is_file() else {}
    if (settings.get("kind"), settings.get("vocab_size")) != ("ngrams", vocabulary):
        raise ValueError(f"tables is {folder!r}, whose config.json has kind {settings.get('kind')!r} and vocab_size "
                         f"{settings.get('vocab_size')}; give a folder of n-gram tables of a target of {vocabulary}")
    tensors = load_file(path.with_name("model.safetensors"))
    orders = (dict(zip(map(tuple, tensors[f"context.{n}"].tolist()), tensors[f"said.{n}"].tolist()))
              for n in range(1, settings["orders"] + 1))
    return NgramTables(tuple(orders), vocabulary)
