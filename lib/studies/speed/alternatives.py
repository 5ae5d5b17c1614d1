"""Ways to continue prompts greedily, by name: transformers' own generation in its variants, and this project's loop."""

from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Callable, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor
from transformers.utils import logging

from lib.attention.registration import using_attention
from lib.cost.choice import PLAIN_DECODING
from lib.cost.round_cost import RoundCost
from lib.decoding.batch import in_batches
from lib.decoding.loop import generate
from lib.decoding.records import Round
from lib.drafters.adaptive import AdaptiveDrafter
from lib.drafters.draft_length import WhereItPays
from lib.drafters.heads.store import shipped
from lib.drafters.registry import DRAFTERS, make, parse
from lib.models.fused import fused
from lib.trees import shapes
from lib.trees.tree import Tree

PLAIN, GENERATE = "loop, plain", "generate"
ASSISTED = {"assisted, constant": "constant", "assisted, heuristic": "heuristic", "assisted, confident": "confident"}
LOOKUP = "prompt look-up"
OWN = "model"  # the drafter that is the pair's own model
NOBODY, _ = PLAIN_DECODING  # the drafter of plain decoding
ADAPTIVE = "adaptive, where it pays"
ADVISED = "recommended"  # the one drafter and tree that are chosen in advance
THEIRS = (GENERATE, *ASSISTED, LOOKUP)  # all but the first take one prompt at a time
LOOKED_UP = 10  # tokens, as transformers recommends
CONFIDENCE = 0.4  # below which transformers' confident schedule stops drafting: its default
ROOT_ALONE = Tree([-1])


@dataclass(frozen=True)
class Continued:
    """New tokens of each prompt, EOS included; the loop's rounds, none where transformers decoded."""

    tokens: list[list[int]]
    rounds: list[Round]


@dataclass(frozen=True)
class Alternative:
    """A way of decoding.

    run: continues prompts int64[T]; drafter, shape: kind of drafter and label of the tree, empty where it has none;
    batched: whether it takes more than one prompt at a time.
    """

    name: str
    run: Callable[[Sequence[Tensor]], Continued]
    drafter: str = ""
    shape: str = ""
    batched: bool = True


def all_of(pair, trees: Mapping[tuple[str, str], str | Tree], *, draft: int, new_tokens: int) -> list[Alternative]:
    """Transformers' ways, the plain loop, and the loop with each (drafter, label of a tree) of `trees`.

    draft: tokens that assisted generation drafts in its first round. Drafters: specs as `drafters.registry.make` takes.
    """
    ways = [Alternative(name, theirs(pair, name, draft, new_tokens), batched=name == GENERATE) for name in THEIRS]
    ways.append(Alternative(PLAIN, ours(pair, make(NOBODY, pair), ROOT_ALONE, new_tokens)))
    return ways + [drafted(f"{spec}, {label}", pair, spec, label, shape, new_tokens)
                   for (spec, label), shape in trees.items()]


def drafted(name: str, pair, spec: str, label: str, shape: str | Tree, new_tokens: int) -> Alternative:
    """The loop with a drafter and a tree, whose label is `label`."""
    return Alternative(name, ours(pair, make(spec, pair), shape, new_tokens), spec, label)


def compiled(pair, label: str, shape: str | Tree, *, new_tokens: int) -> list[Alternative]:
    """The plain loop and the loop with this tree, the small blocks of both models compiled; for one prompt at a time,
    since every number of rows needs a graph of its own.
    """
    target, model = (fused(each, "compiled", slots=pair.window or 0) for each in (pair.target, pair.draft_model))
    fast = replace(pair, target=target, draft_model=model)
    plain = ours(fast, make(NOBODY, fast), ROOT_ALONE, new_tokens)
    own = ours(fast, make(OWN, fast), shape, new_tokens)
    return [Alternative("loop, plain, compiled", plain, batched=False),
            Alternative(f"{OWN}, {label}, compiled", own, OWN, label, batched=False)]


