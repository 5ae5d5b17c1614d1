"""The recommendation for a target, and what stands beside it: where trees beat chains on this machine and on others,
the same candidates at the costs of larger pairs, and what a formula says of chains.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from lib import cost
from lib.cost import formats as number_formats
from lib.cost import experts, recommendation, roofline
from lib.cost.candidates import Candidate, Limits
from lib.cost.judging import measured
from lib.cost.recommendation import ONE, PLAIN, Recommendation
from lib.cost.recommending import PREFIX, Evidence, row
from lib.cost.roofline import COMPUTED, LAUNCHES, MEASURED
from lib.cost.round_cost import RULER, CostTable, RoundCost
from lib.drafters.adaptive import tokens_of_chains
from lib.drafters.registry import parse
from lib.forward.load import dtypes_of, load_pair, load_pairs
from lib.forward.packed import parameters_of
from lib.lab import processor, provenance, stats, tables
from lib.lab.chapter import Store
from lib.measure import sources
from lib.measure.schedule import schedule
from lib.models.prompts import load as load_prompts
from lib.trees.tree import Tree

NOTEBOOK = "06_advice"
HERE = "this machine"
REPLAY, LEVIATHAN, BLOG = "replay and measured costs", "Leviathan et al.", "source blog's table"
NEARLY_FREE = 1.1  # times a plain round
MOST = 64  # nodes of a tree that is compared with a chain, and of a check that is nearly free
CHECKED = (0, 1, 4, 8)  # draft tokens of checks whose experts are counted
ANY = 0  # in place of a budget: trees of every size


def measure(store: Store, *, pairs: Sequence[str], prompts: str, batches: Sequence[int], drafters: Sequence[str],
            seconds: float, choose_prompts: int, judge_prompts: int, new_tokens: int,
            most_nodes: int, most_depth: int, larger_pairs: Sequence[str], larger_dtype: str, elsewhere: Sequence[str],
            cell_seconds: float, lengths: Sequence[int], texts_folder: str, dtype: str, formats: Sequence[str],
            device: str, seed: int) -> None:
    """Writes recommendation.json and the tables of notebook 06, which says what its parameters mean.

    The procedure has a limit of time and is not resumed within, but what an earlier call of the same settings
    recommended stays. The table "source_grid" follows from tables of notebook 02 and is always written again.
    ValueError for `elsewhere` that names no runs of the target, and as `cost.recommend` raises it.
    """
    path = store.folder / recommendation.FILE
    if path.exists() and store.open("advice_candidates").keys():
        print("recommended before, with the same settings")
        sources.measure(store, seed)
        return
    loaded = load_pairs(pairs, dtype=dtype, device=device)
    loaded = [pair for pair in loaded if pair.target_name == loaded[0].target_name]
    first, others = loaded[0], of_runs(elsewhere, loaded[0].target_name)
    windows, parameters = [pair.window for pair in loaded if pair.window], parameters_of(first.target)
    longest = min(windows) - new_tokens - most_depth - 1 if windows else None
    texts = load_prompts(prompts, first.tokenizer, limit=longest, first=choose_prompts + judge_prompts)
    choosing, judging = texts.split(choose_prompts, judge_prompts)
    print(f"{', '.join(pair.name for pair in loaded)}: {len(choosing.ids)} prompts choose, {len(judging.ids)} judge")

    long = [ids for ids in choosing.ids if len(ids) > 2 * max(CHECKED) + 1][:8]
    if long and len(taken := experts.per_check(first.target, long, CHECKED, seed)):
        store.write("experts", taken.assign(target=first.target_name))
    if lengths and not store.open("schedule").keys():  # before the recommendation, which takes the models from memory
        planned = schedule(first, lengths=lengths, batches=batches, new_tokens=new_tokens, seconds=cell_seconds,
                           seed=seed, folder=texts_folder)
        for name, rows in zip(("explained", "schedule"), reversed(planned)):
            store.write(name, rows)
    evidence, in_formats = number_formats.recommend(
        loaded, choosing, judging, formats=formats, drafters=drafters, batches=batches, new_tokens=new_tokens,
        limits=Limits(most_nodes, most_depth), seconds=seconds, seed=seed)
    advised, rng = evidence.recommendation, np.random.default_rng(seed)

    of_first = [candidate for candidate in evidence.tried if candidate.entrant.pair is first]
    modelled = [candidate.entrant.name for candidate in of_first if candidate.entrant.spec.startswith("model")]
    few = batches[:2]  # a round of a larger model at more of them takes many seconds
    larger = calibrate_larger(larger_pairs, choosing.ids, dtype=larger_dtype, device=device, batches=few,
                              prefix=PREFIX, seconds=cell_seconds, most=most_nodes,
                              generator=torch.Generator().manual_seed(seed))
    known = evidence.costs[evidence.costs["drafter"].isin([RULER, *modelled[:1]])]
    advised.save(path)
    written = {
        "costs": evidence.costs, "advice_timed": evidence.timed, "advice_errors": evidence.errors,
        "advice_formats": in_formats, "advice_sizes": with_costs_of(of_first, {first.name: known} | larger, few, rng),
        "advice_formulas": beside_formulas(evidence.candidates, [*modelled, *advised.drafters]),
        "advice_map": over_chains(evidence, others, parameters, rng), "advice_ratios": ratios(evidence, others, rng),
        "advice_machines": machines_table(others), "advice_candidates": evidence.candidates}  # which says that all are
    for name, rows in written.items():
        store.write(name, rows)
    sources.measure(store, seed)


# ------------------------------------------------------------------------------------------- larger pairs and formulas


def calibrate_larger(names: Sequence[str], prompts: Sequence[torch.Tensor], *, dtype: str, device: str,
                     **settings) -> dict[str, pd.DataFrame]:
    """By pair the rows of `cost.calibrate`; settings: as that takes them. One pair is in memory at a time.

    Weights may be random (`registry.SIZES`), since costs do not depend on them. Empty where the processor has no units
    for the number format, in which a round would take minutes.
    """
    if any(processor.slow_dtype(part, device) for part in dtypes_of(dtype, device)):
        return {}
    return {name: cost.calibrate(load_pair(name, dtype=dtype, device=device), prompts, **settings) for name in names}


def with_costs_of(tried: Sequence[Candidate], costs: Mapping[str, pd.DataFrame], batches: Sequence[int],
                  rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_sizes": the candidates of a traced target with the costs of each named pair, such as a larger
    one; the fastest of each budget, and the chain.

    costs: rows of one pair each, first of the target's own; checks are those of RULER, which hold both sides of each
    step, where there are rows of it. Only candidates take part that draft with the pair's draft model, which take the
    cost of the named pair's, or without a model; without any the table is empty. The acceptance of the larger pair is
    not known.
    """
    rows, of_traced = [], {}  # of_traced: by batch the cost of rounds of the target's own pair
    able = [candidate for candidate in tried
            if not candidate.passes or parse(candidate.entrant.spec)[0] == "model"]
    nodes = np.arange(1, MOST + 1)
    for name, timed in costs.items() if able else ():
        target, drafter, dtype = timed[["target", "drafter", "dtype"]].iloc[-1]
        known = CostTable(timed)
        for batch in batches:
            price = known.at(target, drafter, batch=batch)
            price = price.checking_as(known.cells.get((target, RULER, batch), price))
            price = price.growing_as(of_traced.setdefault(batch, price))
            free = int((price.check(nodes) <= NEARLY_FREE * price.plain).cumprod().sum())
            rows += [row(candidate, batch, price, rng) | dict(
                target=candidate.entrant.pair.target_name, costs=name, dtype=dtype, plain_ms=1000 * price.plain,
                check=price.check(candidate.shape.budget) / price.plain, free=free) for candidate in able]
    if not rows:
        return pd.DataFrame()
    unread = ["depth", "round_ms", "tokens", "tokens_low", "tokens_high", "n_rounds"]
    sized = pd.DataFrame(rows).drop(columns=unread)
    best = sized.groupby(["costs", "batch", "budget", "chain"], sort=False)["speedup"].idxmax()
    return sized.loc[best].reset_index(drop=True)


