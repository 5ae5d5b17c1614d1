"""Heads: caches against plain recomputing, whatever is accepted; reading ahead gives the ranks of live drafts."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaConfig

from lib.drafters import heads
from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import first_levels
from lib.drafters.heads.eagle3 import continued, unroll
from lib.drafters.heads.layers import CachedLayers, embed
from lib.drafters.text_drafters import SuffixAutomatonDrafter
from lib.lab.timing import clocked
from lib.models.cache import TreeCache
from lib.tests import live, plain_heads, small_heads, small_models
from lib.tests.drafters.made import a_path, draws
from lib.tests.replay.test_replay import trees
from lib.training import heads as training
from lib.trees import named, shapes
from lib.verify import Draft

TARGET = small_models.llama(3, layers=3)
PROMPTS = small_models.prompts(5, (3, 9, 5, 1))
KINDS = tuple(heads.KINDS)
SEEDS = st.integers(0, 2**32 - 1)
HEADS = {kind: small_heads.head(kind, TARGET, seed) for seed, kind in enumerate(KINDS)}
HEADS["eagle3:small"] = small_heads.head("eagle3", TARGET, 7, draft_vocab_size=11, own_output=True)
HEADS["eagle3:own"] = small_heads.head("eagle3", TARGET, 8, own_embedding=True)
for kind in ("eagle3", "dflash", "dspark"):
    HEADS[f"{kind}:some"] = small_heads.head(kind, TARGET, 9, draft_vocab_size=13)  # some of the target's tokens
ONE_PASS = "medusa", "dflash", "dflash:some", "dspark", "dspark:some"  # heads that draft in one forward pass


def drafter(name, **options):
    return small_heads.DRAFTERS[name.partition(":")[0]](TARGET, HEADS[name], **options)


def greedy(prompt, tokens=40, target=TARGET):
    return target.generate(prompt[None], max_new_tokens=tokens, do_sample=False, pad_token_id=0,
                           eos_token_id=None)[0, len(prompt) :].tolist()


def hidden_of(texts):
    padded = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    return TARGET(padded, output_hidden_states=True)


# -------------------------------------------------------------------------------------------------------- greedy output


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("enough", [1, 2])
def test_greedy_output_stays_where_look_up_takes_over_some_rounds(name, enough):
    """Prompts of few tokens, so that matches come and go, in some rows of a batch and not in others."""
    prompts = [torch.tensor([1, 2, 3, 1, 2, 3, 1]), torch.tensor([4, 5]), torch.tensor([7, 7, 7, 7])]
    both = CombinedDrafter(SuffixAutomatonDrafter(), drafter(name), enough)
    done = live.decode(TARGET, both, prompts, rows=3, shape="chain:3", max_new_tokens=25)
    assert done.new_tokens == [greedy(prompt, 25) for prompt in prompts]
    assert len({one.draft_calls for one in done.rounds}) > 1, "rounds of both"


@pytest.mark.parametrize("name", ["eagle3", "eagle3:small"])
def test_eagle_drafts_the_same_after_rounds_of_others(name):
    """After rounds in which another's drafts were verified, its next draft is that of one who drafted all along."""
    aside, always, shape = drafter(name), drafter(name), named("kary:2@6")
    text = PROMPTS[1].tolist()
    for one in (aside, always):
        one.start([torch.tensor(text)])
        one.commit([[]], [3], hidden_of([text]))
    text.append(3)
    for accepted in ([], [1], [1, 2]):
        other = [Draft(named("chain:2"), torch.tensor([text[-1], 5, 6]), "top_k")]
        kept = [text[-1], *other[0].tokens[accepted].tolist()]
        outputs = hidden_of([[*text, 5, 6]])
        outputs.hidden_states = tuple(states[:, len(text) - 1 :] for states in outputs.hidden_states)
        always.propose(shape, None)
        for one in (aside, always):
            one.commit([accepted], [9], outputs, other)
        text += [*kept[1:], 9]
    (mine,), (theirs,) = aside.propose(shape, None), always.propose(shape, None)
    assert torch.equal(mine.tokens, theirs.tokens)
    torch.testing.assert_close(aside.outputs, always.outputs)


