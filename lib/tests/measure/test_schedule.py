"""The schedule by batch size and length of the text."""

from collections import Counter

import numpy as np
import pandas as pd
import pytest
import torch

from lib.forward.load import load_pair
from lib.measure.schedule import CHAIN, TREE, explained, prompts_of_length, schedule
from lib.models.prompts import FAMILY
from lib.tests.models.test_prompts import Letters
from lib.trees import named


@pytest.mark.parametrize("tokenizer, around", [(Letters(), 0), (Letters("yes"), len("<user><bot>"))])
def test_prompts_of_a_length(tokenizer, around, tmp_path):
    read = prompts_of_length(tokenizer, 300, FAMILY)
    assert {len(ids) for ids in read.ids} == {300 + around}
    assert len(set(read.names)) == len(read.ids) == 12 and set(Counter(read.kinds).values()) == {2}
    with pytest.raises(ValueError, match="no kind of text in .* has 1000000 tokens"):
        prompts_of_length(tokenizer, 10**6, FAMILY)
    (tmp_path / "one.py").write_text("x = 1\n" * 900)  # its whole text, where a prompt would be its beginning
    assert prompts_of_length(tokenizer, 5000, tmp_path).names == ("py-5000-0",)


def test_each_cell_has_its_fastest_chain_and_tree():
    torch.set_num_threads(1)
    rows, factors = schedule(load_pair("small/tiny-small", dtype="float32"), lengths=[24, 48, 10**6], batches=[1, 400],
                             new_tokens=8, seconds=0.1, seed=0)
    assert set(rows["length"]) == {24, 48} and set(rows["batch"]) == {1}, "others are too long, or too large"
    assert rows.groupby("length")["kind"].apply(set).tolist() == [{CHAIN, TREE}] * 2
    assert factors["factor"].tolist() == ["kind", "length", "position"] and factors["n_prompts"].eq(24).all()
    for one in rows.itertuples():
        tree = named(one.shape)
        assert (tree.max_depth == tree.budget) == (one.kind == CHAIN) and one.n_prompts == 12
        assert abs(one.speedup - (1 + one.accepted) / one.check) < 1e-9 and one.low <= one.speedup <= one.high


def test_a_factor_that_decides_explains_all_and_one_that_does_not_nothing():
    rng = np.random.default_rng(0)
    rounds = pd.DataFrame(dict(kind=np.repeat(["a", "b"], 400), length=np.tile([128, 512], 400),
                               position=rng.integers(0, 4, 800), prompt=np.arange(800) // 10))
    rounds["accepted"] = np.where(rounds["kind"] == "a", 1.0, 3.0)
    shares = explained(rounds, rng, draws=50).set_index("factor")
    assert shares.loc["kind", "share"] == 1 and shares.loc[["length", "position"], "share"].abs().max() < 0.01
    rounds["accepted"] += rng.normal(size=800)  # as much variance again
    assert abs(explained(rounds, rng, draws=2).set_index("factor").loc["kind", "share"] - 0.5) < 0.06
