"""The recommendation end to end on a tiny pair, and each of its numbers against counting."""

import ast
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost, replay
from lib.cost import advice, best_tree, engines, formulas
from lib.cost.best_tree import Limits
from lib.decoding import continuations, generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import tables
from lib.replay import acceptance
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.cost.engine_readers import READERS
from lib.tests.replay.test_replay import synthetic
from lib.trees import Tree, shapes

LIMITS = Limits(8, 4)


def halves(trace):
    """The even rows choose, the odd ones judge."""
    even = np.arange(len(trace.lengths)) % 2 == 0
    return trace.select(even), trace.select(~even)


def recorded(rows=12, seed=0):
    """A synthetic trace whose even rows choose; `good` has the drafter's ranks lower than `d`."""
    made = synthetic(np.random.default_rng(seed), rows=rows, width=30, ranks=4)
    better = np.where(made.ranks["d"] > 0, made.ranks["d"] - 1, made.ranks["d"]).astype(np.int32)
    about = {"protocol": "continuation", "target": "t", "temperature": 0.0,
             "choosing": [int(row % 2 == 0) for row in range(rows)]}
    both = {"d": made.ranks["d"], "good": better}
    per = {name: made.probs["d"] for name in both}
    return replace(made, ranks=both, probs=per, alpha=per, about=about)


def costs(batch=1, scale=1.0):
    rows = test_cost.table(batch=batch, scale=scale)
    return cost.Costs(pd.concat([rows, rows.assign(drafter="good")]))


@pytest.fixture(scope="module")
def given_advice():
    return advice.advise(*halves(recorded()), costs(), prefix=64, limits=LIMITS, generator=np.random.default_rng(0))


def test_the_better_drafter_is_recommended_and_all_is_judged_on_the_other_half(given_advice):
    assert given_advice.drafter == "good" and 0 < given_advice.tree.budget <= 8
    row = given_advice.table.set_index("what").loc[advice.RECOMMENDED]
    _, judged = halves(recorded())
    own = costs().at("t", "good", prefix=64)
    found = cost.speeds(judged, "good", [("x", 0, given_advice.tree)], own, np.random.default_rng(0)).iloc[0]
    assert row["speedup"] == pytest.approx(found["speedup"]) and row["n_rounds"] == found["n_rounds"]
    assert row["speedup_low"] <= row["speedup"] <= row["speedup_high"]
    assert row["tree"] == str(given_advice.tree.choices())


def test_rivals_stand_beside_it_with_their_relative_speed(given_advice):
    found = given_advice.table.set_index("what")
    assert list(found.index) == [advice.RECOMMENDED, advice.SAME_BUDGET, advice.BEST_CHAIN, advice.BEST_KARY,
                                 advice.PLAIN, "best of d", formulas.SMART, formulas.LEVIATHAN, formulas.BLOG]
    top = found.loc[advice.RECOMMENDED]
    assert np.allclose(found["against"], found["speedup"] / top["speedup"])
    assert (found["against_low"] <= found["against"]).all() and (found["against"] <= found["against_high"]).all()
    assert found.loc[advice.SAME_BUDGET, "nodes"] == top["nodes"]
    assert found.loc[advice.PLAIN, "speedup"] == 1 and found.loc[advice.PLAIN, "speedup_low"] == 1


def test_a_tree_that_grows_is_judged_by_its_own_rounds_and_forwards(given_advice):
    """Where what grows is accepted as the recommended tree is, its loss is that of its forwards alone."""
    _, judged = halves(recorded())
    own = costs().at("t", "good", prefix=64)

    def grow(drafter, rule):
        return acceptance.evaluate(judged, drafter, [(rule.name, rule.budget, given_advice.tree)])

    found = advice.advise(*halves(recorded()), costs(), prefix=64, limits=LIMITS, generator=np.random.default_rng(0),
                          grow=grow)
    row = found.settings.set_index("engine").loc["SGLang, dynamic tree"]
    setting = READERS["SGLang, dynamic tree"](row["setting"])
    seconds = own.once + float(own.level(1)) + (setting.steps - 1) * float(own.level(setting.top_k))
    seconds += float(own.check(setting.nodes))
    assert row["loss"] == pytest.approx(1 - own.round(given_advice.tree) / seconds)
    assert row["loss_low"] == pytest.approx(row["loss"]) == pytest.approx(row["loss_high"])


def test_where_a_drafter_grows_no_such_tree_its_loss_is_unknown_and_said():
    found = advice.advise(*halves(recorded()), costs(), prefix=64, limits=LIMITS, generator=np.random.default_rng(0),
                          grow=lambda drafter, rule: None)
    row = found.settings.set_index("engine").loc["EAGLE-2, EAGLE-3"]
    assert np.isnan(row["loss"]) and row["note"].endswith(advice.GROWS)


