"""The tables that notebooks hand over: each column's type, meaning and unit, declared once for writers and readers."""

from dataclasses import dataclass
from typing import Mapping

FINGERPRINT = "fingerprint"  # every table has it: what made the row (see `provenance.fingerprint`)


@dataclass(frozen=True)
class Column:
    """One column: `kind` is "text", "integer", "real" (may be missing: NaN) or "flag"; `meaning` says the unit too."""

    kind: str
    meaning: str


def text(meaning: str) -> Column:
    """Words without line breaks; missing is the empty string."""
    return Column("text", meaning)


def integer(meaning: str) -> Column:
    """A whole number, never missing."""
    return Column("integer", meaning)


def real(meaning: str) -> Column:
    """A floating-point number; missing is NaN."""
    return Column("real", meaning)


def flag(meaning: str) -> Column:
    """True or false."""
    return Column("flag", meaning)


@dataclass(frozen=True)
class Schema:
    """One table: what a row is (`about`), its columns in order, the columns that name a row (`key`), and whether it is
    kept compressed because it is large.
    """

    name: str
    about: str
    key: tuple[str, ...]
    columns: Mapping[str, Column]
    compressed: bool = False

    def __post_init__(self):
        unknown = [name for name in self.key if name not in self.columns]
        if unknown or not self.key:
            raise ValueError(f"table {self.name}: the key {self.key} must name columns of it; {unknown} are none")
        if FINGERPRINT in self.columns:
            raise ValueError(f"table {self.name}: {FINGERPRINT!r} is added to every table, leave it out")

    @property
    def file_name(self) -> str:
        return f"{self.name}.csv.gz" if self.compressed else f"{self.name}.csv"

    @property
    def names(self) -> list[str]:
        """All columns as the file has them, the fingerprint last."""
        return [*self.columns, FINGERPRINT]


SETTING = {
    "target": text("model that verifies"),
    "drafter": text("what proposes"),
    "protocol": text("continuation (rounds follow one another) or real-text starts (rounds begin in held-out text)"),
    "temperature": real("temperature of the target; 0 is greedy"),
}
PROMPT = {"prompt": text("name of the prompt"), "kind": text("kind of text")}
TREE = {"family": text("family of the draft tree"), "budget": integer("drafted tokens a round, root excluded")}
RULE = {
    "rule": text("verification rule"),
    "proposal": text("how children were chosen: top_k, iid, without_replacement"),
}
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

CELL = ("batch", "prefix", "draft", "dtype", "query_heads", "kv_heads", "head_dim", "shape", "alternative")
TIMES = {
    "batch": integer("sequences verified together"),
    "prefix": integer("committed tokens before the tree, per sequence"),
    "draft": integer("tree nodes in the call, root included; 1 is plain one-token decoding"),
    "dtype": text("number format of queries, keys and values"),
    "query_heads": integer("attention heads of the queries"),
    "kv_heads": integer("heads of the keys and values, each shared by query_heads / kv_heads query heads"),
    "head_dim": integer("numbers a head holds for a token"),
    "shape": text("family of the draft tree"),
    "alternative": text("how the attention is computed"),
    "median_ms": real("median time of a call in milliseconds, over interleaved repeats"),
    "lower_ms": real("lower quartile of the same"),
    "upper_ms": real("upper quartile of the same"),
    "repeats": integer("timed calls behind the quartiles"),
    "bytes": integer("bytes that the alternative must at least read and write"),
    "operations": integer("floating-point operations that it must at least do"),
    "extra_bytes": integer("temporary memory that it allocates, estimated"),
    "skipped": text("why the cell was not timed; empty if it was"),
}

