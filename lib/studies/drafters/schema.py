"""Tables of drafters, and of how heads were trained."""

from lib.lab.schema import Schema, flag, integer, real, text
from lib.studies.columns import PROMPT, SETTING

TABLES = (
    Schema(
        "drafters",
        "live greedy decoding of one prompt with one drafter and shape, request by request; drafter none is plain",
        ("target", "drafter", "shape", "prompt", "stretch"),
        {
            "target": SETTING["target"],
            "drafter": text("what proposes: a kind with its option, or a model's name"),
            "shape": text("name of the draft tree's shape, the largest that the drafter may fill"),
            "budget": integer("drafted tokens of the shape, root excluded"),
        } | PROMPT | {
            "prompt_tokens": integer("tokens of the prompt"),
            "stretch": text("before the output's first loop, or loop: within it"),
            "rounds": integer("rounds not cut short"),
            "cut": integer("rounds that the end of the text or the length limit cut short"),
            "drafted": integer("tokens drafted in the rounds not cut short"),
            "accepted": integer("draft tokens accepted in them, bonus tokens excluded"),
            "tokens": integer("tokens that they gave, bonus tokens included"),
            "draft_calls": integer("forwards of the drafter's model in them"),
            "draft_ms": real("milliseconds that drafting took in them"),
            "verify_ms": real("milliseconds that the target's forward and the rule took"),
            "commit_ms": real("milliseconds that keeping the accepted path took, in caches and drafter"),
        } | {f"{what}_{depth}": integer(f"rounds that {did} depth {depth}") for depth in range(1, 9)
             for what, did in (("reached", "could accept"), ("accepted", "accepted"))} | {
            "weight_bytes": integer("bytes of the drafter's weights that are not the target's"),
            "held_bytes": integer("bytes that the drafter holds at the end: caches, texts, tables"),
            "target_bytes": integer("bytes of the target's weights"),
            "identical": flag("whether the output is plain decoding's, token for token"),
        },
        compressed=True,
    ),
    Schema(
        "head_curves",
        "how well a head speaks of held-out text while it is trained: its own curve.csv, with its target and kind",
        ("target", "head", "step", "kind", "depth"),
        {
            "target": text("the frozen model whose hidden states the head reads"),
            "head": text("medusa, eagle, eagle3 or block"),
            "step": integer("optimiser steps done"),
            "kind": text("kind of text"),
            "depth": integer("tokens ahead of the root, 1 the first drafted one"),
            "nats": real("cross-entropy of the head against the target's distribution, nats a token"),
            "agreement": real("share of tokens at which head and target have the same favourite"),
            "tokens": integer("tokens that both are means of"),
        },
        compressed=True,
    ),
    Schema(
        "head_memory",
        "peak memory of one training step's losses and their backward, beside weights and activations below them",
        ("target", "kind", "way"),
        {
            "target": text("the frozen model"),
            "kind": text("which head"),
            "way": text("together: all depths' logits alive at once; apart: one depth's at a time"),
            "depths": integer("depths that the head learns"),
            "rows": integer("windows of the step"),
            "length": integer("tokens of a window"),
            "logit_bytes": integer("bytes of one depth's logits"),
            "peak_bytes": integer("bytes alive at once, at most"),
        },
    ),
)
