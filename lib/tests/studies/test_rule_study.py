"""The study of rules: its rows are those of the enumeration, and its test of a law has the stated level and power."""

import matplotlib.pyplot as plt
import pandas as pd
import pytest
import torch
from scipy import stats

from lib.lab.tables import Table
from lib.models.load import Pair
from lib.studies.rules import figures, findings, measure, verification_cost
from lib.tests import small_models
from lib.trees import shapes
from lib.verify import warp
from lib.verify.proof import enumeration
from lib.verify.proof.languages import Logits

SETTING = dict(temperatures=[0.5, 1.0], agreements=[0.7], languages=2, seed=0)


def table(name="rules_exact", run_dir=""):
    return Table(run_dir, name, "test")


def test_rows_hold_every_rule_below_its_bound():
    rows = measure.exact(table(), ["chain:2", "star:2"], **SETTING)
    assert len(rows) == 2 * 2 * (
        len(measure.sampled_rules(shapes.chain(2))) + len(measure.sampled_rules(shapes.star(2))) + 6
    )
    kept = rows[rows.lossless]
    assert kept.distance.max() < 1e-12 and rows[~rows.lossless].distance.max() > 0.01
    setting = ["language", "temperature", "shape", "proposal"]
    best = kept.groupby(setting).accepted.max()
    bound = kept[kept.rule == measure.BOUND].groupby(setting).accepted.max()
    assert (best <= bound + 1e-6).all()


def test_what_a_table_has_is_not_computed_again(tmp_path, monkeypatch):
    pairs = [("naive", "top_k"), ("traversal", "without_replacement")]
    first = measure.exact(table(run_dir=tmp_path), ["chain:1"], **SETTING, pairs=pairs)
    monkeypatch.setattr(enumeration, "law", None)
    monkeypatch.setattr(measure.bounds, "best_accepted_length", None)
    again = measure.exact(table(run_dir=tmp_path), ["chain:1"], **SETTING, pairs=pairs[::-1])
    assert len(again) == len(first) and set(again.label) == set(first.label)
    with pytest.raises(TypeError):
        measure.exact(table(run_dir=tmp_path), ["star:2"], **SETTING, pairs=pairs)


def test_the_proof_is_a_table_of_rules_and_proposals():
    pairs = [("without_replacement", "without_replacement"), ("conservative", "iid")]
    rows = measure.proof(table("rules_proof"), ["star:2"], random=3, pairs=pairs).set_index(["rule", "kind"])
    assert rows.loc["without_replacement"].worst.max() < measure.EXACT < 0.01 < rows.loc["conservative"].worst.max()
    assert rows.languages.loc[("conservative", "random")] == 3 and rows.lossless.any() and not rows.lossless.all()


def test_the_map_names_the_rule_that_accepts_most():
    rows = measure.exact(table(), ["star:2"], **SETTING, bounded=False)
    best = findings.best_rules(rows).set_index(["proposal", "lossless", "temperature"])
    for (proposal, lossless, temperature), row in best.iterrows():
        same = rows[(rows.proposal == proposal) & (rows.lossless == lossless) & (rows.temperature == temperature)]
        assert row.accepted == pytest.approx(same.groupby("rule").accepted.mean().max())
        assert row["rule"] in set(same["rule"])


def test_figures_show_every_rule():
    proof = measure.proof(table("rules_proof"), ["star:2", "chain:1"], random=1)
    figure = figures.deviations(proof)
    shown = [tick.get_text() for tick in figure.axes[0].get_yticklabels()]
    cases = {*measure.sampled_rules(shapes.star(2)), *measure.enumerated(shapes.chain(1))}
    assert set(shown) == {measure.label(*case) for case in cases}
    found = findings.lossless_or_not(proof)
    worst = proof[(proof["rule"] == "ratio, then p") & (proof["kind"] == "random")]
    assert not worst["lossless"].any() and f"is {worst['worst'].max():.2f} if it emits a sample of p" in found.text
    assert "ratio, then again" in found.table.index
    assert "weblog" not in findings.lossless_or_not(proof[~proof["rule"].str.startswith("ratio")]).text
    rows = measure.exact(table(), ["star:2"], **SETTING, bounded=False)
    assert len(figures.accepted_over_distance(rows, "traversal").legends[0].get_texts()) == rows["rule"].nunique()
    best = findings.best_rules(rows)
    texts = " ".join(text.get_text() for text in figures.which_rule(best).axes[0].texts)
    assert all(rule in texts for rule in best["rule"])
    plt.close("all")


def test_languages_agree_as_much_as_they_are_told():
    generator = torch.Generator().manual_seed(0)
    target = Logits.random(4, 4, generator)
    same, other = target.related(1.0, generator), target.related(0.0, generator)
    stacked = [torch.stack(list(logits.by_path.values())).flatten() for logits in (target, same, other)]
    assert torch.equal(stacked[0], stacked[1])
    assert abs(torch.corrcoef(torch.stack([stacked[0], stacked[2]]))[0, 1]) < 0.15
    assert target.language(0.0)((1, 2)).sum() == 1 == target.language(0.0)((1, 2)).max()


