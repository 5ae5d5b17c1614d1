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
    from text_index import NO_PARENT, ROOT, NgramTables, indexes
except ImportError:  # the file has not been copied beside this one
    from lib.drafters.text_index import NO_PARENT, ROOT, NgramTables, indexes


class Proposer:
    """Drafts for vLLM's rows of tokens, which have no names and move between rounds: a row continues a text of an
    earlier round with which it begins, or is read anew. A kind has its name in `text_index.indexes`.
    """

    kind = ""

    def __init__(self, vllm_config):
        options = (vllm_config.additional_config or {}).get("draft_proposer", {})
        if unknown := ", ".join(options.keys() - {"tables", "schedule"}):
            raise ValueError(f"draft_proposer has no option {unknown}; give tables and schedule")
        self.schedule = options.get("schedule", [])
        self.num_tokens = vllm_config.speculative_config.num_speculative_tokens
        self.window, vocabulary = vllm_config.model_config.max_model_len, vllm_config.model_config.get_vocab_size()
        self.tables = read_tables(options.get("tables", ""), vocabulary) if self.kind != "sam" else None
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
            text = next(texts, None) or SimpleNamespace(tokens=row[:0], indexes=indexes(self.kind, self.tables))
            new_tokens = row[len(text.tokens) :].tolist()
            for index in text.indexes:
                index.extend(new_tokens)
            text.tokens, self.texts[slot] = row.copy(), text
            chains = (first_branch(*index.draft(range(NO_PARENT, room), [0] * (room + 1))) for index in text.indexes)
            drafts.append(next(filter(None, chains), []))
        return drafts


class Ngrams(Proposer):
    """N-grams of the text of 4 to 2 tokens, then those of the tables, then the text's shorter ones."""

    kind = "ngrams"


class Sam(Proposer):
    """The tokens after the longest earlier match."""

    kind = "sam"


class Combined(Proposer):
    """The tokens after the longest earlier match where it has 4 tokens, elsewhere those of `Ngrams`."""

    kind = "combined"


def first_branch(parents: list[int], tokens: list[int]) -> list[int]:
    """The tokens below the root of a draft for a chain, along its first children: it has more branches only where a
    match is less than the chain's length before the end of the text.
    """
    branch = [ROOT]
    while branch[-1] in parents:
        branch.append(parents.index(branch[-1]))
    return [tokens[node] for node in branch[1:]]


def read_tables(folder: str, vocabulary: int) -> NgramTables:
    """Tables from files that `lib.drafters.text_drafters.save_tables` wrote."""
    settings = json.loads(path.read_text()) if (path := Path(folder, "config.json")).is_file() else {}
    tensors = load_file(path.with_name("model.safetensors")) if settings else {}
    return NgramTables.of(folder, settings, tensors, vocabulary)
