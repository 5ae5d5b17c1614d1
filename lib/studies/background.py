"""The report's background: one worked round with real tokens, the definitions, and a glossary."""

from collections.abc import Iterator

from lib.lab.findings import Part, Results
from lib.studies.acceptance import worked_round

ROUND = """
## Background

**A round.** The drafter proposes a tree of tokens. Its root is the last committed token, and each path from the root is
one guess at the next tokens. The target processes all nodes in one forward pass. Each node attends to the committed
text, to its ancestors and to itself, and its position is the committed length plus its depth. So the logits at each
node are those of an ordinary forward pass over its path. From the root, the rule descends as long as a child is the
target's next token. The tokens on this path are accepted, and the target's next token at its end, the *bonus token*,
follows them. A round therefore yields at least one token, and greedy text is the target's own.
"""

MEASURES = """
**Measures.** Papers count differently, so each quantity here has one name and one meaning.

| quantity | meaning |
|---|---|
| budget *n* | draft nodes of a tree; the root does not count |
| accepted length *a* | accepted draft tokens of a round; the bonus token does not count |
| acceptance length | the mean of *a* over rounds |
| block efficiency τ | acceptance length + 1, the tokens per forward pass of the target; many papers report it |
| acceptance rate | accepted over draft tokens; it falls as a tree grows, since at most one path is accepted |
| α (Leviathan) | the chance that one draft token is accepted: the probability mass that both distributions share |
| speedup | tokens per second over plain decoding in the same loop, in turns, on the same prompts |
| target step | the time of one round of plain decoding |
"""

SHAPES = """
 **Shapes.** A *chain* is one path. *k independent chains* share only the root. *Sequoia (static)* is the tree of
largest expected acceptance where acceptance depends on a node's rank alone (Sequoia's dynamic programme). *Frequent
paths* is the tree of the paths of ranks that occurred most often in recorded text. Both are grown on other prompts than
those on which they are judged, and are the same in each round. A *growth rule*, such as EAGLE-2's, chooses the tree of
each round from the drafter's probabilities. Names such as `kary:2@14` mean a family (two children per node) and a
budget.

**Drafters.** A language model, smaller than the target; heads that read the target's hidden states (Medusa, EAGLE); the
target's own first layers (early exit); look-up of the last tokens earlier in the text (prompt look-up, suffix
automaton); tables of frequent n-grams of the target's text; the target's own earlier candidates (token recycling).
"""

GLOSSARY = """
**Glossary.**

| term | meaning |
|---|---|
| rank | a node's place among its siblings, in the drafter's order of probability |
| trace | the target's continuation, with the rank of each of its tokens among each drafter's candidates |
| replay | computing from a trace what a tree would have accepted |
| rule; lossless | how acceptance is decided; text with exactly the target's distribution |
| proposal | how children are chosen: *top k*, independent samples (*iid*), samples *without replacement* |
| plain decoding; loop | this project's decoding loop without a drafter; the loop itself |
| check | the target's forward pass over a tree, with the rule and the caches |
"""


def report(run: Results) -> Iterator[Part]:
    """The section "Background"."""
    yield ROUND
    if "worked_round" in run:
        yield worked_round.drawn(run["worked_round"])
    yield MEASURES
    yield SHAPES
    yield GLOSSARY
