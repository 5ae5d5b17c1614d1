"""A decoding shown round by round is the decoding, with the models' own probabilities, and pictures show all of it."""

import re
from html import unescape
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lib.decoding import generate
from lib.decoding.walkthrough import DRAFT, PROMPT, TARGET, UNFINISHED, added_texts, walk
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.explorers.rounds_explorer import describe_round, legend, of_step, running_text
from lib.forward.reduced import reduced
from lib.lab.theme import ROLES
from lib.tests import small_models
from lib.tests.letters import Letters
from lib.tests.plain_drafter import PlainDrafter
from lib.trees.picture import visible

MODEL = small_models.llama(0)
OTHER = small_models.related(MODEL, 1, noise=0.3)
PROMPT_IDS = small_models.prompts(2, (9,))[0]
NEW = 20


def walked(shape="kary:2@6", drafter=None, temperature=0.0, eos=(), new=NEW):
    pair = SimpleNamespace(target=MODEL, tokenizer=Letters(), eos_token_ids=eos)
    return walk(pair, drafter or LanguageModelDrafter(OTHER), PROMPT_IDS, shape, temperature=temperature,
                rule="naive" if temperature else "greedy", new_tokens=new, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("shape", ["chain:4", "kary:2@6", "star:5", "expansion:2,2,1"])
def test_the_steps_are_the_decoding_with_the_totals_of_the_rounds_so_far(shape, temperature):
    steps = walked(shape, temperature=temperature)
    done = generate(MODEL, LanguageModelDrafter(OTHER), PROMPT_IDS[None], shape=shape, temperature=temperature,
                    rule="naive" if temperature else "greedy", max_new_tokens=NEW,
                    generator=torch.Generator().manual_seed(3))
    assert "".join(text for text, _ in steps[-1].text) == Letters().decode(done.sequences[0])
    assert [who for _, who in steps[0].text[:2]] == [PROMPT, TARGET], "the first token is the prefill's"
    accepted = 0
    for number, (step, record) in enumerate(zip(steps, done.rounds, strict=True), 1):
        assert len(step.text) - 1 == record.position + step.fresh and len(step.accepted) == record.accepted
        whole = [*((step.tokens[node], DRAFT) for node in step.accepted), (step.bonus, TARGET)]
        assert [*step.text[-step.fresh:]] == whole[: NEW - record.position]
        accepted += record.accepted
        assert (step.number, step.rounds, step.written) == (number, len(steps), accepted + number)
        assert step.so_far.acceptance_length == accepted / number
        assert step.so_far.acceptance_rate == pytest.approx(accepted / number / step.tree.budget)
    assert [step.seconds for step in steps] == sorted(step.seconds for step in steps)


@pytest.mark.parametrize("drafter", [
    LanguageModelDrafter(reduced(OTHER, torch.arange(3, 20))), PlainDrafter(OTHER),
    LanguageModelDrafter(OTHER, proposal="iid", temperature=0.7),
    LanguageModelDrafter(OTHER, proposal="without_replacement")])
def test_probabilities_are_those_of_a_forward_pass_without_cache_after_each_path(drafter):
    for step in walked("expansion:2,2,1", drafter, temperature=1.0):
        committed = Letters.ids("".join(text for text, _ in step.text[: len(step.text) - step.fresh]))
        drafted = Letters.ids("".join(step.tokens))
        assert committed[-1] == drafted[0] and step.probabilities[0] == step.target_probabilities[0] == 1
        for node in range(1, step.tree.size):
            path = [drafted[above] for above in step.tree.path(node)[1:-1]]
            for model, heat, shown in ((drafter.model, drafter.temperature, step.probabilities),
                                       (MODEL, 1.0, step.target_probabilities)):
                logits = model(torch.tensor([[*committed, *path]])).logits[0, -1]
                assert shown[node] == pytest.approx(torch.softmax(logits / heat, -1)[drafted[node]].item(), abs=1e-9)


@pytest.mark.parametrize("drafter", [
    LookupDrafter(), MergedDrafter(LanguageModelDrafter(OTHER), LanguageModelDrafter(MODEL))])
def test_drafters_that_are_no_language_model_are_shown_without_probabilities(drafter):
    steps = walked("kary:2@6", drafter)
    assert {step.probabilities for step in steps} == {None}
    drawn = of_step(max(steps, key=lambda step: step.tree.budget))
    assert re.search(r">(<1|&lt;1|\d+)%</text>", drawn) and "%/" not in drawn, "the target's alone"


def test_the_round_that_passes_the_limit_counts_whole_and_without_a_round_there_is_no_step():
    first, last = walked("chain:5", LanguageModelDrafter(MODEL), new=11)  # its own drafter: 1 token, then 6 per round
    assert (first.fresh, last.fresh) == (6, 4) and len(last.accepted) == 5 == last.so_far.acceptance_length
    assert "the text ends after the first 4" in describe_round(last, 50.0)
    assert "ends" not in describe_round(first, 50.0)
    (end,) = Letters.ids(walked()[0].text[1][0])
    assert walked(eos=(end,)) == [] and walked(new=1) == []


@settings(deadline=None, max_examples=100)
@given(st.text(alphabet=st.characters(exclude_characters=UNFINISHED, codec="utf-8")),
       st.text(alphabet="aé你🌲\n ", max_size=12))
def test_texts_of_tokens_add_up_and_split_no_character(before, text):
    tokens_are_bytes = SimpleNamespace(decode=lambda ids, **options: bytes(ids).decode(errors="replace"))
    pieces = added_texts(tokens_are_bytes, list(before.encode()), list(text.encode()))
    assert "".join(pieces) == text and len(pieces) == len(text.encode())
    assert [piece for piece in pieces if piece] == list(text)


def test_the_drawing_and_the_running_text_hold_every_token_and_say_who_wrote_it():
    step = max(walked(), key=lambda step: len(step.accepted))
    drawn = [unescape(text) for text in re.findall(r"<text[^>]*>([^<]*)</text>", of_step(step))]
    assert {*map(visible, (*step.tokens, step.bonus))} <= {*drawn}
    for both in list(zip(step.probabilities, step.target_probabilities))[1:]:
        assert "/".join("<1%" if chance < 0.005 else f"{chance:.0%}" for chance in both) in drawn
    html = running_text(step)
    assert html.count('title="draft"') == sum(who == DRAFT for _, who in step.text)
    assert html.count('title="target"') == sum(who == TARGET for _, who in step.text)
    assert html.count("border-bottom:2px") == step.fresh and "<pre" in html
    odd = SimpleNamespace(text=(("<b>", PROMPT), ("$x$ &", DRAFT), ("\n", TARGET)), fresh=1)
    assert "&lt;b&gt;" in running_text(odd) and "$x$ &amp;" in running_text(odd) and "↵" in running_text(odd)
    long = SimpleNamespace(text=(("first " * 9 + "last " * 99, PROMPT),), fresh=0)
    assert "first" not in running_text(long) and ">…" in running_text(long) and "last </span>" in running_text(long)
    assert all(ROLES[role] in legend() for role in ("root", "accepted", "rejected", "bonus"))


@pytest.mark.parametrize("text, label", [
    (" the", "·the"), ("\n        ", "↵·×8"), ("\t\r\n", "⇥↵"), ("   x", "···x"), ("x" * 30, "x" * 11 + "…"),
    ("\x00你", UNFINISHED + "你"), ("", "")])
def test_labels_show_white_space_and_stay_short(text, label):
    assert visible(text) == label
