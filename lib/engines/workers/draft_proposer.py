"""Drafters that read the text alone, as custom proposers of vLLM 0.32. Copy this file into a folder of PYTHONPATH, and
start vLLM with

    --speculative-config '{"method": "custom_class", "model": "draft_proposer.Ngrams", "num_speculative_tokens": 7}'
    --additional-config '{"draft_proposer": {"tables": "FOLDER"}}'

`Ngrams`, `Sam` and `Combined` draft as their namesakes in `lib.drafters` do for a chain. Their options are `defaults`,
and "schedule", as in num_speculative_tokens_per_batch_size, which vLLM does not apply to custom proposers:
[[first batch, last batch, tokens], ...] in ascending order, where batches are counted in requests that draft.
"""

import json
from array import array
from itertools import chain
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file


class NgramIndex:
    """The last token after each n-gram of a text, and tables. A key has an n-gram's tokens as digits in base V."""

    def __init__(self, tables: list[dict[int, int]], vocabulary: int, enough: int, longest: int):
        self.vocabulary, self.most = vocabulary, max(longest, len(tables))
        self.followed: list[dict[int, int]] = [{} for _ in range(longest if enough <= longest else 0)]
        self.keys: tuple[int, ...] = ()  # of the last 1, 2, ... tokens
        own, counted = ([*zip(orders, range(1, self.most + 1))][::-1] for orders in (self.followed, tables))
        long = [source for source in own if source[1] >= enough]
        self.sources = [*long, *counted, *own[len(long) :]]  # in the order of reading, each with its n

    def extend(self, tokens: list[int]) -> None:
        """Notes each token as the last one after the n-grams before it."""
        for token in tokens:
            for followed, key in zip(self.followed, self.keys):
                followed[key] = token
            self.keys = self._keys_after(self.keys, token)

    def draft(self, most: int) -> list[int]:
        """Up to so many tokens, each from the first source that has one after the text and the draft so far."""
        keys, drafted = self.keys, []
        while len(drafted) < most:
            found = (source.get(keys[n - 1]) for source, n in self.sources if n <= len(keys))
            if (token := next((token for token in found if token is not None), None)) is None:
                break
            drafted.append(token)
            keys = self._keys_after(keys, token)
        return drafted

    def _keys_after(self, keys: tuple[int, ...], token: int) -> tuple[int, ...]:
        return token, *[key * self.vocabulary + token for key in keys[: self.most - 1]]


class SuffixAutomaton:
    """As in `lib.drafters.suffix_automaton`, for drafts where the longest match has `enough` tokens; state 0 starts."""

    def __init__(self, shortest: int, enough: int):
        self.shortest, self.enough, self.tokens, self.last = shortest, enough, array("i"), 0
        self.steps, self.lengths, self.links, self.ends = self.columns = [{}], [0], [-1], [0]  # of the states

    def extend(self, tokens: list[int]) -> None:
        """Adds each token, and notes the match before it as the last place of its strings."""
        for token in tokens:
            if (match := self.links[self.last]) > 0:
                self.ends[match] = len(self.tokens)
            self.tokens.append(token)
            here = self._add({}, len(self.tokens), 0, len(self.tokens))
            state, self.last = self._lead(self.last, token, None, here), here
            match = self.steps[state][token] if state >= 0 else 0
            if match and self.lengths[match] != self.lengths[state] + 1:
                whole, links = match, self.links
                match = self._add(dict(self.steps[whole]), self.lengths[state] + 1, links[whole], self.ends[whole])
                links[whole] = match
                self._lead(state, token, whole, match)
            self.links[here] = match

    def draft(self, most: int) -> list[int]:
        """The first branch of lib's draft, a tree of `most` nodes: the tokens after the longest match, then after
        shorter ones. It has more branches only where a match is less than `most` tokens before the end of the text.
        """
        children, nodes, node, drafted = {}, 0, 0, []  # children of each node by token; the root is node 0
        paths = (self.tokens[place : place + most] for place in self._places())
        for at, token in chain.from_iterable(map(enumerate, paths)):
            node = children.setdefault(node if at else 0, {}).setdefault(token, nodes + 1)
            nodes = max(nodes, node)
            if nodes == most:
                break
        node = 0
        while node in children:
            token, node = next(iter(children[node].items()))
            drafted.append(token)
        return drafted

    def _places(self):
        """The places after earlier occurrences of suffixes, those of the longest suffix first."""
        state, least = self.links[self.last], max(self.shortest, self.enough)
        while state > 0 and self.lengths[state] >= least:
            yield self.ends[state]
            yield from (self.ends[following] - 1 for following in reversed(self.steps[state].values()))
            state, least = self.links[state], self.shortest

    def _lead(self, state: int, token: int, before: int | None, after: int) -> int:
        """Leads the token's step from a state and its links to `after` while it led to `before`; gives the next."""
        while state >= 0 and self.steps[state].get(token) == before:
            self.steps[state][token] = after
            state = self.links[state]
        return state

    def _add(self, *state) -> int:
        for column, value in zip(self.columns, state):
            column.append(value)
        return len(self.ends) - 1


