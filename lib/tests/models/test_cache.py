"""The cache against plain lists; the registered attention without a tree is an ordinary one."""

import numpy as np
import pytest
import torch

from lib.attention.registration import using_attention
from lib.models.cache import TreeCache
from lib.tests.small_models import llama, prompts

MODEL = llama(3)


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
