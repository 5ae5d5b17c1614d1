"""Drafters against the plain oracle of whole forward passes, in float64; look-up, merging, controls, the registry."""

import random
from collections import Counter
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pad_sequence

from lib.drafters import DRAFTERS, Drafter, Kind, filling, make, parse
from lib.drafters.combined import CombinedDrafter
from lib.drafters.controls import OracleDrafter, RandomDrafter
from lib.drafters.drafter import Traits, merge
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter, merge_chosen
from lib.drafters.plain import PlainDrafter
from lib.drafters.text_drafters import SuffixAutomatonDrafter
from lib.forward.reduced import first_tokens
from lib.tests import live, small_heads, small_models
from lib.tests.replay.test_replay import trees
from lib.trees import ROOT, Tree, named, shapes
from lib.trees.growth import Costs
from lib.verify import Draft, GeneratorDraws, warp
from lib.verify.draft import PROPOSALS

MODEL = small_models.llama(3)
OTHER = small_models.related(MODEL, 4, noise=0.4)
PROMPTS = small_models.prompts(5, (3, 9, 5, 1))
SEEDS = st.integers(0, 2**32 - 1)
RULES = [named(name) for name in (
    "eagle2:3,4@9", "opttree:5,5@12", "opttree:4,6,0.2@10", "dyspec@14", "dyspec:2@6")]
RULES.append(named("smart@12", costs=Costs(tuple(1 + 0.06 * n for n in range(13)), 0.1)))


class Scripted:
    """Draws that come from a list of tokens, whatever the distribution."""

    def __init__(self, tokens):
        self.tokens = list(tokens)

    def categorical(self, probs):
        return self.tokens.pop(0)


def draws(seed=0):
    return GeneratorDraws(torch.Generator().manual_seed(seed))


def begin(drafter, roots=(1, 2, 3, 4)):
    drafter.start(PROMPTS)
    drafter.commit([[] for _ in PROMPTS], list(roots))
    return drafter


def a_path(tree, rng):
    """Some accepted path: from the root down, stopping anywhere."""
    node, path = 0, []
    while tree.children(node) and rng.random() < 0.8:
        node = rng.choice(tree.children(node))
        path.append(node)
    return path


def texts_after(drafts, accepted, bonus, texts):
    return [text + draft.tokens[nodes].tolist() + [token] if nodes else text + [token]
            for draft, nodes, token, text in zip(drafts, accepted, bonus, texts)]


def go_on(rng, drafters, drafts, texts, tokens=small_models.VOCABULARY):
    """Commits some path of each draft, and a bonus token, to all drafters; the texts [list of tokens] afterwards."""
    accepted = [a_path(draft.tree, rng) for draft in drafts]
    bonus = [rng.randrange(1, tokens) for _ in drafts]
    texts = texts_after(drafts, accepted, bonus, texts)
    for drafter in drafters:
        drafter.commit(accepted, bonus)
    return texts


# ------------------------------------------------------------------------------------------------- language models


@settings(deadline=None, max_examples=30)
@given(st.lists(trees(10) | st.sampled_from(RULES), min_size=2, max_size=4), SEEDS)
def test_whatever_is_accepted_top_k_drafts_are_the_oracles(shapes_or_rules, seed):
    rng = random.Random(seed)
    fast, plain = LanguageModelDrafter(MODEL), PlainDrafter(MODEL)
    for drafter in (fast, plain):
        begin(drafter)
    rows = len(PROMPTS)
    for shape in shapes_or_rules:
        calls, drafts, expected = fast.calls, fast.propose(shape, draws()), plain.propose(shape, draws())
        assert fast.calls - calls == max(fast.levels) <= shape.max_depth, "one forward pass per level"
        for draft, other, levels in zip(drafts, expected, fast.levels, strict=True):
            assert draft.tree == other.tree and torch.equal(draft.tokens, other.tokens)
            assert draft.tree == shape or draft.tree.budget <= shape.budget and draft.tree.max_depth <= levels
        assert plain.texts == go_on(rng, (fast, plain), drafts, plain.texts)
        assert_cache_is_a_fresh_prefill(fast, plain.texts)
        assert all(len(tail) <= 2 for tail in fast.tails) or not shape.budget, "only an accepted leaf waits"
        if rows > 1 and rng.random() < 0.4:
            staying = sorted(rng.sample(range(rows), rows - 1))
            rows -= 1
            for drafter in (fast, plain):
                drafter.select(staying)


