"""Tables of shapes under the rank model, and of advice: costs, recommendations, settings, curves."""

from lib.studies.columns import ROUND_COSTS, SPEED, table
from lib.studies.parameters import MODELS, costs, dtype, heads, nodes, pairs, protocol

NOTEBOOK = "06_advice"
PARAMETERS = {**MODELS, "heads": heads, "larger_pairs": pairs, "larger_dtype": dtype, "costs": costs, "text": protocol,
              "most_nodes": nodes}

ADVISED = "target drafter batch prefix"
MODEL = "model text which acceptance by rank: greedy or sampled"

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
          "target drafter batch prefix shape", ROUND_COSTS),
    table("advice", "predicted speed of the recommended tree, or of one alternative, for one batch and prefix",
          f"{ADVISED} what", f"""
          what text the recommendation, or the name of the alternative
          {ADVISED}
          tree text the tree as a list of paths of ranks
          {SPEED}
          against interval speed over that of the recommendation, on the same prompts
          """),
    table("advice_settings", "the recommended tree as a setting of one serving engine, or the nearest setting",
          f"{ADVISED} engine", f"""
          {ADVISED}
          engine text serving engine, and which of its settings
          form text what the engine can express: any tree, equal levels, chain, dynamic tree
          setting text the line to give to the engine
          exact flag whether the setting gives the recommended tree itself
          loss interval share of the recommendation's speed that is lost; missing for dynamic trees
          note text what the setting is for, and what replay cannot predict
          """),
    table("advice_budgets", "predicted speed of one family at one budget and batch, on prompts not used to choose",
          f"{ADVISED} family budget", f"{ADVISED} family budget {SPEED}", compressed=True),
    table("advice_sizes", "as advice_budgets, for the acceptance of the traced pair with the costs of another pair",
          f"costs {ADVISED} family budget", f"""
          costs text pair whose costs these are; with random weights, what models of that size cost
          {ADVISED} family budget {SPEED}
          plain_ms real milliseconds per round of plain decoding
          check real verification of as many nodes as the tree has, over a round of plain decoding
          level real forward pass of the drafter over one node per sequence, over a round of plain decoding
          free integer the most nodes whose verification takes up to a tenth longer than a round of plain decoding
          """, compressed=True),
    table("advice_formulas", "speedup of a chain by replay with measured costs, and by published formulas and tables",
          "target drafter batch length by", """
          target drafter batch
          length integer draft tokens of the chain
          by text source of the speedup
          speedup real speed over plain decoding; missing where the source has none for the length
          alpha real mean probability that the target accepts the drafter's token (alpha of Leviathan et al.)
          cost real a drafter's step over a target's step, measured
          """),
)
