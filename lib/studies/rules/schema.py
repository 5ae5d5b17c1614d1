"""Tables of verification rules: results by enumeration, live decoding, and a test of the output."""

from lib.studies.columns import LIVE, table
from lib.studies.parameters import MODELS, above_zero, temperatures, tree

NOTEBOOK = "04_rules"
PARAMETERS = {**MODELS, "temperatures": temperatures, "live_temperatures": above_zero,
              "test_temperature": above_zero, "proof_shapes": tree, "exact_shapes": tree,
              "live_shapes": tree}

TABLES = (
    table("rules_exact", "one round of one rule on one small random language, by enumeration; the rule `bound` is the "
          "limit of all lossless rules", "vocabulary seed language agreement temperature shape rule proposal", """
          vocabulary integer tokens of the language
          seed integer seed of the languages
          language integer number of the random language
          agreement real correlation between the logits of drafter and target
          temperature real temperature of target and drafter
          shape rule proposal
          lossless flag whether the rule is meant to keep the target's distribution
          accepted real expected accepted length: draft tokens per round, bonus token excluded
          distance real total variation between the emitted tokens, continued to depth + 1 tokens, and the target
          """, compressed=True),
    table("rules_proof", "distance of one rule from the target's distribution over small languages, by enumeration",
          "rule proposal shape kind", """
          rule proposal shape
          kind text random languages, or hard ones: disjoint supports, zeros, ties, certainty, equality
          languages integer enumerated pairs of target and drafter
          lossless flag whether the rule is meant to keep the target's distribution
          worst real largest total variation over depth + 1 tokens
          mean real mean of the same over the languages
          """),
    table("rules_live", "rounds of live decoding with one rule on one prompt, above temperature 0",
          "pair drafter rule shape temperature prompt stretch", f"{LIVE}dtype", compressed=True),
    table("rules_law", "a G-test of the loop's first tokens, decoded many times, against their exact distribution "
          "under the target", "pair prompt shape temperature rule proposal", """
          pair dtype prompt shape
          temperature real temperature of target and drafter
          rule proposal
          top_k integer tokens that the target's distribution is cut to
          tokens integer first tokens of a continuation that are counted
          samples integer continuations
          statistic real G of the likelihood-ratio test
          degrees integer its degrees of freedom
          p_value real probability of a larger G under the target's distribution, for this test alone
          visible real total variation from which on the test detects a wrong distribution four times out of five
          """),
)