def assert_cache_is_a_fresh_prefill(drafter, texts):
    """The cache holds each row's text but for its tail: the root, and the last accepted node where that was a leaf."""
    for row, text in enumerate(texts):
        length, tail = int(drafter.cache.lengths[row]), drafter.tails[row]
        assert text[length:] == tail
        fresh = LanguageModelDrafter(drafter.model)
        fresh.start([torch.tensor(text[:length])])
        for kept, new in zip(drafter.cache.layers, fresh.cache.layers):
            for name in ("keys", "values"):
                torch.testing.assert_close(getattr(kept, name)[row, :, :length], getattr(new, name)[0, :, :length])


@settings(deadline=None, max_examples=20)
@given(trees(8), st.sampled_from(["iid", "without_replacement"]), SEEDS)
def test_samples_are_the_oracles_draw_for_draw(tree, proposal, seed):
    rng = random.Random(seed)
    fast = LanguageModelDrafter(MODEL, proposal=proposal, temperature=1.3)
    plain = PlainDrafter(MODEL, proposal=proposal, temperature=1.3)
    given = draws(seed), draws(seed)
    for drafter in (fast, plain):
        drafter.start(PROMPTS[:1])
        drafter.commit([[]], [2])
    for _ in range(3):
        (draft,), (expected,) = (drafter.propose(tree, own) for drafter, own in zip((fast, plain), given))
        assert draft.tree == expected.tree and draft.proposal == expected.proposal == proposal
        assert torch.equal(draft.tokens, expected.tokens) and torch.equal(draft.counts, expected.counts)
        for node in set(draft.tree.parents[1:].tolist()):
            torch.testing.assert_close(draft.probs[node], expected.probs[node])
        go_on(rng, (fast, plain), [draft], plain.texts)
        assert_cache_is_a_fresh_prefill(fast, plain.texts)


@pytest.mark.parametrize("proposal, shape", [*((proposal, "expansion:3,2,1") for proposal in PROPOSALS),
                                             ("top_k", "dyspec@9")])
def test_in_a_batch_every_row_has_its_own_distributions(proposal, shape):
    drafter = begin(LanguageModelDrafter(MODEL, proposal=proposal, temperature=0.7))
    drafter.ask_probs(True)
    oracle, asked = PlainDrafter(MODEL), named(shape)
    texts = [prompt.tolist() + [root] for prompt, root in zip(PROMPTS, (1, 2, 3, 4))]
    for seed in range(3):
        drafts = drafter.propose(asked, draws(seed))
        for text, draft in zip(texts, drafts):
            for node in set(draft.tree.parents[1:].tolist()):
                path = text + draft.tokens[list(draft.tree.path(node))[1:]].tolist()
                torch.testing.assert_close(draft.probs[node], warp(oracle.logits(path), 0.7))
            leaves = draft.tree.leaves.copy()
            assert shape == "dyspec@9" or not draft.probs[leaves].any(), "leaves draft nothing"
        accepted = [list(draft.tree.paths()[0][1:]) for draft in drafts]
        drafter.commit(accepted, [5, 6, 7, 8])
        texts = texts_after(drafts, accepted, [5, 6, 7, 8], texts)
    assert begin(LanguageModelDrafter(MODEL)).propose(asked, draws())[0].probs is None


