"""Tables of acceptance: static shapes, growth rules, depths and ranks, live rounds, chosen trees, speed of replay."""

from lib.studies.columns import LIVE, ROUNDS, SETTING, table
from lib.studies.parameters import MODELS, drafter, family, growth_rule, nodes, temperatures, tree

NOTEBOOK = "02_acceptance"
PARAMETERS = {**MODELS, "temperatures": temperatures, "families": family, "budgets": nodes, "depth_budget": nodes,
              "growth_rules": growth_rule, "live_shapes": tree, "drafters": drafter}

TABLES = (
    table("acceptance", "rounds of one tree on one prompt, by replay", f"{SETTING} family budget prompt stretch",
          f"{SETTING} family budget depth prompt kind {ROUNDS}", compressed=True),
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
    table("live", "rounds of live decoding on one prompt, for rules and drafters without exact replay",
          "pair drafter rule shape temperature prompt stretch", LIVE, compressed=True),
    table("merging", "nodes of the trees that the first two, three, ... drafters of a target draft for one prompt",
          "target shape drafters prompt", """
          target
          shape text name of the tree that each drafter fills
          drafters integer number of drafters
          prompt kind
          rounds integer rounds
          sequences integer nodes if every root-to-leaf sequence of every drafter is stored separately
          trees integer nodes if the tree of every drafter is stored separately
          merged integer nodes of the one tree that all are merged into
          node_bytes integer bytes per node in the target's cache
          """, compressed=True),
    table("choices", "rounds on one judged prompt of a tree that was chosen from few prompts, from other kinds of text "
          "or for another objective", f"{SETTING} question family budget arm draw prompt stretch", f"""
          {SETTING}
          question text what varies: prompts (how many), kinds (of text), or objective
          family budget
          arm text value of what varies
          draw integer number of the random draw of choosing prompts; 0 where there is only one
          prompts integer prompts that the tree was chosen from
          positions integer positions before a loop in these prompts
          shared real share of the tree's nodes that are also in the tree chosen from all prompts for uniform starts
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
    table("replay_speed", "time to compute what one tree accepts at all positions of a trace, by replay and live",
          "pair way", """
          pair
          way text replay at every start or of chained rounds, the index that replay makes once, or live decoding
          nodes
          positions integer positions of the trace
          repeats
          seconds real median seconds per tree
          lower real lower quartile of the same
          upper real upper quartile of the same
          trees_a_second real trees per second
          times_live real how many times faster than live decoding
          """),
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
