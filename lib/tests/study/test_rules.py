"""The study of rules: its rows are those of the enumeration, and its test of a law has the stated level and power."""

import pytest
import torch

from lib.lab.chapter import Store
from lib.lab.tables import read
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.study import rules
from lib.study.settings import Rules
from lib.tests import small_models
from lib.tests.notebook_settings import defaults
from lib.trees import named
from lib.verify import RULES, proof
from lib.verify.proof import Logits


def exact(folder, shape, cases):
    pieces = [((language, 0.5, 0.7, shape), cases) for language in range(2)]
    rules.fill(Store(folder, "04", "mark").open("rules_exact"), pieces, rules.exact_rows, 3, 0)
    return read(folder, "04_rules_exact")


def is_lossless(rows):
    return rows["rule"].map(lambda name: RULES[name].lossless)


def test_rows_hold_every_rule(tmp_path):
    cases = {shape: rules.sampled_rules(named(shape)) for shape in ("chain:2", "star:2")}
    for shape, pairs in cases.items():
        rows = exact(tmp_path, shape, pairs)
    assert len(rows) == 2 * sum(map(len, cases.values()))
    lossless = is_lossless(rows)
    assert rows[lossless]["distance"].max() < 1e-12 and rows[~lossless]["distance"].max() > 0.01


def test_a_study_enumerates_all_rules_and_compares_in_pairs():
    without_replacement = [("multi_step", "iid"), ("without_replacement", "without_replacement")]
    assert rules.cases_of(["chain:2", "star:2"], ["chain:1"], 0.8, [0.5]) == {
        (0.8, "chain:2"): rules.sampled_rules(named("chain:2")), (0.8, "star:2"): rules.sampled_rules(named("star:2")),
        (0.5, "star:2"): without_replacement, (0.5, "chain:1"): [("multi_step", "iid"), ("block", "iid")]}


def test_the_proof_has_every_rule_and_is_computed_once(tmp_path, monkeypatch):
    table, cases = Store(tmp_path, "04", "mark").open("rules_proof"), rules.sampled_rules(named("chain:1"))
    pieces = [(("chain:1", kind), cases) for kind in ("random", "hard")]
    rules.fill(table, pieces, rules.proof_rows, 2)
    rows = table.frame()
    assert rows[is_lossless(rows)]["worst"].max() < 1e-12 < 0.01 < rows[rows["rule"] == "conservative"]["worst"].max()
    assert len(rows) == 2 * len(cases) and set(rows[rows["kind"] == "random"]["languages"]) == {2}
    monkeypatch.setattr(proof, "law_of", None)
    rules.fill(table, pieces, rules.proof_rows, 2)


def test_languages_agree_as_much_as_they_are_told():
    generator = torch.Generator().manual_seed(0)
    target = Logits.random(4, 4, generator)
    same, other = target.related(1.0, generator), target.related(0.0, generator)
    stacked = [torch.stack(list(logits.by_path.values())).flatten() for logits in (target, same, other)]
    assert torch.equal(stacked[0], stacked[1])
    assert abs(torch.corrcoef(torch.stack([stacked[0], stacked[2]]))[0, 1]) < 0.15
    assert target.language(0.0)((1, 2)).sum() == 1 == target.language(0.0)((1, 2)).max()


LAW = {(0, 0): 0.4, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.0999, (2, 2): 0.0001}


def p_value(law, count, seed):
    """Of a test of LAW on samples of another law."""
    cells, generator = list(law), torch.Generator().manual_seed(seed)
    chances = torch.tensor(list(law.values()), dtype=torch.float64)
    drawn = torch.multinomial(chances, count, replacement=True, generator=generator)
    return rules.g_test([cells[place] for place in drawn], LAW)["p_value"]


def test_the_right_law_is_refused_as_often_as_the_level_says():
    assert 0.02 < sum(p_value(LAW, 400, seed) < 0.05 for seed in range(400)) / 400 < 0.09


def test_a_law_that_is_visibly_wrong_is_refused_as_often_as_the_power_says():
    count = 400
    distance = rules.visible(rules.g_test([(0, 0)] * count, LAW)["degrees"], count, 0.05)
    wrong = dict(LAW) | {(0, 0): 0.4 - distance, (1, 1): 0.0999 + distance}
    assert sum(p_value(wrong, count, seed) < 0.05 for seed in range(200)) / 200 > 0.75


def test_what_the_law_excludes_is_refused_at_once():
    assert rules.g_test([(0, 0)] * 50 + [(7, 7)], LAW)["p_value"] == 0


def test_the_loop_writes_the_targets_law(tmp_path, monkeypatch):
    """With every lossless rule."""
    monkeypatch.setattr(rules, "TESTED_TOKENS", 2)
    target = small_models.llama(1)
    pair = Pair("t/d", target, small_models.related(target, 2, 0.3), None, "t", "d")
    settings = defaults(Rules, live_shapes=["expansion:2,1"], test_top_k=3, samples=400)
    prompts = PromptSet(("p",), ("k",), (torch.tensor([3, 1, 4]),))
    rules.law_tests(Store(tmp_path, "04", "mark"), pair, prompts, settings)
    rows = read(tmp_path, "04_rules_law")
    level = rules.LEVEL / len(rules.LOSSLESS)
    assert rows["rule"].tolist() == [*rules.LOSSLESS] and (rows["p_value"] > level).all()
    assert rows["visible"].tolist() == pytest.approx([rules.visible(k, 400, level) for k in rows["degrees"]])
