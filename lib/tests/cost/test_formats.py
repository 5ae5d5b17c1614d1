"""The second answer, over all number formats: with rounds of known cost, and quality beside a plain forward pass."""

import copy
import gc
import json
import time
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from lib.attention.registration import using_attention
from lib.cost import formats, quality, recommendation, ways
from lib.cost.candidates import Limits
from lib.cost.recommendation import PLAIN, RECOMMENDED, Interval
from lib.decoding import loop
from lib.forward.packed import quantize_int8
from lib.forward.passes import forward_pass, release
from lib.lab import processor
from lib.forward import load_pair, load_pairs
from lib.models import checks, load
from lib.tests import small_models, tiny_gguf
from lib.tests.cost import test_recommendation as plainly

SPEEDS = {"float64": 1.0, "float32": 0.8, "bfloat16": 3.0, "int8": 0.4}  # seconds of a round, over the reference's


def pair_in(name):
    """A target of its own with the same weights, which says that it has a number format."""
    pair = plainly.pair_of(small_models.related(plainly.TARGET, 4, 0.05))
    target = copy.deepcopy(pair.target)
    target.quantised = name
    return replace(pair, target=target)


def generate(target, *arguments, **settings):
    """The loop with a clock that charges a check and its nodes what the target's format takes."""
    done, share = loop.generate(target, *arguments, **settings), SPEEDS[target.quantised]
    rounds = [replace(one, draft_seconds=0.05 * one.draft_calls * share, commit_seconds=0.0,
                      verify_seconds=(1 + 0.01 * one.drafted) * share) for one in done.rounds]
    plainly.CLOCK.now += plainly.UNIT * (share + sum(one.seconds for one in ways.one_per_round(rounds)))
    return replace(done, rounds=rounds)


class Loading:
    """Loads the same target in any format, and keeps of what was loaded whether its weights still are."""

    def __init__(self):
        self.names, self.targets, self.together = [], [], 0

    def __call__(self, pairs, name):
        held = [*pairs, *(pair for pair in (own() for own in self.targets) if pair)]
        self.together += sum(pair.target.device.type != "meta" for pair in held)
        self.names.append(name)
        own = pair_in(name or "float64")
        self.targets.append(weakref.ref(own))
        return [own]


def ask(load, seconds=1.0, **settings):
    plainly.CLOCK.now = 0.0
    options = dict(drafters=["lookup", "model"], new_tokens=16, limits=Limits(4, 3), generate=generate,
                   report=lambda line: None, clock=plainly.CLOCK) | settings
    return formats.recommend([pair_in("float64")], plainly.prompts_of([0, 1, 2]), plainly.prompts_of([3, 4, 5]),
                             seconds=seconds, load=load, **options)


@pytest.fixture(autouse=True)
def with_units(monkeypatch):
    monkeypatch.setattr(processor, "has_bfloat16_units", lambda: True)


@pytest.fixture(scope="module")
def raced():
    loading = Loading()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processor, "has_bfloat16_units", lambda: True)
        found, rows = ask(loading, batches=[1, 2])
    return found, rows, loading


def test_the_fastest_format_stands_beside_the_recommendation_and_does_not_replace_it(raced):
    found, rows, _ = raced
    made, told = found.recommendation, found.recommendation.formats
    alone = plainly.ask([pair_in("float64")], seconds=1 - formats.SHARE, batches=[1, 2], generate=generate)
    for own, other in zip(made.by_batch, alone.recommendation.by_batch, strict=True):
        assert own.sentence == other.sentence and own.choices == other.choices
        assert str(own.tokens_per_second[RECOMMENDED]) == str(other.tokens_per_second[RECOMMENDED])
    assert made.dtype.startswith("float64") and told.reference == "float64"
    assert [(own.batch, own.dtype) for own in told.fastest] == [(1, "int8"), (2, "int8")]
    for own in told.fastest:
        assert own.over.value == pytest.approx(1 / SPEEDS["int8"])  # the same text and the same tree
        assert (own.drafter, own.tree) == (made.at(own.batch).drafter, made.at(own.batch).tree)
    assert told.fastest[0].tokens_per_second.value == pytest.approx(
        made.at(1).tokens_per_second[RECOMMENDED].value / SPEEDS["int8"])
    share = (1.03 + 0.15) / (3 * 1.03 + 0.15)  # of chain:3; drafting is taken to cost what it costs in the reference
    assert told.left_out["bfloat16"] == f"predicted to decode {share:.2f} times as fast as float64"
    assert told.left_out["float32 at batch 1"] == "0.50 times as fast as int8 on the prompts that choose"
    assert told.drift.value == pytest.approx(1.0) and told.drift_prompts == 3 and told.widest == "float64"
    assert all(own.agreement.value == 1 and own.divergence.value == pytest.approx(0, abs=1e-9) for own in told.fastest)