def test_repeated_draws_are_one_node_in_the_place_of_the_first():
    shape = Tree.from_choices([(0,), (1,), (2,), (2, 0), (1, 0), (1, 1)])
    drafter = LanguageModelDrafter(MODEL, proposal="iid")
    drafter.start(PROMPTS[:1])
    drafter.commit([[]], [1])
    (draft,) = drafter.propose(shape, Scripted([9, 9, 4, 7]))  # root's three; of the third slot its only child
    assert draft.tokens.tolist() == [1, 9, 4, 7] and draft.counts.tolist() == [1, 2, 1, 1]
    assert draft.tree.parents.tolist() == [-1, 0, 0, 2] and draft.tree.rank.tolist() == [0, 0, 2, 0]
    drafter.commit([[2, 3]], [6])
    assert drafter.tails == [[7, 6]] and int(drafter.cache.lengths[0]) == len(PROMPTS[0]) + 2


def test_samples_follow_their_distribution():
    probs, count, trials = torch.tensor([0.5, 0.3, 0.2, 0.0]), 2, 4000
    given = draws(11)
    pairs = Counter(tuple(token for _, token, _ in filling.distinct(probs, count, given)) for _ in range(trials))
    for (first, second), seen in pairs.items():
        expected = float(probs[first] * probs[second] / (1 - probs[first]))
        assert abs(seen / trials - expected) < 4 * (expected * (1 - expected) / trials) ** 0.5
    assert not any(3 in pair for pair in pairs)
    everything = filling.distinct(probs, 9, given)
    assert sorted(token for _, token, _ in everything) == [0, 1, 2, 3] and everything[3][1] == 3, "no mass comes last"
    repeated = filling.independent(probs, 6, given)
    assert sum(times for *_, times in repeated) == 6 and [place for place, *_ in repeated][0] == 0


@given(st.lists(st.lists(st.integers(0, 3), min_size=6, max_size=6), min_size=1, max_size=4), st.integers(1, 6))
def test_equal_scores_go_to_the_lowest_token(scores, count):
    table = torch.tensor(scores, dtype=torch.float64)
    expected = [sorted(range(6), key=lambda token: (-row[token], token))[:count] for row in scores]
    assert filling.top_tokens(table, count).tolist() == expected


def test_a_padded_vocabulary_is_cut_to_the_targets():
    cut = begin(LanguageModelDrafter(first_tokens(MODEL, 10)))
    assert all(draft.tokens[1:].max() < 10 for draft in cut.propose(shapes.kary(3, 2), draws()))
    narrow = begin(LanguageModelDrafter(first_tokens(MODEL, 3)))
    assert [draft.tree for draft in narrow.propose(named("dyspec:1@9"), draws())] == [shapes.star(3)] * 4


@pytest.mark.parametrize("shape, proposal", [("chain:0", "iid"), ("dyspec@0", "top_k")])
def test_no_budget_no_forward(shape, proposal):
    drafter = begin(LanguageModelDrafter(MODEL, proposal=proposal))
    calls, shape = drafter.calls, named(shape)
    assert [draft.tokens.tolist() for draft in drafter.propose(shape, draws())] == [[1], [2], [3], [4]]
    drafter.commit([[]] * 4, [5] * 4)
    assert drafter.calls == calls and drafter.tails == [[1, 5], [2, 5], [3, 5], [4, 5]]


def test_what_a_language_model_cannot_draft_is_refused():
    with pytest.raises(ValueError, match="temperature is 0"):
        LanguageModelDrafter(MODEL, proposal="iid", temperature=0)
    with pytest.raises(ValueError, match="24 tokens"):
        begin(LanguageModelDrafter(MODEL)).propose(shapes.star(25), draws())
    short = LanguageModelDrafter(small_models.llama(0, window=16))
    with pytest.raises(ValueError, match="20 positions, its window has 16"):
        short.start([torch.ones(20, dtype=torch.long)])
    short.start([torch.ones(14, dtype=torch.long)])
    short.commit([[]], [1])
    for fits, deeper in ((shapes.chain(2), shapes.chain(3)), (named("dyspec:2@4"), named("dyspec:3@4"))):
        assert short.propose(fits, draws()), "leaves are never forwarded: two levels need two positions"
        short.cache.forget()
        with pytest.raises(ValueError, match="17 positions"):
            short.propose(deeper, draws())
    with pytest.raises(ValueError, match="proposal is 'iid'"):
        begin(LanguageModelDrafter(MODEL, proposal="iid")).propose(named("dyspec@4"), draws())
    with pytest.raises(ValueError, match="'ddtree:4@4' grows over one distribution per depth"):
        begin(LanguageModelDrafter(MODEL)).propose(named("ddtree@4"), draws())


