"""Tables of drafters, and of the training of heads."""

from lib.studies.columns import table
from lib.studies.parameters import MODELS, drafter, nodes, tree

NOTEBOOK = "05_drafters"
PARAMETERS = {**MODELS, "drafters": drafter, "other_drafters": drafter, "shapes": tree, "shape": tree,
              "grown": nodes}

TABLES = (
    table("drafters", "greedy decoding of one prompt with one drafter and shape; the drafter `none` is plain decoding",
          "target drafter shape prompt stretch", """
          target dtype
          drafter text kind of drafter with its option, or name of a model
          shape text name of the draft tree's shape, the largest that the drafter may fill, or of its growth rule
          budget prompt kind
          prompt_tokens integer tokens of the prompt
          stretch rounds drafted accepted
          tokens integer tokens that these rounds gave, bonus tokens included
          draft_calls integer forward passes of the drafter's model in them
          draft_ms real milliseconds of drafting in them
          verify_ms real milliseconds of the target's forward passes and the rule in them
          commit_ms real milliseconds of keeping the accepted paths in caches and drafter
          weight_bytes integer bytes of the weights of the drafter's models and heads that are not the target's
          target_bytes integer bytes of the target's weights
          identical flag whether the output is plain decoding's, token for token
          """, compressed=True),
    table("head_curves", "quality of a head on held-out text during its training, from the head's own curve.csv",
          "target head step kind depth", """
          target text frozen model whose hidden states the head reads
          head text kind of head
          step integer optimiser steps so far
          kind
          depth integer tokens ahead of the root, 1 for the first draft token
          nats real cross-entropy of the head against the target's distribution, nats per token
          agreement real share of tokens at which head and target have the same most probable token
          tokens integer tokens that both means are taken over
          """, compressed=True),
)
