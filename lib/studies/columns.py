"""Columns that several tables share."""

from lib.lab.schema import Column, integer, real, text

SETTING = {
    "target": text("model that verifies"),
    "drafter": text("what proposes"),
    "protocol": text("continuation (rounds follow one another) or real-text starts (rounds begin in held-out text)"),
    "temperature": real("temperature of the target; 0 is greedy"),
}
PROMPT = {"prompt": text("name of the prompt"), "kind": text("kind of text")}
TREE = {"family": text("family of the draft tree"), "budget": integer("drafted tokens a round, root excluded")}
LIVE = {
    "pair": text("target/drafter model"),
    "drafter": text("kind of drafter: top_k, iid, without_replacement, lookup, merged, random, oracle"),
    "rule": text("verification rule"),
    "shape": text("name of the draft tree's shape"),
    "temperature": SETTING["temperature"],
    "budget": integer("drafted tokens of the shape, root excluded"),
} | PROMPT | {
    "stretch": text("before the output's first loop, or loop: within it"),
    "rounds": integer("rounds not cut short"),
    "drafted": integer("tokens drafted in them"),
    "accepted": integer("draft tokens accepted in them, bonus tokens excluded"),
    "cut": integer("rounds that the end of the text or the length limit cut short"),
}


def interval(name: str, meaning: str) -> dict[str, Column]:
    """A number with the ends of its 95 % interval from resampling prompts."""
    return {name: real(meaning), f"{name}_low": real("lower end of its 95 % interval"),
            f"{name}_high": real("upper end of the same")}


SPEED = {
    "nodes": integer("drafted tokens of the tree, root excluded"),
    "depth": integer("depth of the tree"),
    "round_ms": real("milliseconds of a round of the batch by the calibrated costs"),
    **interval("tokens", "tokens a round and sequence, the bonus token included, on prompts not used to choose"),
    **interval("speedup", "predicted speed over plain decoding in the same loop"),
    **interval("tokens_per_second", "predicted tokens a second of the whole batch"),
    "n_prompts": integer("prompts behind the intervals"),
    "n_rounds": integer("rounds replayed"),
}
ROUND_COSTS = {
    "target": SETTING["target"],
    "drafter": SETTING["drafter"],
    "batch": integer("sequences decoded together"),
    "prefix": integer("committed tokens in the middle of the timed rounds, per sequence"),
    "shape": text("name of the draft tree's shape; chain:0 is plain decoding"),
    "nodes": integer("drafted tokens of the shape, root excluded"),
    "rounds": integer("timed rounds"),
    "draft_ms": real("median milliseconds of drafting"),
    "verify_ms": real("median milliseconds of the target's forward and the rule"),
    "commit_ms": real("median milliseconds of keeping the accepted path"),
    "round_ms": real("median milliseconds of the whole round"),
    "lower_ms": real("lower quartile of the same"),
    "upper_ms": real("upper quartile of the same"),
}
