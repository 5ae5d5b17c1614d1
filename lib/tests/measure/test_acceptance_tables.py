"""The tables of notebook 2: rows of live decoding beside replayed ones, trees that grow, choices and expectations."""

import numpy as np
import pandas as pd
import pytest
import torch

from lib import replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab import tables
from lib.lab.chapter import Chapter
from lib.measure import acceptance as study
from lib.measure.acceptance import Studied
from lib.models.load import Pair
from lib.models.prompts import PromptSet
from lib.replay import acceptance, live
from lib.replay.rank_paths import frequent
from lib.replay.recording import Competitors, record_all
from lib.replay.simulated import Recorded
from lib.replay.trace import Trace
from lib.tests import small_heads, small_models
from lib.tests.live import decode
from lib.tests.replay.test_acceptance import LABELS, of_ranks, recorded
from lib.tests.replay.test_recording import Tokenizer
from lib.trees import named
from lib.trees.tree import Tree

TARGET = small_models.llama(0)
TARGET.generation_config.eos_token_id = None
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PAIR = Pair("t/d", TARGET, DRAFTER, Tokenizer(), "t", "d")
ASKED = PromptSet(tuple("abcdef"), ("k",) * 3 + ("l",) * 3, tuple(small_models.prompts(0, (70, 80, 66, 90, 75, 68))))
CHOOSING, JUDGING = ASKED.split(1, 2)
COUNTS = ["prompt", "stretch", "rounds", "drafted", "accepted"]


@pytest.fixture(scope="module")
def studied(tmp_path_factory):
    """Traces of a random pair, greedy and sampled."""
    competitors = Competitors([PAIR])
    return [Studied(one, competitors) for one in record_all(
        competitors, ASKED, CHOOSING.names, temperatures=[0.0, 1.0], tokens=18, seed=0,
        folder=tmp_path_factory.mktemp("traces"))]


def same(first, second, names=COUNTS):
    """Both frames have these columns alike, whatever the order of their rows."""
    both = [frame.sort_values(["prompt", "stretch"]).reset_index(drop=True)[names] for frame in (first, second)]
    pd.testing.assert_frame_equal(*both, check_dtype=False)


# ----------------------------------------------------------------------------------------------- replay beside decoding


def test_a_target_alone_is_studied_with_drafters_of_its_text(tmp_path):
    """By ranks and by drafting again: its rows are those of live decoding."""
    target = small_models.llama(0)
    target.generation_config.eos_token_id = None
    pair = Pair("t", target, None, Tokenizer(), "t", "none")
    asked = PromptSet(tuple("abcdef"), tuple("kl" * 3), tuple(small_models.prompts(0, (9, 12, 7, 8, 15, 6))))
    choosing, judging = asked.split(1, 2)
    competitors = Competitors([pair])
    [made] = record_all(competitors, asked, choosing.names, temperatures=[0.0], tokens=24, seed=0, folder=tmp_path,
                        deepest=8)
    one = Studied(made, competitors)
    found = study.replay_all([one], ["chain", "star", "optimal"], [2, 8], 8, chain_lengths=[2, 8])
    rows = found["acceptance"]
    for name, drafter in competitors.items():
        done = decode(target, drafter, judging.ids, shape="chain:8", max_new_tokens=25)
        replayed = rows[(rows["drafter"] == name) & (rows["family"] == "chain") & (rows["budget"] == 8)]
        same(live.tally(done, judging.names, judging.kinds), replayed)
    both = found["chains"].merge(rows[rows["family"] == "chain"], on=["drafter", "budget", "prompt", "stretch"])
    assert len(both) == len(found["chains"]) and (both["accepted_x"] == both["accepted_y"]).all()
    families = rows.groupby("drafter")["family"].unique().map(set)
    assert families["ngrams"] == {"chain", "star", "optimal"} and families["lookup"] == {"chain", "star"}
    assert set(study.choices([one], 8, np.random.default_rng(0))["family"]) == {"frequent", "optimal"}
    assert study.compare_grown(one, "ngrams", ["dyspec"], [4]).empty
    assert study.expected(pair, judging, ["chain:2"], [1.0], new_tokens=4, seed=0).empty
    assert study.sampled_live(pair, judging, ["chain:2"], [1.0], new_tokens=4, seed=0).empty


def test_live_rows_of_top_k_equal_replayed_ones():
    asked = small_models.prompts(0, (9, 12, 5))
    done = decode(TARGET, LanguageModelDrafter(DRAFTER), asked, shape="kary:2@6", max_new_tokens=17)
    made = replay.record(TARGET, {"d": DRAFTER}, asked, names="abc", kinds="kkk", max_new_tokens=16, beyond=3,
                         labels=LABELS)
    rounds = acceptance.rounds_of(made, named("kary:2@6"), "d")
    same(live.tally(done, "abc", "kkk"), acceptance.tally_walk(made, rounds))