# -------------------------------------------------------------------------------------------------------- merging


@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=6), st.none() | st.integers(0, 8))
def test_a_trie_holds_every_prefix_once(sequences, budget):
    draft = merge(9, sequences, budget)
    prefixes = {tuple(draft.tokens[list(draft.tree.path(node))[1:]].tolist()) for node in range(draft.tree.size)}
    expected = {tuple(sequence[:n]) for sequence in sequences for n in range(len(sequence) + 1)} | {()}
    assert len(prefixes) == draft.tree.size
    assert prefixes == expected if budget is None else prefixes <= expected
    assert draft.tree.budget == min(len(expected) - 1 if budget is None else budget, len(expected) - 1)


def test_no_more_sequences_are_read_than_the_budget_takes():
    sequences = iter([[1, 2], [1, 3, 4], [5]])
    assert merge(9, sequences, 3).tokens.tolist() == [9, 1, 2, 3]
    assert next(sequences) == [5]
    assert merge(9, [[1], [2]]).tree is merge(8, [[3], [4]]).tree  # one object per shape


@settings(deadline=None, max_examples=12)
@given(st.lists(trees(8), min_size=2, max_size=3), SEEDS)
def test_merged_drafters_stay_with_the_text(forest, seed):
    rng = random.Random(seed)
    merged = begin(MergedDrafter([LanguageModelDrafter(MODEL), LanguageModelDrafter(OTHER)]))
    oracles = [begin(PlainDrafter(model)) for model in (MODEL, OTHER)]
    texts = [prompt.tolist() + [root] for prompt, root in zip(PROMPTS, (1, 2, 3, 4))]
    for tree in forest:
        drafts = merged.propose(tree, draws())
        for oracle in oracles:
            oracle.texts = texts
        alone = [oracle.propose(tree, draws()) for oracle in oracles]
        for row, draft in enumerate(drafts):
            assert paths(draft) == set().union(*(paths(own[row]) for own in alone))
        texts = go_on(rng, [merged], drafts, texts)
        for drafter in merged.drafters:
            assert_cache_is_a_fresh_prefill(drafter, texts)


def paths(draft):
    return {tuple(draft.tokens[list(draft.tree.path(node))].tolist()) for node in range(draft.tree.size)}


@given(st.lists(trees(8), min_size=1, max_size=3), SEEDS)
def test_merged_siblings_are_ranked_as_the_first_that_knows_them_ranks_them(forest, seed):
    generator = torch.Generator().manual_seed(seed)

    def drafted(tree):
        tokens = torch.zeros(tree.size, dtype=torch.long)
        for node in range(tree.size):
            below = list(tree.children(node))
            tokens[below] = 1 + torch.randperm(9, generator=generator)[: len(below)]
        return Draft(tree, tokens, "top_k")

    drafts = [drafted(tree) for tree in forest]
    merged = merge_chosen(drafts)
    for node in range(merged.tree.size):
        path, children = merged.tokens_of(merged.tree.path(node)[1:]), []
        for draft in drafts:
            above = [ROOT, *draft.along(path)]
            if len(above) == len(path) + 1:
                children += draft.tokens_of(draft.tree.children(above[-1]))
        assert merged.tokens_of(merged.tree.children(node)) == list(dict.fromkeys(children))


def test_one_drafter_is_not_merged():
    with pytest.raises(ValueError, match="1 drafters"):
        MergedDrafter([LanguageModelDrafter(MODEL)])


# ------------------------------------------------------------------------------------------------ controls, registry


def decode(drafter, **settings):
    return live.decode(MODEL, drafter, PROMPTS, **({"shape": "kary:2@6", "max_new_tokens": 13} | settings))


