"""The acceptance study: prompts and traces, live rows beside replayed ones, and what its tables add up to."""


import numpy as np
import pandas as pd
import pytest
import torch

from lib import replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import theme
from lib.lab.tables import Table
from lib.models import Pair
from lib.replay import acceptance
from lib.replay.trace import Trace
from lib.studies.acceptance import live, measure, recording, shape_findings, summary
from lib.tests import small_models
from lib.tests.replay.test_acceptance import ABOUT, recorded
from lib.trees import shapes


@pytest.mark.parametrize("rows, choosing", [(30, None), (30, [1] * 30), (30, [0] * 30), (20, [1, 0] * 15)])
def test_a_trace_that_does_not_say_what_chooses_is_refused(rows, choosing):
    """A part of a trace still says what the whole one said, which names other rows."""
    made = recorded().select(np.arange(rows))
    about = dict(made.about) if choosing is None else made.about | {"choosing": choosing}
    with pytest.raises(ValueError, match=f"{rows} rows has about.*give one per row"):
        recording.halves(replay.Trace(**{**vars(made), "about": about}))


def test_nodes_are_accepted_as_often_as_their_children_and_the_rounds_that_end_there():
    made, tree = recorded(), shapes.parse("kary:2@14")
    rounds = acceptance.rounds_of(made, tree, "d")
    nodes = acceptance.by_node(tree, rounds, made.loops).assign(family="kary:2")
    assert nodes["accepted"].sum() == acceptance.by_depth(made, tree, rounds)["accepted"].sum()
    again, share = summary.tree_of(nodes)
    assert again == tree and share[1:] == pytest.approx(nodes["accepted"] / nodes["rounds"])
    for node in range(1, tree.size):
        assert share[node] >= sum(share[child] for child in tree.children(node)) - 1e-12
    assert summary.utilisation(nodes, at_least=0.0)["kary:2"] == 1


def test_prompts_are_split_by_kind_and_short_kinds_refused():
    ids = [torch.arange(100)] * 10
    split = recording.split_prompts([str(i) for i in range(10)], ["a", "b"] * 5, ids, choose=2, judge=3)
    assert len(split.ids) == 10 and split.choosing.sum() == 4
    assert [split.names[i] for i in np.flatnonzero(split.choosing)] == ["0", "1", "2", "3"]
    begun = recording.real_text_starts(split, 3)
    assert [len(ids) for ids in begun.ids[:3]] == [64, 82, 100] and begun.names[:3] == ("0",) * 3
    with pytest.raises(ValueError, match="kinds a, b have fewer than 3 \\+ 3 prompts"):
        recording.split_prompts(split.names, split.kinds, split.ids, choose=3, judge=3)


def test_traces_are_made_once_and_read_again(tmp_path):
    target = small_models.llama(0)
    drafters = {"d": small_models.related(target, 1, noise=0.3)}
    ids = small_models.prompts(0, (70, 80, 66, 90))
    split = recording.split_prompts(list("abcd"), ["k"] * 4, ids, choose=1, judge=3)
    said = []
    settings = dict(temperatures=[0.0, 1.0], tokens=6, starts=2, horizon=4, eos_token_id=None, seed=0, folder=tmp_path,
                    report=said.append)
    once = recording.record("t", target, drafters, split, **settings)
    again = recording.record("t", None, None, split, **settings)  # no model is asked a second time
    assert len(once) == 4 and len(said) == 8
    alone = recording.record("t", None, None, split, **settings, protocols=[acceptance.REAL_TEXT])
    assert [one.about["protocol"] for one in alone] == [acceptance.REAL_TEXT] * 2
    with pytest.raises(ValueError, match="protocol is 'prose'; choose"):
        recording.record("t", None, None, split, **settings, protocols=["prose"])
    for changed, said in ((dict(seed=8), "seed"), (dict(tokens=5), "transitions")):
        with pytest.raises(ValueError, match=f"t.continuation.t0.safetensors was recorded with other {said}: give"):
            recording.record("t", None, None, split, **settings | changed)
    with pytest.raises(ValueError, match="was recorded with other choosing, prompts"):
        recording.record("t", None, None, split.select([0, 1, 2]), **settings)
    for first, second in zip(once, again):
        assert np.array_equal(first.ranks["d"], second.ranks["d"])
    tables = measure.replay_all(once[0], ["chain", "optimal"], [1, 4], 4)
    assert set(tables["acceptance"]["prompt"]) <= set("bcd"), "prompts that no tree was grown from"


class Tokenizer:
    eos_token_id, chat_template = None, None


