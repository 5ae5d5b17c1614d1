"""The acceptance study in the report: sections 1 to 3, and what follows from them.

`shape_findings` has the findings on static shapes, `further_findings` all others.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from lib.lab import provenance
from lib.lab.findings import Part, Results
from lib.studies.acceptance import further_findings, shape_findings, summary
from lib.studies.acceptance.shape_findings import Shapes
from lib.studies.report import Ask, Follows

LOSSES = provenance.HOME / "data" / "models" / "losses.csv"  # of the shipped family on held-out text
PREFIX = 128  # committed tokens before the tree whose mask is drawn

BACKGROUND = """
## 1 Background

In each round the drafter proposes a tree whose root is the last committed token; every path from the root is a guess at
the next tokens. The target processes all nodes in one forward pass, which gives its next token at each node. The walk
from the root descends as long as a child is the target's next token; the **accepted length** *a* counts the draft
tokens on that path. The target's next token at the end of the path is the **bonus token**. So a round yields *a* + 1
tokens for one forward pass of the target, and never fewer than one.

Two ways of counting are easily confused. The **acceptance length** here is the mean of *a*; many papers report the
**block efficiency** τ = mean *a* + 1. The **acceptance rate** is accepted over draft tokens; it falls as a tree grows,
because at most one path of the tree can be accepted. Leviathan's α, a probability per token, is a third quantity
(section 2.4).

A tree also has a cost: the drafter runs once per level, and the target's forward pass has more tokens. Section 6
measures the part of this cost that is particular to trees, attention.
"""

SHAPES = """
## 2 Method

### 2.1 The shapes

Every family is compared at every budget *n* of draft nodes. *Sparse* (Medusa) and *optimal* (Sequoia's dynamic
programme) are grown from the frequency of each rank of the target's token among the drafter's candidates, *frequent*
from the most frequent paths of ranks. They are always grown on other prompts than those on which all shapes are judged.
In the figure, a node is darker the more often it was accepted (by the square root, so that rare nodes stay visible),
for the headline pair.
"""

ONE_FORWARD = """
### 2.2 One forward pass for a whole tree

The nodes follow the committed prefix in one sequence. Each node attends to the prefix, to its ancestors and to itself,
and its position is *prefix + depth*, so that siblings share a position. With this mask the logits at every node are
those of an ordinary forward pass over that node's path; the tests of this project verify this.
"""

REPLAY = """
### 2.3 Exact replay

Under greedy verification the accepted path of *any* tree follows the target's own continuation. It is enough to record
once, at every position, the rank of the target's next token among the drafter's candidates. A walk down the ranks then
gives the round of any of thousands of trees, without a model. The same is exact for top-k children under naive sampling
on a continuation that was sampled at that temperature. The tests compare replay with live decoding round by round.

There are two protocols, which are never pooled. **Continuation**: the target continues a prompt, and rounds follow one
another, as a user sees it; headlines of chat models use it. Small models fall into loops there, which any drafter can
guess; looped stretches are found and left out. **Real-text starts**: rounds start inside held-out text, and the
target's next tokens decide them; headlines of base models use these. Every round that starts before the length limit
counts, and its text goes on until the round is decided: leaving out the rounds that a limit cuts would be a bias,
because long rounds are cut more often. EOS ends a round as it stands. Intervals are 95 %, from resampling prompts,
because rounds of one prompt are correlated.
"""

MODELS = """
### 2.4 The models

"""

FAMILY = """
The target is of a family that ships with the project, trained on the source code and docstrings of installed packages
and on text written by generators (every kind except *code* and *prose* is such synthetic text). Its models are small,
so that the whole study runs on a laptop; the model card in `data/models` has their recipe and losses. Any pair that
shares a tokenizer can replace them.
"""

OTHERS = """
The record of the run names every model with a digest of its files, and the number format. Any pair that shares a
tokenizer can replace them.
"""

COST = """
The next table gives the same results in the terms of cost. The **acceptance rate** is the share of draft tokens that
are kept, the **call reduction** 1 − 1/τ the share of the target's forward passes that are saved. The last column
compares the tree with a drafter that knows the future, which would gain the tree's whole depth.
"""

DEPTH = """
### 3.3 Where does a round end?

At each depth: of the rounds that reached it at a node with children, the share that went on (*conditional*), and of all
rounds, the share that reached it (*unconditional*).
"""

KINDS = """
### 3.4 How do kind of text, temperature and pair change the answer?

Which shape is best on which kind of text?
"""

OTHER_DRAFTERS = """
### 3.5 Other drafters, and rules that sample

Replay covers language models whose top candidates are drafted. Sampled children, drafters that look up text, several
merged models and two controls were decoded live on the same prompts.
"""

MERGING = """
**What merging saves.** Verified one by one, each drafter's sequence takes its own place in the target's cache. In one
tree, what the sequences share is stored and computed once, which was SpecInfer's argument for trees.
"""

GROWTH = """
### 3.6 Trees that grow

A growth rule chooses each round's tree from the drafter's own probabilities. The rounds below were replayed by drafting
them again, one forward pass per level, against the same recorded continuations as the static trees.
"""

UNSEEN_TEXT = """
### 3.7 Which way of growing a tree is best on unseen text?