@pytest.mark.parametrize("name", HEADS)
def test_rows_that_end_leave_and_the_others_go_on(name):
    written = [greedy(prompt, 20) for prompt in PROMPTS]
    for eos in {written[1][9], written[3][0]}:
        ends = [row[: row.index(eos) + 1] if eos in row else row for row in written]
        done = live.decode(TARGET, drafter(name), PROMPTS, shape="kary:2@6", max_new_tokens=20, eos_token_id=eos)
        assert done.new_tokens == ends


def test_a_drafter_without_hidden_states_says_so():
    started = drafter("medusa")
    started.start(PROMPTS)
    with pytest.raises(ValueError, match="output_hidden_states=True"):
        started.commit([[] for _ in PROMPTS], [1, 2, 3, 4])
    for sampling in (drafter("eagle3", proposal="iid"), drafter("dflash", proposal="iid")):
        with pytest.raises(ValueError, match="proposal is 'iid'"):
            Rounds(sampling, 0).drafter.propose(named("dyspec@4"), draws())
    with pytest.raises(ValueError, match="temperature is 0"):
        drafter("eagle3", proposal="iid", temperature=0)
    with pytest.raises(ValueError, match="proposal is 'best'"):
        drafter("medusa", proposal="best")


# ---------------------------------------------------------------------------------------------- against plain oracles


class Rounds:
    """Rounds with accepted paths and bonus tokens of any choice, and the texts that they commit."""

    def __init__(self, made, seed):
        self.drafter, self.rng = made, random.Random(seed)
        self.texts = [prompt.tolist() + [self.rng.randrange(1, small_models.VOCABULARY)] for prompt in PROMPTS]
        made.start(PROMPTS)
        made.commit([[] for _ in PROMPTS], [text[-1] for text in self.texts], hidden_of([p.tolist() for p in PROMPTS]))

    def commit(self, drafts):
        """Some path of each draft, with the hidden states that the target has along the whole text."""
        accepted = [a_path(draft.tree, self.rng) for draft in drafts]
        bonus = [self.rng.randrange(1, small_models.VOCABULARY) for _ in drafts]
        size = max(draft.tree.size for draft in drafts)
        nodes = [torch.full((len(drafts), size, TARGET.config.hidden_size), float("nan"), dtype=torch.float64)
                 for _ in range(TARGET.config.num_hidden_layers + 1)]
        for row, (draft, path) in enumerate(zip(drafts, accepted)):
            before = len(self.texts[row])
            self.texts[row] += draft.tokens[path].tolist()
            hidden = hidden_of([self.texts[row]]).hidden_states
            for layer, known in zip(nodes, hidden):
                layer[row, [0, *path]] = known[0, before - 1 :]
            self.texts[row].append(bonus[row])
        outputs = type("Outputs", (), {"hidden_states": nodes})
        self.drafter.commit(accepted, bonus, outputs)
        if len(drafts) > 1 and self.rng.random() < 0.4:
            staying = sorted(self.rng.sample(range(len(drafts)), len(drafts) - 1))
            self.texts = [self.texts[row] for row in staying]
            self.drafter.select(staying)


@settings(deadline=None, max_examples=8)
@given(st.sampled_from(["eagle3", "eagle3:small", "eagle3:own", "eagle3:some", *ONE_PASS]),
       st.lists(trees(8), min_size=2, max_size=3), SEEDS)
@torch.no_grad()
def test_whatever_is_accepted_a_head_drafts_as_the_plain_oracle(name, forest, seed):
    rounds, one_pass = Rounds(drafter(name), seed), name in ONE_PASS
    for tree in forest:
        calls, tree = rounds.drafter.calls, first_levels(tree, HEADS[name].depth) if one_pass else tree
        drafts = rounds.drafter.propose(tree, draws())
        passes = min(1, tree.budget) if one_pass else max(1, tree.max_depth)
        assert rounds.drafter.calls - calls == passes, "one forward pass per level, or in all"
        for text, draft in zip(rounds.texts, drafts, strict=True):
            assert draft.tree == tree
            assert torch.equal(draft.tokens, plain_heads.filled(HEADS[name], TARGET, text, tree))
        rounds.commit(drafts)