def beside_formulas(candidates: pd.DataFrame, drafters: Sequence[str]) -> pd.DataFrame:
    """The table "advice_formulas": speedups of the chains of the first of these drafters that has one of a single
    token, by replay and costs, by Leviathan's formula and by the source blog's table; from the table
    "advice_candidates". Empty where no drafter has.

    alpha: the share of rounds that accept the first token; cost: a drafter's step over a target's step, measured. The
    blog's table depends on neither batch nor drafter.
    """
    rows = []
    named = candidates[candidates["shape"] == "chain:" + candidates["budget"].astype(str)]
    single = set(named.loc[named["budget"] == 1, "drafter"])
    chains = named[named["drafter"] == next((name for name in drafters if name in single), None)]
    alphas = chains[chains["budget"] == 1].set_index("batch")["tokens"] - 1
    for chain in chains.to_dict("records"):
        alpha, length = alphas[chain["batch"]], chain["budget"]
        blog = np.interp(length, sources.CLAIMS["length"], sources.CLAIMS["speedup"], left=np.nan, right=np.nan)
        by_source = {REPLAY: chain["speedup"], BLOG: float(blog),
                     LEVIATHAN: leviathan_speedup(alpha, length, chain["level"])}
        rows += [{name: chain[name] for name in ("target", "dtype", "drafter", "batch")} | dict(
            length=length, by=source, speedup=value, alpha=alpha, cost=chain["level"])
            for source, value in by_source.items()]
    return pd.DataFrame(rows)


