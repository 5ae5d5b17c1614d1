"""The recommendation with rounds of known cost: what it chooses, what it says, and that its file says the same."""

import json
import re
import time
from dataclasses import asdict, replace

import numpy as np
import pandas as pd
import pytest
import torch

from lib import cost
from lib.cost import candidates, judging, racing, recommendation, recommending, ways
from lib.cost.calibration import falling
from lib.cost.candidates import Entrant, Limits
from lib.cost.racing import Contest
from lib.cost.recommendation import GENERATE, ONE, PLAIN, RECOMMENDED, Interval
from lib.cost.round_cost import Curve, RoundCost
from lib.cost.ways import Deadline
from lib.decoding import loop
from lib.drafters.drafter import NoDrafter
from lib.drafters.registry import LIVE, Traits
from lib.drafters.text_drafters import NgramDrafter
from lib.drafters.text_index import NgramTables
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.replay.rank_paths import most_frequent_paths
from lib.tests import small_models
from lib.tests.cost import test_cost
from lib.tests.replay.test_replay import synthetic
from lib.trees import named
from lib.trees.growth import Costs
from lib.trees.tree import Tree

TARGET = small_models.llama(3)
IDS = small_models.prompts(5, [12, 9, 14, 10, 11, 13])


class _Tokenizer:
    eos_token_id = None


def pair_of(draft_model, name="d"):
    for model in filter(None, (TARGET, draft_model)):
        model.generation_config.eos_token_id = None
    return Pair(f"t/{name}", TARGET, draft_model, _Tokenizer(), "t", name)


def prompts_of(rows):
    return PromptSet(tuple(f"p{row}" for row in rows), tuple("ab"[row % 2] for row in rows),
                     tuple(IDS[row] for row in rows))


class Clock:
    """A clock that a call of the loop moves on; reading it moves it a little, too."""

    now = 0.0

    def __call__(self):
        self.now += 1e-9
        return self.now


CLOCK = Clock()
UNIT = 4e-4  # seconds of the clock for each second that is charged, so that there is time for everything


def costing(level, node, prefill=lambda drafter: 1.0, unit=UNIT):
    """The loop with a clock that charges 1 s for a check, `node` for each node and `level` for each draft level."""
    def generate(target, drafter, *arguments, **settings):
        done = loop.generate(target, drafter, *arguments, **settings)
        rounds = [replace(one, draft_seconds=level * one.draft_calls, commit_seconds=0.0,
                          verify_seconds=1 + node * one.drafted) for one in done.rounds]
        CLOCK.now += unit * (prefill(drafter) + sum(one.seconds for one in ways.one_per_round(rounds)))
        return replace(done, rounds=rounds)
    return generate


def ask(pairs, *, level=0.05, node=0.01, choosing=None, **settings):
    CLOCK.now = 0.0
    settings = dict(drafters=["lookup", "model"], new_tokens=16, limits=Limits(4, 3), seconds=1.0,
                    generate=costing(level, node)) | settings
    return cost.recommend(pairs, choosing or prompts_of([0, 1, 2]), prompts_of([3, 4, 5]), report=lambda line: None,
                          clock=CLOCK, **settings)


def candidate(spec, label, accepted):
    """A drafter and a tree on one prompt."""
    tree = named(label)
    return candidates.Candidate(Entrant(spec, spec, None, None), label, tree, ["a"], np.array([accepted]),
                                np.array([1]), np.eye(tree.budget + 1)[tree.budget])


@pytest.fixture(scope="module")
def found():
    return ask([pair_of(small_models.related(TARGET, 4, 0.05))], batches=[1, 2])


def test_drafters_for_whose_costs_no_time_is_left_do_not_compete_and_are_named(monkeypatch):
    monkeypatch.setattr(recommending, "LEAST_PRICED", 0)
    found = ask([pair_of(small_models.related(TARGET, 4, 0.05))], seconds=0.0)
    assert {each.entrant.name for each in found.tried} == {"lookup"} == set(found.prices[1])
    assert any("no time was left to measure the costs of model," in each for each in found.recommendation.warnings)


