"""Columns that tables of several studies share, and the short form in which studies declare their tables."""

from lib.lab.tables import Schema, columns

SHARED = columns("""
    pair text target/drafter
    target text model that verifies
    drafter text what proposes draft tokens
    protocol text continuation (rounds follow one another) or real-text starts (rounds begin in held-out text)
    temperature real temperature of the target; 0 is greedy
    prompt text name of the prompt
    kind text kind of text
    rule text verification rule
    proposal text how children were chosen: top_k, iid, without_replacement
    family text family of the draft tree
    shape text name of the draft tree's shape
    budget integer draft nodes per round, root excluded
    nodes integer draft nodes of the tree, root excluded
    depth integer depth of the tree
    batch integer sequences decoded together
    prefix integer committed tokens before the round, per sequence
    dtype text number format
    stretch text before: rounds before the text's first loop; loop: rounds within it
    rounds integer rounds that start before the length limit, decided to their ends
    drafted integer draft tokens in them
    accepted integer accepted draft tokens in them, bonus tokens excluded
    repeats integer timed calls per alternative, interleaved
    lower_ms real lower quartile of the same
    upper_ms real upper quartile of the same
    round_ms real predicted milliseconds per round of the batch, from calibrated costs
    tokens interval tokens per round and sequence, bonus token included, on prompts that were not used to choose
    speedup interval predicted speed over plain decoding in the same loop
    n_prompts integer prompts that the intervals resample
    n_rounds integer rounds replayed
    """)
SETTING = "target drafter protocol temperature"
ROUNDS = "stretch rounds drafted accepted"
LIVE = f"""
    pair
    drafter text proposal of the draft model: top_k, iid, without_replacement
    rule shape temperature budget prompt kind {ROUNDS}
    """
ROUND_COSTS = """
    target drafter dtype batch
    prefix integer committed tokens per sequence, in the middle of the timed rounds
    shape text name of the draft tree's shape; chain:0 is plain decoding
    nodes
    rounds integer timed rounds
    draft_ms real median milliseconds of drafting
    verify_ms real median milliseconds of the target's forward pass and the rule
    commit_ms real median milliseconds of keeping the accepted path
    round_ms real median milliseconds of the whole round
    lower_ms upper_ms
    """


def table(name: str, about: str, key: str, declared: str, compressed: bool = False) -> Schema:
    """A table. about: what a row is; key: the names of the columns that name a row; declared: see `tables.columns`."""
    return Schema(name, about, tuple(key.split()), columns(declared, SHARED), compressed)
