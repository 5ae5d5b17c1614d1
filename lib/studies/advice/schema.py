"""Tables of shapes under the rank model, and of advice: costs, candidates, timed calls, larger pairs, formulas."""

from typing import Mapping

from lib.studies.columns import ROUND_COSTS, table
from lib.studies.parameters import MODELS, drafter, dtype, nodes, pairs


def _drafters(name: str, values: Mapping) -> None:
    """Drafters, whose heads ship for the target, and for which a pair has a draft model if they need one."""
    from lib.drafters.heads.store import check_folder_of
    from lib.drafters.registry import head_of, needs_draft_model
    from lib.models.registry import sources

    drafter(name, values)
    target, *_ = sources(values["pairs"][0])
    for spec in values[name]:
        if head := head_of(spec):
            check_folder_of(target.short, head)
        if needs_draft_model(spec) and all(sources(pair)[1] is None for pair in values["pairs"]):
            raise ValueError(f"drafters name {spec!r}, but no pair has a draft model: name one, as in "
                             f"{target.short}|DRAFTER, or leave it out")


def _larger(name: str, values: Mapping) -> None:
    """Pairs with a draft model each, whose cost stands beside."""
    from lib.models.registry import sources

    pairs(name, values)
    for pair in values[name]:
        if sources(pair)[1] is None:
            raise ValueError(f"{name} holds {pair!r}, which has no draft model to time: name one, as in {pair}|DRAFTER")


def _elsewhere(name: str, values: Mapping) -> None:
    """Runs for the same target."""
    from lib.models.registry import sources
    from lib.measure.advice import of_runs

    of_runs(values[name], sources(values["pairs"][0])[0].short)


def _formats(name: str, values: Mapping) -> None:
    """Number formats that stand beside the target's."""
    from lib.cost.formats import check

    check(values[name])


NOTEBOOK = "06_advice"
PARAMETERS = {**MODELS, "drafters": _drafters, "elsewhere": _elsewhere, "larger_pairs": _larger, "larger_dtype": dtype,
              "most_nodes": nodes, "formats": _formats}

MODEL = "model text which acceptance by rank: greedy or sampled"
CANDIDATE = """
    shape text name of the shape or growth rule
    budget depth
    chain flag whether the shape is one path of favourites
    round_ms
    level real drafting one token per sequence, over a round of plain decoding
    tokens interval tokens per round and sequence, bonus token included, on the prompts that choose
    speedup n_prompts n_rounds
    """
TIMED = """
    prompt text first prompt of the batch
    kind
    repeat integer number of the repetition
    tokens integer new tokens of all rows
    seconds real wall-clock seconds, prefill included
    rate real tokens per second while all rows run, prefill excluded
    round_ms real milliseconds per round, or per token of transformers, while all rows run
    """