def test_the_fastest_drafter_is_recommended_and_measured_on_other_prompts(found):
    own = found.recommendation.at(1)
    assert own.drafter == "model" and 1 <= own.budget <= 4 and not own.is_plain
    assert own.shape.budget == own.budget and own.shape.max_depth == own.depth
    rows = found.timed[(found.timed["batch"] == 1) & (found.timed["part"] == "judging")]
    assert set(rows["prompt"]) == {"p3", "p4", "p5"}
    assert rows[rows["way"] != GENERATE].groupby(["way", "prompt"]).size().eq(3).all()
    by_prompt = np.log(rows.pivot_table(index="prompt", columns="way", values="rate"))
    assert own.speedup.value == pytest.approx(np.exp((by_prompt[RECOMMENDED] - by_prompt[PLAIN]).mean()))
    assert np.isnan(own.speedup.low) and any("too few for an interval" in each for each in own.warnings)
    assert own.tokens_per_second[PLAIN].value == pytest.approx(1.0)  # a round costs a second
    assert own.tokens_per_second[RECOMMENDED].value == pytest.approx(own.speedup.value)
    chosen = found.timed[(found.timed["batch"] == 1) & (found.timed["part"] == "choosing")]
    assert set(chosen["prompt"]) == {"p1", "p2"}, "the first text ends in a loop"
    assert set(own.kinds) == {"a", "b"} and found.recommendation.at(2).batch == 2


def test_predicted_speed_is_replayed_tokens_over_the_seconds_of_a_round(found):
    own = found.recommendation.at(1)
    row = found.candidates[(found.candidates["batch"] == 1) & (found.candidates["drafter"] == "model")
                           & (found.candidates["shape"] == own.tree)].iloc[0]
    seconds = 1 + 0.01 * own.budget + 0.05 * own.depth
    assert row["speedup"] == pytest.approx(row["tokens"] / seconds)  # the calibration reads the same clock
    [each] = [each for each in found.tried if (each.entrant.name, each.label) == ("model", own.tree)]
    assert row["tokens"] == each.tokens == 1 + each.accepted.sum() / each.rounds.sum()
    by_prompt = 1 + each.accepted / each.rounds
    assert each.prompts == ["p0", "p1", "p2"]
    left = found.errors.loc[found.errors["batch"] == 1, "optimism"].iloc[0]
    assert own.predicted == pytest.approx(left * np.exp(np.log(by_prompt[1:]).mean()) / seconds), "the first text loops"
    assert 0.8 < left <= 1, "less than 1 where each of two prompts would choose another tree"
    assert each.tokens_in(prompts_of([0, 1, 2]), 3) == pytest.approx(by_prompt.mean())


def test_checks_are_priced_behind_as_many_tokens_as_the_text_has():
    prompts = replace(prompts_of([0, 1, 2]), ids=[torch.arange(1, 21).repeat(each) for each in (3, 4, 5)])
    found = ask([pair_of(small_models.related(TARGET, 4, 0.05))], choosing=prompts)
    behind = found.costs.groupby("drafter")["prefix"].unique()
    assert recommending.usual_prefix(prompts.ids, 20) == 90
    assert behind[recommending.RULER].tolist() == [recommending.usual_prefix(prompts.ids, 16)]
    assert behind["model"].tolist() == [recommending.PREFIX]


@pytest.mark.parametrize(("level", "node"), [(0.0, 1.0), (20.0, 1.0)])
def test_where_nothing_is_faster_plain_decoding_is_recommended(level, node):
    own = ask([pair_of(small_models.related(TARGET, 4, 0.05))], level=level, node=node).recommendation.at(1)
    assert own.is_plain and own.speedup == ONE and not own.settings and own.budget == own.depth == 0
    assert own.tokens_per_second[RECOMMENDED].value == pytest.approx(own.tokens_per_second[PLAIN].value)
    assert own.over_chain.value >= 1 and own.shape.budget == 0


def test_a_winner_that_is_slower_on_other_prompts_is_not_recommended():
    """Nodes cost little on the prompts that choose and much on those that judge; the prompts' lengths tell which."""
    judging = {len(IDS[row]) for row in (3, 4, 5)}

    def generate(target, drafter, ids, **settings):
        return costing(0.05, 3.0 if ids.shape[1] in judging else 0.01)(target, drafter, ids, **settings)

    own = ask([pair_of(small_models.related(TARGET, 4, 0.05))], generate=generate).recommendation.at(1)
    assert own.is_plain and own.speedup == ONE and own.over_chain.value > 1
    assert re.fullmatch(r"plain decoding, since model, .* was predicted to decode .* \(n = 3\)", own.sentence)


