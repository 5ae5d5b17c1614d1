"""The loop at its edges: identity over hundreds of prompts, ends anywhere, hooks, hidden states, time of rounds."""

from functools import cache

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from lib import attention
from lib.decoding import Hooks, generate, in_batches
from lib.drafters import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.marginals import MedusaDrafter
from lib.tests import small_heads, small_models
from lib.trees import named
from lib.verify.warping import best_token

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)


def own_greedy(prompts, new, eos=None):
    """The target's greedy continuation by one causal forward pass per token, without a cache: the oracle."""
    texts = [prompt.tolist() for prompt in prompts]
    running = set(range(len(texts)))
    for _ in range(new):
        width = max(map(len, texts))
        batch = torch.tensor([text + [0] * (width - len(text)) for text in texts])
        with torch.no_grad():
            logits = TARGET(batch, use_cache=False).logits
        for row in sorted(running):
            texts[row].append(int(best_token(logits[row, len(texts[row]) - 1])))
        running -= {row for row in running if texts[row][-1] == eos}
    return [text[len(prompt) :] for text, prompt in zip(texts, prompts)]


def speculated(prompts, shape, new, rows=16, drafter=None, **settings):
    drafter = drafter or LanguageModelDrafter(DRAFTER)
    done = [generate(TARGET, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new, **settings)
            for ids, mask in in_batches(prompts, rows)]
    return [tokens for batch in done for tokens in batch.new_tokens]


@cache
def many():
    """200 prompts of mixed lengths, and the oracle's continuations."""
    lengths = torch.randint(1, 40, (200,), generator=torch.Generator().manual_seed(5)).tolist()
    prompts = small_models.prompts(6, lengths)
    return prompts, own_greedy(prompts, 10)


@pytest.mark.parametrize("shape", ["chain:0", "chain:3", "kary:2@14", "expansion:1,1,3,1@12"])
def test_hundreds_of_prompts_in_mixed_batches_equal_the_plain_oracle(shape):
    prompts, own = many()
    assert speculated(prompts, shape, 10, rows=25) == own


@pytest.mark.parametrize("drafter", ["exact", "related", "lookup"])
def test_an_end_at_every_position_of_a_draft(drafter):
    prompts = small_models.prompts(3, (5, 9, 2))
    make = {"exact": lambda: LanguageModelDrafter(TARGET), "related": lambda: LanguageModelDrafter(DRAFTER),
            "lookup": LookupDrafter}[drafter]
    for eos in sorted({token for row in own_greedy(prompts, 16) for token in row}):
        written = speculated(prompts, "chain:5", 16, drafter=make(), eos_token_id=eos)
        assert written == own_greedy(prompts, 16, eos)


def test_a_hook_stops_a_row_inside_the_accepted_path_and_sees_each_token_once():
    prompts, seen, given = small_models.prompts(4, (5, 9)), [], {0: [], 1: []}

    def stop(row, written):
        seen.append((row, len(written)))
        return row == 0 and len(written) == 7

    hooks = Hooks(stop=stop, emit=lambda row, tokens: given[row].extend(tokens))
    written = speculated(prompts, "chain:4", 12, drafter=LanguageModelDrafter(TARGET), hooks=hooks)
    full = own_greedy(prompts, 12)
    assert written == [full[0][:7], full[1]] and [given[0], given[1]] == written
    assert sorted(seen) == [(0, i + 1) for i in range(7)] + [(1, i + 1) for i in range(12)]


def test_adjusted_logits_depend_on_each_nodes_own_path():
    """A rule that forbids every token generated before: no loop could otherwise decode without repeats."""
    prompts = small_models.prompts(7, (6, 3, 11))

    def adjust(row, contexts, logits):
        changed = logits.clone()
        for i, context in enumerate(contexts):
            changed[i, context] = float("-inf")
        return changed

    hooks = Hooks(adjust=adjust)
    alone = [speculated([prompt], "chain:0", 15, drafter=NoDrafter(), hooks=hooks)[0] for prompt in prompts]
    assert all(len(set(row)) == 15 for row in alone)
    assert speculated(prompts, "kary:2@14", 15, hooks=hooks) == alone


