"""The study of rules: its rows are the enumeration's, and its test of a law has the level and the power that it says."""

import pytest
import torch

from lib import enumeration, fidelity, rule_study, shapes
from lib.small_languages import Logits
from lib.tests import small_models
from lib.verify import warp


def test_rows_hold_every_rule_below_its_bound():
    rows = rule_study.exact(["chain:2", "star:2"], temperatures=[0.5, 1.0], agreements=[0.7], languages=2, seed=0)
    assert len(rows) == 2 * 2 * (
        len(rule_study.sampled_rules(shapes.chain(2))) + len(rule_study.sampled_rules(shapes.star(2))) + 6
    )
    kept = rows[rows.lossless]
    assert kept.distance.max() < 1e-12 and rows[~rows.lossless].distance.max() > 0.01
    setting = ["language", "temperature", "shape", "proposal"]
    best = kept.groupby(setting).accepted.max()
    bound = kept[kept.rule == rule_study.BOUND].groupby(setting).accepted.max()
    assert (best <= bound + 1e-6).all()


def test_languages_agree_as_much_as_they_are_told():
    generator = torch.Generator().manual_seed(0)
    target = Logits.random(4, 4, generator)
    same, other = target.related(1.0, generator), target.related(0.0, generator)
    stacked = [torch.stack(list(logits.by_path.values())).flatten() for logits in (target, same, other)]
    assert torch.equal(stacked[0], stacked[1])
    assert abs(torch.corrcoef(torch.stack([stacked[0], stacked[2]]))[0, 1]) < 0.15
    assert target.language(0.0)((1, 2)).sum() == 1 == target.language(0.0)((1, 2)).max()


LAW = {(0, 0): 0.4, (0, 1): 0.3, (1, 0): 0.2, (1, 1): 0.0999, (2, 2): 0.0001}


def said(law, count, seed):
    cells, generator = list(law), torch.Generator().manual_seed(seed)
    chances = torch.tensor(list(law.values()), dtype=torch.float64)
    return [cells[place] for place in torch.multinomial(chances, count, replacement=True, generator=generator)]


def test_the_right_law_is_refused_as_often_as_the_level_says():
    found = [fidelity.g_test(said(LAW, 400, seed), LAW).p_value for seed in range(400)]
    assert 0.02 < sum(p < 0.05 for p in found) / 400 < 0.09


def test_a_law_that_is_visibly_wrong_is_refused_as_often_as_the_power_says():
    count = 400
    distance = fidelity.g_test(said(LAW, count, 0), LAW).visible(0.05)
    wrong = dict(LAW) | {(0, 0): 0.4 - distance, (1, 1): 0.0999 + distance}
    found = [fidelity.g_test(said(wrong, count, seed), LAW).p_value for seed in range(200)]
    assert sum(p < 0.05 for p in found) / 200 > 0.75


def test_what_the_law_excludes_is_refused_at_once():
    assert fidelity.g_test([(0, 0)] * 50 + [(7, 7)], LAW).p_value == 0


def test_the_law_of_a_model_is_the_product_of_its_conditionals():
    model = small_models.llama(0)
    prompt = torch.tensor([3, 1, 4])
    law = fidelity.law_of(model, prompt, 2, 0.8, 3)
    assert len(law) == 9 and sum(law.values()) == pytest.approx(1, abs=1e-12)

    def conditional(path):
        logits = model(torch.cat([prompt, torch.tensor(path, dtype=torch.long)])[None]).logits[0, -1]
        return warp(logits.detach(), 0.8, 3)

    whole = enumeration.joint(conditional, 2)
    assert all(chance == pytest.approx(float(whole[cell]), abs=1e-12) for cell, chance in law.items())