def leviathan_speedup(alpha: float, length: int, cost: float) -> float:
    """Walltime factor of a chain by Leviathan et al. 2023: its expected tokens per round, (1 - alpha^(length + 1)) /
    (1 - alpha) (eq. 1), over length * cost + 1 (theorem 3.8). Checking any number of tokens is taken to cost one step.

    alpha: the chance that a token is accepted, taken to be the same everywhere and independent of the tokens before.
    cost: seconds of a drafter's step over a target's step.
    """
    return tokens_of_chains(alpha, length)[-1] / (length * cost + 1)


# ------------------------------------------------------------------------------------------------------ other machines


@dataclass(frozen=True)
class Machine:
    """A machine on which notebook 06 ran for the same target.

    name: its processor and vector units, or its GPU; costs: of rounds there; timed: its table "advice_timed", where its
    run has one.
    """

    name: str
    advised: Recommendation
    costs: CostTable
    timed: pd.DataFrame = field(default_factory=pd.DataFrame)

    def prices(self, batch: int, here: Mapping[str, RoundCost]) -> dict[str, RoundCost]:
        """The cost of rounds there by drafter, of those that were timed there or that take no time to draft; empty for
        a batch size that was not timed. here: the same on this machine.
        """
        cells, target = self.costs.cells, self.advised.target
        if (target, RULER, batch) not in cells:
            return {}
        check = cells[target, RULER, batch]
        return {name: cells.get((target, name, batch), price).checking_as(check)
                for name, price in here.items()
                if (target, name, batch) in cells or not (price.once or price.level(1))}


