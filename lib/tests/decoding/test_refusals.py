"""Arguments that the loop cannot use are refused with their name, value and the remedy."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from lib import replay
from lib.attention.registration import hosting_trees
from lib.decoding import generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.tests import small_models
from lib.tests.decoding.test_loop import DRAFTER, KINDS, NAMES, PROMPTS, TARGET, greedy

WIDER = LanguageModelDrafter(small_models.llama(1, vocabulary=30))


@pytest.mark.parametrize("changed, message", [
    (dict(input_ids=torch.zeros(1, 0, dtype=torch.long)), r"input_ids is torch.int64 \(1, 0\)"),
    (dict(input_ids=torch.zeros(0, 4, dtype=torch.long)), "one prompt of at least a token per row"),
    (dict(attention_mask=torch.zeros(1, 17)), "prompt 0 is empty"),
    (dict(input_ids=[[1, 2]]), "input_ids is a list"),
    (dict(input_ids=torch.tensor([1, 2])), r"input_ids is torch.int64 \(2,\)"),
    (dict(input_ids=torch.tensor([[1.0, 2.0]])), "input_ids is torch.float32"),
    (dict(input_ids=torch.tensor([[1, 24]])), "prompt 0 has token 24, the target knows 0 to 23"),
    (dict(input_ids=torch.tensor([[1], [-1]])), "prompt 1 has token -1"),
    (dict(max_new_tokens=-1), "max_new_tokens is -1"),
    (dict(max_new_tokens=2.5), "max_new_tokens is 2.5"),
    (dict(max_new_tokens=None), "max_new_tokens is None"),
    (dict(max_new_tokens="many"), "max_new_tokens is 'many'"),
    (dict(max_new_tokens=300), "the model's window has 256; shorten the prompt"),
    (dict(shape="kary"), "'kary' cannot be read"),
    (dict(shape=None), "shape is None"),
    (dict(rule="naive"), "greedy goes with temperature 0"),
    (dict(rule="best"), "rule is 'best'; choose one of greedy"),
    (dict(rule="best", temperature=1.0, generator=torch.Generator()), "rule is 'best'"),
    (dict(rule="naive", temperature=0.5), "generator is None"),
    (dict(rule="naive", temperature=1.0, generator=7), "generator is 7; pass a torch.Generator"),
    (dict(rule="naive", temperature=float("nan"), generator=torch.Generator()), "temperature is nan"),
    (dict(temperature="hot"), "temperature is 'hot'; give 0"),
    (dict(temperature=None), "temperature is None"),
    (dict(eos_token_id="</s>"), "eos_token_id is '</s>'"),
    (dict(eos_token_id=[1, 2.5]), "eos_token_id is"),
    (dict(eos_token_id=2.5), "eos_token_id is 2.5"),
    (dict(attention_mask=torch.ones(1, 2)), r"attention_mask is torch.float32 \(1, 2\) for input_ids \(1, 17\)"),
    (dict(attention_mask=[[1, 1]]), "attention_mask is a list"),
    (dict(target="base"), "target is 'base'; give a model"),
    (dict(drafter="sam"), "drafter is 'sam', not a Drafter"),
    (dict(drafter=DRAFTER), r"drafter is a LlamaForCausalLM, not a Drafter.*make\('model', pair\)"),
    (dict(drafter=WIDER), "the drafter knows 30 tokens, the target 24; .*, which leaves them out"),
    (dict(drafter=MergedDrafter(LanguageModelDrafter(DRAFTER), WIDER)), "the drafter knows 30 tokens"),
])
def test_unusable_arguments_are_refused_by_name(changed, message):
    usual = dict(target=TARGET, drafter=LanguageModelDrafter(DRAFTER), input_ids=PROMPTS[3][None], shape="chain:2",
                 max_new_tokens=4)
    with pytest.raises(ValueError, match=message):
        generate(**usual | changed)


@pytest.mark.parametrize("role", ["target", "drafter"])
def test_a_model_without_tree_attention_is_named(role):
    other = small_models.llama(1)
    other.set_attn_implementation("sdpa")
    target, drafter = (other, DRAFTER) if role == "target" else (TARGET, other)
    with pytest.raises(ValueError, match="LlamaForCausalLM has attention 'sdpa'.*hosting_trees"):
        generate(target, LanguageModelDrafter(drafter), PROMPTS[0][None], shape="chain:2", max_new_tokens=4)
    with pytest.raises(ValueError, match="attention 'sdpa'"):
        replay.record(target, {"d": drafter}, PROMPTS, names=NAMES, kinds=KINDS, max_new_tokens=4)
    hosting_trees(other)
    assert generate(target, LanguageModelDrafter(drafter), PROMPTS[0][None], shape="chain:2", max_new_tokens=4).rounds


def padded_target(pad, eos):
    """The target with its own padding token, and tokens that end its texts."""
    target = copy.copy(TARGET)
    target.generation_config = GenerationConfig(pad_token_id=pad, eos_token_id=eos)
    return target


@pytest.mark.parametrize("pad, eos, padding", [(5, 7, 5), (5, 5, 5), (None, 5, 5), (None, [7, 5], 5), (0, None, 0)])
@pytest.mark.parametrize("left", [True, False])
def test_a_padded_batch_without_a_mask_is_refused(pad, eos, padding, left):
    """Its padding would be read as text; with a mask, of ones too, and as single rows it decodes."""
    target, usual = padded_target(pad, eos), dict(shape="chain:2", max_new_tokens=4)
    rows = [[3, 4, 6, 8], [9, 3], [4, 6, 2]]
    filled = [[*[padding] * (4 - len(row)), *row] if left else [*row, *[padding] * (4 - len(row))] for row in rows]
    ids, drafter = torch.tensor(filled), LanguageModelDrafter(DRAFTER)
    verb = "begins" if left else "ends"
    with pytest.raises(ValueError, match=f"row 1 of input_ids {verb} with token {padding}, .* pass `attention_mask`; "
                                         "all ones if these are text"):
        generate(target, drafter, ids, **usual)
    assert generate(target, drafter, ids, attention_mask=ids != padding, **usual).new_tokens == [
        generate(target, drafter, torch.tensor([row]), **usual).new_tokens[0] for row in rows]
    as_text = generate(target, drafter, ids, attention_mask=torch.ones_like(ids), **usual).new_tokens
    assert as_text == [generate(target, drafter, row[None], **usual).new_tokens[0] for row in ids], "a row never raises"


@pytest.mark.parametrize("rows", [[[5, 3, 4], [5, 6, 8]], [[3, 5, 4], [3, 4, 6]], [[3, 4], [6, 8]]],
                         ids=["all begin so", "inside", "none"])
def test_a_batch_of_text_needs_no_mask(rows):
    """Where all rows begin with the token it is a first token, and inside a text it is text."""
    ids = torch.tensor(rows)
    done = generate(padded_target(5, 5), LanguageModelDrafter(DRAFTER), ids, shape="chain:2", max_new_tokens=4)
    assert done.new_tokens == greedy(ids, 4)
