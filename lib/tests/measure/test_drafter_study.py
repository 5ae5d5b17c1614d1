"""The drafter study on tiny models: its rows against the rounds, and who takes part."""

from types import SimpleNamespace

import pandas as pd
import pytest

from lib.decoding.loop import generate
from lib.drafters import heads
from lib.drafters.language_model import LanguageModelDrafter
from lib.lab.chapter import Store
from lib.measure import drafters as study
from lib.measure import parameters
from lib.models.prompts import PromptSet
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


def decoded(pairs=PAIRS, specs=(), shapes=("chain:3", "kary:2@6"), **changed):
    return list(study.decoded(pairs, ASKED, list(specs), list(shapes), **(dict(new_tokens=10, seed=0) | changed)))


def frame(parts):
    return pd.DataFrame([row for part in parts for row in part])


def test_every_drafter_decodes_each_prompt_and_shape_once_and_says_what_plain_decoding_says(tmp_path):
    parts = decoded()
    rows = frame(parts)
    assert len(parts) == 3 and rows["identical"].all()
    labels = set(rows["drafter"]) - {"none"}
    assert {"model one", "model two", "sam", "merged", "oracle"} <= labels
    Store(tmp_path, "x").open("drafters").extend(rows)
    per_setting = rows.groupby(["prompt", "drafter", "shape"])[["rounds", "tokens"]].sum()
    assert len(per_setting) == 3 * (1 + 2 * len(labels)) and set(rows["dtype"]) == {"float64"}
    assert per_setting["tokens"].between(9, 9 + 3).all(), "the first token is the prefill's, the last round is whole"


def test_a_row_is_its_rounds():
    rows = frame(decoded(specs=["model"], shapes=["kary:2@6"]))
    rows = rows[rows["drafter"] == "model one"]
    drafter = LanguageModelDrafter(OTHERS["one"])
    full = [one for ids in PROMPTS for one in generate(TARGET, drafter, ids[None], shape="kary:2@6",
                                                       max_new_tokens=10).rounds]
    assert rows["rounds"].sum() == len(full) and rows["accepted"].sum() == sum(one.accepted for one in full)


def test_a_resumed_run_skips_what_is_done_and_gives_the_rows_of_one_that_was_not_stopped():
    """Except for times."""
    settings = dict(specs=["adaptive:complexity", "sam"], shapes=["chain:3"])
    [resumed] = decoded(**settings, done={("target", "a"), ("target", "b")})
    for row, other in zip(decoded(**settings)[2], resumed, strict=True):
        assert {name: value for name, value in row.items() if not name.endswith("_ms")} == {
            name: value for name, value in other.items() if not name.endswith("_ms")}


def test_trained_heads_take_part_by_their_folders(monkeypatch, tmp_path):
    monkeypatch.setattr(heads.files, "ROOTS", (tmp_path, tmp_path / "made"))
    for place, kind, seed in (("target", "medusa", 0), ("target", "eagle3", 0), ("made/target", "medusa-second", 1),
                              ("made/target", "medusa", 2)):
        heads.save(small_heads.head(kind.partition("-")[0], TARGET, seed=seed), tmp_path / place / kind)
    (tmp_path / "target" / "notes").mkdir()
    assert study.heads_of("target") == ["eagle3", "medusa", "medusa-second"]
    assert heads.folder_of("target", "medusa") == tmp_path / "target" / "medusa", "what ships goes before"
    names = ["medusa-second", "eagle3"]
    rows = frame(decoded(specs=names, shapes=["kary:2@6"]))
    assert set(rows["drafter"]) == {"none", "model one", "model two", "lookup", *names} and rows["identical"].all()
    assert (rows.loc[rows["drafter"].isin(names), "weight_bytes"] > 0).all()


def test_drafters_that_grow_trees_do_so_at_the_budgets_asked_for(monkeypatch, tmp_path):
    monkeypatch.setattr(heads.files, "ROOTS", (tmp_path, tmp_path / "made"))
    for kind in ("medusa", "dspark"):
        heads.save(small_heads.head(kind, TARGET), tmp_path / "target" / kind)
    rows = frame(decoded(specs=["medusa", "dspark", "sam", "random"], shapes=["chain:2"], grown=[4]))
    grown = rows[~rows["shape"].isin(["chain:2", "root"])].groupby("drafter")["shape"].unique().explode().to_dict()
    assert grown == {"medusa": "ddtree:4@4", "dspark": "dyspec:6@4", 
                     "model one": "opttree:4,8,0.05@4", "model two": "opttree:4,8,0.05@4"}
    assert rows["identical"].all() and (rows.loc[rows["shape"].str.contains("@"), "drafted"] > 0).all()


def test_who_competes():
    assert list(study.competing(PAIRS, ["sam", "lookup"])) == ["model one", "model two", "lookup", "sam"]
    alone = a_pair("none")
    parts = decoded([alone], specs=["model", "merged", "combined", "adaptive:pays", "sam"])
    assert set(frame(parts)["drafter"]) == {"none", "lookup", "sam"}
    assert set(study.competing([alone], [])) >= {"lookup", "sam", "random", "oracle"}
    both = study.competing([alone, PAIRS[0]], ["merged", "combined"])
    assert list(both) == ["model one", "lookup", "combined"] and both["combined"][1] is PAIRS[0]
    with pytest.raises(ValueError, match="drafter is 'guess'"):
        study.competing(PAIRS, ["guess"])


def test_weights_count_once_and_not_the_targets():
    model = OTHERS["one"]
    assert study.drafter_bytes(LanguageModelDrafter(model), TARGET) == study.model_bytes(model) > 0
    assert study.drafter_bytes(LanguageModelDrafter(TARGET), TARGET) == 0


def test_the_tables_are_those_of_the_models_that_are_named(tmp_path):
    settings = dict(pairs=["small/tiny"], drafters=["ngrams", "eagle3"], other_drafters=[],
                    shapes=["chain:2"], grown=[], prompts="", judge_prompts=1, new_tokens=4, dtype="float32",
                    device="cpu", seed=0)
    store = Store(tmp_path, "x")
    study.measure(store, **settings)
    rows = store.open("drafters").frame()
    assert set(rows["drafter"]) == {"none", "model tiny", "lookup", "ngrams", "eagle3"} and rows["identical"].all()
    assert not store.open("head_curves").frame().empty
    study.measure(store, **settings)
    assert store.open("drafters").frame().equals(rows), "nothing is decoded twice"
    names = [path.name for path in parameters.files_of(["small/tiny"], "")]
    assert {"small", "tiny", "family.jsonl", "eagle3", "ngrams"} <= set(names)