def test_settings_read_back_and_say_what_they_lose(given_advice, tmp_path):
    found = given_advice.settings.set_index("engine")
    assert list(found.index) == list(engines.ENGINES)
    for name, row in found.iterrows():
        setting = READERS[name](row["setting"])
        assert row["exact"] == (isinstance(setting, Tree) and setting == given_advice.tree)
        assert np.isnan(row["loss"]) == isinstance(setting, engines.Dynamic)
        if row["exact"]:
            assert row["loss"] == pytest.approx(0) and row["loss_low"] == pytest.approx(0)
    chain = given_advice.table.set_index("what").loc[advice.BEST_CHAIN]
    assert found.loc["llama.cpp", "loss"] == pytest.approx(1 - chain["against"])
    tables.write(tmp_path, "advice", given_advice.table, "mark")
    tables.write(tmp_path, "advice_settings", given_advice.settings, "mark")
    assert tables.read(tmp_path, "advice_settings")["setting"].tolist() == found["setting"].tolist()


def test_where_nothing_pays_plain_decoding_is_advised():
    dear = costs()
    dear = cost.Costs(dear.rows.assign(draft_ms=dear.rows["draft_ms"] + 1e6 * (dear.rows["nodes"] > 0)))
    found = advice.advise(*halves(recorded()), dear, prefix=64, limits=LIMITS, generator=np.random.default_rng(0))
    assert found.tree == Tree([-1]) and found.settings.empty
    assert found.table.set_index("what").loc[advice.RECOMMENDED, "speedup"] == 1


def test_what_formulas_would_choose_stands_beside_with_its_promise(given_advice):
    choosing, _ = halves(recorded())
    own = costs().at("t", "good", prefix=64)
    found = given_advice.table.set_index("what")
    alpha, step = formulas.mean_alpha(choosing, "good"), own.level(1) / own.plain
    factors = {length: formulas.leviathan_speedup(alpha, length, step) for length in range(LIMITS.depth + 1)}
    best = max(factors, key=factors.get)
    assert found.loc[formulas.LEVIATHAN, "nodes"] == best
    assert found.loc[formulas.BLOG, "nodes"] == LIMITS.depth  # of the lengths 3 and 4, between the rows 3 and 5
    assert given_advice.promised == pytest.approx({
        formulas.SMART: _speed(given_advice, formulas.SMART) * own.plain, formulas.LEVIATHAN: factors[best],
        formulas.BLOG: formulas.blog_speedup(LIMITS.depth)})


def _speed(given_advice, what):
    """Tokens a second of a row's tree on the choosing prompts."""
    tree = Tree.from_choices(ast.literal_eval(given_advice.table.set_index("what").loc[what, "tree"]))
    choosing, _ = halves(recorded())
    own = costs().at("t", "good", prefix=64)
    return (1 + best_tree.mean_accepted(choosing, tree, "good")) / own.round(tree)


def test_a_formula_that_lacks_what_it_needs_is_left_out():
    choosing, _ = halves(replace(recorded(), alpha={}))
    own = costs().at("t", "good", prefix=64)
    said = formulas.promises(choosing, own, Limits(8, 2), "good")  # no alpha, and no length of the blog's table
    assert [one.formula for one in said] == [formulas.SMART]


def test_smarts_tree_takes_the_best_next_node_and_stops_where_none_is_worth_it():
    """Every tree that lacks its last node is slower, and so is every tree with one more."""
    choosing, _ = halves(recorded())
    own = costs().at("t", "good", prefix=64)

    def speed(tree):
        return (1 + best_tree.mean_accepted(choosing, tree, "good")) / own.round(tree)

    smart = formulas.smart(choosing, own, LIMITS, "good").tree
    there = smart.choices()
    more = [(*parent, rank) for parent in [(), *there] for rank in range(4) if (*parent, rank) not in there]
    assert 0 < smart.budget < LIMITS.nodes and speed(smart) > speed(Tree([-1]))
    assert all(speed(Tree.from_choices([*there, path])) <= speed(smart) for path in more)


def test_following_the_advice_end_to_end():
    """Record, calibrate, ask, and decode with what is recommended: the text is the target's own."""
    target = small_models.llama(3)
    pair = SimpleNamespace(target=target, target_name="t", drafter_name="d",
                           draft_model=small_models.related(target, 4, 0.05))
    ids = small_models.prompts(5, [12] * 6)
    made = replay.record(target, {"d": pair.draft_model}, ids, names=list("abcdef"), kinds=["k"] * 6,
                        max_new_tokens=20, about={"target": "t", "protocol": "continuation",
                                                  "choosing": [1, 0, 1, 0, 1, 0]})
    measured = cost.calibrate(pair, ids, prefixes=(24,), shapes=("chain:0", "chain:1", "chain:4", "independent:2x3"),
                              repeats=1, seconds=2.0, generator=torch.Generator().manual_seed(0))
    found = advice.advise(*halves(made), cost.Costs(measured), prefix=24, limits=Limits(6, 3),
                          generator=np.random.default_rng(0))
    trees = {"recommended": found.tree, "chain": shapes.chain(3)} | {
        row.engine: READERS[row.engine](row.setting) for row in found.settings.itertuples()}
    own = continuations(target, ids, max_new_tokens=16)
    for tree in {tree for tree in trees.values() if isinstance(tree, Tree)}:
        done = generate(target, LanguageModelDrafter(pair.draft_model), torch.stack(ids), shape=tree, max_new_tokens=16)
        assert done.new_tokens == own