def test_the_ratio_is_paired_by_judging_prompt_and_follows_from_the_tables(raced):
    found, rows, _ = raced
    own = found.recommendation.formats.fastest[0]
    mine = rows[(rows["part"] == "judging") & (rows["batch"] == 1) & (rows["dtype"] == "int8")]
    theirs = found.timed[(found.timed["part"] == "judging") & (found.timed["batch"] == 1)]
    assert set(mine["prompt"]) == set(theirs["prompt"]) == {"p3", "p4", "p5"}
    before = np.log(theirs[theirs["way"] == RECOMMENDED].set_index("prompt")["rate"]).groupby("prompt").mean()
    after = np.log(mine[mine["way"] != PLAIN].set_index("prompt")["rate"])
    assert own.over.value == pytest.approx(np.exp((after - before).mean())) and own.prompts == 3
    assert np.isnan(own.over.low), "three prompts have no interval"
    assert {PLAIN} < set(mine["way"]) and len(set(mine["way"])) == 2
    assert set(rows.loc[rows["part"] == formats.AGAIN, "way"]) == {PLAIN}


def test_one_format_is_in_memory_at_a_time(raced):
    found, _, loading = raced
    assert loading.together == 0, "what was loaded before is freed before the next is loaded"
    assert loading.names == ["float32", "bfloat16", "int8", None], "the widest first, the reference again at the end"
    gc.collect()
    assert not [own() for own in loading.targets if own()]


def test_a_slower_format_is_called_slower():
    own = recommendation.OtherFormat(1, "int8", "none", "chain:0", Interval(90.0), Interval(0.8, 0.7, 0.9), 9,
                                     Interval(0.97), Interval(0.01), 9)
    assert own.sentence.startswith("the recommendation is fastest; next is plain decoding in int8, 90 tokens per")
    assert "cannot be told apart" in replace(own, over=Interval(1.1, 0.9, 1.3)).sentence
    assert replace(own, over=Interval(1.2, 1.1, 1.3)).sentence.startswith("the fastest is")
    assert replace(own, over=Interval(1.2)).sentence.startswith("too few prompts tell the recommendation apart from")


def test_formats_can_be_restricted_and_left_out():
    loading = Loading()
    found, rows = ask(loading, formats=["int8"])
    assert set(loading.names) == {"int8", None} and set(rows["dtype"]) == {"int8", "float64"}
    found, rows = ask(loading, formats=["none"])
    assert found.recommendation.formats is None and rows.empty
    assert plainly.TARGET.device.type == found.tried[0].entrant.pair.target.device.type == "cpu", "nothing was freed"
    for wrong, told in ((["int4"], "have 'int4'; give some of float32"), (["none", "int8"], "give 'none' alone")):
        with pytest.raises(ValueError, match=told):
            ask(loading, formats=wrong)


def test_what_time_leaves_out_is_named_and_not_loaded():
    loading = Loading()
    told = ask(loading, seconds=0.0)[0].recommendation.formats
    assert not loading.names and not told.fastest
    assert set(told.left_out) == {"float32", "bfloat16", "int8"}
    assert all("no time was left" in reason for reason in told.left_out.values())


def test_what_the_processor_and_the_memory_cannot_have_is_named(monkeypatch):
    """float32 does not fit, so that the reference writes the text that judges."""
    loading = Loading()

    def load(pairs, name):
        if name == "float32":
            checks.check_memory({("t", torch.float32): 2**60}, "cpu")
        return loading(pairs, name)

    monkeypatch.setattr(processor, "has_bfloat16_units", lambda: False)
    told = ask(load)[0].recommendation.formats
    assert "the weights of t in float32 need" in told.left_out["float32"]
    assert told.left_out["bfloat16"] == "the processor has no units for bfloat16" and "bfloat16" not in loading.names
    assert told.fastest[0].dtype == "int8"