def of_runs(folders: Sequence[str], target: str) -> list[Machine]:
    """The machines of runs. ValueError for a folder without a recommendation and its costs, for another target, and
    for two runs on machines of the same name.
    """
    machines: list[Machine] = []
    for folder in map(Path, folders):
        path = folder / recommendation.FILE
        if not path.exists() or not tables.exists(folder, "costs"):
            raise ValueError(f"elsewhere names {folder}, which holds no {recommendation.FILE} with its table of costs: "
                             "name the folder of a run of notebook 06")
        advised = recommendation.load(path)
        if advised.target != target:
            raise ValueError(f"elsewhere names {folder}, a run for the target {advised.target}, not {target}: name a "
                             "run for the same target")
        name = processor.title(provenance.machine_of(provenance.read(folder), NOTEBOOK))
        if name in {machine.name for machine in machines}:
            raise ValueError(f"elsewhere names {folder}, a run on {name} as another one: name one run for each kind of "
                             "machine")
        timed = tables.read(folder, "advice_timed") if tables.exists(folder, "advice_timed") else pd.DataFrame()
        machines.append(Machine(name, advised, CostTable(tables.read(folder, "costs")), timed))
    return machines


def machines_table(machines: Sequence[Machine]) -> pd.DataFrame:
    """The table "advice_machines": what was recommended on each machine at each batch size."""
    rows = []
    for machine in machines:
        advised = machine.advised
        about = dict(machine=machine.name, target=advised.target, dtype=advised.dtype, threads=advised.threads,
                     drafters=", ".join(advised.drafters))
        rows += [about | dict(
            batch=choice.batch, drafter=choice.drafter, shape=choice.tree, budget=choice.budget,
            plain=choice.tokens_per_second[PLAIN].value, predicted=choice.predicted, judged=choice.prompts,
            **_interval("measured", choice.speedup)) for choice in advised.by_batch]
    return pd.DataFrame(rows)