class Text:
    """A request's tokens so far, and their indexes, of which the first that has a draft gives it."""

    def __init__(self, indexes: list[NgramIndex | SuffixAutomaton]):
        self.tokens, self.indexes = array("i"), indexes

    def begins(self, row: np.ndarray) -> bool:
        """Whether a request's tokens int32[n] begin with these."""
        return np.array_equal(row[: len(self.tokens)], np.frombuffer(self.tokens, np.intc))

    def draft(self, row: np.ndarray, most: int) -> list[int]:
        """The draft after a request's tokens, which begin with these."""
        new = row[len(self.tokens) :].tolist()
        for each in (self.tokens, *self.indexes):
            each.extend(new)
        return next(filter(None, (index.draft(most) for index in self.indexes)), [])


class Proposer:
    """Drafts for vLLM's rows of tokens, which have no names and move between rounds: a row continues a text of an
    earlier round with which it begins, or is read anew. A kind has `defaults`, and `indexes` of a new text.
    """

    def __init__(self, vllm_config):
        given = (vllm_config.additional_config or {}).get("draft_proposer", {})
        self.options = {"schedule": [], **self.defaults, **given}
        if unknown := ", ".join(self.options.keys() - self.defaults.keys() - {"schedule"}):
            raise ValueError(f"draft_proposer has no option {unknown}; give {', '.join(self.defaults)} or schedule")
        self.tokens = vllm_config.speculative_config.num_speculative_tokens
        self.window, vocabulary = vllm_config.model_config.max_model_len, vllm_config.model_config.get_vocab_size()
        self.counted = (read_tables(self.options["tables"], vocabulary), vocabulary) if "tables" in self.options else ()
        self.texts: dict[int, Text] = {}  # by the last row of each

    def load_model(self, *_) -> None:
        """There is none."""

    def propose(self, sampled_token_ids, num_tokens_no_spec, token_ids_cpu, slot_mappings=None) -> list[list[int]]:
        """A draft for each row that has just sampled tokens, which its own tokens include, and [] for the others."""
        batch, drafts, known = sum(map(bool, sampled_token_ids)), [], dict(self.texts)
        most = next((tokens for first, _, tokens in reversed(self.options["schedule"]) if first <= batch), self.tokens)
        for slot, sampled in enumerate(sampled_token_ids):
            row = token_ids_cpu[slot, : num_tokens_no_spec[slot]]
            room = min(most, self.tokens, self.window - len(row) - 1)  # a place for the target's own next token
            if drafting := bool(sampled) and room > 0:
                texts = (text for text in chain([known.get(slot)], known.values()) if text and text.begins(row))
                self.texts[slot] = next(texts, None) or Text(self.indexes())
            drafts.append(self.texts[slot].draft(row, room) if drafting else [])
        return drafts


class Ngrams(Proposer):
    """N-grams of the text of `longest` to `enough` tokens, then those of the tables, then the text's shorter ones."""

    defaults = {"tables": "", "enough": 2, "longest": 4}

    def indexes(self):
        """Of a new text."""
        return [NgramIndex(*self.counted, self.options["enough"], self.options["longest"])]


class Sam(Proposer):
    """The tokens after the longest earlier match, of `shortest` tokens or more."""

    defaults = {"shortest": 1}

    def indexes(self):
        """Of a new text."""
        return [SuffixAutomaton(self.options["shortest"], enough=1)]


class Combined(Proposer):
    """The longest earlier match where it has `enough` tokens, elsewhere n-grams as `Ngrams` has them by default."""

    defaults = {"tables": "", "enough": 4, "shortest": 1}

    def indexes(self):
        """Of a new text."""
        return [SuffixAutomaton(self.options["shortest"], self.options["enough"]), NgramIndex(*self.counted, 2, 4)]


def read_tables(folder: str, vocabulary: int) -> list[dict[int, int]]:
    """The next token by key after 1, 2, ... tokens, from files that `lib.drafters.ngrams.save` wrote."""
    settings = json.loads(path.read_text()) if (path := Path(folder, "config.json")).is_file() else {}
    if (settings.get("kind"), settings.get("vocab_size")) != ("ngrams", vocabulary):
        raise ValueError(f"tables is {folder!r}, whose config.json has kind {settings.get('kind')!r} and vocab_size "
                         f"{settings.get('vocab_size')}; give a folder of n-gram tables of a target of {vocabulary}")
    orders, tensors = range(1, settings["orders"] + 1), load_file(path.with_name("model.safetensors"))
    keys = (tensors[f"context.{n}"].astype(np.int64) @ vocabulary ** np.arange(n - 1, -1, -1) for n in orders)
    return [dict(zip(each.tolist(), tensors[f"said.{n}"].tolist())) for n, each in zip(orders, keys)]