def adaptive(pair, spec: str, checking: RoundCost, drafting: RoundCost, shape: str | Tree, label: str,
             new_tokens: int) -> Alternative:
    """The loop with a drafter that goes as deep into the shape, a chain, as its last rounds advise, or drafts nothing.

    checking: calibrated costs of the pair's own model, whose rounds always verify whole shapes; drafting: those of the
    drafter.
    """
    chains = [shapes.chain(length) for length in range(1, shapes.parse(shape).max_depth + 1)]
    rounds = [drafting.draft(tree) + float(checking.check(tree.budget)) for tree in chains]
    policy = WhereItPays(costs=(1.0, *(seconds / checking.plain for seconds in rounds)))
    drafter = AdaptiveDrafter(make(spec, pair), policy)
    return Alternative(ADAPTIVE, ours(pair, drafter, shape, new_tokens), ADAPTIVE, label)


def possible(target: str, specs: Iterable[str]) -> list[str]:
    """The pair's own model, then those of these drafters that need no head, or one that ships for the target."""
    names = list(dict.fromkeys([OWN, *specs]))
    head = {name: DRAFTERS[parse(name)[0]].drafter.head_kind for name in names}
    return [name for name in names if not head[name] or shipped(target, head[name]).is_dir()]


def ours(pair, drafter, shape: str | Tree, new_tokens: int) -> Callable[[Sequence[Tensor]], Continued]:
    """This project's loop on a whole batch."""

    def run(prompts: Sequence[Tensor]) -> Continued:
        ids, mask = next(in_batches(prompts, len(prompts)))
        done = generate(pair.target, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new_tokens,
                        eos_token_id=pair.eos_token_ids)
        return Continued(done.new_tokens, done.rounds)

    return run


def theirs(pair, name: str, draft: int, new_tokens: int) -> Callable[[Sequence[Tensor]], Continued]:
    """Transformers' generation on a left-padded batch, with the fused attention that it takes by default."""
    settings = dict(max_new_tokens=new_tokens, do_sample=False, eos_token_id=list(pair.eos_token_ids) or None)
    if name == LOOKUP:
        settings["prompt_lookup_num_tokens"] = LOOKED_UP
    if name in ASSISTED:
        settings["assistant_model"] = pair.draft_model

    def run(prompts: Sequence[Tensor]) -> Continued:
        ids, mask = left_padded(prompts, pair.target.device)
        pad = min(pair.eos_token_ids, default=0)
        with _quiet(), using_attention(pair.target, "sdpa"), using_attention(pair.draft_model, "sdpa"):
            if name in ASSISTED:
                _schedule(pair.draft_model.generation_config, ASSISTED[name], draft)
            out = pair.target.generate(ids, attention_mask=mask, pad_token_id=pad, **settings)
        return Continued([until_end(row, pair.eos_token_ids) for row in out[:, ids.shape[1] :].tolist()], [])

    return run


def left_padded(prompts: Sequence[Tensor], device) -> tuple[Tensor, Tensor]:
    """Prompts int64[T] as tokens int64[B, T] and mask int64[B, T], padded in front as transformers expects."""
    width = max(map(len, prompts))
    ids = torch.stack([torch.nn.functional.pad(prompt, (width - len(prompt), 0)) for prompt in prompts])
    mask = torch.arange(width) >= width - torch.tensor([len(prompt) for prompt in prompts])[:, None]
    return ids.to(device), mask.long().to(device)


def until_end(tokens: list[int], eos: Sequence[int]) -> list[int]:
    """Tokens up to the first EOS token, this one included."""
    first = next((place for place, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: first + 1]


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences transformers' warnings about calls that its own assisted generation makes."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _schedule(config, schedule: str, draft: int) -> None:
    """Sets the number of tokens that an assistant drafts: constant, changed by each round's acceptance, or limited by
    its confidence.
    """
    config.num_assistant_tokens = draft
    config.num_assistant_tokens_schedule = "heuristic" if schedule == "heuristic" else "constant"
    config.assistant_confidence_threshold = CONFIDENCE if schedule == "confident" else 0.0
