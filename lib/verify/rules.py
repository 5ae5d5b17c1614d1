"""The registry of rules: what each is called, whether it is lossless, and which drafts it is valid for."""

from dataclasses import dataclass
from typing import Callable

from torch import Tensor

from lib.verify import k_seq, lossy, naive, several, siblings, whole_path
from lib.verify.draft import PROPOSALS, Draft, Draws

ANY, IID, DISTINCT = frozenset(PROPOSALS), frozenset(["iid"]), frozenset(["without_replacement"])


@dataclass(frozen=True)
class Rule:
    """A verification rule: its function, whether its output has the target's law, and what it is valid for.

    proposals: how the children may have been chosen. shapes: "any" or "chain".
    """

    name: str
    function: Callable[[Draft, Tensor, Draws], tuple[list[int], int]]
    lossless: bool
    proposals: frozenset[str]
    shapes: str
    paper: str


_RULES = (
    Rule("greedy", naive.greedy, True, ANY, "any", "Leviathan et al. 2023, temperature 0"),
    Rule("naive", naive.naive, True, ANY, "any", "Miao et al. 2024, naive sampling"),
    Rule("multi_step", several.multi_step, True, IID, "any", "Miao et al. 2024, Alg. 2"),
    Rule("without_replacement", siblings.without_replacement, True, DISTINCT, "any", "Chen et al. 2024, Alg. 2"),
    Rule("k_seq", k_seq.k_seq, True, IID, "any", "Sun et al. 2023 (SpecTr), K-SEQ"),
    Rule("block", whole_path.block, True, ANY, "chain", "Sun et al. 2024, block verification"),
    Rule("traversal", whole_path.traversal, True, ANY, "any", "Weng et al. 2025, traversal verification"),
    Rule("typical", lossy.typical, False, ANY, "any", "Cai et al. 2024, section 2.3.1"),
    Rule("deterministic", lossy.deterministic, False, ANY, "any", "p >= q, as weblogs give it"),
    Rule("conservative", lossy.conservative, False, ANY, "any", "p >= q / 2, as weblogs give it"),
    Rule("threshold", lossy.threshold, False, ANY, "any", "SGLang, speculative_accept_threshold_single and _acc"),
)
RULES = {rule.name: rule for rule in _RULES}


def verify(name: str, draft: Draft, target_probs: Tensor, draws: Draws, **settings) -> tuple[list[int], int]:
    """Accepted nodes, root excluded, in the order of the path; and the bonus token.

    target_probs float[m, V]: at every node the warped target's distribution of the next token. settings: what a rule
    can be told, such as a threshold. ValueError for an unknown rule, a proposal or shape that it is not valid for, or
    probabilities of another size than the tree or the drafter's.
    """
    if name not in RULES:
        raise ValueError(f"rule is {name!r}; choose one of {', '.join(RULES)}")
    rule = RULES[name]
    _check(rule, draft, target_probs)
    return rule.function(draft, target_probs, draws, **settings)


def _check(rule: Rule, draft: Draft, target_probs: Tensor) -> None:
    tree = draft.tree
    if draft.proposal not in rule.proposals:
        raise ValueError(
            f"rule {rule.name!r} is not valid for {draft.proposal!r} drafts, only for "
            f"{', '.join(sorted(rule.proposals))}; draft otherwise, or verify with 'naive', which takes any"
        )
    if rule.shapes == "chain" and tree.max_depth != tree.budget:
        raise ValueError(
            f"rule {rule.name!r} is defined for chains, the draft is {tree}; draft a chain, or choose another rule"
        )
    if target_probs.dim() != 2 or len(target_probs) != tree.size:
        raise ValueError(
            f"target_probs is {tuple(target_probs.shape)} for a tree of {tree.size} nodes; "
            f"give one row a node: [{tree.size}, V]"
        )
    if tree.budget and draft.probs is not None and draft.probs.shape[-1] != target_probs.shape[-1]:
        raise ValueError(
            f"the drafter's probabilities are over {draft.probs.shape[-1]} tokens, the target's over "
            f"{target_probs.shape[-1]}; cut both to the tokens that the two share"
        )