@pytest.mark.parametrize("prefill, plain", [(300.0, True), (1.0, False)])
def test_plain_decoding_is_recommended_where_whole_calls_are_slower(prefill, plain):
    """The drafter's prefill takes so many seconds, plain decoding's one."""
    generate = costing(0.05, 0.01, lambda drafter: 1.0 if isinstance(drafter, NoDrafter) else prefill, unit=1.0)
    found = ask([pair_of(small_models.related(TARGET, 4, 0.05))], generate=generate, seconds=0.0)
    own, rows = found.recommendation.at(1), found.timed[found.timed["part"] == "judging"]
    assert own.is_plain == plain == bool(own.reason) and own.best_tree["tree"] == "optimal@4"
    rates, seconds = (rows.groupby("way")[name].mean() for name in ("rate", "seconds"))
    assert rates[RECOMMENDED] > 2 * rates[PLAIN] and (seconds[RECOMMENDED] > seconds[PLAIN]) == plain
    assert own.tree_over_chain.value == pytest.approx(1.18 / 1.19)
    if plain:
        per_token = (seconds - [{PLAIN: 1.0, GENERATE: 0.0}.get(way, prefill) for way in seconds.index]) / 15
        even = 1 + (prefill - 1) / (per_token[PLAIN] - per_token[RECOMMENDED])
        assert f"they break even at answers of {np.ceil(even):.0f} tokens" in own.sentence
        assert own.reason in found.recommendation.text()


def test_all_finalists_decode_judging_prompts_and_their_errors_have_their_parts():
    pairs = [pair_of(small_models.related(TARGET, seed, 0.05), f"d{seed}") for seed in (4, 6)]
    found = ask(pairs, drafters=["model"])
    rows, errors = found.timed[found.timed["part"] == "judging"], found.errors
    raced = {each.name for each in found.recommendation.at(1).raced} - {PLAIN}
    assert set(errors["drafter"] + ", " + errors["shape"]) == raced and len(raced) >= 3
    assert set(errors["way"]) == set(rows["way"]) - {PLAIN, GENERATE}
    assert not rows.duplicated(["way", "prompt", "repeat"]).any()
    of_others = rows[rows["way"].isin(raced)]
    assert set(of_others["prompt"]) <= set(rows.loc[rows["way"] == RECOMMENDED, "prompt"])
    for one in errors.itertuples():
        found_again = judging.measured(rows, one.way, PLAIN, np.random.default_rng(0))
        assert one.measured == pytest.approx(found_again.value)
        assert one.error == pytest.approx(one.predicted / one.measured - 1)
        assert 1 + one.error == pytest.approx((1 + one.tokens_error) * (1 + one.time_error) * one.optimism)
        assert abs(one.time_error) < 0.05, "the clock is the same"
        assert one.tokens / one.time * one.optimism == pytest.approx(one.predicted)
    hurried = ask(pairs, drafters=["model"], seconds=0.0).errors
    assert set(hurried["way"]) <= {RECOMMENDED, "best chain", "best tree"}, "no time for the others"


def test_what_cannot_be_told_apart_is_kept_with_its_intervals(found, tmp_path):
    """Of nine prompts; with fewer nothing is told apart."""
    own = found.recommendation.at(1)
    assert "3 ways were raced on n = 2, too few to tell them apart" in found.recommendation.text()
    raced = [replace(own.raced[0], name="a"), recommendation.Raced("b", 1, 1.5, Interval(0.98, 0.9, 1.05), True),
             recommendation.Raced("c", 1, 1.4, Interval(0.9, 0.8, 0.95), False)]
    more = replace(own, raced=raced, raced_on=9, tree_over_chain=Interval(0.9, 0.8, 0.95), prompts=48)
    replace(found.recommendation, by_batch=[more]).save(tmp_path / "made.json")
    again = recommendation.load(tmp_path / "made.json")
    assert again.at(1).raced == raced and [each["tied"] for each in json.loads(
        (tmp_path / "made.json").read_text())["by_batch"][0]["raced"]] == [True, True, False]
    assert "a has the highest estimate; tied with it: b 0.98 [0.90, 1.05] (n = 9)" in again.text()
    assert "0.90 [0.80, 0.95] times as fast as the best chain (model, chain:3) (n = 48): no tree pays" in again.text()
    alone = replace(more, raced=[raced[0], raced[2]], best_tree=None)
    assert alone.ties == "a has the highest estimate; each of 1 others is slower (n = 9)"
    assert alone.trees == "no branching tree was judged"


