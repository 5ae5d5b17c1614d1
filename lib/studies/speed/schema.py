"""Tables of speed: ways of decoding compared, predictions, batches, memory, number formats."""

from typing import Mapping

from lib.studies.columns import ROUND_COSTS, table
from lib.studies.parameters import MODELS, drafter, nodes, tree


def _plain_batch(name: str, values: Mapping) -> None:
    if values[name][:1] not in ([], [1]):
        raise ValueError(f"{name} begins with {values[name][0]}; put 1 first, the batch at which transformers "
                         "speculates too")


NOTEBOOK = "07_speed"
PARAMETERS = {**MODELS, "drafters": drafter, "policy": drafter, "chain": tree, "more_shapes": tree,
              "most_nodes": nodes, "batches": _plain_batch}

TREE = "shape text label of the draft tree"
RUN = """
    tokens integer new tokens of all rows, each up to its end
    seconds real wall-clock seconds, prefill included
    rounds real rounds of all rows; missing for transformers' own decoding
    accepted real accepted draft tokens in them
    round_seconds real seconds of all rounds until the last row ends, prefill excluded
    model_seconds real of these, seconds in forward passes of target and drafter
    """

TABLES = (
    table("speed", "one timed run of one way of decoding on one group of prompts; ways are interleaved",
          "pair dtype batch alternative prompt repeat", f"""
          pair dtype batch
          alternative text way of decoding: transformers' own, the plain loop, or the loop with a drafter
          drafter text kind of drafter; empty for transformers' own and for plain decoding
          {TREE}; empty without one
          repeat integer number of the repetition
          {RUN}
          same flag whether the tokens are those of transformers' greedy generate
          prompt text first prompt of the group
          kind
          """, compressed=True),
    table("speed_costs", "time of a round of the loop for one shape, on the choosing prompts of the speed study",
          "target drafter dtype batch prefix shape", ROUND_COSTS),
    table("speed_predicted", "predicted and measured speed of one tree, on prompts that the calibration did not use",
          "pair dtype batch shape kind", """
          pair dtype batch
          shape text label of the draft tree, or the plain loop
          kind
          tokens real tokens per round and row by replay of the measured prompts, bonus token included
          measured real tokens per second of the whole batch until its last row ends, prefill excluded
          predicted interval tokens per second of the whole batch, whose rows end one by one as in replay
          speedup real predicted speed over plain decoding
          error real predicted / measured - 1
          """),
    table("lockstep", "rounds of a batch if all rows stop at the first rejection, and if each keeps its own path",
          "pair dtype shape batch prompt", f"""
          pair dtype
          {TREE}
          batch
          prompt text first prompt of the group
          kind
          tokens integer tokens per row, its root excluded
          lockstep integer rounds until all rows are done, if all advance alike
          ragged integer rounds until all rows are done, if each advances by itself
          """),
    table("formats", "one prompt decoded in one number format, plain or with a drafter; formats are interleaved",
          "pair dtype quantised alternative prompt", f"""
          pair
          batch integer sequences decoded together: 1
          dtype text number format of what is not quantised
          quantised text none or int8: of both models, or target|drafter
          alternative text loop, plain; or the drafter and its tree
          drafter text kind of drafter; none for plain decoding
          {TREE}
          prompt kind
          {RUN}
          agreeing integer new tokens before the first that differs from those of the first format
          target_weights integer bytes of the target's weights
          drafter_weights integer bytes of the drafter's weights
          """, compressed=True),
    table("memory", "bytes of the pair, of the target alone, and of the sequences", "pair dtype batch shape", f"""
          pair
          dtype text number format of the weights
          batch
          {TREE}
          tokens integer committed tokens per sequence that the caches hold
          target_weights integer bytes of the target's weights
          drafter_weights integer bytes of the drafter's weights
          target_cache integer bytes of the target's keys and values with the tree's nodes, all sequences
          drafter_cache integer bytes of the drafter's keys and values, all sequences
          logits integer bytes of the target's logits of one round, all sequences
          alone integer bytes of the target in plain decoding: weights, cache, logits
          extra real additional bytes of speculation, as a share of that
          peak integer largest number of bytes of tensors in a decoding with the tree, weights excluded; measured
          peak_alone integer the same in plain decoding
          """),
)
