"""The report's background (one worked round, the definitions, a glossary), and what was measured: models, prompts,
protocols, sample sizes and limits.
"""

from collections.abc import Iterator
from dataclasses import replace

import pandas as pd

from lib.cost import recommendation
from lib.lab import provenance
from lib.lab.findings import Finding, Part, Results
from lib.studies.acceptance import main_findings, shape_findings, summary

ROUND = """
## Background

**A round.** The drafter proposes a tree of tokens. Its root is the last committed token, and each path from the root is
one guess at the next tokens. The target processes all nodes in one forward pass. Each node attends to the committed
text, to its ancestors and to itself, and its position is the committed length plus its depth. So the logits at each
node are those of an ordinary forward pass over its path. From the root, the rule descends as long as a child is the
target's next token. The tokens on this path are accepted, and the target's next token at its end, the *bonus token*,
follows them. A round therefore yields at least one token, and greedy text is the target's own.
"""

DEFINITIONS = """
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

**Shapes.** A *chain* is one path. *k independent chains* share only the root. *Sequoia (static)*, `optimal`, is the
tree of largest expected acceptance where acceptance depends on a node's rank alone (Sequoia's dynamic programme).
*Frequent paths*, `frequent`, is the tree of the paths of ranks that occurred most often in recorded text. Both are
built from other prompts than those on which they are judged, and are the same in each round. A *growth rule*, such as
EAGLE-2's, chooses the tree of each round from the drafter's probabilities.

| name | shape or rule |
|---|---|
| `chain:4`, `independent:4@16` | one path of four tokens; four paths that share the root, 16 nodes |
| `kary:2@14`, `expansion:2,2,1` | two children per node, 14 nodes; children per node by depth |
| `optimal@16`, `frequent@16` | built from recorded text, 16 nodes |
| `eagle2`, `opttree`, `dyspec`, `smart` | growth rules of the papers of these names, by the probabilities of each node |
| `ddtree`, `pctree` | the same for heads that draft all depths in one forward pass |
| `fork:2,0.6` | a chain that branches at its first token of a probability below 0.6 |
| `…@auto` | a growth rule whose number of nodes is chosen in each round, from the costs |

**Drafters.** A language model, smaller than the target; heads that read the target's hidden states (Medusa, EAGLE); the
target's own first layers (early exit); look-up of the last tokens earlier in the text (prompt look-up, suffix
automaton); tables of frequent n-grams of the target's text; the target's own earlier candidates (token recycling).

| name | what drafts |
|---|---|
| `lookup`, `sam` | the tokens after earlier occurrences of the last few tokens in the text; after the longest earlier match |
| `ngrams` | the text's own n-grams of two tokens and more, then tables of n-grams counted on text that the target wrote |
| `model:vocabulary=8192` | the draft model, with the target's 8,192 most frequent tokens alone |
| `eagle3`, `dspark` | trained heads; `dspark:confidence` grows its trees by the head's own confidence |
| `eagle`, `medusa`, `block`, `jetspec` | trained heads that do not ship |
| `recycling`, `early_exit:6` | the target's own earlier candidates; its first six layers |
| `combined:behind=X` | `sam` where its match has four tokens or more, `X` elsewhere; without `behind`, the draft model |
| `graft:behind=X` | the tree of `X`, pruned to make room for the tokens after `sam`'s match |

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

## What was measured

### Models and prompts
"""

PROTOCOLS = """
### Protocols

**Replay.** Under greedy verification the accepted path of each tree follows the target's own text. The target therefore
continues each prompt once, and the rank of each of its tokens among the drafter's candidates is recorded. These ranks
decide the rounds of any static tree, without a model. The same is exact for top-k children under naive sampling, on
text that was sampled at that temperature. Drafters that remember rejected tokens, and rules that sample children, are
decoded live.

**Logs.** The answers that a served model logged are such text too: the target need not be loaded. Where token ids were
logged, replay is exact. Of text alone the tokens are those that the tokenizer makes of it, which need not be those that
were written; the share is estimated. Costs are then those of where the model is served, measured there or computed.

**Two ways to choose rounds**, which are never pooled. In a *continuation*, rounds follow one another after a prompt, as
a user sees them. *Real-text starts* begin inside held-out text; base models are measured in this way too, because part
of their own continuations ends in repetition. Stretches of a continuation that repeat themselves are found
and left out. Each round that starts before the length limit is decided to its end.

**Intervals** are 95 %, from resampling prompts, because rounds of one prompt are correlated. With fewer than eight
prompts (or batches of prompts) the value stands without an interval. Trees are chosen on other prompts than those that
judge them.
"""

LIMITS = """
### Limits

A finding holds for the models, the text and the machine that it names. Predicted speeds take measured costs as exact,
so that their intervals contain only the variation between prompts. Times of two machines never stand in one ratio. Greedy
text in bfloat16 can differ from the target's own where two logits are nearly equal; in float64 the tests require it to
be the same.
"""


def report(run: Results) -> Iterator[Part]:
    """The sections "Background" and "What was measured"."""
    yield ROUND
    if "worked_round" in run:
        yield main_findings.worked_round(run["worked_round"])
    yield DEFINITIONS
    if "models" in run:
        yield models(run["models"])
    yield samples(run)
    yield PROTOCOLS
    yield replace(shape_findings.loops(run["repetition"]), table=None)
    yield LIMITS


def models(rows: pd.DataFrame) -> Finding:
    """The models of the run with their sizes; rows: the table "models"."""
    shown = rows.set_index("model").drop(columns="fingerprint", errors="ignore")
    shown["parameters"] = shown["parameters"].map(lambda count: f"{count / 1e6:,.1f} M")
    return Finding("The models.", "Each draft model shares its target's tokenizer.", table=shown)


def samples(run: Results) -> Finding:
    """By study: target, prompts, kinds of text and rounds that were measured."""
    rows = summary.clean(run["acceptance"])
    one = rows[(rows["family"] == "chain") & (rows["budget"] == rows["budget"].max())]
    coldest = one[one["temperature"] == one["temperature"].min()]
    listed = [_line("acceptance, by replay", f"{target}, {protocol}; by {', '.join(own['drafter'].unique())}", own)
              for (target, protocol), own in coldest.groupby(["target", "protocol"], sort=False)]
    for study, name, by in (("drafters, decoded live", "drafters", "target"),
                            ("rules, decoded live", "rules_live", "pair"), ("speed", "speed", "pair")):
        if name in run:
            own = run[name]
            own = own[own["batch"] == own["batch"].min()] if "batch" in own else own[own["stretch"] == "before"]
            listed += [_line(study, of, each) for of, each in own.groupby(by, sort=False)]
    path = run.run_dir / recommendation.FILE
    if path.exists():
        made = recommendation.load(path)
        listed.append({"study": "recommendation", "of": made.target, "kinds of text": "",
                       "prompts": f"{made.choosing} choose, {made.judging} judge", "rounds": ""})
    table = pd.DataFrame(listed).set_index("study")
    return Finding("Sample sizes.", f"Machine: {provenance.machines(run.record)}.", table=table)


def _line(study: str, of: str, rows: pd.DataFrame) -> dict:
    return {"study": study, "of": of, "kinds of text": rows["kind"].nunique(), "prompts": rows["prompt"].nunique(),
            "rounds": f"{rows['rounds'].sum():,.0f}"}