def ratios(evidence: Evidence, elsewhere: Sequence[Machine], rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_ratios": the speed of a tree over that of a chain, timed in turns on the same prompts, here and
    in the runs on other machines: of each drafter that had both in the race that chose its fastest tree over its
    fastest chain; and the recommendation over the fastest chain on the prompts that judged, where it is no chain.
    """
    rows = []
    for machine in [Machine(HERE, evidence.recommendation, CostTable(evidence.costs), evidence.timed), *elsewhere]:
        about = dict(hardware=machine.name, target=machine.advised.target, dtype=machine.advised.dtype)
        if len(timed := machine.timed):
            timed = timed[(timed["part"] == "choosing") & (timed["way"] != PLAIN)]
            names = timed["way"].str.extract(r"^(?P<drafter>.*), (?P<shape>[^ ]+)$")
            timed = timed.assign(drafter=names["drafter"], chain=names["shape"].str.startswith("chain:"))
        for (batch, _), calls in timed.groupby(["batch", "drafter"], sort=False) if len(timed) else ():
            speed = np.log(calls["rate"]).groupby([calls["chain"], calls["way"]]).mean()
            if calls["chain"].nunique() == 2:
                tree, chain = speed[False].idxmax(), speed[True].idxmax()
                both = calls[calls["way"].isin([tree, chain])]
                shared = int(both.groupby("prompt")["way"].nunique().eq(2).sum())
                rows.append(about | dict(batch=batch, part="choosing", tree=tree, chain=chain, n_prompts=shared)
                            | _interval("ratio", measured(both, tree, chain, rng)))
        rows += [about | dict(batch=choice.batch, part="judging", tree=f"{choice.drafter}, {choice.tree}",
                              chain=f"{choice.chain['drafter']}, {choice.chain['tree']}", n_prompts=choice.prompts)
                 | _interval("ratio", choice.over_chain)
                 for choice in machine.advised.by_batch if not choice.is_plain and choice.over_chain != ONE]
    return pd.DataFrame(rows)


def _interval(name: str, estimate) -> dict[str, float]:
    return {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}


# --------------------------------------------------------------------------------------------- where trees beat chains


def over_chains(evidence: Evidence, elsewhere: Sequence[Machine], parameters: int,
                rng: np.random.Generator) -> pd.DataFrame:
    """The table "advice_map": for each drafter and budget, a power of two, the fastest tree of more than half as many
    nodes that is no chain, over the drafter's fastest chain of any length; and with `ANY` in place of a budget the
    fastest of all trees.

    At the costs that were measured here and elsewhere, of drafters that were timed there, without trees that they were
    not timed to grow; and at those that `roofline` computes. parameters: numbers of the target, which tell whether a
    step takes the time of launching kernels. Tree and chain are chosen on every second prompt and judged on the others,
    both ways; intervals are paired by prompt.
    """
    advised, rows = evidence.recommendation, []
    for batch, here in evidence.prices.items():
        priced = [(HERE, advised.processor, advised.dtype, here)]
        priced += [(other.name, other.name, other.advised.dtype, other.prices(batch, here)) for other in elsewhere]
        priced += [(name, "", "", {drafter: roofline.on(hardware, price, MOST, batch)
                                   for drafter, price in here.items()}) for name, hardware in roofline.HARDWARE.items()]
        for hardware, machine, dtype, prices in priced:
            for drafter, price in prices.items():
                reads = roofline.reads(machine, dtype, parameters, price.plain)
                source = COMPUTED if not machine else LAUNCHES if reads > roofline.LAUNCH_BOUND else MEASURED
                tried = [candidate for candidate in evidence.tried if candidate.entrant.name == drafter
                         and candidate.shape.budget <= MOST
                         and (price.grown or not candidate.passes or isinstance(candidate.shape, Tree))]
                rows += [dict(hardware=hardware, source=source, target=advised.target, dtype=advised.dtype, batch=batch,
                              drafter=drafter) | columns for columns in _over_chain(tried, price, batch, rng)]
    return pd.DataFrame(rows)


def _over_chain(tried: Sequence[Candidate], price: RoundCost, batch: int, rng) -> Iterator[dict[str, object]]:
    """Of one drafter, by budget: its fastest tree over its fastest chain."""
    chains, trees = ([candidate for candidate in tried if of_kind(candidate)]
                     for of_kind in (lambda candidate: candidate.is_chain, lambda candidate: candidate.branches))
    if not chains or not trees:
        return
    seconds = {candidate.name: candidate.seconds(price, batch) for candidate in tried}
    base = _judged(chains, seconds)
    most = max(candidate.shape.budget for candidate in trees)
    budgets = sorted({*(2**power for power in range(most.bit_length())), most})
    sized = {budget: [tree for tree in trees if budget / 2 < tree.shape.budget <= budget] for budget in budgets}
    for budget, able in {ANY: trees, **sized}.items():
        if able:
            tree, share = _fastest(able, seconds), stats.difference(*_judged(able, seconds), *base, rng, relative=True)
            yield dict(budget=budget, shape=tree.label, speedup=tree.speedup(price, batch)) | _interval("over_chain",
                                                                                                        share)


def _fastest(tried: Sequence[Candidate], seconds: Mapping[str, float], part: slice = slice(None)) -> Candidate:
    """The candidate of the most tokens per second on a part of the prompts."""
    def speed(candidate: Candidate) -> float:
        """Tokens per second."""
        tokens, rounds = _tokens(candidate)
        return tokens[part].sum() / max(1, rounds[part].sum()) / seconds[candidate.name]
    return max(tried, key=speed)


def _judged(tried: Sequence[Candidate], seconds: Mapping[str, float]) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and seconds by prompt of the candidate that is fastest on every second prompt, the others' on these."""
    tokens, taken = (np.zeros(len(tried[0].prompts)) for _ in range(2))
    for chosen_on, judged in ((slice(0, None, 2), slice(1, None, 2)), (slice(1, None, 2), slice(0, None, 2))):
        best = _fastest(tried, seconds, chosen_on)
        yielded, rounds = _tokens(best)
        tokens[judged], taken[judged] = yielded[judged], rounds[judged] * seconds[best.name]
    return tokens, taken


def _tokens(candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
    """Tokens and rounds by prompt, in the order of the prompts' names."""
    order = np.argsort(candidate.prompts)
    return (candidate.accepted + candidate.rounds)[order], candidate.rounds[order]
