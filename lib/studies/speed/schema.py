"""Tables of speed: ways of decoding side by side, what was foreseen, batches, memory, number formats."""

from lib.lab.schema import Schema, flag, integer, real, text
from lib.studies.columns import PROMPT, ROUND_COSTS, SPEED, interval

RUN = {
    "tokens": integer("new tokens of all rows, up to each one's end"),
    "seconds": real("wall-clock time, prefill included"),
    "rounds": real("rounds of all rows that were not cut short; missing for transformers' own"),
    "accepted": real("draft tokens accepted in them"),
    "round_seconds": real("time of all rounds, until the last row ends; prefill excluded"),
    "model_seconds": real("of these, time in forwards of target and drafter"),
}

TABLES = (
    Schema(
        "speed",
        "one timed run of one way of decoding on one group of prompts; ways take turns",
        ("pair", "batch", "alternative", "prompt", "repeat"),
        {
            "pair": text("target/drafter model"),
            "batch": integer("prompts decoded at once"),
            "alternative": text("way of decoding: transformers' own, the plain loop, or the loop with a drafter"),
            "drafter": text("kind of drafter; empty for transformers' own and for plain decoding"),
            "shape": text("label of the draft tree; empty where there is none"),
            "repeat": integer("which repetition"),
        } | RUN | {
            "same": flag("whether the tokens are those of transformers' greedy generate"),
            "prompt": text("the group's first prompt"),
            "kind": text("kind of text"),
        },
        compressed=True,
    ),
    Schema(
        "speed_choice",
        "what replay and a short calibration promised of a draft tree, before any prompt was judged",
        ("pair", "batch", "drafter", "shape"),
        {
            "pair": text("target/drafter model"),
            "batch": integer("prompts decoded at once"),
            "drafter": text("kind of drafter"),
            "shape": text("label of the draft tree: family@budget"),
            "budget": integer("drafted tokens a round, root excluded"),
            "tokens": real("tokens a round on the choosing prompts, by replay or live, bonus token included"),
            "turns": integer("groups of prompts that were timed; the fastest have more"),
            "round_seconds": real("median time of a round"),
            "speed": real("tokens a second and row that follow"),
        },
    ),
    Schema(
        "speed_costs",
        "what a round of the loop takes for one shape, measured on the choosing prompts of the speed study",
        ("target", "drafter", "batch", "prefix", "shape"),
        ROUND_COSTS,
    ),
    Schema(
        "speed_predicted",
        "speed predicted by replay and a calibration beside the measured one, on prompts new to the calibration",
        ("pair", "batch", "shape", "kind"),
        {
            "pair": text("target/drafter model"),
            "batch": integer("prompts decoded at once"),
            "shape": text("label of the draft tree, or the plain loop"),
            "kind": text("kind of text"),
            "tokens": real("tokens a round and row by replay of the measured prompts, bonus token included"),
            "measured": real("tokens a second of the whole batch until its last row ends, prefill left out"),
            **interval("predicted", "tokens a second of the whole batch, its rows ending one by one as replay says"),
            "speedup": real("predicted speed over plain decoding"),
            "error": real("predicted / measured - 1"),
        },
    ),
    Schema(
        "speed_questions",
        "the fastest tree anew for every batch, and for every cost of a drafted level; speedups are predicted",
        ("pair", "question", "at", "family"),
        {
            "pair": text("target/drafter model"),
            "question": text("batch: the setting is the batch; ratio: what a level costs in plain rounds, at batch 1"),
            "at": real("the setting"),
            "family": text("the fastest tree, or one drafted token"),
            "budget": integer("drafted tokens a round, root excluded"),
        }
        | SPEED,
    ),
    Schema(
        "lockstep",
        "rounds that a batch needs if all rows stop at the first rejection, and if each keeps its own path",
        ("pair", "shape", "batch", "prompt"),
        {
            "pair": text("target/drafter model"),
            "shape": text("label of the draft tree"),
            "batch": integer("rows that decode together"),
            "prompt": text("the group's first prompt"),
            "kind": text("kind of text"),
            "tokens": integer("tokens that each row is to write, its root left out"),
            "lockstep": integer("rounds until all have, all rows advancing alike"),
            "ragged": integer("rounds until all have, each row at its own pace"),
        },
    ),
    Schema(
        "formats",
        "one prompt decoded by a pair in one number format, plain or with a drafter; formats take turns",
        ("pair", "dtype", "quantised", "alternative", "prompt"),
        {
            "pair": text("target/drafter model"),
            "batch": integer("prompts decoded at once: 1"),
            "dtype": text("number format of what is not quantised"),
            "quantised": text("none or int8: of both, or target|drafter"),
            "alternative": text("loop, plain; or the drafter and its tree"),
            "drafter": text("kind of drafter; none where nothing is drafted"),
            "shape": text("label of the draft tree"),
        } | PROMPT | RUN | {
            "agreeing": integer("new tokens before the first that differs from the first format's"),
            "target_weights": integer("bytes"),
            "drafter_weights": integer("bytes"),
        },
        compressed=True,
    ),
    Schema(
        "memory",
        "bytes of the pair, of the target alone, and of each sequence",
        ("pair", "dtype", "batch", "shape"),
        {
            "pair": text("target/drafter model"),
            "dtype": text("number format of the weights"),
            "batch": integer("sequences"),
            "shape": text("label of the draft tree"),
            "tokens": integer("committed tokens a sequence that the caches are sized for"),
            "target_weights": integer("bytes"),
            "drafter_weights": integer("bytes"),
            "target_cache": integer("bytes of keys and values with the tree's nodes, all sequences"),
            "drafter_cache": integer("bytes, all sequences"),
            "logits": integer("bytes of a round's logits of the target, all sequences"),
            "alone": integer("bytes of the target decoding plainly: weights, cache, logits"),
            "extra": real("what speculation needs beyond that, as a share of it"),
            "peak": integer("bytes of tensors alive at most in a decoding with the tree, beside weights; measured"),
            "peak_alone": integer("the same without speculation"),
        },
    ),
)
