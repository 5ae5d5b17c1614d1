"""The registry of rules: what each is called, whether it is lossless, and which drafts it is valid for."""

from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify import naive, residual
from lib.verify.draft import PROPOSALS, Draft, Draws


@dataclass(frozen=True)
class Rule:
    """A verification rule: its function, whether its output has the target's law, and the proposals that it is valid for."""

    name: str
    function: Callable[[Draft, Tensor, Draws], tuple[list[int], int]]
    lossless: bool
    proposals: frozenset[str]
    shapes: str  # "any" or "chain"
    paper: str


RULES = {rule.name: rule for rule in (
    Rule("greedy", naive.greedy, True, frozenset(PROPOSALS), "any", "Leviathan et al. 2023, temperature 0"),
    Rule("naive", naive.naive, True, frozenset(PROPOSALS), "any", "Miao et al. 2024, naive sampling"),
    Rule("multi_step", residual.multi_step, True, frozenset(["iid"]), "any", "Miao et al. 2024, Alg. 2"),
    Rule("without_replacement", residual.without_replacement, True, frozenset(["without_replacement"]), "any", "Chen et al. 2024, Alg. 2"),
)}


def verify(name: str, draft: Draft, target_probs: Tensor, draws: Draws) -> tuple[list[int], int]:
    """Accepted nodes, root excluded, in the order of the path; and the bonus token.

    target_probs float[m, V]: at every node the warped target's distribution of the next token. ValueError for an unknown
    rule, a proposal or shape it is not valid for, or probabilities of another size than the tree.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; choose one of {', '.join(RULES)}")
    rule = RULES[name]
    if draft.proposal not in rule.proposals:
        raise ValueError(f"rule {name!r} is not valid for {draft.proposal!r} drafts, only for {', '.join(sorted(rule.proposals))}; "
                         "draft otherwise, or verify with 'naive', which takes any")
    if rule.shapes == "chain" and draft.tree.max_depth != draft.tree.budget:
        raise ValueError(f"rule {name!r} is defined for chains, the draft is {draft.tree}; draft a chain, or choose another rule")
    if target_probs.shape[0] != draft.tree.size:
        raise ValueError(f"target_probs has {target_probs.shape[0]} rows for a tree of {draft.tree.size} nodes; give one a node")
    return rule.function(draft, target_probs, draws)
