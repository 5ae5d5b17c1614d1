"""Prefill: texts are forwarded beside texts of similar lengths, as if each stood alone."""

import pytest
import torch

from lib.decoding import continuations
from lib.forward.passes import forward_pass
from lib.forward.prefill import alike, prefill
from lib.tests import small_models

TARGET = small_models.llama(0)
LONG, OTHER = small_models.prompts(0, (20, 7))
PROMPTS = [LONG[:6], LONG[:13], OTHER, LONG, OTHER, LONG[:13]]


def test_texts_are_forwarded_beside_texts_of_similar_lengths():
    lengths = [100, 90, 80, 79, 64, 63, 5]
    assert [lengths[group] for group in alike(lengths)] == [[100, 90, 80], [79, 64], [63], [5]]


@pytest.mark.parametrize("texts", [PROMPTS, [LONG, LONG[3:19]], [OTHER, LONG], [LONG]])
def test_a_prefill_by_groups_equals_each_text_alone(texts):
    run = forward_pass(TARGET)
    done = prefill(run, texts, hidden_states=True)
    for row, text in enumerate(texts):
        alone, length = prefill(run, [text], hidden_states=True), len(text)
        assert torch.allclose(done.logits[row], alone.logits[0], atol=1e-5) and done.cache.lengths[row] == length
        for layer, other in zip(done.cache.layers, alone.cache.layers, strict=True):
            for ours, theirs in zip(layer.buffers, other.buffers):
                assert torch.allclose(ours[:, row, :, :length], theirs[:, 0, :, :length], atol=1e-5)
        for ours, theirs in zip(done.hidden_states, TARGET(text[None], output_hidden_states=True).hidden_states,
                                strict=True):
            assert torch.allclose(ours[row, :length], theirs[0], atol=1e-5)


@pytest.mark.parametrize("rows, eos", [(32, None), (4, 3), (2, [3, 5])])
def test_texts_are_continued_as_if_alone(rows, eos):
    together, alone = (continuations(TARGET, PROMPTS, max_new_tokens=12, rows=count, eos_token_id=eos)
                       for count in (rows, 1))
    assert together == alone and max(map(len, together)) > 1


def test_nothing_is_continued_by_nothing():
    assert continuations(TARGET, PROMPTS, max_new_tokens=0) == [[]] * 6