def test_what_is_tied_is_what_the_paired_race_does_not_tell_apart():
    """Rates of twelve prompts: of one way the fastest's with noise, of another a fifth lower."""
    rng = np.random.default_rng(0)
    own = rng.uniform(1, 2, 12)
    rates = {"a": own, "b": own * np.exp(rng.normal(0, 0.1, 12)), "c": own * np.exp(rng.normal(-0.22, 0.1, 12)),
             PLAIN: np.ones(12)}
    rows = pd.DataFrame([dict(way=way, prompt=f"p{at}", repeat=0, rate=rate) for way, each in rates.items()
                         for at, rate in enumerate(each)])
    finalists = {name: replace(candidate("lookup", "chain:2", 1.0)) for name in "abc"}
    told = racing.beside(rows, finalists, {PLAIN: 1.0, "b": 1.5, "a": 1.6, "c": 1.3}, rng)
    assert [(each.name, each.nodes, each.tied) for each in told] == [
        ("a", 2, True), ("b", 2, True), ("c", 2, False), (PLAIN, 0, False)]
    assert told[0].over_fastest == ONE
    assert told[1].over_fastest.value == pytest.approx(np.exp(np.log(rates["b"] / own).mean()))
    few = racing.beside(rows[rows["prompt"].isin(["p0", "p1"])], finalists, {PLAIN: 1.0, "a": 1.6, "c": 1.3}, rng)
    assert all(each.tied for each in few) and np.isnan(few[1].over_fastest.low)


def test_the_fastest_chain_is_timed_even_where_its_drafter_has_two_faster_trees():
    price = RoundCost(1.0, 0.0, Curve.through([1], [0.0]), Curve.through([1, 8], [1.0, 1.0]))
    one, other = Entrant("eagle3", "eagle3", None, None), Entrant("sam", "sam", None, None)
    slow = candidate("lookup", "kary:2@2", 0.0)
    chains = [replace(candidate("", label, 0.5), entrant=one) for label in ("chain:3", "chain:2")]
    contest = Contest(1, [slow, *chains], {"eagle3": price, "lookup": price})
    named = [each.name for each in racing.finalists_of(contest)]
    assert named == ["eagle3, chain:2", "eagle3, chain:3", "lookup, kary:2@2"], "the only tree, though slow"
    tried = [replace(candidate("", label, accepted), entrant=entrant) for entrant, label, accepted in (
        (one, "kary:2@6", 0.60), (one, "kary:2@2", 0.58), (one, "chain:3", 0.55), (other, "chain:2", 0.40))]
    chosen = racing.finalists_of(Contest(1, tried, {"eagle3": price, "sam": price}))
    assert [each.name for each in chosen] == ["eagle3, kary:2@6", "eagle3, kary:2@2", "sam, chain:2", "eagle3, chain:3"]


def with_traits(deepest=None, **traits):
    return type("Stub", (NoDrafter,), {"traits": Traits(**traits), "deepest": deepest})()


def test_grown_trees_are_no_deeper_than_the_limits_and_the_head():
    head = with_traits(deepest=4, grows=True, per_depth=True, one_pass=True)
    assert [named(f"{name}@16").max_depth for name in candidates.growth_rules(head, 8)] == [4]
    assert [named(f"{name}@16").max_depth for name in candidates.growth_rules(head, 3)] == [3]
    head = with_traits(grows=True, one_pass=True)
    assert [named(f"{name}@16").max_depth for name in candidates.growth_rules(head, 8)] == [8]


def test_where_no_engine_runs_the_winner_the_fastest_that_one_runs_is_named():
    price = RoundCost(1.0, 0.0, Curve.through([1], [0.0]), Curve.through([1, 8], [1.0, 1.35]))
    winner = candidate("combined", "chain:4", 3.0)
    tried = [winner, candidate("lookup", "kary:2@6", 2.0), candidate("lookup", "chain:2", 1.0)]
    prices = {"combined": price, "lookup": price}
    set_so, served = racing.for_engines(winner, Contest(1, tried, prices))
    assert served == {"drafter": "lookup", "tree": "chain:2", "predicted": pytest.approx(2 / 1.05)}
    assert {one["draft"] for one in set_so} == {"the recommended tree"} and len(set_so) > 2
    assert racing.for_engines(winner, Contest(1, tried[:1], prices)) == ([], None)
    own, none = racing.for_engines(tried[2], Contest(1, tried, prices))
    assert own == set_so and none is None


def test_a_winner_without_a_checkpoint_is_said_to_have_none():
    made = ask([pair_of(small_models.related(TARGET, 4, 0.05))], drafters=["model"]).recommendation
    assert not made.at(1).settings and "no checkpoint of model exists that an engine reads" in made.text()


