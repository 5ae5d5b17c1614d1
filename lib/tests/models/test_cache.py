"""The cache and the registration, together: a real model, random trees, ragged prompts, several rounds."""

import numpy as np
import pytest
import torch

from lib.attention.registration import tree_forward, using_attention
from lib.models.cache import TreeCache
from lib.tests.small_models import VOCABULARY, llama, prompts
from lib.trees.tree import Tree

MODEL = llama(3)


def prefilled(texts):
    """A cache of right-padded texts."""
    padded = torch.nn.utils.rnn.pad_sequence([torch.as_tensor(text) for text in texts], batch_first=True)
    cache = TreeCache()
    tree_forward(MODEL, padded, torch.arange(padded.shape[1]), None, cache)
    cache.set_lengths([len(text) for text in texts])
    return cache


@pytest.mark.parametrize("lengths", [[7], [5, 5], [9, 3, 6]])
@torch.no_grad()
def test_a_whole_tree_in_one_forward_equals_each_path_alone(lengths):
    """After each of several commits. Eager attention and the norms take softmax and mean square in float32."""
    rng, rows = np.random.default_rng(len(lengths)), [text.tolist() for text in prompts(1, lengths)]
    cache = prefilled(rows)
    for _ in range(3):
        trees = [Tree([-1] + [int(rng.integers(0, node)) for node in range(1, 9)]) for _ in rows]
        depth, mask = (torch.stack([torch.tensor(getattr(tree, name)) for tree in trees]) for name in ("depth", "mask"))
        tokens = torch.from_numpy(rng.integers(0, VOCABULARY, (len(rows), 9)))
        logits = tree_forward(MODEL, tokens, depth, mask, cache).logits
        accepted = []
        for row in range(len(rows)):
            for node in range(9):
                path = mask[row, node].nonzero().flatten()
                with using_attention(MODEL, "eager"):
                    alone = MODEL(torch.tensor([rows[row] + tokens[row, path].tolist()])).logits[0, -1]
                torch.testing.assert_close(logits[row, node], alone, rtol=0, atol=1e-5)
            accepted.append(mask[row, int(rng.integers(0, 9))].nonzero().flatten().tolist())
            rows[row] += tokens[row, accepted[-1]].tolist()
        cache.commit(accepted)
        assert cache.lengths.tolist() == [len(tokens) for tokens in rows] and cache.pending == 0


@pytest.mark.parametrize("with_tree_cache", [False, True])
@torch.no_grad()
def test_plain_generate_equals_sdpa(with_tree_cache):
    """Without a tree the registered name is an ordinary attention: left-padded batches and padding masks included."""
    tokens = torch.stack(prompts(1, (6, 6)))
    padding = torch.ones_like(tokens)
    padding[1, :3] = 0
    settings = dict(attention_mask=padding, max_new_tokens=12, do_sample=False, pad_token_id=0, output_logits=True,
                    return_dict_in_generate=True)
    ours = MODEL.generate(tokens, **settings, **({"past_key_values": TreeCache()} if with_tree_cache else {}))
    with using_attention(MODEL, "sdpa"):
        theirs = MODEL.generate(tokens, **settings)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits), rtol=0, atol=1e-10)


def test_the_cache_holds_exactly_the_committed_tokens():
    """Against a plain list of lists, through random appends, commits, growth, joins and selections. Keys carry their
    own number, to follow them through the buffers.
    """
    rng, number = np.random.default_rng(0), 0
    cache, rows = TreeCache(), [[], [], []]
    for step in range(60):
        nodes = int(rng.integers(1, 20))
        states = (number + torch.arange(nodes, dtype=torch.float64)).expand(len(rows), 1, nodes).unsqueeze(-1)
        keys, values = cache.update(states, -states, 0)
        assert torch.equal(keys, -values) and keys.shape[2] == max(map(len, rows)) + nodes == cache.get_seq_length(0)
        assert cache.get_seq_length(1) == max(map(len, rows)), "a layer without nodes of this forward pass"
        accepted = [sorted(rng.choice(nodes, int(rng.integers(1, nodes + 1)), replace=False)) for _ in rows]
        for row, path in zip(rows, accepted):
            row += [number + node for node in path]
        cache.commit(accepted)
        number += nodes
        if step == 30:
            other = TreeCache()
            other.update(states[:1], -states[:1], 0)
            other.commit([list(range(nodes))])
            cache.join([other])
            rows.append([number - nodes + node for node in range(nodes)])
        if step == 50:
            cache.select(torch.tensor([2, 0, 3]))
            rows = [rows[2], rows[0], rows[3]]
        assert cache.lengths.tolist() == [len(row) for row in rows]
        for row, tokens in enumerate(rows):
            assert cache.layers[0].keys[row, 0, : len(tokens), 0].tolist() == tokens