ADVISED = {
    "target": SETTING["target"],
    "drafter": SETTING["drafter"],
    "batch": integer("sequences decoded together"),
    "prefix": integer("committed tokens, per sequence, that costs are for"),
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

# Of one prompt and tree: rounds that were cut are counted, but left out of the sums.
ROUNDS = {
    "stretch": text("before the trace's first loop, or loop: within it"),
    "rounds": integer("rounds not cut short"),
    "drafted": integer("tokens drafted in them"),
    "accepted": integer("draft tokens accepted in them, bonus tokens excluded"),
    "cut": integer("rounds that the end of the text or the length limit cut short"),
}

_DECLARED = [
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
    ),
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
            "tokens": integer("new tokens of all rows, up to each one's end"),
            "seconds": real("wall-clock time, prefill included"),
            "rounds": real("rounds of all rows that were not cut short; missing for transformers' own"),
            "accepted": real("draft tokens accepted in them"),
            "round_seconds": real("time of all rounds of the first row, prefill excluded"),
            "model_seconds": real("of these, time in forwards of target and drafter"),
            "steady_tokens": real("tokens of the rounds in which all rows ran and none was cut; missing without rounds"),
            "steady_seconds": real("time of these rounds"),
            "same": flag("whether the tokens are those of transformers' greedy generate"),
        } | {"prompt": text("the group's first prompt"), "kind": text("kind of text")},
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
            "tokens": real("tokens a round by replay of the choosing prompts, bonus token included"),
            "round_seconds": real("median time of a round"),
            "speed": real("tokens a second and row that follow"),
        },
    ),
    Schema(
        "speed_predicted",
        "speed predicted by replay and a calibration beside the measured one, on prompts that the calibration has not seen",
        ("pair", "batch", "shape", "kind"),
        {
            "pair": text("target/drafter model"),
            "batch": integer("prompts decoded at once"),
            "shape": text("label of the draft tree, or the plain loop"),
            "kind": text("kind of text"),
            "tokens": real("tokens a round by replay of the measured prompts, bonus token included"),
            "measured": real("tokens a second of the whole batch in steady rounds, prefill left out"),
            **interval("predicted", "tokens a second of the whole batch"),
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
            "question": text("batch: the setting is the batch; ratio: it is what a level costs in plain rounds, at batch 1"),
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
            "tokens": integer("tokens that each row is to write"),
            "lockstep": integer("rounds until all have, all rows advancing alike"),
            "ragged": integer("rounds until all have, each row at its own pace"),
        },
    ),
    Schema(
        "quantised",
        "one prompt decoded by a pair with weights in fewer bits, with and without speculation; ways take turns",
        ("pair", "dtype", "quantised", "speculates", "prompt"),
        {
            "pair": text("target/drafter model"),
            "dtype": text("number format of what is not quantised"),
            "quantised": text("none or int8: of both, or target|drafter"),
            "speculates": flag("with a draft tree; else plain decoding in the same loop"),
        } | PROMPT | {
            "tokens": integer("new tokens"),
            "seconds": real("wall-clock time, prefill included"),
            "rounds": integer("rounds not cut short"),
            "accepted": integer("draft tokens accepted in them"),
            "agreeing": integer("new tokens before the first that differs from the unquantised pair's"),
            "target_weights": integer("bytes"),
            "drafter_weights": integer("bytes"),
        },
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
        },
    ),
    Schema(
        "live",
        "what live decoding finds for one prompt and setting: rules and drafters that replay cannot give exactly",
        ("pair", "drafter", "rule", "shape", "temperature", "prompt", "stretch"),
        LIVE,
    ),
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
            "times_read": real("verify_us / read_us"),
            "lower": real("lower quartile of that ratio over the repeats"),
            "upper": real("upper quartile of the same"),
            "repeats": integer("interleaved repeats"),
        },
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
    Schema(
        "drafters",
        "live greedy decoding of one prompt with one drafter and shape, a request at a time; drafter none is plain decoding",
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
    Schema(
        "peaks",
        "what the machine was measured to reach in the run of the attention table: the ceilings of its cells",
        ("device", "threads", "what"),
        {
            "device": text("cpu or cuda"),
            "threads": integer("threads of the measurement"),
            "what": text("bandwidth, or throughput of matrix products and their number format"),
            "value": real("bytes or operations a second"),
            "unit": text("unit of value"),
        },
    ),
    Schema(
        "attention_choice",
        "how long each of the project's own backends took in a cell: what backend=auto chooses from",
        ("kind", "dtype", "blocks", "prefix", "rows", "head_dim", "backend"),
        {
            "kind": text("kind of machine: a processor's widest instructions, or a GPU's capability"),
            "dtype": text("number format of queries, keys and values"),
            "blocks": integer("batch times key heads"),
            "prefix": integer("committed tokens before the tree"),
            "rows": integer("query rows that share a key: heads of a group times nodes"),
            "head_dim": integer("numbers a head holds for a token"),
            "backend": text("name for tree_attention's backend="),
            "median_ms": real("median time of a call in milliseconds, over interleaved repeats"),
        },
    ),
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
    ),
    Schema(
        "ceilings",
        "what the rank model allows a family at most, and how soon it comes near",
        ("model", "family"),
        {
            "model": text("which acceptance by rank: greedy or sampled"),
            "family": TREE["family"],
            "ceiling": real("expected accepted length without a limit on the budget, tokens a round; infinite where there is none"),
            "budget": real("drafted nodes at which it comes near its ceiling; missing if not within the largest budget"),
        },
    ),
    Schema(
        "costs",
        "what a round of the loop takes for one shape, among interleaved alternatives: medians over rounds of all rows",
        ("target", "drafter", "batch", "prefix", "shape"),
        {
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
        },
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
    Schema(
        "attention",
        "time of one way to compute tree attention in one cell of the grid, interleaved with the others, caches warm",
        CELL,
        TIMES,
    ),
    Schema(
        "attention_roofline",
        "what any way of computing a cell of the attention tables must move and compute, and the time that this takes "
        "at the run's measured peaks",
        CELL[:-1],
        {name: TIMES[name] for name in CELL[:-1]} | {
            "bytes": integer("bytes of queries, keys, values and output"),
            "operations": integer("floating-point operations over the pairs of nodes and keys that are seen"),
            "warm_ms": real("least time in milliseconds, at the caches' bandwidth where keys and values fit them"),
            "cold_ms": real("least time in milliseconds, at the memory's bandwidth"),
        },
    ),
    Schema(
        "attention_forward",
        "time of a whole verifying forward, and of what the cache adds to the attention of one layer, interleaved",
        ("what", "prefix", "draft", "dtype", "layers", "query_heads", "kv_heads", "head_dim"),
        {"what": text("forward, tree; forward, transformers; or of one layer: attention, append, keep, concatenate")}
        | {name: TIMES[name] for name in ("prefix", "draft", "dtype")}
        | {"layers": integer("layers of the model")}
        | {name: TIMES[name] for name in ("query_heads", "kv_heads", "head_dim", "median_ms", "lower_ms", "upper_ms",
                                          "repeats")},
    ),
    Schema("attention_cold", "the same with the processor's caches flushed before each call", CELL, TIMES),
]

SCHEMAS: dict[str, Schema] = {schema.name: schema for schema in _DECLARED}
