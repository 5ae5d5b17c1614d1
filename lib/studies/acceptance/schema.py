"""Tables of acceptance: shapes and growth rules, depths and ranks, live rounds, choices, replay."""

from lib.lab.schema import Schema, flag, integer, real, text
from lib.studies.columns import LIVE, PROMPT, SETTING, TREE

# Of one prompt and tree: rounds that were cut are counted, but left out of the sums.
ROUNDS = {
    "stretch": text("before the trace's first loop, or loop: within it"),
    "rounds": integer("rounds not cut short"),
    "drafted": integer("tokens drafted in them"),
    "accepted": integer("draft tokens accepted in them, bonus tokens excluded"),
    "cut": integer("rounds that the end of the text or the length limit cut short"),
}

TABLES = (
    Schema(
        "acceptance",
        "what replay finds for one prompt, tree and setting; cut rounds are counted but left out of the sums",
        (*SETTING, "family", "budget", "prompt", "stretch"),
        SETTING | TREE | {"depth": integer("depth of the tree")} | PROMPT | {
            **ROUNDS,
        },
        compressed=True,
    ),
    Schema(
        "growth",
        "static trees and trees that grow each round, by replay, for one prompt; cut rounds are left out of the sums",
        (*SETTING, "family", "budget", "prompt", "stretch"),
        SETTING | TREE | {"depth": integer("depth of the tree, of the deepest one where it grows")} | PROMPT | {
            **ROUNDS,
            "calls": integer("forwards of the drafter in the rounds not cut short"),
            "confidence": real("temperature of the drafter's probabilities by which the tree grew; missing if static"),
        },
        compressed=True,
    ),
    Schema(
        "depth",
        "acceptance at one depth of a tree for one prompt: accepted / reached is conditional, accepted / rounds is not",
        (*SETTING, "family", "budget", "prompt", "depth"),
        SETTING | TREE | PROMPT | {
            "depth": integer("depth in the tree, 1 for the root's children"),
            "rounds": integer("rounds not cut short, before a loop"),
            "reached": integer("of these, rounds that accepted depth - 1 at a node with children"),
            "accepted": integer("of these, rounds that accepted this depth"),
        },
        compressed=True,
    ),
    Schema(
        "nodes",
        "how often each node of a tree was accepted, over all prompts judged",
        (*SETTING, "family", "budget", "path"),
        SETTING | TREE | {
            "path": text("the node as the ranks that lead to it, such as 0.0.1"),
            "depth": integer("its depth, 1 for the root's children"),
            "rounds": integer("rounds not cut short, before a loop"),
            "accepted": integer("of these, rounds that accepted the node"),
        },
        compressed=True,
    ),
    Schema(
        "rank",
        "where the target's next token stands among the drafter's candidates, for one prompt",
        (*SETTING, "prompt"),
        SETTING | PROMPT | {
            "positions": integer("positions before a loop"),
            "alpha_sum": real("sum over them of 1 - total variation between target and drafter (Leviathan's alpha)"),
        } | {f"rank_{r}": integer(f"positions where it has rank {r}") for r in range(16)},
        compressed=True,
    ),
    Schema(
        "repetition",
        "how far one continuation of a target goes before it loops",
        ("target", "protocol", "temperature", "prompt"),
        {name: SETTING[name] for name in ("target", "protocol", "temperature")} | PROMPT | {
            "transitions": integer("tokens of the continuation"),
            "loops": flag("whether it loops"),
            "loop_start": integer("token at which the first loop starts; beyond the last token if there is none"),
        },
        compressed=True,
    ),
    Schema(
        "live",
        "what live decoding finds for one prompt and setting: rules and drafters that replay cannot give exactly",
        ("pair", "drafter", "rule", "shape", "temperature", "prompt", "stretch"),
        LIVE,
        compressed=True,
    ),
    Schema(
        "merging",
        "nodes that the first two, three, .. drafters of a target draft for one prompt, apart and in one tree",
        ("target", "shape", "drafters", "prompt"),
        {
            "target": SETTING["target"],
            "shape": text("name of the tree that each drafter fills"),
            "drafters": integer("how many are merged"),
        } | PROMPT | {
            "rounds": integer("rounds, those cut short included"),
            "sequences": integer("nodes of all root-to-leaf sequences of all drafters, each apart"),
            "trees": integer("nodes of all drafters' trees, each apart"),
            "merged": integer("nodes of the one tree that all are merged into"),
            "node_bytes": integer("bytes of one node in the target's cache"),
        },
        compressed=True,
    ),
    Schema(
        "choices",
        "what one chosen tree finds for one judged prompt: chosen from few prompts, from other kinds of text, or for "
        "another objective; cut rounds are counted but left out of the sums",
        (*SETTING, "question", "family", "budget", "arm", "draw", "prompt", "stretch"),
        SETTING | {
            "question": text("what was varied: prompts (how many), kinds (of text), or objective"),
        } | TREE | {
            "arm": text("the value of what was varied"),
            "draw": integer("which random draw of choosing prompts; 0 where there is one alone"),
            "prompts": integer("prompts that the tree was chosen from"),
            "positions": integer("their positions before a loop"),
            "shared": real("share of its nodes that the tree chosen from all prompts for uniform starts has too"),
        } | PROMPT | {
            **ROUNDS,
        },
        compressed=True,
    ),
    Schema(
        "expected",
        "expected acceptance of one rule on a text that the target wrote, chained rounds, for one prompt",
        ("pair", "rule", "shape", "temperature", "prompt", "stretch"),
        {
            "pair": text("target/drafter model"),
            "rule": text("verification rule; naive with the drafter's best children, the others with sampled ones"),
            "shape": text("name of the draft tree's shape"),
            "temperature": SETTING["temperature"],
            "budget": integer("drafted tokens of the shape, root excluded"),
        } | PROMPT | {
            "stretch": text("before the text's first loop, or loop: within it"),
            "rounds": real("expected rounds not cut short"),
            "accepted": real("expected draft tokens accepted in them, bonus tokens excluded"),
        },
        compressed=True,
    ),
    Schema(
        "replay_speed",
        "how long it takes to learn what a tree accepts at all positions of a trace, by replay and live",
        ("pair", "way"),
        {
            "pair": text("target/drafter model"),
            "way": text("replay at every start or of chained rounds, the index that it makes once, or live decoding"),
            "nodes": integer("drafted nodes of the trees"),
            "positions": integer("positions of the trace"),
            "repeats": integer("timed calls behind the quartiles"),
            "seconds": real("median seconds a tree, interleaved"),
            "lower": real("lower quartile of the same"),
            "upper": real("upper quartile of the same"),
            "trees_a_second": real("trees a second"),
            "times_live": real("how many times faster than live decoding"),
        },
    ),
)
