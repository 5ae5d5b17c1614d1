"""Heads that learn alike: passes of the target are computed once; other prompts choose trees than those that judge."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch

from lib.engines.methods import Way
from lib.tests import small_models
from lib.training import conditioning
from lib.training.conditioning import KeptPasses, compare
from lib.trees import named


def test_a_pass_is_computed_once_for_each_text_and_kept_by_layer(tmp_path):
    target = small_models.llama(3, layers=9, dtype=torch.float32).requires_grad_(False)
    texts, counted = small_models.prompts(0, [12, 12]), []
    expected = [target.base_model(text[None], output_hidden_states=True).hidden_states for text in texts]
    counter = target.base_model.register_forward_hook(lambda *call: counted.append(1))
    for _ in range(2):
        for text, hidden in zip(texts, expected):
            kept = KeptPasses(target, tmp_path).base_model(text[None], output_hidden_states=True).hidden_states
            rounded = {layer: hidden[layer].bfloat16().float() for layer in (2, 4, 6, -1)}
            torch.testing.assert_close(kept, rounded, rtol=0, atol=0)
    counter.remove()
    assert len(counted) == 2 and KeptPasses(target, tmp_path).config is target.config


def test_trees_are_chosen_on_choosing_prompts_and_judged_on_the_others():
    """The best that fits each size, though judging prompts prefer another; differences are paired by prompt."""
    shapes = [("chain:1", "chain", 2), ("chain:3", "chain", 4), ("tree@3", "tree", 4), ("tree@7", "tree", 8)]
    generator = np.random.default_rng(0)
    rounds = pd.DataFrame([
        dict(head=head, shape=shape, form=form, size=size, prompt=f"{part} {prompt}", part=part, rounds=100,
             accepted=500 + 100 * number * sign + 90 * (head == "dspark") + generator.integers(50))
        for head in ("dflash", "dspark") for number, (shape, form, size) in enumerate(shapes)
        for part, sign in (("choosing", 1), ("judging", -1)) for prompt in range(20)])
    table = compare(rounds, generator).set_index(["quantity", "head", "form", "rows"])
    for head, nodes in product(("dflash", "dspark"), conditioning.ROWS):
        values = {}
        for form, shape in (("chain", "chain:3"), ("tree", "tree@3" if nodes == 4 else "tree@7")):
            row = table.loc["accepted", head, form, nodes]
            judged = rounds.query("head == @head and shape == @shape and part == 'judging'")
            values[form] = judged["accepted"].sum() / 2000
            assert row["shape"] == shape and row["n"] == 20 and row["value"] == pytest.approx(values[form])
        over_chain = table.loc["accepted over chain", head, "tree", nodes]
        assert over_chain["value"] == pytest.approx(values["tree"] - values["chain"]) and over_chain["high"] < 0
    over = table.loc["accepted over dflash"]
    assert {*over.index.get_level_values("head")} == {"dspark"} and over["low"].gt(0).all() and len(over) == 8


def test_drafting_is_in_plain_steps_by_the_levels_of_the_shapes_that_were_timed(monkeypatch):
    timed = [("plain", "nodes:0", 0, 10.0), ("forced", "nodes:1", 1, 11.0), ("a", "chain:1", 1, 2.0),
             ("a", "chain:4", 4, 5.0)]
    rows = pd.DataFrame(timed, columns=["method", "shape", "nodes", "ms"]).assign(batch=1, n=3)
    monkeypatch.setattr(conditioning.costs, "measure", lambda bench, ways, most_nodes: rows)
    found = conditioning.drafting(None, [Way("a", "a", named(name), name) for name in ("chain:2", "chain:3")])
    assert found["value"].tolist() == pytest.approx([0.3, 0.4]) and found["n"].eq(6).all()
