"""The windows of target and drafter: texts that do not fit are refused, trees end where a window does."""

import copy

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lib.attention import registration
from lib.decoding import generate
from lib.decoding.checks import window_refusal
from lib.drafters import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.tests import small_models
from lib.tests.decoding.test_loop import DRAFTER, TARGET, greedy, speculated
from lib.trees import named

(FULL,) = small_models.prompts(1, (256,))


def test_a_text_may_fill_the_window_to_its_last_position():
    """The last token is written and not read, trees end where the window does; one token more is refused."""
    for prompt, new in ((FULL, 0), (FULL, 1), (FULL[:250], 7), (FULL[:231], 26)):
        both = [prompt, FULL[:9]]
        for drafter in (LanguageModelDrafter(TARGET), LanguageModelDrafter(DRAFTER), LookupDrafter(), NoDrafter()):
            assert speculated(both, "kary:2,4", new, drafter=drafter) == greedy(both, new)
        with pytest.raises(ValueError, match="need 257 positions, the model's window has 256"):
            speculated([prompt], "chain:2", max(new, 1) + 1)


@pytest.mark.parametrize("window", [24, 30])
@pytest.mark.parametrize("shape", ["chain:5", "kary:2@14", "eagle2:3,4@9"])
def test_a_text_may_fill_the_window_of_a_drafter(window, shape):
    """Trees end where it does; a text that is one token longer is refused, and studies learn the reason."""
    model = small_models.related(TARGET, 1, noise=0.3)
    model.config = copy.deepcopy(model.config)
    model.config.max_position_embeddings = window
    prompts, drafter = [FULL[:12], FULL[:7]], LanguageModelDrafter(model)
    new = window - 12 + 1
    assert speculated(prompts, shape, new, drafter=drafter) == greedy(prompts, new)
    with pytest.raises(ValueError, match=f"need {window + 1} positions, the drafter's window has {window}; shorten"):
        speculated(prompts, shape, new + 1, drafter=drafter)
    assert not window_refusal(window, window) and "drafter's window" in window_refusal(window, window + 1)


@pytest.mark.parametrize("rule", ["eagle2:3,4@9", "opttree@8", "dyspec:5@9"])
def test_a_rule_of_fewer_levels_is_the_rule_that_was_named_so(rule):
    """A rule that a window cuts spends the same budget on the levels that remain."""
    both, depths = [FULL[:241], FULL[:9]], []
    watch = dict(observe=lambda rows, drafts, _: depths.append(max(draft.tree.max_depth for draft in drafts)))
    assert speculated(both, rule, 16, **watch) == greedy(both, 16)
    assert depths[0] > 2, "cut only where the end is near"
    drafter = LanguageModelDrafter(DRAFTER)
    drafter.start(both)
    drafter.commit([[], []], [1, 1])
    whole = named(rule)
    for draft in drafter.propose(whole.at_most(2), None):
        assert draft.tree.max_depth == 2 and draft.tree.budget <= whole.budget
    assert whole.at_most(99) is whole and whole.at_most(2).budget == whole.budget
    cut, whole = (drafter.propose(growth, None) for growth in (named("dyspec:6@9").at_most(2), named("dyspec:2@9")))
    assert [draft.tree for draft in cut] == [draft.tree for draft in whole]


@pytest.mark.parametrize("drafter, shape", [("model", "kary:2,3"), ("model", "dyspec:5@9"), ("lookup", "kary:2,3")])
def test_learned_positions_end_with_the_window(drafter, shape):
    """A model that has no position beyond its window would fail on any tree that reached there."""
    config = GPT2Config(vocab_size=24, n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    registration.register()
    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="tree", dtype=torch.float64).eval()
    prompt = torch.tensor([[3, 4, 5, 3, 4, 5]])
    done = generate(model, LanguageModelDrafter(model) if drafter == "model" else LookupDrafter(), prompt, shape=shape,
                    max_new_tokens=19)
    assert torch.equal(done.sequences, model.generate(prompt, max_new_tokens=19, do_sample=False, eos_token_id=None,
                                                      pad_token_id=0))