@settings(deadline=None, max_examples=6)
@given(st.sampled_from(["eagle3:small", "eagle3:some", *ONE_PASS]),
       st.lists(st.sampled_from(["eagle2:2,3@5", "dyspec:3@6"]), min_size=2, max_size=2), SEEDS)
@torch.no_grad()
def test_whatever_is_accepted_a_head_grows_as_the_plain_oracle(name, rules, seed):
    rounds = Rounds(drafter(name), seed)
    for rule in map(named, rules):
        drafts = rounds.drafter.propose(rule, draws())
        for text, draft in zip(rounds.texts, drafts, strict=True):
            tree, tokens = plain_heads.grown(HEADS[name], TARGET, text, rule)
            assert draft.tree == tree and draft.tokens.tolist() == tokens
        rounds.commit(drafts)


@settings(deadline=None, max_examples=10)
@given(st.sampled_from(["eagle3", "eagle3:some", *ONE_PASS]), st.sampled_from(["iid", "without_replacement"]), trees(6),
       SEEDS)
@torch.no_grad()
def test_a_heads_samples_come_from_its_own_distributions(name, proposal, tree, seed):
    rounds = Rounds(drafter(name, proposal=proposal, temperature=1.3), seed)
    drafts = rounds.drafter.propose(tree, draws(seed))
    for text, draft in zip(rounds.texts, drafts):
        for node in set(draft.tree.parents[1:].tolist()):
            path = draft.tokens[list(draft.tree.path(node))[1:]].tolist()
            expected = (plain_heads.logits_after(HEADS[name], TARGET, text, path) / 1.3).softmax(-1)
            torch.testing.assert_close(draft.probs[node].double(), expected)


@pytest.mark.parametrize("name", ["dflash", "dspark"])
@torch.no_grad()
def test_blocks_see_what_lies_before_them_and_nothing_else(name):
    head, text = HEADS[name], torch.randint(1, 20, (1, 12), generator=torch.Generator().manual_seed(0))
    features = head.read(hidden_of(text.tolist()).hidden_states)
    before = torch.tensor([2, 5, 9])
    roots = TARGET.get_input_embeddings()(text[:, before])
    together = head.states_along(features, roots, before)
    for place, count in enumerate(before.tolist()):
        alone = head.states_along(features[:, :count], roots[:, place : place + 1], before[place : place + 1])
        torch.testing.assert_close(together[:, place], alone[:, 0])
        changed = features.clone()
        changed[:, count - 1] += 1
        assert not torch.allclose(head.states_along(changed, roots, before)[:, place], together[:, place])


@pytest.mark.parametrize("name", ["medusa", "dflash", "dspark"])
def test_without_a_level_left_the_root_is_drafted_alone(name):
    """In a window's last round, and where a policy advises against drafting: with the proposal that rules ask for, and
    without a forward pass of the head.
    """
    rule = "dyspec" if name == "dspark" else "ddtree"
    prompt = small_models.prompts(0, [5], TARGET.config.vocab_size)
    for proposal, shape in (("top_k", named(f"{rule}@4").at_most(0)), ("top_k", named(f"{rule}@0")),
                            ("top_k", shapes.chain(0)), ("iid", shapes.chain(0))):
        own = drafter(name, proposal=proposal)
        own.start(prompt)
        own.commit([[]], [3], TARGET(prompt[0][None], output_hidden_states=True))
        [draft] = own.propose(shape, draws(0))
        assert draft.tree.budget == 0 and draft.proposal == proposal and draft.token_list == [3] and own.calls == 0


def test_untrained_medusa_heads_repeat_the_targets_own_layer():
    fresh = heads.KINDS["medusa"](training.settings("medusa", TARGET.config)).double()
    hidden = torch.randn(3, TARGET.config.hidden_size, dtype=torch.float64)
    for state in fresh.states(hidden).unbind(1):
        assert torch.equal(state, hidden)


