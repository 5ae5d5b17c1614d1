"""The arguments of `generate`: checks, the prompts without padding, and drafts no deeper than there is room for."""

import math
from numbers import Integral, Real
from typing import Iterable, Sequence

import torch
from torch import Tensor

from lib.attention.registration import check_attention, takes_chains
from lib.drafters.drafter import Drafter, Wrapper, alone, levels_of
from lib.forward.passes import Output
from lib.trees.growth import Growth
from lib.trees.names import CHAIN, form_of
from lib.trees.tree import Tree
from lib.verify.draft import Draft, Draws
from lib.verify.rules import RULES

DEEPEST = 64  # levels that any draft may have
SHORT_CHAIN = "chain:4"


def unpadded(target, input_ids: Tensor, attention_mask: Tensor | None) -> list[Tensor]:
    """The prompts int64[T_b] of input_ids int64[B, T], on the CPU; the mask is 0 at padding. ValueError where there is
    none and rows seem to be padded.
    """
    if not isinstance(input_ids, Tensor) or input_ids.dim() != 2 or input_ids.is_floating_point():
        raise ValueError(f"input_ids is {_kind(input_ids)}; give int64[B, T], one prompt per row")
    if attention_mask is not None and getattr(attention_mask, "shape", None) != input_ids.shape:
        raise ValueError(
            f"attention_mask is {_kind(attention_mask)} for input_ids {tuple(input_ids.shape)}; give one entry per "
            "token")
    if attention_mask is not None:
        return [ids[real].cpu().long() for ids, real in zip(input_ids, attention_mask.bool())]
    # Padding is the target's padding token; where the target names none, a token that ends its texts.
    settings, config = (getattr(target, name, None) for name in ("generation_config", "config"))
    pads = next(filter(None, (token_set(getattr(owner, name, None)) for owner, name in (
        (settings, "pad_token_id"), (config, "pad_token_id"), (settings, "eos_token_id")))), ())
    for side, column in (("begin", 0), ("end", -1)) if input_ids.numel() else ():
        padded = [row for row, token in enumerate(input_ids[:, column].tolist()) if token in pads]
        if 0 < len(padded) < len(input_ids):
            token = int(input_ids[padded[0], column])
            raise ValueError(f"row {padded[0]} of input_ids {side}s with token {token}, the target's padding, and "
                             "others do not; pass `attention_mask`; all ones if these are text")
    return [ids.cpu().long() for ids in input_ids]


def token_set(eos_token_id: int | Iterable[int] | Tensor | None) -> frozenset[int]:
    """The tokens that end a text, without numbers below 0, by which configurations say that there is none."""
    if isinstance(eos_token_id, Tensor):
        eos_token_id = eos_token_id.flatten().tolist()
    if eos_token_id is None:
        return frozenset()
    alone = isinstance(eos_token_id, str) or not isinstance(eos_token_id, Iterable)
    tokens = [eos_token_id] if alone else list(eos_token_id)
    if not all(isinstance(token, Integral) for token in tokens):
        raise ValueError(f"eos_token_id is {eos_token_id!r}; give the number of a token, or several")
    return frozenset(int(token) for token in tokens if token >= 0)


def check_shape(target, shape: Tree | Growth) -> None:
    """ValueError for a tree where the target takes chains."""
    if takes_chains(target.config) and not (isinstance(shape, Tree) and shape.is_path):
        raise ValueError(f"shape is a tree of {shape.budget} nodes, but this target takes chains: "
                         f"{target.config.model_type} has layers with a state of one text; give a chain, such as "
                         "'chain:4'")


def checkable(target, names: Sequence[str]) -> list[str]:
    """The shapes and growth rules of these names that a target can check: all, or where it takes chains those that are
    chains, and a short one if there is none.
    """
    if not takes_chains(target.config):
        return list(names)
    return [name for name in names if form_of(name) == CHAIN] or ([SHORT_CHAIN] if names else [])


def check(target, drafter, prompts: list[Tensor], rule: str, temperature: float, limit: int, generator) -> None:
    """ValueError for a target, drafter, prompt, rule, temperature or limit that `generate` cannot use."""
    if not isinstance(drafter, Drafter):
        raise ValueError(
            f"drafter is {_kind(drafter)}, not a Drafter; give one that lib.drafters.make(NAME, pair) makes, such as "
            "make('model', pair)")
    if not callable(target) or not hasattr(target, "config"):
        raise ValueError(f"target is {_kind(target)}; give a model, such as lib.forward.load_pair(NAME).target")
    check_attention(target)
    if not isinstance(limit, Integral) or limit < 0:
        raise ValueError(f"max_new_tokens is {limit!r}; give 0 or more")
    vocabulary = target.config.get_text_config().vocab_size
    for row, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {row} is empty; give at least one token, such as the tokenizer's first")
        strange = prompt[(prompt < 0) | (prompt >= vocabulary)].tolist()
        if strange:
            raise ValueError(
                f"prompt {row} has token {strange[0]}, the target knows 0 to {vocabulary - 1}; take the target's own "
                "tokenizer, and an attention_mask that is 0 at padding")
    if (drafter.knows or 0) > vocabulary:
        raise ValueError(
            f"the drafter knows {drafter.knows} tokens, the target {vocabulary}; if the others are padding, make it by "
            "lib.drafters.make('model', pair), which leaves them out, else take one of the target's family")
    if rule not in RULES:
        raise ValueError(f"rule is {rule!r}; choose one of {', '.join(RULES)}")
    if not isinstance(temperature, Real) or not temperature >= 0:
        raise ValueError(f"temperature is {temperature!r}; give 0 (greedy) or more")
    if (rule == "greedy") != (temperature == 0):
        raise ValueError(
            f"rule {rule!r} at temperature {temperature}: greedy goes with temperature 0, the others with more")
    if temperature and not isinstance(generator, torch.Generator):
        raise ValueError(
            f"temperature is {temperature} but generator is {generator!r}; pass a torch.Generator, so that a run "
            "can be repeated")


