"""Ways to continue prompts greedily, and a race between them: this project's loop and transformers' own generation,
timed in shuffled turns on the same groups of prompts.
"""

import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
import torch
from torch import Tensor
from transformers.utils import logging

from lib.attention.registration import using_attention
from lib.cost.calibration import full_rounds
from lib.decoding import loop
from lib.decoding.loop import in_batches
from lib.decoding.records import Round
from lib.lab.timing import synchronise
from lib.trees.growth import Growth
from lib.trees.tree import Tree

GENERATE, LOOKUP = "generate", "prompt look-up"
ASSISTED = {"assisted, constant": "constant", "assisted, heuristic": "heuristic", "assisted, confident": "confident"}
LOOKED_UP = 10  # tokens, as transformers recommends
CONFIDENCE = 0.4  # below which transformers' confident schedule stops drafting: its default
MIXED = "mixed"  # in place of a kind of text
SPARED = 0.25  # of a race's time, for a way that only stands beside


@dataclass(frozen=True)
class Continued:
    """New tokens of each prompt, EOS included; the loop's rounds, none where another program decoded.

    prefilled: the clock when `generate` chose the first tokens; NaN for every other way.
    """

    tokens: list[list[int]]
    rounds: list[Round]
    prefilled: float = float("nan")


class Deadline:
    """The end of a stage on a clock, in seconds."""

    def __init__(self, clock: Callable[[], float], end: float):
        self.clock, self.end = clock, end

    def left(self) -> float:
        """The seconds that are left."""
        return max(0.0, self.end - self.clock())

    def over(self) -> bool:
        """Whether the time is over."""
        return self.clock() > self.end

    def share(self, fraction: float) -> "Deadline":
        """The end of a stage that starts now and has this share of the time that is left."""
        now = self.clock()
        return Deadline(self.clock, now + fraction * max(0.0, self.end - now))


Run = Callable[[Sequence[Tensor]], Continued]
Group = tuple[str, str, list[Tensor]]  # name, kind and prompts int64[T] of a batch


def ours(pair, drafter, shape: str | Tree | Growth, new_tokens: int,
         generate: Callable = loop.generate) -> Run:
    """This project's loop on a whole batch."""

    def run(prompts: Sequence[Tensor]) -> Continued:
        """Decodes a batch of prompts int64[T]."""
        ids, mask = next(in_batches(prompts, len(prompts)))
        done = generate(pair.target, drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=new_tokens,
                        eos_token_id=pair.eos_token_ids)
        return Continued(done.new_tokens, done.rounds)

    return run


def theirs(pair, name: str, new_tokens: int, draft: int = 4, clock: Callable[[], float] = time.perf_counter) -> Run:
    """Transformers' generation on a left-padded batch, with the fused attention that it takes by default.

    name: GENERATE, LOOKUP, or one of ASSISTED, whose schedules draft as many tokens in each round, a number that adapts
    to acceptance, or as many as the confidence of the assistant allows. draft: tokens that assisted generation drafts
    in its first round.
    """
    settings = dict(max_new_tokens=new_tokens, do_sample=False, eos_token_id=list(pair.eos_token_ids) or None,
                    pad_token_id=min(pair.eos_token_ids, default=0))
    models = [pair.target, pair.draft_model] if name in ASSISTED else [pair.target]
    if name == LOOKUP:
        settings["prompt_lookup_num_tokens"] = LOOKED_UP
    if name in ASSISTED:
        settings["assistant_model"] = pair.draft_model

    def run(prompts: Sequence[Tensor]) -> Continued:
        """Continues a batch of prompts int64[T]."""
        width = max(map(len, prompts))  # padded in front, as transformers expects
        ids = torch.stack([torch.nn.functional.pad(prompt, (width - len(prompt), 0)) for prompt in prompts])
        mask = torch.arange(width) >= width - torch.tensor([len(prompt) for prompt in prompts])[:, None]
        ids, mask = ids.to(pair.target.device), mask.long().to(pair.target.device)
        prefilled: list[float] = []

        def notes_first(input_ids: Tensor, scores: Tensor) -> Tensor:
            """A logits processor that changes nothing: prefill ends where it is called first."""
            if not prefilled:
                synchronise(pair.target.device)
                prefilled.append(clock())
            return scores

        if name in ASSISTED:
            config, schedule = pair.draft_model.generation_config, ASSISTED[name]
            config.num_assistant_tokens = draft
            config.num_assistant_tokens_schedule = "heuristic" if schedule == "heuristic" else "constant"
            config.assistant_confidence_threshold = CONFIDENCE if schedule == "confident" else 0.0
        verbosity = logging.get_verbosity()
        logging.set_verbosity_error()  # its own generation makes calls of which it warns
        try:
            with using_attention(models[0], "sdpa"), using_attention(models[-1], "sdpa"):
                hooks = {"logits_processor": [notes_first]} if name == GENERATE else {}
                out = pair.target.generate(ids, attention_mask=mask, **hooks, **settings)
        finally:
            logging.set_verbosity(verbosity)
        tokens = [until_end(row, pair.eos_token_ids) for row in out[:, ids.shape[1] :].tolist()]
        return Continued(tokens, [], prefilled[0] if prefilled else float("nan"))

    return run


