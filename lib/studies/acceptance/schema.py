"""Tables of acceptance: static shapes, growth rules, depths and ranks, live rounds, chosen trees."""

from lib.studies.columns import LIVE, ROUNDS, SETTING, table
from lib.studies.parameters import MODELS, drafter, family, growth_rule, lengths, nodes, temperatures, tree

NOTEBOOK = "02_acceptance"
PARAMETERS = {**MODELS, "temperatures": temperatures, "families": family, "budgets": nodes, "depth_budget": nodes,
              "chain_lengths": lengths, "growth_rules": growth_rule, "live_shapes": tree, "drafters": drafter}

TABLES = (
    table("acceptance", "rounds of one tree on one prompt, by replay", f"{SETTING} family budget prompt stretch",
          f"{SETTING} family budget depth prompt kind {ROUNDS}", compressed=True),
    table("chains", "rounds of a chain of a further length on one prompt, by replay",
          f"{SETTING} budget prompt stretch", f"{SETTING} budget prompt kind {ROUNDS}", compressed=True),
    table("growth", "rounds of one static or grown tree on one prompt, by replay",
          f"{SETTING} family budget prompt stretch", f"""
          {SETTING} family budget
          depth integer depth of the tree; where it grows, of the deepest one
          prompt kind {ROUNDS}
          calls integer forward passes of the drafter in the rounds
          confidence real temperature of the drafter's probabilities from which the tree grew; missing if static
          """, compressed=True),
    table("depth", "acceptance at one depth of a tree on one prompt; conditional: accepted / reached, unconditional: "
          "accepted / rounds", f"{SETTING} family budget prompt depth", f"""
          {SETTING} family budget prompt kind
          depth integer depth in the tree, 1 for the root's children
          rounds integer rounds before a loop
          reached integer of these, rounds that accepted depth - 1 at a node with children
          accepted integer of these, rounds that accepted this depth
          """, compressed=True),
    table("nodes", "how often one node of a tree was accepted, over all judged prompts",
          f"{SETTING} family budget path", f"""
          {SETTING} family budget
          path text the ranks that lead to the node, such as 0.0.1
          depth integer depth of the node, 1 for the root's children
          rounds integer rounds before a loop
          accepted integer of these, rounds that accepted the node
          """, compressed=True),
    table("rank", "ranks of the target's next tokens among the drafter's candidates, for one prompt",
          f"{SETTING} prompt", "\n".join([f"""
          {SETTING} prompt kind
          positions integer positions before a loop
          alpha_sum real sum over them of 1 - total variation between target and drafter (alpha of Leviathan et al.)
          """, *(f"rank_{rank} integer positions where the next token has rank {rank}" for rank in range(16))]),
          compressed=True),
    table("repetition", "where one continuation of a target begins to loop", "target protocol temperature prompt", """
          target protocol temperature prompt kind
          transitions integer tokens of the continuation
          loops flag whether it loops
          loop_start integer position at which the first loop starts; beyond the last token if there is none
          """, compressed=True),
    table("vocabulary", "how much of one continuation of a target a reduced draft vocabulary covers",
          "target temperature prompt", """
          target temperature prompt kind
          size integer tokens of the vocabulary, those that the target writes most often
          tokens integer tokens of the continuation before a loop
          covered integer of these, tokens in the vocabulary
          """),
    table("live", "rounds of live decoding with sampled children on one prompt",
          "pair drafter rule shape temperature prompt stretch", LIVE, compressed=True),
    table("choices", "rounds on one judged prompt of a tree that was chosen from few prompts",
          f"{SETTING} family budget prompts draw prompt stretch", f"""
          {SETTING} family budget
          prompts integer prompts that the tree was chosen from
          draw integer number of the random draw of these prompts; 0 where there is only one
          positions integer positions before a loop in these prompts
          prompt kind {ROUNDS}
          """, compressed=True),
    table("expected", "expected acceptance of one rule in chained rounds along a text that the target wrote",
          "pair rule shape temperature prompt stretch", """
          pair
          rule text verification rule; naive with the drafter's best children, the others with sampled children
          shape temperature budget prompt kind stretch
          rounds real expected rounds
          accepted real expected accepted draft tokens in them, bonus tokens excluded
          """, compressed=True),
    table("models", "a model of the run's pairs", "model", """
          model text name of the model
          parameters integer numbers of the model, tied embeddings once
          layers integer blocks of the model
          hidden integer width of a hidden state
          vocabulary integer tokens of the output layer
          dtype
          """),
    table("worked_round", "a node of one round that the report draws, or the round's bonus token", "pair node", """
          pair drafter shape
          node integer number of the node, the root is 0; the bonus token comes last
          parent integer number of the node before it on its path; -1 for the root
          rank integer place among its siblings in the drafter's order
          token text the node's token as text
          role text root, accepted, rejected or bonus
          context text the end of the text before the round
          """),
)