PAIR = SimpleNamespace(target=MODEL, draft_model=OTHER, target_name="none that ships")
SPECS = [*(name for name in DRAFTERS if name != "mtp"),  # which needs a target with modules: see test_mtp
         "model:iid", "model:without_replacement", "merged:iid"]


@cache
def continuations():
    greedy = dict(max_new_tokens=13, do_sample=False, pad_token_id=0, eos_token_id=None)
    return [MODEL.generate(prompt[None], **greedy)[0, len(prompt) :].tolist() for prompt in PROMPTS]


def made(spec, **options):
    """A drafter of a kind with all that its kind has to be given."""
    given = dict(models=[OTHER, MODEL], generator=torch.Generator().manual_seed(1), prompts=PROMPTS,
                 continuations=continuations(), folder=small_heads.folder(parse(spec)[0], MODEL))
    taken = DRAFTERS[parse(spec)[0]].options
    return make(spec, PAIR, **options, **{name: value for name, value in given.items() if name in taken})


@pytest.mark.parametrize("spec", SPECS)
def test_with_any_drafter_greedy_output_is_the_targets_own(spec):
    assert decode(made(spec), rows=3).new_tokens == continuations()


@pytest.mark.parametrize("spec", SPECS)
def test_a_draft_carries_its_proposal_and_distinct_siblings(spec):
    drafter = made(spec)
    drafter.start(PROMPTS)
    prefilled = MODEL(pad_sequence(PROMPTS, batch_first=True), output_hidden_states=True)
    drafter.commit([[] for _ in PROMPTS], [row[0] for row in continuations()], prefilled)
    for draft in drafter.propose(shapes.kary(2, 2), draws()):
        assert draft.proposal == parse(spec)[1].get("proposal", "top_k")
        siblings = [draft.tokens[list(draft.tree.children(node))].tolist() for node in range(draft.tree.size)]
        assert all(len(set(tokens)) == len(tokens) for tokens in siblings)
    assert drafter.cache_bytes >= 0 and drafter.calls >= 0


@pytest.mark.parametrize("rule", ["dyspec@4", "ddtree@4"])
@pytest.mark.parametrize("spec", SPECS)
def test_a_growth_rule_is_followed_or_refused_by_name(spec, rule):
    try:
        assert decode(made(spec), shape=rule).new_tokens == continuations()
    except ValueError as refused:
        assert f"'{rule.partition('@')[0]}" in str(refused)


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_grown_trees_of_a_ragged_batch_give_the_targets_own_output(rule):
    trees = []
    observe = dict(observe=lambda rows, drafts, decided: trees.append([draft.tree for draft in drafts]))
    drafter = LanguageModelDrafter(small_models.related(MODEL, 1, noise=0.3))
    done = decode(drafter, shape=rule, **observe)
    assert done.new_tokens == continuations() and any(found.accepted for found in done.rounds)
    assert any(len(set(together)) > 1 for together in trees), "rows grow trees of their own"


def test_a_rule_is_decoded_by_its_name():
    name = "dyspec@6"
    by_name, by_rule = (decode(LanguageModelDrafter(OTHER), shape=shape) for shape in (name, named(name)))
    assert by_name.new_tokens == by_rule.new_tokens
    with pytest.raises(ValueError, match="is unknown: the families are"):
        decode(LanguageModelDrafter(OTHER), shape="dyspac@6")


def test_grown_trees_of_several_models_merge():
    models = OTHER, small_models.related(MODEL, 5, noise=0.5)
    done = decode(MergedDrafter([LanguageModelDrafter(model) for model in models]), shape="dyspec@6")
    assert done.new_tokens == continuations() and max(found.drafted for found in done.rounds) > 6