def until_end(tokens: list[int], eos: Sequence[int]) -> list[int]:
    """Tokens up to the first EOS token, this one included."""
    first = next((place for place, token in enumerate(tokens) if token in eos), len(tokens) - 1)
    return tokens[: first + 1]


def groups(prompts, batch: int) -> list[Group]:
    """The batches of `together`, each named by its first prompt; prompts: as in `models.prompts.PromptSet`."""
    return [(prompts.names[rows[0]], kind, [prompts.ids[row] for row in rows])
            for kind, rows in together(prompts.kinds, batch)]


def together(kinds: Sequence[str], batch: int) -> Iterator[tuple[str, list[int]]]:
    """(kind, rows) of batches of one kind of text each, or of MIXED kinds where a kind has too few rows; kinds: by row.

    The last batch of a kind is filled with its first rows.
    """
    by_kind = {kind: [row for row, other in enumerate(kinds) if other == kind] for kind in dict.fromkeys(kinds)}
    if min(map(len, by_kind.values()), default=0) < batch:
        by_kind = {MIXED: list(range(len(kinds)))}
    for kind, rows in by_kind.items():
        for first in range(0, len(rows), batch):
            yield kind, [rows[(first + place) % len(rows)] for place in range(batch)]


def race(runs: Mapping[str, Run], asked: Sequence[Group], deadline: Deadline, *, repeats: int, least: int, device,
         generator: torch.Generator, enough: tuple[int, Deadline] | None = None, warm: Collection[str] = (),
         sparing: Collection[str] = ()) -> pd.DataFrame:
    """Times all ways on every group, `repeats` times, in shuffled turns after an untimed run each, but for those in
    `warm`: a row for each way, group and repeat.

    Columns: way, prompt (the group's name), kind, repeat, tokens and seconds (of the whole call), prefill, seconds of
    it; rate, tokens per second of decoding alone while all rows run, and round_ms, milliseconds per round of it. The
    race ends at the deadline, after `least` groups at the earliest, or at the earlier one enough[1], after enough[0]
    groups; all ways have the same groups and repeats, and groups in which a row ends at once are left out.
    But ways in `sparing` miss a turn, after the first that counts, where they have taken more than SPARED of the time.
    """
    order, rows = torch.randperm(len(asked), generator=generator).tolist(), []
    for way, run in runs.items():
        if way not in warm:
            run(asked[order[0]][2])
    turns = [(repeat, asked[at]) for repeat in range(repeats) for at in order]
    clock = deadline.clock
    begin, spent, timed_once = clock(), dict.fromkeys(runs, 0.0), False
    for turn, (repeat, (name, kind, prompts)) in enumerate(turns):
        if turn >= least and deadline.over() or enough and turn >= enough[0] and enough[1].over():
            break
        most = SPARED * (clock() - begin)
        ways = [way for way in runs if way not in sparing or spent[way] <= most or not timed_once]
        for at in torch.randperm(len(ways), generator=generator).tolist():
            synchronise(device)
            start = clock()
            done = runs[ways[at]](prompts)
            synchronise(device)
            end = clock()
            spent[ways[at]] += end - start
            rows.append(dict(way=ways[at], prompt=name, kind=kind, repeat=repeat, tokens=sum(map(len, done.tokens)),
                             seconds=end - start, **_pace(done, len(prompts), start, end)))
        timed_once = timed_once or all(row["rate"] > 0 for row in rows[-len(ways) :])
    timed = pd.DataFrame(rows)
    whole = timed.groupby(["prompt", "repeat"])["rate"].transform(lambda rates: bool((rates > 0).all())).astype(bool)
    if not whole.any():
        raise ValueError(f"all of {timed['prompt'].nunique()} batches of prompts have an answer that ends at its first "
                         "token: give prompts with longer answers")
    return timed[whole].reset_index(drop=True)


def one_per_round(rounds: Sequence[Round]) -> list[Round]:
    """The first row's record of every round of a batch: records are ordered by round, then by row."""
    begins = [True, *(after.row <= before.row for before, after in zip(rounds, rounds[1:]))]
    return [record for record, first in zip(rounds, begins) if first]


def _pace(done: Continued, batch: int, start: float, end: float) -> dict[str, float]:
    """prefill, rate and round_ms of a call between these times; NaN for what nothing tells, and for the pace where no
    row was decoded after its prefill.
    """
    if done.rounds:
        full = full_rounds(done.rounds, batch)
        rounds, seconds = len(full), sum(rows[0].seconds for rows in full)
        tokens = sum(record.accepted + 1 for rows in full for record in rows)
        prefill = end - start - sum(one.seconds for one in one_per_round(done.rounds))
    else:
        rounds, seconds = max(map(len, done.tokens)) - 1, end - done.prefilled
        tokens, prefill = batch * rounds, done.prefilled - start
    known = rounds and seconds > 0
    return dict(prefill=prefill, rate=tokens / seconds if known else float("nan"),
                round_ms=1000 * seconds / rounds if known else float("nan"))
