"""Tables of shapes and of advice: costs, recommendations, settings, curves."""

from lib.lab.schema import Schema, flag, integer, real, text
from lib.studies.columns import ROUND_COSTS, SETTING, SPEED, TREE, interval

ADVISED = {
    "target": SETTING["target"],
    "drafter": SETTING["drafter"],
    "batch": integer("sequences decoded together"),
    "prefix": integer("committed tokens, per sequence, that costs are for"),
}

TABLES = (
    Schema(
        "shapes",
        "what the rank model expects of one family at one budget",
        ("model", "family", "budget"),
        {"model": text("which acceptance by rank: greedy or sampled")} | TREE | {
            "depth": integer("depth of the tree"),
            "leaves": integer("its leaves"),
            "accepted": real("expected accepted length, tokens a round"),
            "rate": real("expected acceptance rate, accepted / drafted"),
            "gain": real("what the last node added to the expected accepted length"),
            "of_optimal": real("share of the optimal tree's expected accepted length"),
        },
        compressed=True,
    ),
    Schema(
        "ceilings",
        "what the rank model allows a family at most, and how soon it comes near",
        ("model", "family"),
        {
            "model": text("which acceptance by rank: greedy or sampled"),
            "family": TREE["family"],
            "ceiling": real("expected accepted length as the budget grows, tokens a round; may be infinite"),
            "budget": real("drafted nodes at which it comes near its ceiling; missing if beyond the largest budget"),
        },
    ),
    Schema(
        "costs",
        "what a round of the loop takes for one shape, among interleaved alternatives: medians over rounds of all rows",
        ("target", "drafter", "batch", "prefix", "shape"),
        ROUND_COSTS,
    ),
    Schema(
        "advice",
        "the recommended tree and what it is measured against, all predicted for one batch and prefix",
        (*ADVISED, "what"),
        {"what": text("the recommendation, or the alternative")} | ADVISED | {
            "tree": text("the tree as a list of paths of ranks"),
        } | SPEED | interval("against", "its speed over the recommendation's, on the same prompts"),
    ),
    Schema(
        "advice_settings",
        "the recommended tree as one serving engine takes it, or the nearest that it can express",
        (*ADVISED, "engine"),
        ADVISED | {
            "engine": text("serving engine, and which of its settings"),
            "form": text("what it can express: any tree, equal levels, chain, dynamic tree"),
            "setting": text("the line to give it"),
            "exact": flag("whether that is the recommended tree itself"),
        } | interval("loss", "share of the recommendation's speed that it loses; missing for dynamic trees") | {
            "note": text("what the setting is for, and what replay cannot say"),
        },
    ),
    Schema(
        "advice_budgets",
        "predicted speed of one family at one budget and batch, trees grown on other prompts than judged on",
        (*ADVISED, "family", "budget"),
        ADVISED | TREE | SPEED,
        compressed=True,
    ),
    Schema(
        "advice_sizes",
        "the same for the acceptance of the traced pair with the costs of another, as of a larger one",
        ("costs", *ADVISED, "family", "budget"),
        {"costs": text("the pair whose costs these are; those of random weights say what sizes cost")} | ADVISED
        | TREE | SPEED | {
            "plain_ms": real("a round of plain decoding, milliseconds"),
            "check": real("the check of as many nodes as the tree has, over a plain round"),
            "level": real("a drafter's forward of one node a sequence, over a plain round"),
            "free": integer("the most nodes whose check takes up to a tenth longer than a plain round"),
        },
        compressed=True,
    ),
    Schema(
        "advice_formulas",
        "speedup of a chain as replay with measured costs, and as formulas and published tables have it",
        ("target", "drafter", "batch", "length", "by"),
        {name: ADVISED[name] for name in ("target", "drafter", "batch")} | {
            "length": integer("drafted tokens of the chain"),
            "by": text("who says so"),
            "speedup": real("speed over plain decoding; missing where the source has none for the length"),
            "alpha": real("mean chance that the target takes the drafter's token (Leviathan's alpha)"),
            "cost": real("a drafter's step over a target's step, measured"),
        },
    ),
)