def test_the_oracle_is_accepted_whole_and_random_tokens_hardly_ever():
    best = decode(made("oracle"), shape="chain:5", rows=2)
    assert sorted((found.position, found.accepted) for found in best.rounds) == [(1, 5)] * 4 + [(7, 5)] * 4
    chance = decode(RandomDrafter(small_models.VOCABULARY, torch.Generator().manual_seed(0)), shape="star:3")
    assert sum(found.accepted for found in chance.rounds) < sum(found.drafted for found in chance.rounds) / 3
    with pytest.raises(ValueError, match=r"prompts \[0, 1, 2, 3\]"):
        OracleDrafter([], [], 4, torch.Generator()).start(PROMPTS)
    with pytest.raises(ValueError, match="5 children"):
        begin(RandomDrafter(4, torch.Generator())).propose(shapes.star(5), draws())


def test_the_registry_names_missing_and_unknown_options():
    with pytest.raises(ValueError, match="needs generator"):
        make("random", PAIR)
    with pytest.raises(ValueError, match="'hydra'; choose one of none, model"):
        make("hydra", PAIR)
    assert make("lookup", PAIR, order="frequent").order == make("lookup:frequent", PAIR).order == "frequent"
    assert make("sam:3", PAIR).shortest == 3 and make("confident:0.25", PAIR).threshold == 0.25
    assert make("model:iid", PAIR).proposal == "iid" and make("model", PAIR, temperature=0.5).temperature == 0.5
    with pytest.raises(ValueError, match="'lookup' takes no option ordr; it takes longest, order, shortest"):
        make("lookup", PAIR, ordr="frequent")
    with pytest.raises(ValueError, match="proposal is '3'; choose one of top_k, iid"):
        make("model:3", PAIR)
    with pytest.raises(ValueError, match="none takes no value"):
        make("none:3", PAIR)
    with pytest.raises(ValueError, match="give a value for shortest"):
        make("sam:", PAIR)
    for spec in ("sam:x", "combined:1.5", "confident:low"):
        with pytest.raises(ValueError, match=f"drafter is '{spec}', but .* is a number"):
            make(spec, PAIR)
    with pytest.raises(ValueError, match="no head of kind 'eagle3' exists for target 'none that ships'.*give the"):
        make("eagle3", PAIR)


def test_a_pair_without_a_draft_model_takes_drafters_that_need_none():
    alone = SimpleNamespace(target=MODEL, draft_model=None, target_name="t")
    for spec in ("sam", "none"):
        assert decode(make(spec, alone)).new_tokens == continuations()
    with pytest.raises(ValueError, match="the pair has no draft model"):
        make("model", alone)


class Repeating(Drafter):
    """Drafts the root again and again: the whole of a new drafter."""

    def __init__(self, offset: int = 0):
        self.offset = offset

    def propose(self, shape, draws):
        return [Draft(shape, torch.tensor([root] + [root + self.offset] * shape.budget), "top_k")
                for root in self.roots]


def test_a_new_drafter_is_one_class_and_one_row(monkeypatch):
    monkeypatch.setitem(DRAFTERS, "repeating", Kind(f"{__name__}:Repeating", "the root", Traits(option="offset")))
    drafter = make("repeating:0", PAIR)
    assert isinstance(drafter, Repeating) and drafter.window is None and not drafter.wants_hidden_states
    assert decode(drafter, shape="chain:3").new_tokens == continuations()
    combined = CombinedDrafter(SuffixAutomatonDrafter(), make("repeating", PAIR))
    assert decode(combined, shape="chain:3").new_tokens == continuations()
    with pytest.raises(ValueError, match="a Repeating cannot be recorded in a trace"):
        drafter.read_ahead(MODEL, PROMPTS, [1] * 4, 2)


def test_weights_with_nan_are_named():
    broken = small_models.llama(3)
    broken.name_or_path = "my/model"
    with torch.no_grad():
        broken.model.layers[0].mlp.down_proj.weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match="model 'my/model' gives NaN after the prompt.*load other weights"):
        decode(LanguageModelDrafter(broken))
    with pytest.raises(ValueError, match="model 'my/model' gives NaN"):
        live.decode(broken, LanguageModelDrafter(MODEL), PROMPTS, shape="chain:2", max_new_tokens=4)