def test_rows_of_growing_trees_are_those_of_live_decoding(studied):
    one = studied[0]
    rule = named("dyspec@10")
    done = decode(TARGET, LanguageModelDrafter(DRAFTER), ASKED.ids, shape=rule, max_new_tokens=19)
    found = study.drafted_again(one.recorded, "d", study.as_drafter(DRAFTER), [("dyspec", 10, rule)])
    same(found, live.tally(done, ASKED.names, ASKED.kinds))
    assert set(found["family"]) == {"dyspec"} and set(found["temperature"]) == {0.0} and found["accepted"].sum() > 0
    head, rule = small_heads.DRAFTERS["eagle3"](TARGET, small_heads.head("eagle3", TARGET)), named("eagle2:3,3@8")
    found = study.drafted_again(one.recorded, "eagle3", study.as_drafter(head), [("eagle2:3,3", 8, rule)])
    done = decode(TARGET, head, ASKED.ids, shape=rule, max_new_tokens=19)
    same(found, live.tally(done, ASKED.names, ASKED.kinds))


@pytest.mark.parametrize("number", [0, 1], ids=["greedy", "sampled"])
def test_a_static_tree_grown_again_has_the_rows_that_its_ranks_give(studied, number):
    one = studied[number]
    wanted = [("kary:2", 6, named("kary:2@6"))]
    grown = study.drafted_again(one.recorded, "d", study.as_drafter(DRAFTER), wanted)
    static = study.evaluate(one.recorded, "d", DRAFTER, wanted)
    same(grown, static, [*COUNTS, "kind", "calls", "depth", "family", "budget", "drafter", *one.about])


# ----------------------------------------------------------------------------------------------------- the other tables


def test_nodes_are_accepted_as_often_as_their_children_and_the_rounds_that_end_there():
    made, tree = recorded(), named("kary:2@14")
    rounds = acceptance.rounds_of(made, tree, "d")
    nodes = acceptance.by_node(tree, rounds, made.loops)
    assert nodes["accepted"].sum() == acceptance.by_depth(made, tree, rounds)["accepted"].sum()
    assert Tree.from_choices(tuple(map(int, path.split("."))) for path in nodes["path"]) == tree, "rows by node"
    for node in range(1, tree.size):
        children = [child - 1 for child in tree.children(node)]
        assert nodes["accepted"][node - 1] >= nodes["accepted"][children].sum()


def test_growth_has_static_and_grown_trees_on_the_judged_prompts(studied):
    rows = study.compare_grown(studied[0], "d", ["dyspec", "eagle2:2,3"], [2, 6])
    schema = tables.schemas()["growth"]
    assert set(schema.columns) == set(rows) and not rows.duplicated(list(schema.key)).any()
    assert set(rows["prompt"]) == set(JUDGING.names), "judged on prompts that no tree was grown from"
    assert set(rows["family"]) == {"chain", "optimal", "dyspec", "eagle2:2,3"}
    assert (rows["confidence"].isna() == rows["family"].isin(["chain", "optimal"])).all()


def test_confidence_is_chosen_on_the_choosing_prompts(studied):
    one, confidences = studied[0], (3.0, 1.0, 0.3)
    rows = study.compare_grown(one, "d", ["dyspec"], [5], confidences=confidences)
    choosing, judged = one.recorded.halves()
    wanted, length = [("dyspec", 5, named("dyspec@5"))], {}
    for confidence in confidences:
        tried = study.drafted_again(choosing, "d", study.as_drafter(DRAFTER, temperature=confidence), wanted)
        sums = tried[tried["stretch"] == "before"][["accepted", "rounds"]].sum()
        length[confidence] = sums["accepted"] / sums["rounds"]
    best, grown = max(length, key=length.get), rows[rows["family"] == "dyspec"]
    assert set(grown["confidence"]) == {best}
    same(grown, study.drafted_again(judged, "d", study.as_drafter(DRAFTER, temperature=best), wanted))


def test_padding_of_the_vocabulary_is_never_drafted():
    trace = replay.record(TARGET, {"d": DRAFTER}, ASKED.ids[:1], names="a", kinds="k", max_new_tokens=3, labels=LABELS)
    drafter, rule = study.as_drafter(small_models.llama(3), vocabulary=5), named("dyspec:1@24")
    found = study.drafted_again(Recorded(trace, ASKED.ids[:1]), "d", drafter, [("dyspec", 24, rule)])
    assert found["drafted"].sum() == 5 * found["rounds"].sum()


