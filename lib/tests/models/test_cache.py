"""The cache against plain lists."""

import numpy as np
import torch

from lib.models.cache import TreeCache


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