class ChatTokenizer(Tokenizer):
    chat_template = "{{ messages }}"


def test_a_target_alone_is_studied_with_drafters_of_its_text(tmp_path):
    """By ranks and by drafting again: its rows are those of live decoding, and the shapes' findings have them."""
    target = small_models.llama(0)
    target.generation_config.eos_token_id = None
    pair = Pair("t", target, None, ChatTokenizer(), "t", "none")
    assert recording.protocols_of(pair) == (acceptance.CONTINUATION,), "a chat model has no starts in real text"
    asked = recording.split_prompts(list("abcdef"), ["k", "l"] * 3, small_models.prompts(0, (9, 12, 7, 8, 15, 6)),
                                    choose=1, judge=2)
    drafters = recording.Competitors([pair])
    ranked = recording.of_ranks(drafters)
    assert list(ranked) == ["ngrams"] and {*drafters} == {"ngrams", "lookup", "sam"}
    [made] = recording.record("t", target, ranked, asked, temperatures=[0.0], tokens=24, starts=2, horizon=4,
                              eos_token_id=None, seed=0, folder=tmp_path, protocols=recording.protocols_of(pair),
                              deepest=8, report=str)
    tables = measure.replay_all(made, ["chain", "star", "optimal"], [2, 8], 8, drafters, asked)
    judged = asked.select(np.flatnonzero(~asked.choosing))
    for name, drafter in drafters.items():
        done = live.decode(target, drafter, judged.ids, shape="chain:8", max_new_tokens=25)
        lived = live.tally(done, judged.names, judged.kinds)
        found = summary.where(tables["acceptance"], drafter=name, family="chain", budget=8)
        columns = ["prompt", "stretch", "rounds", "drafted", "accepted"]
        both = [frame.sort_values(["prompt", "stretch"]).reset_index(drop=True)[columns] for frame in (lived, found)]
        pd.testing.assert_frame_equal(*both, check_dtype=False)
    further = measure.chains(made, [2, 8], drafters, asked)
    both = further.merge(tables["acceptance"].query("family == 'chain'"), suffixes=("", "_"), on=[
        "drafter", "budget", "prompt", "stretch", "temperature", "protocol"])
    assert len(both) == len(further) and (both["accepted"] == both["accepted_"]).all(), "as among the families"
    stored = Table("", "chains", "mark")
    stored.extend(further)
    told = shape_findings.chains(stored.frame(), np.random.default_rng(0)).table
    own = further.query("drafter == 'sam' and budget == 8 and stretch == 'before'")[["rounds", "accepted"]].sum()
    assert told.loc["t/sam", 8].endswith(f"; {1 - own['rounds'] / (own['rounds'] + own['accepted']):.2f}")
    compared = shape_findings.Shapes(tables, "t/ngrams", 8, np.random.default_rng(0))
    assert compared.protocol == acceptance.CONTINUATION
    families = compared.lengths.groupby("pair")["family"].unique().map(set)
    assert families["t/ngrams"] == {"chain", "star", "optimal"} and families["t/lookup"] == {"chain", "star"}
    assert set(measure.choices([made], 8, np.random.default_rng(0))["family"]) == {"frequent", "optimal"}
    assert measure.compare_grown(made, "ngrams", ranked, asked, families=["chain"], rules=["dyspec"],
                                 budgets=[4]).empty
    assert measure.expected(pair, judged, ["chain:2"], [1.0], new_tokens=4, seed=0).empty
    assert live.sampled(pair, judged, ["chain:2"], [1.0], new_tokens=4, seed=0).empty


def test_a_reduced_vocabulary_covers_the_tokens_that_it_has(monkeypatch):
    """Those that the target wrote before a loop; nothing where no list of frequent tokens ships."""
    made = Trace(tokens=np.array([[9, 1, 2, 5, 6, 1], [9, 3, 2, 2, 2, -1]], np.int32), lengths=np.array([5, 4]),
                 ended=np.array([False, True]), loops=np.array([4, 4]), target_probs=np.zeros((2, 5)), ranks={},
                 probs={}, alpha={}, prompts=("a", "b"), kinds=("k", "l"),
                 about={"target": "t", "protocol": acceptance.CONTINUATION, "temperature": 0.0})
    assert measure.vocabulary([made]).empty
    monkeypatch.setattr(measure.reduced, "ships", lambda target: True)
    monkeypatch.setattr(measure.reduced, "shipped", lambda target, count: torch.tensor([1, 2, 6]))
    rows = measure.vocabulary([made])
    assert rows["tokens"].tolist() == [4, 4] and rows["covered"].tolist() == [3, 3]
    found = shape_findings.vocabulary(rows, np.random.default_rng(0))
    assert "75.0%" in found.claim + found.text and list(found.table.index) == ["k", "l"]


