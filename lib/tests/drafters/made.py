"""Drafters of every kind of the registry for one small target, and what the tests of drafters share."""

from functools import cache
from types import SimpleNamespace

import torch

from lib.drafters.registry import DRAFTERS, make, parse
from lib.tests import live, small_heads, small_models
from lib.verify import GeneratorDraws

MODEL = small_models.llama(3)
OTHER = small_models.related(MODEL, 4, noise=0.4)
PROMPTS = [*small_models.prompts(5, (3, 9, 5, 1)), torch.tensor([1, 2, 3, 1, 2, 3, 1])]  # of which one repeats itself
ROOTS = [1, 2, 3, 4, 5]
PAIR = SimpleNamespace(target=MODEL, draft_model=OTHER, target_name="none that ships")
NEW_TOKENS = 13
# All kinds but one, which needs a target with modules (see test_mtp), with the specs that studies decode and samples.
SPECS = list(dict.fromkeys([
    *(spec for name, kind in DRAFTERS.items() if name != "mtp" for spec in kind.specs or (name,)),
    "model:iid", "model:without_replacement", "merged:iid", "combined:2", "choosing:12"]))


@cache
def continuations():
    """The target's own greedy texts, by transformers."""
    return [live.continuation(MODEL, prompt, NEW_TOKENS) for prompt in PROMPTS]


def made(spec, pair=PAIR):
    """A drafter of a kind with all that its kind has to be given."""
    name = parse(spec)[0]
    texts = [[*prompt.tolist(), *tokens] for prompt, tokens in zip(PROMPTS, continuations())]
    options = {"models": [pair.draft_model, pair.target], "generator": torch.Generator().manual_seed(1),
               "texts": texts, "folder": small_heads.folder(name, pair.target)}
    return make(spec, pair, {option: value for option, value in options.items() if option in DRAFTERS[name].options})


def decode(drafter, target=MODEL, **settings):
    """The texts and rounds of all prompts, decoded live."""
    return live.decode(target, drafter, PROMPTS, **({"shape": "kary:2@6", "max_new_tokens": NEW_TOKENS} | settings))


def draws(seed=0):
    return GeneratorDraws(torch.Generator().manual_seed(seed))


def begin(drafter):
    """The drafter after the prompts and their first roots."""
    drafter.start(PROMPTS)
    drafter.commit([[] for _ in PROMPTS], list(ROOTS))
    return drafter


def texts_at_start():
    return [prompt.tolist() + [root] for prompt, root in zip(PROMPTS, ROOTS)]


def a_path(tree, rng):
    """Some accepted path: from the root down, stopping anywhere."""
    node, path = 0, []
    while tree.children(node) and rng.random() < 0.8:
        node = rng.choice(tree.children(node))
        path.append(node)
    return path


def go_on(rng, drafters, drafts, texts, tokens=small_models.VOCABULARY):
    """Commits some path of each draft, and a bonus token, to all drafters; the texts [list of tokens] afterwards."""
    accepted = [a_path(draft.tree, rng) for draft in drafts]
    bonus = [rng.randrange(1, tokens) for _ in drafts]
    texts = [[*text, *draft.tokens_of(nodes), token]
             for draft, nodes, token, text in zip(drafts, accepted, bonus, texts)]
    for drafter in drafters:
        drafter.commit(accepted, bonus)
    return texts
