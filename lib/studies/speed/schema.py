"""Tables of speed: ways of decoding and number formats compared, and the costs from which the policy decides."""

from typing import Mapping

from lib.studies.columns import ROUND_COSTS, table
from lib.studies.parameters import MODELS, above_zero, drafter, nodes, tree


def _plain_batch(name: str, values: Mapping) -> None:
    if values[name][:1] not in ([], [1]):
        raise ValueError(f"{name} begins with {values[name][0]}; put 1 first, the batch at which transformers "
                         "speculates too")


NOTEBOOK = "07_speed"
PARAMETERS = {**MODELS, "drafters": drafter, "policy": drafter, "chain": tree, "more_shapes": tree,
              "most_nodes": nodes, "batches": _plain_batch, "sampled_temperatures": above_zero}

TREE = "shape text label of the draft tree"
RUN = """
    tokens integer new tokens of all rows, each up to its end
    seconds real wall-clock seconds, prefill included
    rounds real rounds of all rows; missing for ways of decoding that are not this project's
    accepted real accepted draft tokens in them
    round_seconds real seconds of all rounds until the last row ends, or after the first tokens; prefill excluded
    model_seconds real of these, seconds in forward passes of target and drafter
    """

TABLES = (
    table("speed", "one timed run of one way of decoding on one group of prompts; ways are interleaved",
          "pair dtype batch alternative prompt repeat", f"""
          pair dtype batch
          alternative text way of decoding: transformers' own, llama.cpp, the plain loop, or the loop with a drafter
          drafter text kind of drafter; empty for others' ways and for plain decoding
          {TREE}; empty without one
          repeat integer number of the repetition
          {RUN}
          same flag whether the tokens are those of transformers' greedy generate
          prompt text first prompt of the group
          kind
          """, compressed=True),
    table("speed_costs", "time of a round of the loop for one shape, on the choosing prompts of the speed study",
          "target drafter dtype batch prefix shape", ROUND_COSTS),
    table("formats", "one prompt decoded in one number format, plain or with a drafter; formats are interleaved",
          "pair dtype quantised alternative prompt", f"""
          pair
          batch integer sequences decoded together: 1
          dtype text number format of what is not quantised
          quantised text weights in fewer bits: none, int8 (both models), or stored (a GGUF target's own blocks)
          alternative text loop, plain; the drafter and its tree; or llama.cpp
          drafter text kind of drafter; none for plain decoding
          {TREE}
          prompt kind
          {RUN}
          agreeing integer new tokens before the first that differs from those of the first format
          target_weights integer bytes of the target's weights
          drafter_weights integer bytes of the drafter's weights
          """, compressed=True),
    table("sampled", "one text sampled after one prompt, plain or with a drafter; ways are interleaved",
          "pair dtype batch temperature alternative prompt repeat", f"""
          pair dtype
          batch integer sequences decoded together: 1
          temperature rule
          alternative text loop, plain; or the drafter and its tree
          drafter text kind of drafter; none for plain decoding
          {TREE}
          prompt kind
          repeat integer number of the repetition
          {RUN}
          """, compressed=True),
    table("format_costs", "time of the target's forward pass over nodes after a prefix, by number format; interleaved",
          "pair dtype quantised engine nodes", """
          pair dtype
          quantised text weights in fewer bits, as in the table formats
          engine text loop: this project's forward pass; or llama.cpp
          prefix integer tokens before the nodes
          nodes integer nodes of the pass, the root included
          median_ms real median milliseconds of a pass
          lower_ms upper_ms repeats
          """),
)
