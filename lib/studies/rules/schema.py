"""Tables of verification rules: exact, proved, live, their law, their cost."""

from lib.lab.schema import Schema, flag, integer, real, text
from lib.studies.columns import LIVE, PROMPT

RULE = {
    "rule": text("verification rule"),
    "proposal": text("how children were chosen: top_k, iid, without_replacement"),
}

TABLES = (
    Schema(
        "rules_exact",
        "the exact law of a round of one rule on one small random language; the rule bound: what none can beat",
        ("vocabulary", "seed", "language", "agreement", "temperature", "shape", "rule", "proposal"),
        {
            "vocabulary": integer("tokens of the language"),
            "seed": integer("of the languages"),
            "language": integer("number of the random language"),
            "agreement": real("correlation between the logits of drafter and target"),
            "temperature": real("of target and drafter"),
            "shape": text("name of the draft tree's shape"),
        } | RULE | {
            "lossless": flag("whether the rule is meant to keep the target's law"),
            "accepted": real("expected accepted length, tokens a round, bonus token excluded"),
            "drafted": real("expected drafted nodes a round; missing for a bound"),
            "distance": real("total variation between what is emitted, continued to depth + 1 tokens, and the target"),
        },
        compressed=True,
    ),
    Schema(
        "rules_proof",
        "how far from the target's law a rule is over many small languages, by enumeration",
        ("rule", "proposal", "shape", "kind"),
        RULE | {
            "shape": text("name of the draft tree's shape"),
            "kind": text("random languages, or hard ones: disjoint supports, zeros, ties, certainty, equality"),
            "languages": integer("pairs of target and drafter that were enumerated"),
            "lossless": flag("whether the rule is meant to keep the target's law"),
            "worst": real("largest total variation over depth + 1 tokens"),
            "mean": real("its mean over the languages"),
        },
    ),
    Schema(
        "rules_live",
        "what live decoding finds for one prompt and rule, above temperature 0",
        ("pair", "drafter", "rule", "shape", "temperature", "prompt", "stretch"),
        LIVE,
        compressed=True,
    ),
    Schema(
        "rules_law",
        "a G-test of the loop's first tokens, decoded many times, against their exact law under the target",
        ("pair", "prompt", "shape", "temperature", "rule", "proposal"),
        {
            "pair": text("target/drafter model"),
            "prompt": PROMPT["prompt"],
            "shape": text("name of the draft tree's shape"),
            "temperature": real("of target and drafter"),
        } | RULE | {
            "top_k": integer("tokens that the target's law is cut to"),
            "tokens": integer("first tokens of a continuation that are counted"),
            "samples": integer("continuations"),
            "statistic": real("G, of the likelihood-ratio test"),
            "degrees": integer("its degrees of freedom"),
            "p_value": real("chance of a larger G under the target's law, for this test alone"),
        },
    ),
    Schema(
        "rules_cost",
        "time of a verification against one read of the rows of probabilities that it read in full, caches emptied",
        ("rule", "proposal", "shape", "vocabulary"),
        RULE | {
            "shape": text("name of the draft tree's shape"),
            "nodes": integer("drafted nodes"),
            "vocabulary": integer("tokens of a row"),
            "agreement": real("correlation between the logits of drafter and target"),
            "rounds": integer("different drafts, over which times are means"),
            "rows_read": real("rows of target and draft probabilities that were read in full, a round"),
            "verify_us": real("microseconds of a verification, median of the repeats"),
            "read_us": real("microseconds to sum these rows once, median of the repeats"),
            "times_read": real("median over the repeats of verification over read"),
            "lower": real("lower quartile of that ratio over the repeats"),
            "upper": real("upper quartile of the same"),
            "repeats": integer("interleaved repeats"),
        },
    ),
)
