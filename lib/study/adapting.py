"""What adapting is worth: policies that choose each round's draft, on recorded text and by cost curves, beside what
hindsight knows: the table "adapting".

Drafts are chains, and prompts are decoded one by one. The first k tokens of a longer chain are the chain of k tokens,
so that tokens and seconds of every choice at every place of a text are known, and a policy that reads earlier rounds
alone is replayed exactly. A kind that looks up text drafts the first branch of its tree. Two policies that go by costs
are raced as well, in turns with plain decoding.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from lib.drafters.adaptive import POLICIES, AdaptiveDrafter, Policy, WhereItPays
from lib.drafters.choosing import ChoosingDrafter, FastestSoFar
from lib.drafters.combined import CombinedDrafter
from lib.drafters.drafter import Drafter, FirstBranch
from lib.engines.methods import PLAIN, Way
from lib.replay.rank_paths import rank_paths
from lib.replay.simulated import Recorded, drafted
from lib.study import costs_files
from lib.study.bench import JUDGING, PARTS, Bench, without_loops
from lib.study.candidates import ranked_name
from lib.study.costs import Costs, with_drafting
from lib.study.race import race
from lib.trees.shapes import chain

CHOSEN, FIXED, PAYS = "choosing", "best way of other prompts", "pays"
HINDSIGHT, ORACLE = "best way of the prompt", "best way of each round"
ELSEWHERE = ("xeon-amx-engines", "vllm"), ("published-mi50", "llama.cpp")  # files of data/costs, and backends in them
MOST_RACED = 13  # judging prompts
TURN = 1000  # of the race of policies in the table "timed", beyond those of other races


@dataclass(frozen=True)
class Text:
    """What each choice gives at each of the S transitions of a text: column 0 is a plain step, column d * longest + k a
    chain of k tokens of drafter d.

    tokens: int64[S, C] that a round adds; seconds: float64[S, C] that it takes; drafted: int64[S, C]. ids: the text
    with its first root and the tokens that its last round may add; prompt: what comes before.
    """

    tokens: np.ndarray
    seconds: np.ndarray
    drafted: np.ndarray
    ids: Sequence[int]
    prompt: Sequence[int]

    def walk(self, choose: Callable[[], int], learn: Callable[[int, int], None] = lambda start, choice: None) -> float:
        """Seconds of the rounds until the text is written. choose: of a column; learn: what it gave, at a start."""
        start, seconds = 0, 0.0
        while start < len(self.tokens):
            choice = choose()
            seconds += self.seconds[start, choice]
            learn(start, choice)
            start += self.tokens[start, choice]
        return seconds

    def fixed(self, choice: int) -> float:
        return self.walk(lambda: choice)

    def oracle(self) -> float:
        """The fewest seconds of any choices, by dynamic programming from the end."""
        least = np.zeros(len(self.tokens) + self.tokens.max(initial=0) + 1)
        for start in reversed(range(len(self.tokens))):
            least[start] = (self.seconds[start] + least[start + self.tokens[start]]).min()
        return float(least[0])

    def policy(self, policy: Policy, drafter: int, longest: int) -> float:
        """Seconds with a policy for the lengths of a drafter."""
        state = policy.after(policy.start, 0, 0, self.prompt)
        state = policy.after(state, 0, 0, self.ids[:1])  # the first root, which the prefill gives

        def choose() -> int:
            length = min(policy.depths([state])[0], longest)
            return drafter * longest + length if length else 0

        def learn(start: int, choice: int) -> None:
            nonlocal state
            added, count = self.tokens[start, choice], int(self.drafted[start, choice])
            state = policy.after(state, count, int(added) - 1, self.ids[start + 1 : start + 1 + added])

        return self.walk(choose, learn)

    def choosing(self, choices: Sequence[int], fastest: FastestSoFar) -> float:
        """Seconds where each round takes the fastest of choices so far, which goes on from text to text."""
        def learn(start: int, choice: int) -> None:
            fastest.learn(choices.index(choice), self.tokens[start, choice] / self.seconds[start, choice])

        return self.walk(lambda: choices[fastest.choose()], learn)


def measure(bench: Bench, recorded: Recorded, ways: Sequence[Way]) -> None:
    """Adds the missing rows of the table "adapting" for the judging prompts, by the costs of the bench and of ELSEWHERE.

    ways: of whose drafters those compete whose chains the trace's ranks decide, or the text alone.
    """
    table, costs, bench = bench.store.open("adapting"), curves(bench), without_loops(bench)
    drafters = {way.method: way.drafter for way in ways if way.drafter.traits.reads_text or way.ranked == way.method}
    names = [name for name, drafter in drafters.items() if not isinstance(drafter, CombinedDrafter)]
    longest, (choosing, judging) = bench.longest, map(bench.rows, PARTS)
    missing = [backend for backend in costs if backend not in {done for done, *_ in table.keys()}]
    accepted = [_accepted(recorded, name, drafters[name], longest) for name in (names if missing else [])]
    for backend in missing if names else []:
        drafting, rows = [_drafting(costs[backend], name, longest) for name in names], []
        texts = {row: _text(recorded, row, [one[row] for one in accepted], drafting, costs[backend])
                 for row in choosing + judging}
        of_each = [range(d * longest + 1, (d + 1) * longest + 1) for d in range(len(names))]
        best, *leading = (_best([texts[row] for row in choosing], choices)
                          for choices in (range(1 + len(names) * longest), *of_each))
        drafter = (max(best, 1) - 1) // longest
        plain, lengths = float(costs[backend].plain(1)), np.arange(1, longest + 1)
        step = [1.0, *((costs[backend].check(1, lengths) + drafting[drafter]) / plain)]
        policies = {name: kind(step) if kind is WhereItPays else kind() for name, kind in POLICIES.items()}
        fastest = FastestSoFar(len(names))
        for row in judging:
            text, prompt = texts[row], bench.prompts.names[row]
            seconds = {PLAIN: text.fixed(0), FIXED: text.fixed(best), CHOSEN: text.choosing(leading, fastest),
                       HINDSIGHT: min(map(text.fixed, range(text.tokens.shape[1]))), ORACLE: text.oracle()}
            seconds |= {name: text.policy(policy, drafter, longest) for name, policy in policies.items()}
            rows += [dict(backend=backend, policy=policy, prompt=prompt, seconds=spent,
                          way=f"{names[drafter]}, chain:{best - drafter * longest}" if best else PLAIN)
                     for policy, spent in seconds.items()]
        if backend == bench.backend.name:
            fixed = [FirstBranch(drafters[name], (choice - 1) % longest + 1) for name, choice in zip(names, leading)]
            pays = AdaptiveDrafter(FirstBranch(drafters[names[drafter]]), policy=policies[PAYS])
            race_policies(bench, pd.DataFrame(rows).pivot(index="prompt", columns="policy", values="seconds"), {
                PAYS: (pays, min(longest, drafters[names[drafter]].deepest or longest)),
                CHOSEN: (ChoosingDrafter(*fixed), longest)})
        table.extend(rows)


def race_policies(bench: Bench, seconds: pd.DataFrame, drafters: Mapping[str, tuple[Drafter, int]]) -> None:
    """Policies and plain decoding in turns on the first judging prompts: rows of the table "timed". seconds: by replay,
    of each prompt and policy. drafters: by policy, with the most tokens of their chains.
    """
    ways = [Way(f"policy {policy}", policy, chain(longest), f"chain:{longest}", drafter)
            for policy, (drafter, longest) in drafters.items()]
    names = [bench.prompts.names[row] for row in bench.rows(JUDGING)]
    logs = {(way.name, 1): np.log(seconds[PLAIN] / seconds[way.method])[names].to_numpy() for way in ways}
    race(replace(bench, raced={1: min(bench.raced[1], MOST_RACED)}), ways, 1, JUDGING, logs, TURN)


def curves(bench: Bench) -> dict[str, Costs]:
    """The cost curves at batch 1 of the bench's backend and of ELSEWHERE, where a plain step that was not published is
    taken to last as long as the smallest check.
    """
    here = bench.rows_of("costs").query("batch == 1")
    if here.empty:
        return {}
    found = {bench.backend.name: Costs.of(here)}
    for file, backend in ELSEWHERE:
        rows = costs_files.with_plain(costs_files.read(file).query("backend == @backend and batch == 1"))
        found[f"{backend} ({file})"] = Costs.of(with_drafting(rows, here))
    return found


def _best(texts: Sequence[Text], choices: Sequence[int]) -> int:
    """The choice with the highest speed over plain decoding, in the geometric mean of texts."""
    return min(choices, key=lambda choice: sum(np.log(text.fixed(choice) / text.fixed(0)) for text in texts))


def _drafting(costs: Costs, name: str, longest: int) -> np.ndarray:
    """float64[longest]: seconds of drafting chains of 1, 2, ... tokens."""
    return np.array([costs.draft(Way("", name, chain(length)), 1) for length in range(1, longest + 1)])


def _accepted(recorded: Recorded, name: str, drafter: Drafter, longest: int) -> list[np.ndarray]:
    """By row of a trace int64[S, 2]: at each transition before the limit the tokens that the drafter's chain of
    `longest` tokens drafts, and those that are accepted.
    """
    trace = recorded.trace
    sizes, deepest = np.zeros((*trace.before_limit.shape, 2), dtype=np.int64), min(longest, drafter.deepest or longest)
    if ranked := ranked_name(name, drafter, trace):
        accepted = rank_paths(trace, ranked).ends(chain(longest))  # a chain's node is its depth
        sizes[trace.before_limit] = np.stack([np.full_like(accepted, deepest), accepted], axis=1)
    else:
        for row, start, draft, path, _ in drafted(recorded, FirstBranch(drafter), chain(longest), everywhere=True):
            sizes[row, start] = draft.tree.budget, len(path)
    return [of_row[:length] for of_row, length in zip(sizes, trace.lengths)]


def _text(recorded: Recorded, row: int, accepted: Sequence[np.ndarray], drafting: Sequence[np.ndarray],
          costs: Costs) -> Text:
    """The choices of one row of a trace."""
    lengths, plain = np.arange(1, len(drafting[0]) + 1), float(costs.plain(1))
    drafts = [np.minimum(sizes[:, :1], lengths) for sizes in accepted]
    tokens = [1 + np.minimum(sizes[:, 1:], lengths) for sizes in accepted]
    seconds = [np.where(count > 0, costs.check(1, count), plain) + one for count, one in zip(drafts, drafting)]
    zeros, ids = np.zeros((len(accepted[0]), 1), dtype=np.int64), recorded.trace.tokens[row]
    return Text(np.hstack([zeros + 1, *tokens]), np.hstack([zeros + plain, *seconds]), np.hstack([zeros, *drafts]),
                ids[ids >= 0].tolist(), recorded.prompts[row].tolist())