def test_choices_end_with_the_tree_of_all_prompts():
    rng = np.random.default_rng(3)
    made = of_ranks(np.minimum(rng.geometric(0.5, (14, 30)) - 1, 9))
    choosing, judged = made.select(np.arange(14) < 6), made.select(np.arange(14) >= 6)
    rows = study.choose_from_prompts(choosing, judged, "d", 8, np.random.default_rng(0), draws=3)
    assert rows.groupby("prompts")["draw"].nunique().to_dict() == {1: 3, 2: 3, 4: 3, 6: 1}
    last = rows[rows["prompts"] == 6]
    assert set(last["positions"]) == {180}
    whole = acceptance.tally_walk(judged, acceptance.rounds_of(judged, frequent(choosing, 8, "d"), "d"))
    assert last.loc[last["family"] == "frequent", "accepted"].sum() == whole["accepted"].sum()


def test_a_reduced_vocabulary_covers_the_tokens_that_it_has(monkeypatch):
    """Those that the target wrote before a loop; nothing where no list of frequent tokens ships."""
    made = Trace(tokens=np.array([[9, 1, 2, 5, 6, 1], [9, 3, 2, 2, 2, -1]], np.int32), lengths=np.array([5, 4]),
                 ended=np.array([False, True]), loops=np.array([4, 4]), target_probs=np.zeros((2, 5)), ranks={},
                 probs={}, alpha={}, prompts=("a", "b"), kinds=("k", "l"), labels=LABELS)
    one = Studied(Recorded(made, [torch.tensor([1])] * 2), {})
    assert study.vocabulary([one]).empty
    monkeypatch.setattr(study.reduced_vocabulary, "ships", lambda target: True)
    monkeypatch.setattr(study.reduced_vocabulary, "shipped", lambda target, count: torch.tensor([1, 2, 6]))
    rows = study.vocabulary([one])
    assert rows["tokens"].tolist() == [4, 4] and rows["covered"].tolist() == [3, 3]


def test_expectations_and_live_rows_have_the_same_settings(tmp_path):
    asked = PromptSet(tuple("abc"), ("k",) * 3, tuple(small_models.prompts(0, (9, 12, 5))))
    names, sampling = ["kary:2@6", "chain:2"], dict(new_tokens=12, seed=0)
    expected = study.expected(PAIR, asked, names, [0.0, 1.0], **sampling)
    tables.write(tmp_path, "expected", expected, "mark")
    assert set(expected.loc[expected["shape"] == "chain:2", "rule"]) == {*study.BY_NODE, "naive", "block"}
    assert set(expected.loc[expected["shape"] == "kary:2@6", "rule"]) == {*study.BY_NODE, "naive"}
    decoded = study.sampled_live(PAIR, asked, names, [0.0, 1.0], **sampling)
    tables.write(tmp_path, "live", decoded, "mark")
    assert set(decoded["rule"]) <= set(expected["rule"]) and set(decoded["temperature"]) == {1.0}
    assert study.expected(PAIR, asked, names, [0.0], **sampling).empty


def test_a_measured_chapter_has_all_tables_and_is_not_measured_again(tmp_path, monkeypatch):
    """A draft model and, of the second target alone, drafters of its text; the second call loads no model."""
    chapter = Chapter(str(tmp_path), "02")
    settings = dict(pairs=["small/tiny", "base"], drafters=[], prompts="family", choose_prompts=1, judge_prompts=1,
                    new_tokens=8, temperatures=[0.0, 1.0], families=["star"], budgets=[2],
                    depth_budget=4, chain_lengths=[3], growth_rules=["dyspec"], live_shapes=["chain:2"], live_tokens=6,
                    dtype="float32", seed=0)
    chapter.measure(study.measure, **settings)
    written = ("acceptance", "depth", "nodes", "rank", "chains", "repetition", "choices", "growth", "live", "expected",
               "answer", "models")
    assert chapter.has(*written) and not len(chapter.table("vocabulary"))
    rows = chapter.table("acceptance")
    assert set(rows["family"]) == {"star", "chain", "optimal"} and set(rows["budget"]) == {2, 4}
    assert set(chapter.table("models")["model"]) == {"small", "tiny", "base"}
    for _, worked in chapter.table("answer").groupby("round"):
        assert worked["role"].iloc[[0, -1]].tolist() == ["root", "bonus"] and worked["parent"].iloc[0] == -1
    monkeypatch.setattr(study, "load_pairs", lambda *names, **settings: pytest.fail("models were loaded again"))
    chapter.measure(study.measure, **settings)
    pd.testing.assert_frame_equal(chapter.table("acceptance"), rows)
