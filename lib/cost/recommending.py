"""The one procedure that recommends a drafter, a tree and a budget for a target: record, price, predict, race, judge.

1. `record`: the target continues all prompts greedily, once, and candidates are judged on the choosing prompts by
   replay (see `candidates`).
2. `price`: a calibration gives seconds per round by nodes and batch, which rank the candidates at each batch size.
3. `predict`: drafters with probabilities are tried with growth rules, and with a budget that these costs choose in
   each round. Tokens per round over the seconds of a round predict each candidate's speed.
4. `race`: the few of nearly the fastest prediction, with the fastest chain and tree, decode choosing prompts in turns.
   Tokens per round by replay over the measured seconds per round estimate each one's speed; less the optimism of
   choosing it is the prediction. The fastest wins, or that with the fewest nodes of those nearly as fast; plain
   decoding has none.
5. `judge`: the winner, the best chain and tree, plain decoding and transformers' `generate` decode the judging prompts
   in turns, then the other finalists, if time is left. A winner that is slower than plain decoding there, beyond its
   interval, in decoding or in whole calls, is not recommended. `generate` decides nothing, is slow, and misses turns.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
import torch

from lib.attention.registration import takes_chains
from lib.cost import candidates, ways
from lib.cost.calibration import LEVELS, calibrate, falling, full_rounds, usual_prefix
from lib.cost.candidates import Candidate, Limits
from lib.cost.racing import SHARES, Contest, Record, Task, judge, race
from lib.cost.recommendation import PLAIN, RECOMMENDED, Recommendation, with_schedule
from lib.cost.round_cost import FREE, RULER, CostTable, RoundCost
from lib.cost.ways import Deadline
from lib.decoding import loop
from lib.drafters.controls import ExcerptDrafter
from lib.drafters.registry import make
from lib.lab import processor, provenance, stats
from lib.lab.timing import LEAST_REPEATS
from lib.models.prompts import PromptSet
from lib.replay import simulated
from lib.replay.trace import loops
from lib.trees import named

PREFIX = 64  # committed tokens at which costs of drafting are taken; those of checks are taken at the text's own
ALONE, ALONE_TOKENS = 4.0, 24  # seconds in which drafting under SMART is timed, and tokens of a prompt
BOUNDS, SHORT = (1, 2, 4, 8), 2.0  # lengths of chains that bound the gain, and seconds in which their checks are timed
LEAST_PRICED = 2  # drafters whose costs are measured, whatever that takes


@dataclass(frozen=True)
class Evidence:
    """What `recommend` returns: the recommendation, and what it rests on.

    tried: every candidate but those of one batch size. prices: the cost of rounds, by batch size and drafter.
    candidates: the table "advice_candidates", a row for each batch and candidate. timed: the table "advice_timed", a
    row for each timed call. costs: the table "costs". errors: the table "advice_errors", a row for each batch and
    candidate that decoded judging prompts. judging: the prompts that judged.
    """

    recommendation: Recommendation
    tried: Sequence[Candidate]
    prices: Mapping[int, Mapping[str, RoundCost]]
    candidates: pd.DataFrame
    timed: pd.DataFrame
    costs: pd.DataFrame
    errors: pd.DataFrame
    judging: PromptSet


def recommend(pairs: Sequence, choosing, judging, *, drafters: Sequence[str] = (), batches: Sequence[int] = (1,),
              new_tokens: int = 96, limits: Limits = Limits(), seconds: float = 600.0, seed: int = 0,
              report: Callable[[str], None] = print, generate: Callable = loop.generate,
              clock: Callable[[], float] = time.perf_counter) -> Evidence:
    """The fastest drafter and tree for the target of these pairs at each batch size.

    pairs: `models.Pair`s of one target, whose draft models compete. choosing, judging: prompts with names, kinds and
    ids (see `models.prompts.PromptSet`), those that choose and those that judge. drafters: specs of `drafters.make`;
    empty: all that the target can have. seconds: for everything; each stage does a least amount of work, whatever it
    takes. report: gets lines of progress. generate, clock: in place of the loop and the clock. ValueError where pairs
    or drafters cannot be used.
    """
    begin = clock()
    whole = Deadline(clock, begin + seconds)
    longest = max(map(len, [*choosing.ids, *judging.ids])) + new_tokens + limits.depth
    task = Task(pairs, candidates.within(candidates.entrants(pairs, drafters), longest), tuple(batches), new_tokens,
                replace(limits, batches=tuple(batches), chains=takes_chains(pairs[0].target.config)), seed, generate,
                clock, torch.Generator().manual_seed(seed), np.random.default_rng(seed))

    def say(line: str) -> None:
        """Reports a line of progress, with the seconds since the beginning."""
        report(f"{clock() - begin:4.0f} s: {line}")

    say(bound(task, choosing))
    replaying, pricing = whole.share(SHARES["replay"]), whole.share(SHARES["price"])
    say(f"drafters: {', '.join(entrant.name for entrant in task.entrants)}")
    known = record(task, choosing, judging, replaying)
    say(f"{len(choosing.ids)} choosing prompts are recorded, {len(known.tried)} candidates replayed or decoded")
    costs, prices = price(task, choosing, known.tried, pricing)
    tried, contests = predict(task, choosing, known, prices, whole)
    say("costs are calibrated")
    by_batch, timed, errors = [], [], []
    for place, contest in enumerate(contests):
        deadline, most = whole.share(1 / (len(contests) - place)), task.most_nodes(contest.batch)
        contest = replace(contest, tried=[candidate for candidate in contest.tried if candidate.shape.budget <= most])
        choice = race(task, known.choosing, contest, deadline.share(SHARES["choose"]))
        winner = choice.roles[RECOMMENDED]
        say(f"batch {contest.batch}: {winner.name if winner else PLAIN} is chosen")
        result, judged, rows = judge(task, known, contest, choice, deadline)
        say(f"batch {contest.batch}: judged on {result.prompts} batches of prompts")
        by_batch.append(result)
        timed += [choice.rows.assign(part="choosing"), judged.assign(part="judging")]
        errors += rows
    machine = processor.machine(task.pair.target.device)
    advised = Recommendation(
        target=task.pair.target_name,
        draft_models=[pair.drafter_name for pair in pairs if pair.draft_model is not None],
        drafters=[entrant.name for entrant in task.entrants], dtype=task.pair.dtype, device=machine["device"],
        processor=processor.title(machine), threads=machine["threads"], versions=provenance.versions(),
        new_tokens=new_tokens, choosing=len(choosing.ids), judging=len(known.judging.ids), looping=known.looping,
        by_batch=with_schedule(by_batch), warnings=task.warnings)
    facts = dict(target=advised.target, dtype=advised.dtype)
    listed = pd.DataFrame([row(candidate, contest.batch, contest.prices[candidate.entrant.name], task.rng)
                           for contest in contests for candidate in contest.tried])
    return Evidence(advised, tried, prices, listed.assign(**facts),
                    pd.concat(timed, ignore_index=True).drop(columns="prefill").assign(**facts), costs,
                    pd.DataFrame(errors).assign(**facts), known.judging)


def bound(task: Task, choosing) -> str:
    """A sentence with the most that speculation can gain at each batch size, by checks that are timed for a few seconds
    before anything long: as if every draft token of a chain were accepted. A warning names batch sizes without a gain.
    """
    told, names, vocabulary = [], [f"chain:{length}" for length in BOUNDS], task.pair.vocabulary
    for batch in task.batches:
        order, draws = (torch.Generator().manual_seed(task.seed) for _ in range(2))
        rows = calibrate(task.pair, choosing.ids, batches=[batch], prefix=PREFIX, shapes=names, seconds=SHORT,
                         repeats=LEAST_REPEATS, generator=order, generate=task.generate, clock=task.clock,
                         drafter=ExcerptDrafter(choosing.ids, vocabulary, draws))
        price = CostTable(rows).at(task.pair.target_name, task.pair.drafter_name, batch=batch)
        length = max(BOUNDS, key=lambda nodes: (1 + nodes) * price.plain / price.check(nodes))
        most = (1 + length) * price.plain / price.check(length)
        told.append(f"at most {most:.1f} times at batch {batch} (a check of {length} tokens takes "
                    f"{price.check(length) / price.plain:.2f} plain rounds)")
        if most <= 1:
            task.warnings.append(f"at batch {batch} speculation cannot pay here, even if all drafts were accepted")
    return f"chains can gain {'; '.join(told)}, if all that they draft were accepted"


def record(task: Task, choosing, judging, deadline: Deadline) -> Record:
    """The continuations of all prompts, and the static candidates of all drafters: those of ranks, then in equal shares
    of the time those of drafters that draft again or decode live, smaller trees first.

    Judging prompts whose continuations loop are left out, unless all do.
    """
    recorded = candidates.record(task.pair, task.entrants, choosing, task.new_tokens, task.limits.depth)
    written = loop.continuations(task.pair.target, judging.ids, max_new_tokens=task.new_tokens,
                                 eos_token_id=task.pair.eos_token_ids)
    whole = [row for row, text in enumerate(written) if not loops(text)]
    if not whole:
        task.warnings.append("the target's text loops on every judging prompt; speeds are those of loops")
    usable = recorded.trace.without_loops
    ranked = [entrant for entrant in task.entrants if entrant.name in recorded.trace.ranks]
    tried = [candidate for entrant in ranked for candidate in candidates.static(entrant, recorded, task.limits)]
    others = [entrant for entrant in task.entrants if entrant not in ranked]
    for place, entrant in enumerate(others):
        drafted = (candidates.static(entrant, recorded, task.limits) if simulated.replayable(entrant.drafter) else
                   candidates.live(entrant, recorded, task.limits, task.new_tokens, generate=task.generate))
        tried += in_time(drafted, deadline.share(1 / (len(others) - place)))
    return Record(recorded, choosing.select(usable) if usable else choosing,
                  judging.select(whole) if whole else judging, 1 - len(whole) / len(written) if whole else 0.0, tried)


def in_time(drafted: Iterable[Candidate], deadline: Deadline) -> Iterator[Candidate]:
    """Candidates as long as the time is not over, one at least where there is one."""
    for candidate in drafted:
        yield candidate
        if deadline.over():
            return


def in_turns(parts: Sequence[Iterator[Candidate]], deadline: Deadline) -> Iterator[Candidate]:
    """One candidate of each part after another, as long as the time is not over."""
    while parts and not deadline.over():
        left = []
        for part in parts:
            if not deadline.over() and (candidate := next(part, None)):
                left.append(part)
                yield candidate
        parts = left


def price(task: Task, choosing, tried: Sequence[Candidate],
          deadline: Deadline) -> tuple[pd.DataFrame, dict[int, dict[str, RoundCost]]]:
    """The table of costs, and by batch and drafter the cost of its rounds.

    The target's part is that of rounds with random tokens; drafters without forward passes cost nothing. The others are
    calibrated in the order of the speed that they would have if drafting cost nothing; those for which the time is over
    at the first batch size do not compete.
    """
    with_passes = [candidate.entrant for candidate in tried if candidate.passes]
    forwarding = [entrant for entrant in task.entrants if any(entrant is other for other in with_passes)]
    costless = [entrant for entrant in task.entrants if entrant not in forwarding]
    seconds = deadline.left() / len(task.batches) / (2 + len(forwarding))
    prefix = max(PREFIX, usual_prefix(choosing.ids, task.new_tokens))  # committed tokens of the text's rounds
    vocabulary = task.pair.target.config.get_text_config().vocab_size
    on_cpu = torch.device(task.pair.target.device).type == "cpu"
    parts, prices = [], {}

    def calibrated(pair, drafter, name: str, shapes: Sequence[str], prefix: int, seconds: float) -> pd.DataFrame:
        """Rows of `calibrate` at this batch size, under the drafter's name; on a CPU without shapes of too many nodes.
        """
        most = task.most_nodes(batch)
        fitting = [shape for shape in shapes if not on_cpu or named(shape).budget <= most]
        return calibrate(pair, choosing.ids, batches=[batch], prefix=prefix, shapes=fitting, most=most, seconds=seconds,
                         generator=task.order, drafter=drafter, generate=task.generate, clock=task.clock
                         ).assign(drafter=name)

    for batch in task.batches:
        ruler = ExcerptDrafter(choosing.ids, vocabulary, torch.Generator().manual_seed(task.seed))
        rows = calibrated(task.pair, ruler, RULER, (), prefix, 2 * seconds)
        if falling(rows):
            rows = calibrated(task.pair, ruler, RULER, (), prefix, 2 * seconds)
            if fall := falling(rows):
                task.warnings.append(f"{fall}, twice: something disturbed the measurement")
        parts.append(rows)
        check = CostTable(rows).at(task.pair.target_name, RULER, batch=batch)
        free = replace(check, once=0.0, level=FREE)
        if not prices:
            contest = Contest(batch, tried, {entrant.name: free for entrant in task.entrants})
            forwarding = contest.fastest_first(forwarding)
        for place, entrant in enumerate(forwarding):
            if not prices and place >= LEAST_PRICED and deadline.over():
                late = ", ".join(other.name for other in forwarding[place:])
                task.warnings.append(f"no time was left to measure the costs of {late}, which do not compete: give "
                                     "more seconds")
                forwarding = forwarding[:place]
                break
            rules = candidates.timed_rules(entrant.drafter, replace(task.limits, nodes=task.most_nodes(batch)))
            parts.append(calibrated(entrant.pair, entrant.drafter, entrant.name, [*LEVELS, *rules], PREFIX, seconds))
        table = CostTable(pd.concat(parts))
        by_name = {entrant.name: table.at(task.pair.target_name, entrant.name, batch=batch) for entrant in forwarding}
        by_name |= {entrant.name: free for entrant in costless}
        prices[batch] = {name: cost.checking_as(check) for name, cost in by_name.items()}
    return pd.concat(parts, ignore_index=True), prices


def predict(task: Task, choosing, record: Record, prices: Mapping[int, Mapping[str, RoundCost]],
            whole: Deadline) -> tuple[list[Candidate], list[Contest]]:
    """The candidates of all batch sizes, and what competes at each of them: with growth rules of the drafters in turns,
    those first whose static trees are fastest, and under SMART, as long as time is left. A warning names the
    drafters whose trees were not grown.
    """
    first = task.batches[0]
    tried = [candidate for candidate in record.tried if candidate.entrant.name in prices[first]]
    growing = [entrant for entrant in Contest(first, tried, prices[first]).fastest_first(task.entrants)
               if candidates.timed_rules(entrant.drafter, task.limits)]
    trees = [candidates.grown(entrant, record.recorded, task.limits) for entrant in growing]
    grown = list(in_turns(trees, whole.share(SHARES["grow"])))
    if late := [entrant.name for entrant in growing if not any(candidate.entrant is entrant for candidate in grown)]:
        task.warnings.append(f"no time was left to grow trees with {', '.join(late)}: give more seconds")
    tried += grown
    sizing, contests = whole.share(SHARES["automatic"]), []
    for place, batch in enumerate(task.batches):
        deadline = sizing.share(1 / (len(task.batches) - place))
        contest = Contest(batch, tried, prices[batch])
        limits = replace(task.limits, nodes=task.most_nodes(batch))
        sized = [candidates.automatic(entrant, record.recorded, limits, prices[batch][entrant.name], batch)
                 for entrant in contest.fastest_first(task.entrants)]
        more = [replace(candidate, drafting=_drafting(task, choosing, candidate, batch))
                for candidate in in_turns(sized, deadline)]
        contests.append(replace(contest, tried=tried + more))
    record.recorded.forget()
    return tried, contests


def _drafting(task: Task, choosing, candidate: Candidate, batch: int) -> float | None:
    """Mean seconds of drafting a candidate's trees in the rounds after the first, on some of the choosing prompts."""
    run = ways.ours(candidate.entrant.pair, make(candidate.entrant.spec, candidate.entrant.pair), candidate.shape,
                    ALONE_TOKENS, task.generate)
    seconds, asked, deadline = [], ways.groups(choosing, batch), Deadline(task.clock, task.clock() + ALONE)
    for at in torch.randperm(len(asked), generator=task.order).tolist():
        prompts = asked[at][2]
        seconds += [rows[0].draft_seconds for rows in full_rounds(run(prompts).rounds, len(prompts))[1:]]
        if deadline.over():
            break
    return float(np.mean(seconds)) if seconds else None


def row(candidate: Candidate, batch: int, price: RoundCost, rng: np.random.Generator) -> dict[str, object]:
    """A candidate's columns of the table "advice_candidates" at the costs of its drafter."""
    mean = stats.ratio(candidate.accepted, candidate.rounds, rng)
    seconds = candidate.seconds(price, batch)
    columns = dict(batch=batch, drafter=candidate.entrant.name, shape=candidate.label, budget=candidate.shape.budget,
                   depth=candidate.shape.max_depth, chain=candidate.is_chain, round_ms=1000 * seconds,
                   level=float(price.once + price.level(1)) / price.plain, n_prompts=mean.n_prompts,
                   n_rounds=mean.n_rounds)
    for end, suffix in (("value", ""), ("low", "_low"), ("high", "_high")):
        tokens = 1 + getattr(mean, end)
        columns |= {f"tokens{suffix}": tokens, f"speedup{suffix}": tokens * price.plain / seconds}
    return columns