def test_the_file_and_the_lines_say_the_same(found, tmp_path):
    path = tmp_path / "new" / recommendation.FILE
    first, second = found.recommendation.by_batch
    made = replace(found.recommendation, by_batch=[replace(first, speedup=Interval(2.0, 1.5, 2.5)), second])
    made.save(path)
    told, again = path.read_bytes(), recommendation.load(path)
    assert again.text() == made.text() and again.at(1).shape == found.recommendation.at(1).shape
    again.save(path)
    assert path.read_bytes() == told
    for own in json.loads(told)["by_batch"]:
        value, low, high = own["speedup"]
        shown = f"{value:.2f}" if low is None else f"{value:.2f} [{low:.2f}, {high:.2f}]"
        assert (f"batch {own['batch']}: {own['drafter']} with {own['tree']} (budget {own['budget']}, depth "
                f"{own['depth']}), {shown} times plain decoding (predicted "
                f"{own['predicted']:.2f})") in again.text()
        assert all(one["setting"] in again.text() for one in own["settings"]) and own["settings"]
    for damaged in (told[:-40], b"[]", b'{"by_batch": []}'):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is no recommendation"):
            recommendation.load(path)


def test_the_reader_is_told_that_the_largest_is_best_and_that_prompts_are_few():
    own = ask([pair_of(small_models.related(TARGET, 4, 0.0))], level=0.0, node=0.0).recommendation.at(1)
    assert own.tree == "chain:3" and own.speedup.value == pytest.approx(4)
    assert "the best depth is the largest tested, 3: a larger one may be faster" in own.warnings
    assert any("3 batches of prompts are too few" in sentence for sentence in own.warnings)


def test_a_calibration_in_which_more_nodes_take_less_time_is_repeated_and_reported(monkeypatch):
    calls, calibrate = [], recommending.calibrate

    def counted(*arguments, **settings):
        calls.append(settings["shapes"])
        return calibrate(*arguments, **settings)

    monkeypatch.setattr(recommending, "calibrate", counted)
    made = ask([pair_of(None, "none")], drafters=["lookup"], node=-0.02, limits=Limits(8, 3)).recommendation
    assert calls.count([]) == 2 and any("took less time" in sentence for sentence in made.warnings)
    assert "took less time" in made.text()


@pytest.mark.parametrize(("nodes", "lower", "upper", "told"), [
    ([0, 4, 8], [1, 2, 3], [1.5, 2.5, 3.5], ""),
    ([0, 4, 8], [1, 2, 1.8], [1.5, 2.5, 2.2], ""),  # within the quartiles
    ([0, 4, 8], [1, 3, 1.5], [1.5, 3.5, 2.5], ".*a round with 8 nodes took less time .* than one with 4.*"),
    ([0, 4, 8], [3, 1, 4], [3.5, 2.5, 4.5], ".*a round with 4 nodes took less time .* than one with 0.*"),
    ([0, 4, 8, 8], [10, 20, 60, 45], [11, 22, 65, 50], ""),  # shapes of as many nodes may cost what they like
])
def test_falling_costs_are_found_beyond_the_noise(nodes, lower, upper, told):
    rows = pd.DataFrame(dict(batch=1, nodes=nodes, rounds=900, lower_ms=lower, upper_ms=upper, round_ms=lower))
    assert re.fullmatch(told, falling(rows))


@pytest.mark.parametrize("rounds", [6, 30])
def test_equal_costs_seldom_fall_by_chance_and_a_disturbed_round_is_found(rounds):
    """Quartiles of few rounds are uncertain, and a table of many shapes compares many of them."""
    rng, nodes = np.random.default_rng(0), [0, 1, 2, 3, 4, 7, 8, 15, 16, 31, 32, 63, 64]

    def told(times):
        noise = np.exp(0.05 * rng.standard_normal((rounds, 13)))
        lower, middle, upper = np.quantile(times * noise, [0.25, 0.5, 0.75], axis=0)
        return falling(pd.DataFrame(dict(batch=1, nodes=nodes, rounds=rounds, lower_ms=lower, upper_ms=upper,
                                         round_ms=middle)))

    equal, disturbed = np.full(13, 10.0), np.where(np.array(nodes) == 7, 13.0, 10.0)
    assert sum(bool(told(equal)) for _ in range(200)) <= 20
    assert sum("than one with 7" in told(disturbed) for _ in range(200)) >= 180