TABLES = (
    table("shapes", "expectation of the rank model for one family at one budget", "model family budget", f"""
          {MODEL}
          family budget depth
          leaves integer leaves of the tree
          accepted real expected accepted length, draft tokens per round
          rate real expected acceptance rate, accepted / drafted
          gain real what the last node adds to the expected accepted length
          of_optimal real share of the optimal tree's expected accepted length
          """, compressed=True),
    table("ceilings", "limit of the rank model for one family, and the budget that comes near it", "model family", f"""
          {MODEL}
          family
          ceiling real expected accepted length as the budget grows, draft tokens per round; may be infinite
          budget real draft nodes at which it comes near the ceiling; missing if beyond the largest budget
          """),
    table("costs", "time of a round of the loop for one shape, among interleaved alternatives: medians over rounds",
          "target drafter dtype batch prefix shape", ROUND_COSTS),
    table("advice_candidates", "predicted speed of one drafter and shape at one batch, on the prompts that choose",
          "target dtype batch drafter shape", f"target dtype batch drafter {CANDIDATE}", compressed=True),
    table("advice_timed", "one timed call of one way of decoding on one batch of prompts; ways are interleaved",
          "target dtype batch part way prompt repeat", f"""
          target dtype batch
          part text choosing: the fastest candidates; judging: the recommendation, the best chain, tree and others
          way text the candidate, or what it is compared with
          {TIMED}
          """, compressed=True),
    table("advice_formats", "one timed call of one way of decoding on one batch of prompts, in another number format",
          "target dtype batch part way prompt repeat", f"""
          target
          dtype text number format; where part is again, that of the recommendation
          batch
          part text choosing, judging: as in advice_timed; again: the recommendation's plain decoding after all formats
          way text the candidate; plain decoding; recommended: the recommendation's drafter and tree
          {TIMED}
          """, compressed=True),
    table("advice_errors", "predicted beside measured speed of a candidate that decoded judging prompts, at one batch",
          "target dtype batch drafter shape", """
          target dtype batch
          way text its name in advice_timed
          drafter
          shape text name of the shape or growth rule
          budget
          judged integer batches of prompts on which it was measured
          predicted real speed over plain decoding that was predicted on choosing prompts: tokens / time x optimism
          measured interval measured speed over plain decoding in the same turns, on judging prompts
          error real predicted / measured - 1: (1 + tokens_error) x (1 + time_error) x optimism - 1
          optimism real speed on prompts that did not choose over that on those that did, from half-splits in replay
          tokens real tokens per round and sequence by replay of the choosing prompts, bonus token included
          tokens_judged real the same as measured on the judging prompts
          tokens_error real tokens / tokens_judged - 1
          time real time of a round as measured on choosing prompts, in plain rounds
          time_judged real the same on the judging prompts
          time_error real time_judged / time - 1
          """),
    table("advice_sizes", "fastest chain and fastest other shape of a budget, with the costs of a pair, at one batch",
          "costs target dtype batch budget chain", """
          costs text pair whose costs these are; with random weights, what models of that size cost
          target
          dtype text number format of the pair whose costs these are
          batch drafter
          shape text name of the shape
          budget
          chain flag whether the shape is one path of favourites
          level real drafting one token per sequence, over a round of plain decoding
          speedup n_prompts
          plain_ms real milliseconds per round of plain decoding
          check real verification of as many nodes as the tree has, over a round of plain decoding
          free integer the most nodes whose verification takes up to a tenth longer than a round of plain decoding
          """, compressed=True),
    table("advice_map", "fastest tree of a drafter at a budget beside its fastest chain, at one batch on one machine",
          "hardware target dtype batch drafter budget", """
          hardware text this machine, another on which a run was made, or one by its data sheet
          source text of costs: measured; launch-bound: measured, mostly launches of kernels; computed: a roofline
          target dtype batch drafter
          budget integer most draft nodes of the tree, which has more than half as many; 0: of any size
          shape text name of the tree's shape or growth rule
          chain_shape text name of the fastest chain
          speedup real predicted speed of the tree over plain decoding in the same loop
          chain_speedup real the same of the chain
          over_chain interval predicted speed of the tree over that of the chain, both chosen on other prompts
          """, compressed=True),
    table("advice_ratios", "speed of a tree over that of a chain, timed in turns on the same prompts, at one batch",
          "hardware target dtype batch part tree chain", """
          hardware text as in advice_map
          target dtype batch
          part text choosing: fastest tree and chain of one drafter; judging: the recommended tree and the best chain
          tree text drafter and shape
          chain text drafter and shape
          ratio interval speed of the tree over that of the chain, without prefill
          n_prompts integer prompts, or batches of them
          """),
    table("advice_machines", "what was recommended for the target at one batch in a run on another machine",
          "machine target batch", """
          machine text processor and vector units, or GPU
          target dtype
          threads integer threads of the run
          drafters text drafters that competed
          batch drafter shape
          budget
          plain real tokens per second of plain decoding, of the whole batch without prefill
          predicted real speed over plain decoding that was predicted on choosing prompts
          measured interval measured speed over plain decoding in the same loop; judged prompts
          judged integer batches of prompts on which it was measured
          """),
    table("advice_formulas", "speedup of a chain by replay with measured costs, and by published formulas and tables",
          "target dtype drafter batch length by", """
          target dtype drafter batch
          length integer draft tokens of the chain
          by text source of the speedup
          speedup real speed over plain decoding; missing where the source has none for the length
          alpha real share of rounds in which the target accepts the drafter's first token
          cost real a drafter's step over a target's step, measured
          """),
    table("source_grid", "a row of one of two weblogs' tables, with one drafter, and what was measured in its place",
          "grid row target drafter", """
          grid text draft length, pair, task or scenario: which of the tables
          row text a chain, a pair of models, a kind of text or a scenario; the weblog's own pairs have no measurement
          target drafter
          shape text name of the draft tree's shape; by task the drafter's best, by scenario the fastest chain
          dtype
          machine text where drafting and checking were timed; empty without a speedup
          rate interval accepted over drafted tokens, of greedy text by replay
          tokens real tokens per round, bonus token included
          saved real share of the target's calls that are saved: 1 - rounds / tokens
          speedup interval these tokens over the time of a round, over plain decoding, batch 1; missing if not timed
          memory real numbers of the drafter over those of the target
          n_prompts integer prompts that judge
          claimed text speedup that a weblog gives, or the method and length that it recommends
          claimed_rate real its acceptance rate
          claimed_saved real its share of the target's calls that are saved
          claimed_memory real memory that it says the drafter adds, over the target's
          """),
)