def _kind(value) -> str:
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    return repr(value) if isinstance(value, (str, Real)) else f"a {type(value).__name__}"


def within_limits(target, drafter: Drafter, shape: Tree | Growth, prompts: Sequence[Tensor],
                  max_new_tokens: int) -> Drafter:
    """The drafter, or where its trees may be too deep one that cuts them.

    A shape has at most as many levels as new tokens are asked for, or DEEPEST if that is more, and the same ones in
    every round, the last included: all rounds of a measurement have the same tree, live and in replay, and a shape of
    thousands of levels costs no more than the text. Only the target's window ends trees earlier, near its end, where
    rounds therefore accept less: prompts whose rounds are counted leave room for the deepest tree and 1 token past the
    limit. A row whose text outgrows the drafter's window decodes plainly from there on (see `WithinWindow`).
    ValueError where the text itself is longer than the target's window.
    """
    text = max(map(len, prompts), default=0) + max(0, max_new_tokens - 1)  # the last token is written and not read
    window = getattr(target.config.get_text_config(), "max_position_embeddings", None)
    if window and text > window:
        raise ValueError(f"prompt and new tokens need {text} positions, the model's window has {window}; shorten the "
                         "prompt or max_new_tokens")
    most = max(max_new_tokens, DEEPEST)
    limits = [most, *(size - text for size in (window, drafter.window) if size)]
    return drafter if shape.max_depth <= min(limits) else WithinWindow(drafter, window or math.inf, most)


class WithinWindow(Wrapper):
    """Another drafter's drafts, of the rows and levels that fit its window and the target's.

    A row whose text, with all levels of the shape but the last, does not fit the drafter's window leaves the drafter
    for good, and its drafts are roots alone. Trees have at most `most` levels, and no more than the target's
    `positions` leave after the longest row.
    """

    def __init__(self, drafter: Drafter, positions: float = math.inf, most: float = math.inf):
        self.drafter, self.positions, self.most = drafter, positions, most

    @property
    def past_window(self) -> list[int]:
        """The rows that have left the drafter."""
        return [row for row in range(len(self.lengths)) if row not in self.inside]

    def start(self, prompts: Sequence[Tensor]) -> None:
        """Starts the drafter on the prompts that fit its window."""
        self.lengths = [len(prompt) for prompt in prompts]
        self.inside = [row for row, length in enumerate(self.lengths) if not self.window or length < self.window]
        if self.inside:
            self.drafter.start([prompts[row] for row in self.inside])

    def propose(self, shape: Tree | Growth, draws: Draws) -> list[Draft]:
        """The drafter's drafts of the rows that fit, and the roots of the others."""
        room = min(self.most, self.positions - max(self.lengths))
        if shape.max_depth > room:
            shape = levels_of(shape, room)[0] if isinstance(shape, Tree) else shape.at_most(room)
        if self.window:  # the last level is never forwarded
            self._keep([row for row in self.inside if self.lengths[row] + shape.max_depth - 1 <= self.window])
        drafts, self.levels, calls = alone(self.roots), [0] * len(self.roots), self.calls
        inner = self.drafter.propose(shape, draws) if self.inside else []
        levels = self.drafter.levels or [self.calls - calls] * len(inner)
        for row, draft, count in zip(self.inside, inner, levels):
            drafts[row], self.levels[row] = draft, count
        return drafts

    def commit(self, accepted: list[list[int]], bonus: list[int], target_outputs=None) -> None:
        """Passes on what the target kept in the drafter's rows, and its outputs there."""
        self.roots = list(bonus)
        self.lengths = [length + len(nodes) + 1 for length, nodes in zip(self.lengths, accepted)]
        if not self.inside:
            return
        if target_outputs is not None and len(self.inside) < len(bonus):  # what drafters read of them, of these rows
            states, logits = (getattr(target_outputs, name, None) for name in ("hidden_states", "logits"))
            target_outputs = Output(None if logits is None else logits[self.inside],
                                    states and tuple(layer[self.inside] for layer in states))
        self.drafter.commit([accepted[row] for row in self.inside], [bonus[row] for row in self.inside],
                            target_outputs)

    def select(self, rows: list[int]) -> None:
        """Keeps these rows, in this order, also of the drafter."""
        self._keep([row for row in rows if row in self.inside])
        self.inside = [place for place, row in enumerate(rows) if row in self.inside]
        self.roots, self.lengths = [self.roots[row] for row in rows], [self.lengths[row] for row in rows]

    def _keep(self, rows: list[int]) -> None:
        """Takes all other rows from the drafter; one that has no row left is not called again."""
        if rows and rows != self.inside:
            self.drafter.select([self.inside.index(row) for row in rows])
        self.inside = rows
