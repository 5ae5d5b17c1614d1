"""The drafter study on tiny models: its rows against the rounds, its summaries against hand-made tables."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch

from lib.drafters import NoDrafter, heads
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.lookup import LookupDrafter
from lib.drafters.recycling import RecyclingDrafter
from lib.drafters.self_speculation import EarlyExitDrafter, first_layers
from lib.lab import tables, theme
from lib.models.prompts import PromptSet
from lib.replay import live
from lib.studies.drafters import findings, measure, summary
from lib.tests import small_heads, small_models

TARGET = small_models.llama(3, layers=2)
OTHERS = {name: small_models.related(TARGET, seed, noise=0.4) for name, seed in (("one", 4), ("two", 5))}
PROMPTS = small_models.prompts(5, (9, 5, 7))
ASKED = PromptSet(("a", "b", "c"), ("code", "story", "story"), tuple(PROMPTS))


def a_pair(name):
    return SimpleNamespace(name=f"target/{name}", target=TARGET, target_name="target", drafter_name=name,
                           draft_model=OTHERS.get(name), eos_token_ids=(), dtype="float64",
                           vocabulary=small_models.VOCABULARY)


PAIRS = [a_pair("one"), a_pair("two")]


def measured(pairs=PAIRS, **changed):
    settings = dict(specs=[], shape_names=["chain:3", "kary:2@6"], new_tokens=10, seed=0) | changed
    specs, shape_names = settings.pop("specs"), settings.pop("shape_names")
    return list(measure.measure(pairs, ASKED, specs, shape_names, **settings))


def test_every_drafter_is_measured_once_a_prompt_and_shape_and_says_what_plain_decoding_says():
    parts = measured()
    rows = pd.DataFrame([row for part in parts for row in part])
    assert len(parts) == 3 and rows["identical"].all()
    labels = set(rows["drafter"]) - {"none"}
    assert {"model one", "model two", "lookup:frequent", "merged", "early_exit:1", "oracle"} <= labels
    table = tables.Table("", "drafters", "x")
    table.extend(rows)
    per_setting = rows.groupby(["prompt", "drafter", "shape"])[["rounds", "tokens"]].sum()
    assert len(per_setting) == 3 * (1 + 2 * len(labels)) and set(rows["dtype"]) == {"float64"}
    assert per_setting["tokens"].between(9, 9 + 3).all(), "the first token is the prefill's, the last round is whole"


def test_a_row_is_its_rounds():
    rows = pd.DataFrame([row for part in measured(specs=["model"], shape_names=["kary:2@6"]) for row in part])
    own = rows[(rows["drafter"] == "model one")]
    done = live.decode(TARGET, LanguageModelDrafter(OTHERS["one"]), PROMPTS, shape="kary:2@6", max_new_tokens=10,
                       rows=1)
    full = done.rounds
    assert own["rounds"].sum() == len(full) and own["accepted"].sum() == sum(found.accepted for found in full)


def test_what_is_done_is_not_done_again():
    parts = measured(specs=["lookup"], shape_names=["chain:2"], done={("target", "a"), ("target", "c")})
    assert [{row["prompt"] for row in part} for part in parts] == [{"b"}]


def test_a_resumed_run_gives_the_rows_of_one_that_was_not_stopped():
    """Except for times: also what a drafter holds, and what one that remembers earlier prompts drafts."""
    settings = dict(specs=["recycling", "adaptive:complexity", "sam"], shape_names=["chain:3"])
    for row, other in zip(measured(**settings)[2], measured(**settings, done={("target", "a"), ("target", "b")})[0],
                          strict=True):
        assert {name: value for name, value in row.items() if not name.endswith("_ms")} == {
            name: value for name, value in other.items() if not name.endswith("_ms")}


def test_memory_leaves_out_single_numbers():
    drafter = SimpleNamespace(text=[1, 2], calls=3)
    before = measure.held(drafter)
    drafter.calls = 10**9
    assert measure.held(drafter) == before


def test_trained_heads_take_part_by_their_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(heads.store, "PLACES", (tmp_path, tmp_path / "made"))
    for kind in ("medusa", "eagle"):
        heads.save(small_heads.head(kind, TARGET), tmp_path / "target" / kind)
    heads.save(small_heads.head("medusa", TARGET, seed=1), tmp_path / "made" / "target" / "medusa-second")
    (tmp_path / "target" / "notes").mkdir()
    heads.save(small_heads.head("medusa", TARGET, seed=2), tmp_path / "made" / "target" / "medusa")
    assert measure.heads_of("target") == ["eagle", "medusa", "medusa-second"]
    assert heads.folder_of("target", "medusa") == tmp_path / "target" / "medusa", "what ships goes before"
    names = ["medusa-second", "eagle"]
    rows = pd.DataFrame([row for part in measured(specs=names, shape_names=["kary:2@6"]) for row in part])
    beside = {"none", "model one", "model two", "lookup"}
    assert set(rows["drafter"]) == {*beside, *names} and rows["identical"].all()
    assert (rows.loc[rows["drafter"].isin(names), "weight_bytes"] > 0).all()


def test_whoever_is_asked_for_stands_beside_every_model_and_look_up():
    assert list(measure.candidates(PAIRS, ["recycling", "lookup"])) == [
        "model one", "model two", "lookup", "recycling"]


def test_for_a_target_alone_drafters_that_need_no_model_compete():
    alone = a_pair("none")
    parts = measured([alone], specs=["model", "merged", "combined", "adaptive:pays", "sam", "early_exit"])
    assert {row["drafter"] for part in parts for row in part} == {"none", "lookup", "sam", "early_exit:1"}
    assert set(measure.candidates([alone], [])) == {
        "lookup", "lookup:frequent", "sam", "recycling", "early_exit:1", "int8", "random", "oracle"}
    both = measure.candidates([alone, PAIRS[0]], ["merged", "combined"])
    assert list(both) == ["model one", "lookup", "combined"] and both["combined"][1] is PAIRS[0]


def test_an_unknown_drafter_is_refused():
    with pytest.raises(ValueError, match="drafter is 'guess'"):
        measured(specs=["guess"])


def test_weights_count_once_and_not_the_targets():
    model = OTHERS["one"]
    assert measure.own_weights(LanguageModelDrafter(model), TARGET) == measure.weights(model)
    assert measure.own_weights(LanguageModelDrafter(TARGET), TARGET) == 0
    assert measure.own_weights(EarlyExitDrafter(first_layers(TARGET, 1)), TARGET) == 0
    drafter = RecyclingDrafter(1000, 8)
    assert drafter.matrix.nbytes <= measure.held(drafter) < drafter.matrix.nbytes + 4000
    short, long = LookupDrafter(), LookupDrafter()
    short.start([torch.arange(10)])
    long.start([torch.arange(1000)])
    assert measure.held(long) > 10 * measure.held(short) > measure.held(NoDrafter())
    cached = LanguageModelDrafter(model)
    cached.start(PROMPTS)
    assert measure.held(cached) >= cached.cache_bytes > 0


# ---------------------------------------------------------------------------------------------------------- summaries


def made(drafter, shape, prompt, kind, *, tokens, ms, rounds=10, drafted=40):
    return {"target": "target", "drafter": drafter, "shape": shape, "prompt": prompt, "kind": kind,
            "stretch": "before", "rounds": rounds, "drafted": drafted, "accepted": tokens - rounds, "tokens": tokens,
            "draft_calls": 0, "draft_ms": 0.2 * ms, "verify_ms": 0.7 * ms, "commit_ms": 0.1 * ms, "budget": 4,
            "weight_bytes": 10, "held_bytes": 10, "target_bytes": 100, "identical": True,
            "prompt_tokens": 50}


def by_hand():
    rows = []
    for number, prompt in enumerate("abcd"):
        kind = "code" if number < 2 else "story"
        rows.append(made("none", "root", prompt, kind, tokens=10, ms=10.0, drafted=0))
        rows.append(made("model one", "chain:3", prompt, kind, tokens=15, ms=10.0 if kind == "code" else 20.0))
        rows.append(made("lookup", "chain:3", prompt, kind, tokens=12, ms=10.0))
        rows.append(made("oracle", "chain:3", prompt, kind, tokens=20, ms=10.0))
    return summary.clean(pd.DataFrame(rows))


RNG = np.random.default_rng


def test_speed_cost_and_advice_by_hand():
    rows = by_hand()
    speed = summary.speedups(rows, ["kind"], RNG(0)).set_index(["kind", "drafter"])["value"]
    assert speed["code", "model one"] == pytest.approx(1.5) and speed["story", "model one"] == pytest.approx(0.75)
    cost = summary.costs(rows).set_index("drafter").loc["lookup"]
    assert cost["draft"] == pytest.approx(0.25) and cost["verify"] == pytest.approx(1.0)  # a step is 0.8 ms
    assert cost["memory"] == pytest.approx(0.2)
    told = summary.advice(rows, RNG(0)).set_index("kind")
    assert told["setting"].to_dict() == {"code": "model one, chain:3", "story": "lookup, chain:3"}
    assert told.loc["code", "value"] == pytest.approx(1.5) and (told["n_prompts"] == 1).all()


def test_advice_may_be_to_draft_nothing():
    rows = by_hand()
    slow = rows[~rows["drafter"].isin(["lookup"]) & (rows["kind"] == "story")]
    told = summary.advice(slow, RNG(0))
    assert told["setting"].tolist() == ["none"] and told["value"].tolist() == [1.0]


def test_each_drafter_is_judged_with_the_shape_that_was_fastest_on_other_prompts():
    """Prompts a and c choose, b and d judge: the shape that is faster on b and d alone is not taken."""
    def shaped(shape, prompts, ms):
        return [made("lookup", shape, prompt, "k", tokens=12, ms=ms) for prompt in prompts]

    plain = [made("none", "root", prompt, "k", tokens=10, ms=10.0, drafted=0) for prompt in "abcd"]
    rows = summary.clean(pd.DataFrame(
        plain + shaped("chain:3", "ac", 6.0) + shaped("chain:3", "bd", 8.0) + shaped("chain:5", "ac", 8.0)
        + shaped("chain:5", "bd", 4.0)))
    found = summary.with_best_shape(rows, RNG(0)).iloc[0]
    assert (found["shape"], found["n_prompts"]) == ("chain:3", 2)
    assert found["value"] == pytest.approx(12 / 8) and np.isnan(found["low"])
    [finding] = [findings.each_with_its_best(rows, RNG(0))]
    assert "too few prompts for intervals" in finding.text and finding.table.loc["lookup", "tree"] == "chain:3"
    theme.close(finding.figure)


def test_measured_stands_beside_claimed():
    rows = by_hand()
    prose = rows.assign(kind=rows["kind"].where(rows["prompt"] != "a", "prose"))
    assert set(summary.labelled(prose, "")) == {"prose", "code", "story (generated)"} == set(
        summary.labelled(prose, "family"))
    assert set(summary.labelled(rows, "")) == set(summary.labelled(rows, "mine.jsonl")) == {"code", "story"}
    shown = rows.assign(kind=rows["kind"].replace({"code": "coding", "story": "story (generated)"}))
    tasks = summary.task_table(shown, "model one, chain:3", "lookup, chain:3", RNG(0))
    assert tasks["claimed EAGLE"].tolist() == ["2-3", "1.5"]
    assert list(tasks.index) == ["coding", "story (generated)"] and tasks["claimed look-up"].tolist() == ["1.5-2", "1.0"]
    pairs = summary.pair_table(rows, "chain:3", RNG(0))
    assert pairs.loc[("measured", "target/one"), "memory added"] == "20%" and ("claimed", "70B/1B") in pairs.index
    lengths = summary.length_table(rows, "model one", RNG(0))
    assert list(lengths.index) == [3, 5, 8, 12] and lengths.loc[3, "calls saved"] == pytest.approx(1 / 3)
    assert lengths.loc[3, "claimed speedup"] == 1.8 and lengths["speedup"].isna().sum() == 3
    with pytest.raises(ValueError, match="'none' has no chain"):
        summary.length_table(rows, "none", RNG(0))


def test_by_task_each_drafter_has_its_own_best_shape_and_the_machine_is_named():
    rows = by_hand()
    other = rows[rows["drafter"] == "lookup"].assign(shape="kary:2@6", setting="lookup, kary:2@6")
    both = pd.concat([rows, other.assign(ms=other["ms"] / 2)])
    assert [summary.fastest_shape(both, name) for name in ("model one", "lookup")] == ["chain:3", "kary:2@6"]
    finding = findings.beside_claims(both, "target", "model one", "a machine", RNG(0))
    assert list(finding.tables[0])[:2] == ["measured model one, chain:3", "measured lookup, kary:2@6"]
    assert finding.tables[0].loc["code", "measured lookup, kary:2@6"] == "2.40", "12 tokens in half of 10 ms, over 10"
    assert "all was measured on a machine" in finding.text and "on 0 of 2 kinds" in finding.text


def test_the_first_pairs_model_is_the_one_that_its_name_ends_with():
    rows = pd.DataFrame({"drafter": ["lookup", "model small", "model tiny", "model small/nano"]})
    names = ["base/tiny", "x/base|y/tiny", "small|small/nano", "qwen3"]
    assert [summary.first_model(rows, [name]) for name in names] == [
        "model tiny", "model tiny", "model small/nano", "model small"]
    assert summary.first_model(rows[:1], ["small"]) == ""


def test_without_a_draft_model_what_needs_one_is_left_out_and_said_to_be():
    rows = by_hand()
    rows = rows[rows["drafter"] != "model one"]
    model = summary.first_model(rows, ["target"])
    assert "has no draft model here, so drafters that need one are left out" in findings.accepted(
        rows, "chain:3", RNG(0)).text
    assert findings.beside_claims(rows, "target", model, "here", RNG(0)).startswith("No draft model was measured")
    assert findings.published_orders(rows, model, RNG(0)).table.empty
    theme.close(findings.accepted(rows, "chain:3", RNG(0)).figure)


def test_orders_of_the_literature_are_judged_where_both_are_there():
    rows = by_hand()
    more = pd.concat([rows, rows[rows["drafter"] == "model one"].assign(drafter="medusa"),
                      rows[rows["drafter"] == "lookup"].assign(drafter="sam")])
    found = summary.orders(more, "model one", RNG(0)).set_index("claim")["here"].to_dict()
    assert set(found.values()) == {"cannot be told"}  # four prompts have no interval
    again = more.assign(prompt=more["prompt"] + "'")
    found = summary.orders(pd.concat([more, again]), "model one", RNG(0)).set_index("claim")["here"].to_dict()
    assert found == {"model one is accepted more than lookup": "holds", "medusa is accepted more than lookup": "holds",
                     "sam is accepted more than lookup": "cannot be told"}


def test_what_heads_learnt_late_is_told_from_their_curves():
    """One head still rises over the last tenth of its steps, one stands still; kinds count alike."""
    rows = [dict(head=head, kind=kind, depth=depth, step=step, agreement=start + rise * step / 400 - 0.1 * (depth - 1))
            for head, start, rise in (("rising", 0.2, 0.4), ("still", 0.3, 0.0)) for kind in ("a", "b")
            for depth in (1, 2) for step in (100, 200, 300, 400)]
    found = summary.learning(pd.DataFrame(rows))
    assert list(found.index) == ["rising", "still"]
    assert np.allclose(found.loc["rising"], [0.6, 0.5, 0.1]) and np.allclose(found.loc["still"], [0.3, 0.2, 0.0])
    told = findings.heads_learning(pd.DataFrame(rows).assign(target="t")).text
    assert "in points: `rising` 10.00): these heads" in told
    told = findings.heads_learning(pd.DataFrame(rows[len(rows) // 2 :]).assign(target="t")).text
    assert told.startswith("In the last tenth of training no head")


def a_table(speeds, rounds=10):
    """Rows of 16 prompts: by (drafter, shape) the accepted tokens per round and tokens per second; plain has 1."""
    rows = []
    for number in range(16):
        for (drafter, shape), (accepted, speed) in {("none", "root"): (0, 1.0), **speeds}.items():
            tokens = rounds * (1 + accepted) + (number % 3 if drafter != "none" else 0)
            rows.append(dict(target="t", dtype="float64", drafter=drafter, shape=shape, budget=4, prompt=f"p{number}",
                             kind="k", stretch="before", rounds=rounds, drafted=40, accepted=tokens - rounds,
                             tokens=tokens, draft_ms=0.0, verify_ms=tokens / speed, commit_ms=0.0, weight_bytes=0,
                             held_bytes=0, target_bytes=1, identical=True))
    return summary.clean(pd.DataFrame(rows))


def test_a_drafters_trees_stand_beside_its_own_best_chain():
    rows = a_table({("d", "chain:2"): (1, 1.5), ("d", "chain:4"): (2, 2.0), ("d", "kary:2@6"): (2, 1.8),
                    ("d", "dyspec:8@8"): (3, 2.5), ("e", "chain:2"): (1, 1.2)})
    rng = np.random.default_rng(0)
    best = summary.with_best_shape(rows, rng, by=["form"]).set_index(["drafter", "form"])["shape"]
    assert best.to_dict() == {("d", "chain"): "chain:4", ("d", "static tree"): "kary:2@6",
                              ("d", "grown tree"): "dyspec:8@8", ("e", "chain"): "chain:2"}
    found = summary.over_chains(rows, summary.with_best_shape(rows, rng, by=["form"]), rng).set_index("form")
    assert found["value"].to_dict() == pytest.approx({"static tree": 0.9, "grown tree": 1.25}, rel=1e-6)
    finding = findings.trees_over_chains(rows, rng)
    assert "a static tree (`kary:2@6`) is faster for 0 and slower for 1 of 1 drafters" in finding.claim
    assert "`dyspec:8@8` decodes 1.25 [1.25, 1.25] times as fast as `chain:4`" in finding.text
    assert "No drafter was judged" in findings.trees_over_chains(rows[rows["drafter"] != "d"], rng).claim


def test_an_idea_is_compared_on_the_shapes_that_both_have():
    rows = a_table({("dspark", "chain:2"): (2, 2.0), ("block", "chain:2"): (1, 1.6), ("block", "kary:2@6"): (5, 9.0),
                    ("model x", "chain:2"): (3, 1.0)})
    found = summary.ideas(rows, "model x", np.random.default_rng(0))
    assert found[["with", "without", "shapes"]].values.tolist() == [["dspark", "block", "chain:2"]]
    assert found["tokens per second"].iloc[0].startswith("1.25 [")
    grown = a_table({(name, shape): (1, 1.0) for name in ("dspark", "dspark:confidence") for shape in
                     ("chain:2", "pctree:8@8")})
    assert summary.ideas(grown, "", np.random.default_rng(0))["shapes"].tolist() == ["pctree:8@8"], "chains are the same"
    alone = rows[rows["drafter"] != "block"]
    assert findings.worth(alone, "model x", np.random.default_rng(0)).startswith("No drafter")


def test_drafters_that_grow_trees_do_so_at_the_budgets_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(heads.store, "PLACES", (tmp_path, tmp_path / "made"))
    for kind in ("medusa", "dspark"):
        heads.save(small_heads.head(kind, TARGET), tmp_path / "target" / kind)
    parts = measured(specs=["medusa", "dspark", "graft:behind=dspark", "sam", "random"], shape_names=["chain:2"],
                     grown=[4])
    rows = pd.DataFrame([row for part in parts for row in part])
    grown = rows[~rows["shape"].isin(["chain:2", "root"])].groupby("drafter")["shape"].unique().explode().to_dict()
    assert grown == {"medusa": "ddtree:4@4", "dspark": "pctree:6@4", "graft:behind=dspark": "pctree:6@4",
                     "model one": "opttree:4,8,0.05@4", "model two": "opttree:4,8,0.05@4"}
    assert rows["identical"].all() and (rows.loc[rows["shape"].str.contains("@"), "drafted"] > 0).all()