def test_the_drafters_of_a_pair_are_its_models_or_what_is_asked_for():
    target, model = small_models.llama(0), small_models.related(small_models.llama(0), 1, 0.3)
    pair = Pair("t/d", target, model, Tokenizer(), "t", "d")
    assert recording.protocols_of(pair) == (acceptance.CONTINUATION, acceptance.REAL_TEXT)
    assert recording.Competitors([pair]) == {"d": model}
    assert list(recording.Competitors([pair], ["sam", "model"])) == ["sam", "d"]
    with pytest.raises(ValueError, match="drafter 'recycling' depends on more than the text.*notebook 5"):
        recording.Competitors([pair], ["model", "recycling"])
    with pytest.raises(ValueError, match="drafters are sam, of which none has ranks; add"):
        recording.Competitors([pair], ["sam"])


def test_live_rows_of_top_k_equal_replayed_ones():
    target = small_models.llama(0)
    drafter = small_models.related(target, 1, noise=0.3)
    asked = recording.split_prompts(list("abc"), ["k"] * 3, small_models.prompts(0, (9, 12, 5)), choose=0, judge=3)
    done = live.decode(target, LanguageModelDrafter(drafter), asked.ids, shape="kary:2@6", max_new_tokens=17)
    made = replay.record(target, {"d": drafter}, asked.ids, names=asked.names, kinds=asked.kinds, max_new_tokens=16,
                         beyond=3, about=ABOUT)
    tree = shapes.parse("kary:2@6")
    replayed = acceptance.tally_walk(made, acceptance.rounds_of(made, tree, "d"))
    columns = ["prompt", "stretch", "rounds", "drafted", "accepted"]
    both = [frame.sort_values(["prompt", "stretch"]).reset_index(drop=True)[columns]
            for frame in (live.tally(done, asked.names, asked.kinds), replayed)]
    pd.testing.assert_frame_equal(*both, check_dtype=False)


def test_a_family_is_exhausted_where_more_nodes_add_next_to_nothing():
    found = pd.DataFrame({"family": "chain", "budget": [1, 2, 4, 8], "value": [0.5, 0.9, 0.995, 1.0]})
    assert summary.exhausted(found, "chain") == 4 and summary.exhausted(found, "chain", share=1.0) == 8


def test_findings_read_a_table():
    rows = pd.DataFrame([
        dict(target="t", drafter="d", protocol="x", temperature=0.0, family=family, budget=budget, stretch="before",
             prompt=prompt, kind="k", rounds=10, drafted=10 * budget, accepted=accepted, depth=budget)
        for family, gains in {"chain": (5, 6), "star": (5, 4), "optimal": (5, 8)}.items()
        for budget, accepted in zip((1, 4), gains) for prompt in "pq"])
    found = summary.lengths(summary.clean(rows), np.random.default_rng(0))
    best = summary.best_fixed(found)
    assert best.loc[4, "family"] == "chain" and best.loc[4, "of_optimal"] == pytest.approx(6 / 8)


def test_expected_and_live_acceptance_are_compared_over_all_settings_together():
    """Settings that share their texts differ from live ones together: four differences beyond 0 are one accident."""
    rng, rows = np.random.default_rng(0), []
    luck = rng.normal(0, 3, 40)  # of the texts that all expectations are on
    for shape in ("chain:2", "chain:4", "kary:2@6", "star:3"):
        for how, texts in (("expected", luck), ("live", rng.normal(0, 3, 40))):
            rows += [dict(how=how, pair="t/d", rule="naive", shape=shape, temperature=1.0, prompt=str(prompt), kind="k",
                          stretch="before", rounds=10.0, accepted=20 + text) for prompt, text in enumerate(texts)]
    rows = pd.DataFrame(rows)
    expected, lived = (rows[rows["how"] == how].drop(columns="how") for how in ("expected", "live"))
    found = shape_findings.expected_and_live(expected, lived, np.random.default_rng(0))
    means = rows.groupby("how")[["accepted", "rounds"]].sum()
    apart = (means["accepted"] / means["rounds"]).diff().abs().iloc[-1]
    assert f"{apart:.3f} [" in found.text and "of 4." in found.text
    theme.close(found.figure)
    none = shape_findings.expected_and_live(pd.DataFrame(), lived, rng)
    assert none.figure is None and "not compared" in none.claim