*Optimal* assumes that steps are independent, *sparse* uses the depth as well, *frequent* counts whole paths. Richer
models can overfit.
"""

CHOICES = """
### 3.8 How much text does the choice of a tree need, and is one tree enough?

Trees are grown from 1, 2, 4, … of the choosing prompts and judged on the others. Each is compared, prompt by prompt,
with the tree of all choosing prompts.
"""

EXPECTATION = """
### 3.9 What do rules that sample their children accept, in expectation?

A lossless rule does not change the target's text, so expected acceptance can be computed from recorded text, without
sampling. Does it agree with live decoding?
"""


def report(run: Results, ask: Ask, rng: np.random.Generator) -> Iterator[Part | Follows]:
    """The background, the method (section 2), acceptance (section 3), and what follows from it."""
    losses = pd.read_csv(LOSSES)
    in_family, memorised = ask.target in set(losses["member"]), summary.memorised(losses, ask.target)
    shapes = Shapes(run, ask.pair, ask.budget, rng, left_out=memorised)
    ranks = summary.clean(run["rank"])
    yield BACKGROUND
    yield SHAPES
    yield shape_findings.drawn_shapes(shapes)
    yield ONE_FORWARD
    tree, _ = shapes.drawn["optimal"]
    yield shape_findings.mask(tree, tree.budget, PREFIX, f"optimal@{tree.budget}")
    yield REPLAY
    yield shape_findings.loops(run["repetition"])
    yield MODELS + (FAMILY if in_family else OTHERS)
    if in_family:
        yield shape_findings.held_out_losses(losses, ask.target, memorised)
    yield shape_findings.agreement(ranks, rng)
    yield "## 3 Results: acceptance\n\n### 3.1 Which shapes win at which budgets?"
    yield shape_findings.over_budget(shapes)
    yield shape_findings.against_chain(shapes)
    yield "### 3.2 Where do returns diminish?\n\nWhat does each doubling of the budget add?"
    yield shape_findings.by_doubling(shapes)
    yield COST
    yield shape_findings.at_budget(shapes, rng)
    yield DEPTH
    yield shape_findings.by_depth(shapes, rng)
    yield KINDS
    yield shape_findings.by_kind(shapes, rng)
    yield shape_findings.by_temperature(shapes)
    yield shape_findings.by_pair(shapes)
    yield shape_findings.coverage(ranks, shapes.pairs, rng)
    yield OTHER_DRAFTERS
    yield further_findings.other_drafters(run["live"], rng)
    yield MERGING
    yield further_findings.merging(run["merging"], rng)
    yield GROWTH
    grown = summary.clean(run["growth"])
    yield further_findings.grown_trees(grown[grown["pair"] == ask.pair], rng)
    yield UNSEEN_TEXT
    yield shape_findings.against_optimal(shapes, rng)
    yield CHOICES
    by_text = summary.by_text(run["choices"], rng)
    if (by_text["pair"] == ask.pair).any():
        yield further_findings.text_needed(by_text[by_text["pair"] == ask.pair])
    yield further_findings.one_tree_or_many(run["choices"], ask.pair, rng)
    yield replace(further_findings.chained_rounds(run["choices"], rng), table=None)
    yield EXPECTATION
    yield further_findings.expected_and_live(run["expected"], run["live"], rng)
    yield "### 3.10 How fast is the search over trees?"
    yield further_findings.replay_speed(run["replay_speed"])
    yield from follows(shapes)


def follows(shapes: Shapes) -> Iterator[Follows]:
    """What the acceptance of static shapes says on the questions of the last section."""
    share, overtakes = shapes.fixed["of_optimal"], shapes.overtakes
    ahead = (f"Below a budget of {overtakes} the optimal tree is not clearly better than a chain; from there on, let "
             "measured ranks decide." if overtakes else
             "At no budget of this run is the optimal tree clearly better than a chain.")
    yield Follows("How deep, how wide?", lambda: (
        f"{ahead} The best shape that is fixed in advance reaches {share[shapes.largest]:.0%} of the optimal tree's "
        f"acceptance length at {shapes.largest} nodes and {share[shapes.smallest]:.0%} at {shapes.smallest}."))
    last = shapes.doublings.set_index(["family", "budget"])["gain"]["optimal", shapes.largest]
    yield Follows("How many nodes?", lambda: (
        "Add nodes as long as a node adds more than it costs. The last doubling of the optimal tree's budget adds "
        f"{last:.2f} tokens per round."))
    pairs = shapes.optimal_by_pair
    value = pairs[pairs["budget"] == shapes.budget]["value"]
    yield Follows("Which drafter?", lambda: (
        f"The optimal tree of {shapes.budget} nodes accepts from {value.min():.2f} to {value.max():.2f} draft tokens "
        "per round between the pairs measured. Which pair is fastest also depends on the cost of drafting."))
    kinds = shapes.kinds
    yield Follows("Which text?", lambda: (
        f"Acceptance runs from {kinds['value'].iloc[0]:.2f} ({kinds['kind'].iloc[0]}) to {kinds['value'].iloc[-1]:.2f} "
        f"({kinds['kind'].iloc[-1]}). Measure on the text that will be served."))