# ----------------------------------------------------------------------------------------------------------- read ahead


@torch.no_grad()
def test_what_is_read_ahead_is_what_a_round_from_there_drafts():
    text = torch.randint(1, 20, (9,), generator=torch.Generator().manual_seed(3))
    for name, start in zip(HEADS, itertools.cycle((1, 4))):
        ranks, probs = drafter(name).read_ahead(TARGET, [text, text[:3]], [start, 2], 4)
        count = len(text) - 1 - start
        assert ((ranks[0] < 0) == (torch.arange(count)[:, None] + torch.arange(4) >= count)).all()
        assert (ranks[1] == -1).all() and (probs[1] == 0).all(), "a text without roots"
        for t, d in itertools.product(range(count), range(4)):
            if t + d < count:
                root = start + t
                expected = plain_heads.logits_after(HEADS[name], TARGET, text[: root + 1].tolist(),
                                                    text[root + 1 : root + 1 + d].tolist())
                if expected is None:
                    assert ranks[0, t, d] >= small_models.VOCABULARY and probs[0, t, d] == 0
                    continue
                token = text[start + t + d + 1]
                order = expected.sort(descending=True, stable=True).indices.tolist()
                assert ranks[0, t, d] == order.index(token)
                assert probs[0, t, d].item() == pytest.approx(expected.softmax(-1)[token].item(), abs=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("activation", ["silu", "gelu"])
def test_a_head_runs_with_the_activation_that_its_config_names(activation):
    """Whatever runs its layer: C++ knows one activation alone."""
    target = small_models.llama(3, dtype=torch.float32)
    head = small_heads.head("dflash", target, hidden_act=activation)
    x, layer = torch.randn(1, 6, 32, generator=torch.Generator().manual_seed(0)), head.layers[0]
    expected = layer(x, torch.arange(6)[None], plain_heads.attend)
    torch.testing.assert_close(CachedLayers([layer])(x, torch.arange(6), TreeCache(), None), expected)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["eagle3", "dflash"])
def test_what_a_head_makes_of_the_targets_states_is_time_in_a_model(kind):
    drafter = small_heads.DRAFTERS[kind](TARGET, HEADS[kind])
    drafter.start(PROMPTS[:1])
    drafter.commit([[]], [1], TARGET(PROMPTS[0][None], output_hidden_states=True))
    (draft,) = drafter.propose(shapes.chain(2), draws())
    with clocked() as clock:
        drafter.commit([[1]], [2], TARGET(draft.tokens[None], output_hidden_states=True))
    assert clock.seconds > 0


# ------------------------------------------------------------------------------------------------------------- modules


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_of_the_headline_target_fits_into_eight_mebibytes(kind):
    config = LlamaConfig(hidden_size=576, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
                         vocab_size=49152)
    with torch.device("meta"):
        head = heads.KINDS[kind](training.settings(kind, config, draft_vocab_size=8192))
    assert 2 * sum(parameter.numel() for parameter in head.parameters()) < 8 * 2**20


def test_unrolling_is_the_plain_forward_at_every_entry():
    head, text = HEADS["eagle3"], torch.randint(1, 20, (1, 9), generator=torch.Generator().manual_seed(0))
    features = head.read(hidden_of(text[:, :6].tolist()).hidden_states)
    with torch.no_grad():
        steps = list(unroll(head, TARGET, features, text[:, 1:], 3))
        for step, entry in itertools.product(range(3), range(6)):
            known = features[:, : entry + 1]
            for d in range(step + 1):
                tokens = text[:, 1 : 1 + known.shape[1]]
                place = torch.arange(known.shape[1])[None]
                out = continued(head, known, embed(head, TARGET, tokens), place, plain_heads.attend)
                known = torch.cat([known, out[:, -1:]], dim=1)
            torch.testing.assert_close(steps[step][:, entry], out[:, -1])
