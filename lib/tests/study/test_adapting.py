"""Policies by replay write the rounds of live decoding, fixed ways those of replay, and hindsight is the best of all."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lib.decoding import generate
from lib.drafters.adaptive import POLICIES, AdaptiveDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.engines.methods import PLAIN, Way, rounds_of
from lib.engines.own import Own
from lib.forward.load import load_pair
from lib.lab import tables
from lib.lab.chapter import Store
from lib.models.prompts import load
from lib.replay.recording import record
from lib.replay.simulated import Recorded
from lib.study import acceptance, adapting, candidates, costs
from lib.study.adapting import Text
from lib.study.bench import Bench, arranged
from lib.study.costs import Costs, curve_through
from lib.trees.shapes import chain

LONGEST, TOKENS = 8, 40
COSTS = Costs(curve_through([1], [1.0]), {1: curve_through([0, 1, 4, 8], [1.0, 1.1, 1.3, 2.0])},
              {1: {"model": lambda tree: 0.1 * tree.max_depth}})


class Watched(Text):
    """A text that keeps the drafted and accepted tokens of the rounds of its last walk."""

    def walk(self, choose, learn=lambda start, choice: None) -> float:
        rounds = self.__dict__["rounds"] = []

        def seen(start, choice):
            rounds.append((int(self.drafted[start, choice]), int(self.tokens[start, choice]) - 1))
            learn(start, choice)

        return super().walk(choose, seen)


@pytest.fixture(scope="module")
def pair():
    return load_pair("base/tiny-base", dtype="float32")


@pytest.fixture(scope="module")
def texts(pair) -> tuple[Recorded, list[Watched]]:
    """Some texts, with the choices of a draft model and of look-up."""
    prompts = load("", pair.tokenizer, limit=400, first=2)
    recorded = Recorded(record(pair.target, {"model": pair.draft_model}, prompts.ids, names=prompts.names,
                               kinds=prompts.kinds, max_new_tokens=TOKENS, beyond=LONGEST + 1), prompts.ids)
    drafters = {"model": LanguageModelDrafter(pair.draft_model), "lookup": LookupDrafter()}
    accepted = [adapting._accepted(recorded, name, drafter, LONGEST) for name, drafter in drafters.items()]
    drafting = [adapting._drafting(COSTS, name, LONGEST) for name in drafters]
    rows = range(len(prompts.ids))
    made = [adapting._text(recorded, row, [one[row] for one in accepted], drafting, COSTS) for row in rows]
    return recorded, [Watched(**vars(text)) for text in made]


@pytest.mark.parametrize("policy", POLICIES)
def test_a_replayed_policy_has_the_rounds_of_live_decoding(policy, pair, texts):
    for prompt, text in zip(texts[0].prompts, texts[1]):
        text.policy(POLICIES[policy](), 0, LONGEST)
        drafter = AdaptiveDrafter(LanguageModelDrafter(pair.draft_model), policy=POLICIES[policy]())
        live = generate(pair.target, drafter, prompt[None], shape=f"chain:{LONGEST}", max_new_tokens=TOKENS + 1).rounds
        assert text.rounds == [(one.drafted, one.accepted) for one in live] and len(live) > 4


def test_a_fixed_way_has_the_rounds_of_replay(pair, texts):
    recorded, watched = texts
    sizes = rounds_of(Way("m", "model", chain(3), "chain:3", LanguageModelDrafter(pair.draft_model), "model"), recorded,
                      TOKENS + 1)
    for text, rounds in zip(watched, sizes):
        seconds = text.fixed(3)
        assert text.rounds == [tuple(size) for size in rounds[:, :2].tolist()]
        assert seconds == pytest.approx(len(rounds) * (float(COSTS.check(1, np.array(3))) + 0.3))


@given(st.lists(st.tuples(*[st.integers(1, 4)] * 2, *[st.floats(0.5, 2)] * 2), min_size=1, max_size=6))
def test_hindsight_is_the_least_of_all_choices(places):
    tokens, seconds = np.array([place[:2] for place in places]), np.array([place[2:] for place in places])
    text = Text(tokens, seconds, tokens, [0], [0])
    spent = [text.walk(iter(choices).__next__) for choices in product(range(2), repeat=len(places))]
    assert text.oracle() == pytest.approx(min(spent))


def test_two_policies_are_raced_in_turns_with_plain_decoding(pair, tmp_path):
    """They write the target's own text; what replay and costs give stands beside; a second call measures nothing."""
    prompts, parts = arranged(load("", pair.tokenizer, limit=400, first=2), 1, 1, np.random.default_rng(0))
    bench = Bench(Own(pair, prompts.ids), Store(tmp_path, "05", "x"), pair.target_name, prompts, parts, 12, {1: 2}, 4,
                  list(pair.eos_token_ids))
    drafters = {"model": LanguageModelDrafter(pair.draft_model), "lookup": LookupDrafter()}
    recorded = acceptance.record(bench, drafters)
    ways = candidates.static_ways(bench, recorded, drafters, 4)
    costs.measure(bench, ways, 4)
    adapting.measure(bench, recorded, ways)
    timed = tables.read(tmp_path, "05_timed")
    assert timed.groupby("way").size().to_dict() == {PLAIN: 2, "policy pays": 2, "policy choosing": 2}
    assert not timed["parted"].any() and timed["turn"].eq(adapting.TURN).all()
    seconds = tables.read(tmp_path, "05_adapting").query("backend == @bench.backend.name").pivot(
        index="prompt", columns="policy", values="seconds")
    for row in timed[timed["way"] != PLAIN].itertuples():
        assert row.predicted == pytest.approx(seconds[PLAIN][row.call] / seconds[row.way.split()[1]][row.call])
    adapting.measure(bench, recorded, ways)
    assert tables.read(tmp_path, "05_timed").equals(timed)