LAW = {(0, 0): 0.4, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.0999, (2, 2): 0.0001}


def sampled(law, count, seed):
    cells, generator = list(law), torch.Generator().manual_seed(seed)
    chances = torch.tensor(list(law.values()), dtype=torch.float64)
    return [cells[place] for place in torch.multinomial(chances, count, replacement=True, generator=generator)]


def test_the_right_law_is_refused_as_often_as_the_level_says():
    found = [measure.g_test(sampled(LAW, 400, seed), LAW).p_value for seed in range(400)]
    assert 0.02 < sum(p < 0.05 for p in found) / 400 < 0.09


def test_a_law_that_is_visibly_wrong_is_refused_as_often_as_the_power_says():
    count = 400
    distance = measure.g_test(sampled(LAW, count, 0), LAW).visible(0.05)
    wrong = dict(LAW) | {(0, 0): 0.4 - distance, (1, 1): 0.0999 + distance}
    found = [measure.g_test(sampled(wrong, count, seed), LAW).p_value for seed in range(200)]
    assert sum(p < 0.05 for p in found) / 200 > 0.75


def test_many_tests_hold_together_as_holm_has_it():
    rows = pd.DataFrame({"statistic": 9.0, "degrees": 4, "p_value": [0.03, 0.001, 0.02, 0.6], "samples": 500})
    judged = measure.judged(rows)
    assert judged["adjusted"].tolist() == pytest.approx([0.06, 0.004, 0.06, 0.6])
    assert judged["passes"].tolist() == [True, False, True, True]
    alone = measure.judged(rows[:1])
    assert (judged["visible"] > alone["visible"].iloc[0]).all() and not alone["passes"].iloc[0]


def test_what_the_law_excludes_is_refused_at_once():
    assert measure.g_test([(0, 0)] * 50 + [(7, 7)], LAW).p_value == 0


def test_the_law_of_a_model_is_the_product_of_its_conditionals():
    model = small_models.llama(0)
    prompt = torch.tensor([3, 1, 4])
    law = measure.law_of(model, prompt, 2, 0.8, 3)
    assert len(law) == 9 and sum(law.values()) == pytest.approx(1, abs=1e-12)

    def conditional(path):
        logits = model(torch.cat([prompt, torch.tensor(path, dtype=torch.long)])[None]).logits[0, -1]
        return warp(logits.detach(), 0.8, 3)

    whole = enumeration.joint(conditional, 2)
    assert all(chance == pytest.approx(float(whole[cell]), abs=1e-12) for cell, chance in law.items())


def test_a_target_alone_is_tested_with_drafts_of_its_own_first_layers():
    target = small_models.llama(1, layers=6)
    alone = Pair("t", target, None, None, "t", "none")
    pair = measure.with_draft_model(alone)
    assert pair.name == "t/early_exit:5" and len(pair.draft_model.model.layers) == 5
    assert measure.with_draft_model(pair) is pair
    setting = measure.LawTest("expansion:2,1", temperature=1.0, top_k=3, length=2, samples=256, seed=0)
    rules = [("naive", "top_k"), ("traversal", "without_replacement")]
    rows = measure.law_tests(table("rules_law"), pair, {"p": torch.tensor([3, 1, 4])}, rules, setting)
    assert measure.judged(rows)["passes"].all() and set(rows["dtype"]) == {"float64"}
    with pytest.raises(ValueError, match="one layer alone"):
        measure.with_draft_model(Pair("t", small_models.llama(1, layers=1), None, None, "t", "none"))


def test_the_visible_distance_has_the_power_that_it_says():
    """The power of the normal law with the mean and variance of the non-central chi-squared law, for any degrees."""
    for degrees, samples, level in [(1, 100, 0.05), (5, 128, 0.01), (60, 4000, 0.005)]:
        extra = 4 * samples * measure.GTest(0.0, degrees, 1.0, samples).visible(level) ** 2
        above = (degrees + extra - stats.chi2.isf(level, degrees)) / (2 * (degrees + 2 * extra)) ** 0.5
        assert stats.norm.cdf(above) == pytest.approx(measure.POWER)


def test_the_benchmark_counts_the_rows_that_cannot_be_done_without():
    found = verification_cost.measure(
        table("rules_cost"), ["greedy", "naive", "block", "k_seq", "deterministic"], ["chain:4", "star:3"],
        vocabulary=2000, generator=torch.Generator().manual_seed(0), rounds=3, repeats=3).set_index(["rule", "shape"])
    assert ("block", "star:3") not in found.index
    for rule in ("greedy", "naive"):  # the target's row at every node of the accepted path, and no row of the drafter
        assert 1 <= found.loc[(rule, "star:3"), "rows_read"] <= 2
    assert found.loc[("deterministic", "star:3"), "rows_read"] == 1  # single entries, and one row for the bonus token
    assert (found[["verify_us", "read_us", "times_read"]] > 0).all(axis=None)
