"""Greedy output is the target's own, whatever drafts and whatever the tree.

The statement, for a target in a number format and the text that the loop writes after a prompt:

- In float64 the text is the target's own greedy text, token for token.
- In bfloat16, and with int8 weights, a forward pass of one token and one of a tree round differently, and so may choose
  differently between logits that are nearly equal. There each written token is one whose logit, in a forward pass of
  the same target in the same format over the same text, is within MARGIN of the best logit.
"""

import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.decoding import generate
from lib.drafters import make
from lib.forward import load_pair
from lib.models.prompts import load
from lib.tests.real_model import needs_real_model, real_pair
from lib.trees import Tree

MARGIN = 0.5  # logits of SmolLM2 are 8 to 32, where bfloat16 numbers are 0.0625 to 0.125 apart
ALONE = ("lookup", "sam")  # drafters that need no draft model


def random_tree(nodes: int, seed: int) -> Tree:
    rng = random.Random(seed)
    return Tree([-1, *(rng.randrange(node) for node in range(1, nodes + 1))])


def written(pair, drafter: str, ids: torch.Tensor, tree: Tree, tokens: int) -> torch.Tensor:
    """int64[1, T + tokens]: a prompt int64[T] and its continuation by the loop."""
    return generate(pair.target, make(drafter, pair), ids[None], shape=tree, max_new_tokens=tokens,
                    eos_token_id=pair.eos_token_ids).sequences


def own(pair, ids: torch.Tensor, tokens: int) -> torch.Tensor:
    return pair.target.generate(ids[None], max_new_tokens=tokens, do_sample=False, pad_token_id=0,
                                eos_token_id=list(pair.eos_token_ids) or None)


FAMILY = load_pair("small/tiny", dtype="float64")
PROMPTS = load("", FAMILY.tokenizer, first=1)
OWN = [own(FAMILY, ids, 16) for ids in PROMPTS.ids]


@settings(max_examples=25, deadline=None)
@given(st.integers(0, len(OWN) - 1), st.sampled_from((*ALONE, "model")), st.integers(1, 20), st.integers(0, 10**6))
def test_in_float64_the_text_is_the_targets_own(prompt, drafter, nodes, seed):
    text = written(FAMILY, drafter, PROMPTS.ids[prompt], random_tree(nodes, seed), 16)
    assert torch.equal(text, OWN[prompt])


@needs_real_model
@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_in_its_own_format_each_token_is_within_the_margin_of_the_best(quantize):
    pair = real_pair(quantize=quantize)
    prompts = load("", pair.tokenizer, first=1).ids
    for seed, (drafter, ids) in enumerate(zip(2 * ALONE, prompts, strict=False)):
        tree = random_tree(2 + 2 * seed, seed)
        text = written(pair, drafter, ids, tree, 16)
        with torch.inference_mode():
            logits = pair.target(text).logits[0, len(ids) - 1 : -1].float()
        chosen = logits.gather(1, text[0, len(ids) :, None])[:, 0]
        assert (logits.max(-1).values - chosen).max() <= MARGIN, (drafter, tree)


@needs_real_model
def test_in_float64_smollm2_writes_its_own_text():
    pair = load_pair("smollm2-135m", dtype="float64")  # not kept: it has a gigabyte
    ids = load("", pair.tokenizer, first=1).ids[0]
    expected = own(pair, ids, 8)
    for seed, drafter in enumerate(ALONE):
        assert torch.equal(written(pair, drafter, ids, random_tree(4 + 2 * seed, seed), 8), expected), drafter