@torch.inference_mode()
def test_hidden_states_reach_a_drafter_that_wants_them_from_the_first_commit_on():
    """hidden_states[-1] is the input of the output layer, at every prompt position and at every node of the round."""
    prompts, brought = small_models.prompts(8, (4, 7)), []

    class Listening(LanguageModelDrafter):
        wants_hidden_states = True

        def commit(self, accepted, bonus, target_outputs=None):
            brought.append((target_outputs.hidden_states[-1], target_outputs.logits, len(bonus)))
            super().commit(accepted, bonus, target_outputs)

    written = speculated(prompts, "kary:2@6", 9, drafter=Listening(DRAFTER))
    assert written == own_greedy(prompts, 9)
    assert brought[0][0].shape == (2, 7, 32) and brought[1][0].shape == (2, 7, 32)
    with torch.inference_mode():
        for hidden, logits, rows in brought[1:]:
            assert len(hidden) == rows
            torch.testing.assert_close(TARGET.lm_head(hidden), logits)


def test_a_text_may_fill_the_window_to_its_last_position():
    """The last token is written and not read, trees end where the window does; one token more is refused."""
    (full,) = small_models.prompts(1, (256,))
    for prompt, new in ((full, 0), (full, 1), (full[:250], 7), (full[:231], 26)):
        both = [prompt, full[:9]]
        for drafter in (LanguageModelDrafter(TARGET), LanguageModelDrafter(DRAFTER), LookupDrafter(), NoDrafter()):
            assert speculated(both, "kary:2,4", new, drafter=drafter) == own_greedy(both, new)
        with pytest.raises(ValueError, match="need 257 positions, the model's window has 256"):
            speculated([prompt], "chain:2", max(new, 1) + 1)


@pytest.mark.parametrize("rule", ["eagle2:3,4@9", "opttree@8", "dyspec:5@9"])
def test_a_rule_of_fewer_levels_is_the_rule_that_was_named_so(rule):
    """What a window leaves of a rule spends the same budget on the levels that there are."""
    (full,) = small_models.prompts(1, (256,))
    both, deepest = [full[:241], full[:9]], []
    watch = dict(observe=lambda rows, drafts, _: deepest.append(max(draft.tree.max_depth for draft in drafts)))
    assert speculated(both, rule, 16, **watch) == own_greedy(both, 16)
    assert deepest[0] > 2, "cut only where the end is near"
    drafter = LanguageModelDrafter(DRAFTER)
    drafter.start(both)
    drafter.commit([[], []], [1, 1])
    whole = named(rule)
    for draft in drafter.propose(whole.at_most(2), None):
        assert draft.tree.max_depth == 2 and draft.tree.budget <= whole.budget
    assert whole.at_most(99) is whole and whole.at_most(2).budget == whole.budget
    rules = [named("dyspec:6@9").at_most(2), named("dyspec:2@9")]
    cut, own = (drafter.propose(each, None) for each in rules)
    assert [draft.tree for draft in cut] == [draft.tree for draft in own]


@pytest.mark.parametrize("drafter, shape", [("model", "kary:2,3"), ("model", "dyspec:5@9"),
                                            ("lookup", "dyspec:5@9"), ("lookup", "ddtree@8"), ("heads", "ddtree@8")])
def test_learned_positions_end_with_the_window(drafter, shape):
    """A model that has no position beyond its window would fail on any tree that reached there."""
    config = GPT2Config(vocab_size=24, n_positions=24, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    attention.register()
    torch.manual_seed(0)
    model = GPT2LMHeadModel._from_config(config, attn_implementation="tree", dtype=torch.float64).eval()
    make = {"model": lambda: LanguageModelDrafter(model), "lookup": LookupDrafter,
            "heads": lambda: MedusaDrafter(model, small_heads.head("medusa", model))}
    prompt = torch.tensor([[3, 4, 5, 3, 4, 5]])
    done = generate(model, make[drafter](), prompt, shape=shape, max_new_tokens=19)
    assert torch.equal(done.sequences, model.generate(prompt, max_new_tokens=19, do_sample=False, eos_token_id=None,
                                                      pad_token_id=0))


def test_no_rows_are_no_work():
    done = generate(TARGET, NoDrafter(), torch.zeros(0, 4, dtype=torch.long), shape="chain:0", max_new_tokens=4)
    assert done.new_tokens == [] and done.sequences.shape[0] == 0