def test_the_file_and_the_lines_have_the_second_answer(raced, tmp_path):
    made = raced[0].recommendation
    made.save(tmp_path / "made.json")
    again = recommendation.load(tmp_path / "made.json")
    assert again.text() == made.text()
    assert again.formats.fastest[1].over == pytest.approx((2.5, np.nan, np.nan), nan_ok=True)
    own = made.formats.fastest[0]
    assert own.sentence.startswith("too few prompts tell the recommendation apart from model with chain:3 in int8")
    assert f"batch 1, over all number formats: {own.sentence}" in made.text()
    for name, reason in made.formats.left_out.items():
        assert f"not raced, or slower: {name} ({reason})" in made.text()
    told = json.loads((tmp_path / "made.json").read_text())
    (tmp_path / "made.json").write_text(json.dumps({key: told[key] for key in told if key != "formats"}))
    assert recommendation.load(tmp_path / "made.json").formats is None, "files of before have none"
    (tmp_path / "made.json").write_text(json.dumps(told | {"formats": {"reference": "float32"}}))
    with pytest.raises(ValueError, match="is no recommendation"):
        recommendation.load(tmp_path / "made.json")


def test_released_models_and_their_copies_hold_no_weights():
    pair = load_pair("base", dtype="float32")
    with torch.inference_mode():
        forward_pass(pair.target)
    held = [weakref.ref(each) for each in pair.target.parameters()]
    release(pair.target)
    gc.collect()
    assert not [own() for own in held if own() is not None] and pair.target.device.type == "meta"
    assert formats.load_again([pair], "int8")[0].target.quantised == "int8"
    assert formats.load_again([pair])[0].dtype == "float32"


def test_pairs_are_loaded_again_in_their_own_and_in_another_format(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    pairs = load_pairs(["base/tiny", "base"], "float32|bfloat16")
    assert [pair.dtype for pair in formats.load_again(pairs[1:])] == ["float32"]
    assert [pair.dtype for pair in formats.load_again(pairs, "int8")] == ["int8", "int8"]
    file = tiny_gguf.write(tmp_path / "tiny.gguf")
    pair = load_pair(f"{file}|{file}", "float32")
    assert formats.load_again([pair], "stored")[0].dtype == "stored"


# -------------------------------------------------------------------------------------------------------------- quality


def teacher_forced(pair, prompt, tokens):
    """float64[N, V] log-probabilities of transformers' own attention over the whole text at once."""
    whole = torch.cat([prompt, tokens])[None]
    with using_attention(pair.target, "sdpa"), torch.inference_mode():
        logits = pair.target(whole).logits[0, len(prompt) - 1 : -1]
    return logits.double().log_softmax(-1)


@pytest.mark.parametrize(("name", "close"), [("float32", 1e-6), ("bfloat16", 0.5), ("int8", 0.15)])
def test_quality_is_that_of_a_plain_teacher_forced_pass(name, close):
    wide = load_pair("base", dtype="float32")
    own = load.load_pair("base", dtype="float32" if name == "int8" else name)
    if name == "int8":  # int8 weights alone: activations stay as wide as those it is compared with
        quantize_int8(own.target)
    prompts = [wide.tokenizer(text, return_tensors="pt")["input_ids"][0] for text in (
        "def area(width, height):\n", "class Tree:\n    def __init__(self, parents):\n", "import os\n\n\ndef read(",
        "for row in rows:\n    total", "if __name__ == ", "def test_sorted():\n    assert ", "x = [", "try:\n    w")]
    forever = ways.Deadline(time.perf_counter, float("inf"))
    base = quality.written(wide, prompts, forever)
    told = quality.quality(base, own, np.random.default_rng(0), forever)
    same, apart, tokens = 0, 0.0, 0
    for prompt, text in zip(prompts, base.tokens):
        p, q = teacher_forced(wide, prompt, text), teacher_forced(own, prompt, text)
        assert torch.equal(p.argmax(-1), text), "what the widest format wrote is its own greedy text"
        same += int((p.argmax(-1) == q.argmax(-1)).sum())
        apart += float(F.kl_div(q, p, log_target=True, reduction="sum"))
        tokens += len(text)
    assert told["judged"] == len(prompts) and told["agreement"].low <= told["agreement"].value
    assert told["agreement"].value == pytest.approx(same / tokens, abs=3 / tokens)
    assert told["divergence"].value == pytest.approx(apart / tokens, rel=close, abs=1e-7)
