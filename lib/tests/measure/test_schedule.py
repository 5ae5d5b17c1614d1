"""The schedule by batch size and length of the text."""

import torch

from lib.forward.load import load_pair
from lib.measure.schedule import CHAIN, TREE, schedule
from lib.trees import shapes


def test_each_cell_has_its_fastest_chain_and_tree():
    torch.set_num_threads(1)
    rows = schedule(load_pair("small/tiny", dtype="float32"), lengths=[24, 48, 10**6], batches=[1, 400], new_tokens=8,
                    seconds=0.1, seed=0)
    assert set(rows["length"]) == {24, 48} and set(rows["batch"]) == {1}, "others are too long, or too large"
    assert rows.groupby("length")["kind"].apply(set).tolist() == [{CHAIN, TREE}] * 2
    for one in rows.itertuples():
        tree = shapes.parse(one.shape)
        assert (tree.max_depth == tree.budget) == (one.kind == CHAIN) and one.n_prompts == 8
        assert abs(one.speedup - (1 + one.accepted) / one.check) < 1e-9 and one.low <= one.speedup <= one.high
