"""Heads: caches against plain recomputing, whatever is accepted; reading ahead gives the ranks of live drafts."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from lib.drafters import heads
from lib.drafters.drafter import first_levels
from lib.tests import small_heads, small_models
from lib.tests.drafters.made import a_path, draws
from lib.tests.plain_drafter import filled, grown
from lib.tests.plain_heads import PlainHead
from lib.tests.replay.test_replay import trees
from lib.trees import named, shapes
from lib.verify import Draft

TARGET = small_models.llama(3, layers=3)
PROMPTS = small_models.prompts(5, (3, 9, 5, 1))
SEEDS = st.integers(0, 2**32 - 1)
HEADS = {kind: small_heads.head(kind, TARGET, seed) for seed, kind in enumerate(heads.KINDS)}
HEADS["eagle3:small"] = small_heads.head("eagle3", TARGET, 7, draft_vocab_size=11, own_output=True)
HEADS["eagle3:own"] = small_heads.head("eagle3", TARGET, 8, own_embedding=True)
for kind in ("eagle3", "dflash", "dspark"):
    HEADS[f"{kind}:some"] = small_heads.head(kind, TARGET, 9, draft_vocab_size=13)  # some of the target's tokens
PLAIN = {name: PlainHead.of(head, TARGET) for name, head in HEADS.items()}
ONE_PASS = "medusa", "dflash", "dflash:some", "dspark", "dspark:some"  # heads that draft in one forward pass


def drafter(name, **options):
    return small_heads.DRAFTERS[name.partition(":")[0]](TARGET, HEADS[name], **options)


def hidden_of(texts):
    return TARGET(pad_sequence([torch.tensor(text) for text in texts], batch_first=True), output_hidden_states=True)


# ---------------------------------------------------------------------------------------------- against plain oracles


class Rounds:
    """Rounds with accepted paths and bonus tokens of any choice, and the texts that they commit."""

    def __init__(self, made, seed):
        self.drafter, self.rng = made, random.Random(seed)
        self.texts = [prompt.tolist() + [self.rng.randrange(1, small_models.VOCABULARY)] for prompt in PROMPTS]
        made.start(PROMPTS)
        made.commit([[] for _ in PROMPTS], [text[-1] for text in self.texts], hidden_of([p.tolist() for p in PROMPTS]))

    def others_draft(self):
        """A round in which another's drafts were verified."""
        self.commit([Draft(shapes.chain(2), torch.tensor([text[-1], 5, 6]), "top_k") for text in self.texts], True)

    def commit(self, drafts, of_another=False):
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
            for layer, states in zip(nodes, hidden):
                layer[row, [0, *path]] = states[0, before - 1 :]
            self.texts[row].append(bonus[row])
        outputs = type("Outputs", (), {"hidden_states": nodes})
        self.drafter.commit(accepted, bonus, outputs, *([drafts] if of_another else []))
        if len(drafts) > 1 and self.rng.random() < 0.4:
            staying = sorted(self.rng.sample(range(len(drafts)), len(drafts) - 1))
            self.texts = [self.texts[row] for row in staying]
            self.drafter.select(staying)


@settings(deadline=None, max_examples=12)
@given(st.sampled_from(["eagle3", "eagle3:small", "eagle3:own", "eagle3:some", *ONE_PASS]),
       st.lists(trees(8), min_size=2, max_size=3), SEEDS)
@torch.no_grad()
def test_whatever_is_accepted_a_head_drafts_as_the_plain_oracle(name, forest, seed):
    """Also after rounds of others, as in front of it a look-up drafts."""
    rounds, one_pass = Rounds(drafter(name), seed), name in ONE_PASS
    for number, tree in enumerate(forest):
        for _ in range((seed + number) % 3):
            rounds.others_draft()
        calls, tree = rounds.drafter.calls, first_levels(tree, HEADS[name].depth) if one_pass else tree
        drafts = rounds.drafter.propose(tree, draws())
        passes = min(1, tree.budget) if one_pass else max(1, tree.max_depth)
        assert rounds.drafter.calls - calls == passes, "one forward pass per level, or in all"
        for text, draft in zip(rounds.texts, drafts, strict=True):
            assert draft.tree == tree
            assert torch.equal(draft.tokens, filled(PLAIN[name].logits, text, tree).tokens)
        rounds.commit(drafts)


@settings(deadline=None, max_examples=6)
@given(st.sampled_from(["eagle3:small", "eagle3:some", *ONE_PASS]),
       st.lists(st.sampled_from(["eagle2:2,3@5", "dyspec:3@6", named("dyspec@4").at_most(0)]), min_size=2, max_size=3),
       SEEDS)
@torch.no_grad()
def test_whatever_is_accepted_a_head_grows_as_the_plain_oracle(name, rules, seed):
    rounds = Rounds(drafter(name), seed)
    for rule in map(named, rules):
        drafts = rounds.drafter.propose(rule, draws())
        for text, draft in zip(rounds.texts, drafts, strict=True):
            expected = grown(PLAIN[name].logits, text, rule)
            assert draft.tree == expected.tree and draft.token_list == expected.token_list
        rounds.commit(drafts)


@settings(deadline=None, max_examples=10)
@given(st.sampled_from(["eagle3", "eagle3:some", *ONE_PASS]), st.sampled_from(["iid", "without_replacement"]), trees(6),
       SEEDS)
@torch.no_grad()
def test_a_heads_samples_come_from_its_own_distributions(name, proposal, tree, seed):
    rounds = Rounds(drafter(name, proposal=proposal, temperature=1.3), seed)
    drafts = rounds.drafter.propose(tree, draws(seed))
    assert tree.budget or rounds.drafter.calls == 0 or name.startswith("eagle3")
    for text, draft in zip(rounds.texts, drafts):
        assert draft.proposal == proposal and draft.token_list[0] == text[-1]
        for node in set(draft.tree.parents[1:].tolist()):
            path = draft.tokens[list(draft.tree.path(node))[1:]].tolist()
            expected = (PLAIN[name].logits(text, path) / 1.3).softmax(-1)
            torch.testing.assert_close(draft.probs[node].double(), expected, rtol=1e-5, atol=1e-6)  # norms are float32


# ----------------------------------------------------------------------------------------------------------- read ahead


@torch.no_grad()
def test_what_is_read_ahead_is_what_a_round_from_there_drafts():
    text = torch.randint(1, 20, (9,), generator=torch.Generator().manual_seed(3))
    for name, start in zip(HEADS, itertools.cycle((1, 4))):
        states = [TARGET(tokens[None, :-1], output_hidden_states=True).hidden_states for tokens in (text, text[:3])]
        ranks, probs = drafter(name).read_ahead(states, [text, text[:3]], [start, 2], 4)
        count = len(text) - 1 - start
        assert ((ranks[0] < 0) == (torch.arange(count)[:, None] + torch.arange(4) >= count)).all()
        assert (ranks[1] == -1).all() and (probs[1] == 0).all(), "a text without roots"
        for t, d in itertools.product(range(count), range(4)):
            if t + d < count:
                root = start + t
                expected = PLAIN[name].logits(text[: root + 1].tolist(), text[root + 1 : root + 1 + d].tolist())
                if expected is None:
                    assert ranks[0, t, d] >= small_models.VOCABULARY and probs[0, t, d] == 0
                    continue
                token = text[start + t + d + 1]
                order = expected.sort(descending=True, stable=True).indices.tolist()
                assert ranks[0, t, d] == order.index(token)
                assert probs[0, t, d].item() == pytest.approx(expected.softmax(-1)[token].item(), abs=1e-6)