def on_blocks(*arguments, **settings):
    """The loop with a clock by which a check takes 1 s for 16 rows and 0.8 s for each 16 more, and a level 1 ms."""
    done, batch = loop.generate(*arguments, **settings), arguments[2].shape[0]
    return replace(done, rounds=[replace(one, draft_seconds=1e-3 * one.draft_calls, commit_seconds=0.0,
                                         verify_seconds=0.2 + 0.8 * -(-batch * (one.drafted + 1) // 16))
                                 for one in done.rounds])


@pytest.mark.parametrize(("batch", "most", "budget"), [(1, 16, 15), (2, 8, 7)])
def test_the_largest_tree_before_a_step_of_the_cost_of_a_check_is_recommended(batch, most, budget):
    pair = pair_of(small_models.related(TARGET, 4, 0.4))
    made = ask([pair], drafters=["model"], batches=[batch], limits=Limits(most, 4), generate=on_blocks)
    own, rows = made.recommendation.at(batch), made.candidates.set_index("shape")
    assert own.budget == budget and rows["budget"].max() == most
    for family in ("independent:4", "optimal", "frequent"):
        assert rows.loc[f"{family}@{budget}", "speedup"] > 1.5 * rows.loc[f"{family}@{most}", "speedup"]


# ----------------------------------------------------------------------------------------------------------- candidates


def test_a_target_alone_has_every_drafter_that_needs_no_model():
    alone = [one.name for one in candidates.entrants([pair_of(None, "none")])]
    assert {"lookup", "sam"} <= set(alone)
    both = [pair_of(small_models.related(TARGET, seed, 0.1), f"d{seed}") for seed in (1, 2)]
    names = [one.name for one in candidates.entrants(both)]
    assert sorted(names) == sorted([*alone, "model (d1)", "model (d2)", "combined (d1)", "combined (d2)"])
    with pytest.raises(ValueError, match="no draft model"):
        candidates.entrants([pair_of(None)], ["model"])


@pytest.mark.parametrize("spec", ["lookup", "sam", "model", "ngrams"])
def test_replayed_tokens_per_round_are_those_of_live_decoding(spec):
    pair, prompts = pair_of(small_models.related(TARGET, 4, 0.05)), prompts_of(range(6))
    tables = NgramTables(({(1,): 2, (3,): 4},), TARGET.config.vocab_size)  # with tokens after few others
    [one] = candidates.entrants([pair], [spec]) if spec != "ngrams" else [
        Entrant(spec, spec, pair, NgramDrafter(tables))]
    recorded = candidates.record(pair, [one], prompts, 20, 3)
    for each in candidates.static(one, recorded, Limits(4, 3)):
        if each.label not in ("chain:2", "independent:2@4"):
            continue
        done = ways.ours(pair, one.drafter, each.shape, 20)(prompts.ids)
        counted = [record for record in done.rounds if record.position - 1 < recorded.trace.loops[record.row]]
        assert each.tokens == pytest.approx(1 + np.mean([record.accepted for record in counted]))
        drafted = np.bincount([record.drafted for record in counted], minlength=len(each.sizes))
        assert each.sizes == pytest.approx(drafted / len(counted))


def test_grown_trees_are_tried_in_turns_and_cost_what_growing_was_timed_to_take(monkeypatch):
    monkeypatch.setattr(candidates, "GROWN_BUDGETS", range(1, 4))
    pairs = [pair_of(small_models.related(TARGET, seed, 0.05), f"d{seed}") for seed in (4, 6)]
    found = ask(pairs, drafters=["model"])
    by_rule = [each for each in found.tried if not isinstance(each.shape, Tree)]
    assert {each.entrant.name for each in by_rule[:2]} == {"model (d4)", "model (d6)"}, "in turns"
    assert {"opttree:4,1,0.05@1", "opttree:4,3,0.05@3"} < set(found.costs["shape"])
    price = found.prices[1]["model (d4)"]
    for each in by_rule[:2]:
        free = replace(price, grown=price.grown.times(0.0))
        taken = each.seconds(price) - each.seconds(free)
        assert taken == pytest.approx(price.grown(each.shape.budget)) and taken > 0
    hurried = ask(pairs, drafters=["model"], seconds=0.0)
    left_out = "no time was left to grow trees with model (d4), model (d6): give more seconds"
    assert sorted(left_out) == sorted(next(each for each in hurried.recommendation.warnings if "to grow" in each))


def test_drafters_that_sample_are_decoded_and_not_replayed():
    pair, prompts = pair_of(small_models.related(TARGET, 4, 0.05)), prompts_of(range(2))
    [one] = candidates.entrants([pair], ["model:iid"])
    recorded = candidates.record(pair, [one], prompts, 8, 3)
    assert one.drafter.traits.replay == LIVE and not recorded.trace.ranks
    assert not list(candidates.grown(one, recorded, Limits()))
    assert not list(candidates.static(one, recorded, Limits(4, 3)))


def test_a_tree_behind_a_look_up_has_the_passes_of_its_levels():
    pair, prompts = pair_of(small_models.related(TARGET, 4, 0.05)), prompts_of(range(3))
    [both] = candidates.entrants([pair], ["combined"])
    recorded = candidates.record(pair, [both], prompts, 12, 3)
    wide = {each.label: each for each in candidates.static(both, recorded, Limits(8, 3))}["independent:4@8"]
    assert wide.passes == {1: 1, 4: 1} and 0 < wide.calling <= 1, "the root's and the first level's"


def test_a_batch_drafts_where_one_of_its_rows_does():
    [one] = candidates.entrants([pair_of(None)], ["lookup"])
    price = RoundCost(1.0, 0.1, Curve.through([1], [0.2]), Curve.through([1], [1.0]))
    each = candidates.Candidate(one, "chain:2", None, "xy", np.ones(2), np.ones(2), np.array([0.0, 0.0, 1.0]),
                                {1: 2.0}, calling=0.25)
    assert each.seconds(price) == pytest.approx(1 + 0.25 * 0.5)
    assert each.seconds(price, batch=3) == pytest.approx(1 + (1 - 0.75**3) * 0.5)


@pytest.mark.parametrize("batch", [1, 2])
def test_costs_decide_the_budget_of_each_round(batch):
    """Costs with a step: of up to three nodes all are free, the fourth doubles the round."""
    pair, prompts = pair_of(small_models.related(TARGET, 4, 0.05)), prompts_of(range(4))
    model, lookup = candidates.entrants([pair], ["model", "lookup"])
    recorded = candidates.record(pair, [model], prompts, 12, 3)
    price = RoundCost(1.0, 0.1, Curve.through([1, 4], [0.01, 0.01]), Curve.through([1, 3, 4, 8], [1, 1, 2, 2]))
    [smart] = candidates.automatic(model, recorded, Limits(8, 3), price, batch)
    assert smart.label == "smart:3@8" and smart.shape.costs == Costs((1.1, 1.1, 1.1, 1.1, *[2.1] * 5), 0.01)
    assert smart.sizes[4:].sum() == 0 and smart.sizes[3] > 0.5 and smart.tokens > 1
    slower, free = (replace(smart, drafting=seconds).seconds(price, batch) for seconds in (5.0, 0.0))
    assert slower == free + 5, "what was timed by itself stands in place of the drafter's costs"
    done = ways.ours(pair, model.drafter, smart.shape, 12)(prompts.ids[:batch])
    assert {record.drafted for record in done.rounds} <= {0, 1, 2, 3}
    assert not list(candidates.automatic(lookup, recorded, Limits(8, 3), price, batch))


def test_a_recommended_rule_is_kept_with_its_costs(found, tmp_path):
    costs = Costs((1.0, 1.5, 1.75), 0.25)
    first = replace(found.recommendation.by_batch[0], tree="smart:2@2", choices=None, costs=asdict(costs))
    replace(found.recommendation, by_batch=[first]).save(tmp_path / "made.json")
    assert recommendation.load(tmp_path / "made.json").at(1).shape == named("smart:2@2", costs=costs)


def test_trees_grown_from_text_are_judged_on_other_prompts_and_hold_the_most_frequent_paths():
    recorded = synthetic(np.random.default_rng(2), rows=8, width=20, ranks=3)
    halves = candidates.folds(recorded)
    assert [len(part.prompts) for part in halves[0]] == [4, 4] and halves[1] == halves[0][::-1]
    assert not set(halves[0][0].prompts) & set(halves[0][1].prompts)
    assert candidates.folds(recorded.select(np.arange(8) < 1))[0][0].prompts == ("0",)
    shallow = [path for path, _ in most_frequent_paths(recorded, 500, "d") if len(path) <= 2]
    assert [path for path, _ in most_frequent_paths(recorded, 5, "d", most_depth=2)] == shallow[:5]
    for family in (candidates.OPTIMAL, candidates.FREQUENT):
        tree = candidates.from_data(recorded, "d", family, Limits(6, 2))
        assert tree.budget == 6 and tree.max_depth <= 2
    with pytest.raises(ValueError, match="limits are 0 nodes"):
        Limits(0, 4)


def test_rounds_that_draft_nothing_cost_a_plain_round():
    price = test_cost.TRUE
    [one] = candidates.entrants([pair_of(None)], ["lookup"])
    each = candidates.Candidate(one, "chain:2", None, "xy", np.ones(2), np.ones(2),
                                np.array([0.5, 0.25, 0.25]))
    checks = price.check(np.array([1, 2]))
    assert each.seconds(price) == pytest.approx(0.5 * price.plain + 0.25 * checks.sum())
    assert each.seconds(price, batch=2) == pytest.approx(
        0.25 * price.plain + (0.75**2 - 0.5**2) * checks[0] + (1 - 0.75**2) * checks[1])
    assert replace(each, passes={1: 2.0}).seconds(price) == pytest.approx(
        each.seconds(price) + price.once + 2 * price.level(1))


@pytest.mark.parametrize("now, end", [(4.0, 5.0), (7.0, 7.5), (12.0, 12.0)])
def test_a_stage_that_starts_late_has_its_share_of_what_is_left(now, end):
    whole = Deadline(lambda: now, 10.0)
    assert whole.share(1 / 6).end == pytest.approx(end) and whole.over() == (now > 10) == (whole.left() == 0)


def test_ways_have_the_same_groups_and_repeats_and_end_with_the_time():
    pair, groups = pair_of(None), ways.groups(prompts_of(range(6)), 2)
    runs = {PLAIN: ways.ours(pair, NoDrafter(), "chain:0", 6), GENERATE: ways.theirs(pair, GENERATE, 6)}
    settings = dict(device="cpu", generator=torch.Generator().manual_seed(0))
    rows = ways.race(runs, groups, Deadline(time.perf_counter, float("inf")), repeats=2, least=1, **settings)
    assert len(rows) == 2 * 2 * len(groups) and (rows["tokens"] == 12).all() and (rows["rate"] > 0).all()
    late = ways.race(runs, groups, Deadline(time.perf_counter, 0.0), repeats=2, least=1, **settings)
    assert late["prompt"].nunique() == 1


class Stopwatch:
    """A clock that ways move on by what they say they take; answers are one token long before `lasting`."""

    def __init__(self, lasting=0.0):
        self.now, self.lasting = 0.0, lasting

    def taking(self, seconds):
        def run(prompts):
            self.now += seconds
            answer = [1, 2] if self.now > self.lasting else [1]
            return ways.Continued([answer] * len(prompts), [], prefilled=self.now - seconds / 2)
        return run

    def race(self, batch, end=float("inf"), enough=None, **settings):
        """Plain decoding takes 1 s, and transformers' generation, where it is sparing, 5 s."""
        runs = {PLAIN: self.taking(1.0)} | {way: self.taking(5.0) for way in settings.get("sparing", ())}
        deadline, *sooner = (Deadline(lambda: self.now, time) for time in (end, *(enough or ())[1:]))
        return ways.race(runs, ways.groups(prompts_of(range(6)), batch), deadline, least=2, device="cpu",
                         enough=enough and (enough[0], *sooner), generator=torch.Generator().manual_seed(0), **settings)


@pytest.mark.parametrize("until, enough, turns", [
    (10.25, (4, 6.25), 7), (10.25, (8, 6.25), 8), (10.25, (20, 6.25), 11), (0.0, (8, 0.0), 2), (99.0, (0, 1e9), 24)])
def test_a_race_ends_once_enough_groups_are_measured_or_the_time_is_over(until, enough, turns):
    rows = Stopwatch().race(1, until, enough, repeats=4, warm=[PLAIN])
    assert len(rows) == turns and rows["prefill"].to_numpy() == pytest.approx(0.5)


def test_a_way_that_only_stands_beside_takes_a_quarter_of_the_time():
    rows = Stopwatch().race(2, repeats=60, sparing=[GENERATE])
    spent = rows.groupby("way")["seconds"].agg(["sum", "size"])
    assert spent.loc[PLAIN, "size"] == 60 * 4
    assert spent.loc[GENERATE, "sum"] / spent["sum"].sum() == pytest.approx(ways.SPARED, abs=0.02)
    assert set(rows["way"].iloc[:4]) == {PLAIN, GENERATE}
    late = Stopwatch(lasting=20.0).race(2, repeats=2, sparing=[GENERATE])
    assert set(late["way"]) == {PLAIN, GENERATE}, "it has a turn that counts, though its first answers end at once"


def test_without_an_interval_the_value_itself_is_compared():
    few, sure, unsure = Interval(0.9), Interval(0.9, 0.8, 0.95), Interval(0.9, 0.8, 1.1)
    assert [each.is_below(1) for each in (few, sure, unsure)] == [True, True, False]
    assert [each.is_above(0.85) for each in (few, sure, unsure)] == [True, False, False]
