"""Arguments that the loop cannot use are refused with their name, value and the remedy."""

import copy

import pytest
import torch
from transformers import GenerationConfig

from lib.decoding import generate
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.merged import MergedDrafter
from lib.tests import small_models
from lib.tests.decoding.test_loop import DRAFTER, PROMPTS, TARGET, greedy

WIDER = LanguageModelDrafter(small_models.llama(1, vocabulary=30))
OTHER = small_models.llama(1)
OTHER.set_attn_implementation("sdpa")
USUAL = dict(shape="chain:2", max_new_tokens=4)


@pytest.mark.parametrize("changed, message", [
    (dict(input_ids=torch.zeros(1, 0, dtype=torch.long)), r"input_ids is torch.int64 \(1, 0\)"),
    (dict(input_ids=torch.zeros(0, 4, dtype=torch.long)), "one prompt of at least a token per row"),
    (dict(input_ids=[[1, 2]]), "input_ids is a list"),
    (dict(input_ids=torch.tensor([[1.0, 2.0]])), "input_ids is torch.float32"),
    (dict(input_ids=torch.tensor([[1, 24]])), "prompt 0 has token 24, the target knows 0 to 23"),
    (dict(input_ids=torch.tensor([[1], [-1]])), "prompt 1 has token -1"),
    (dict(attention_mask=torch.zeros(1, 17)), "prompt 0 is empty"),
    (dict(attention_mask=torch.ones(1, 2)), r"attention_mask is torch.float32 \(1, 2\); give one entry"),
    (dict(attention_mask=[[1, 1]]), "attention_mask is a list"),
    (dict(max_new_tokens=-1), "max_new_tokens is -1"),
    (dict(max_new_tokens=300), "the model's window has 256; shorten the prompt"),
    (dict(shape="kary"), "'kary' cannot be read"),
    (dict(forward="fast"), "forward is 'fast'; choose one of layers, native, or 'auto'"),
    (dict(rule="naive"), "greedy goes with temperature 0"),
    (dict(rule="best"), "rule is 'best'; choose one of greedy"),
    (dict(rule="naive", temperature=0.5), "generator is None"),
    (dict(rule="naive", temperature=1.0, generator=7), "generator is 7; pass a torch.Generator"),
    (dict(rule="naive", temperature=float("nan"), generator=torch.Generator()), "temperature is nan"),
    (dict(temperature="hot"), "temperature is 'hot'; give 0"),
    (dict(eos_token_id="</s>"), "eos_token_id is '</s>'"),
    (dict(target="base"), "target is 'base'; give a model"),
    (dict(target=OTHER), "LlamaForCausalLM has attention 'sdpa'.*hosting_trees"),
    (dict(drafter=LanguageModelDrafter(OTHER)), "LlamaForCausalLM has attention 'sdpa'.*hosting_trees"),
    (dict(drafter="sam"), "drafter is 'sam', not a Drafter"),
    (dict(drafter=DRAFTER), r"drafter is a LlamaForCausalLM, not a Drafter.*make\('model', pair\)"),
    (dict(drafter=WIDER), "the drafter knows 30 tokens, the target 24; .*, which leaves them out"),
    (dict(drafter=MergedDrafter(LanguageModelDrafter(DRAFTER), WIDER)), "the drafter knows 30 tokens"),
])
def test_unusable_arguments_are_refused_by_name(changed, message):
    usual = dict(target=TARGET, drafter=LanguageModelDrafter(DRAFTER), input_ids=PROMPTS[3][None], **USUAL)
    with pytest.raises(ValueError, match=message):
        generate(**usual | changed)


def texts_of(ids, pad, eos, **keywords):
    """The texts of a target with a padding token, and with tokens that end its texts."""
    target = copy.copy(TARGET)
    target.generation_config = GenerationConfig(pad_token_id=pad, eos_token_id=eos)
    return generate(target, LanguageModelDrafter(DRAFTER), torch.tensor(ids), **USUAL, **keywords).new_tokens


@pytest.mark.parametrize("pad, eos, padding", [(5, 7, 5), (5, 5, 5), (None, 5, 5), (None, [7, 5], 5), (0, None, 0)])
@pytest.mark.parametrize("left", [True, False])
def test_a_padded_batch_without_a_mask_is_refused(pad, eos, padding, left):
    """Its padding would be read as text. With a mask, of ones too, it decodes; so do single rows."""
    rows = [[3, 4, 6, 8], [9, 3], [4, 6, 2]]
    ids = [[*[padding] * (4 - len(row)), *row] if left else [*row, *[padding] * (4 - len(row))] for row in rows]
    with pytest.raises(ValueError, match=f"row 1 of input_ids {'begins' if left else 'ends'} with token {padding}, .* "
                                         "pass `attention_mask`; all ones if these are text"):
        texts_of(ids, pad, eos)
    for mask, alone in ((torch.tensor(ids) != padding, rows), (torch.ones(3, 4), ids)):
        assert texts_of(ids, pad, eos, attention_mask=mask) == [texts_of([row], pad, eos)[0] for row in alone]
    for text in ([[5, 3, 4], [5, 6, 8]], [[3, 5, 4], [3, 4, 6]]):  # where all begin so, or inside, it is text
        assert texts_of(text, 5, 5) == greedy(torch.tensor(text), 4)
