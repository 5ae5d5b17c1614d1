"""Blocks over a cache's whole buffers say what the model says: the graph's function, run without a compiler."""

import pytest
import torch

from lib.decoding import generate, in_batches
from lib.drafters import NoDrafter
from lib.drafters.language_model import LanguageModelDrafter
from lib.models.cache import TreeCache
from lib.models.compiled import CompiledBlocks
from lib.tests import small_models

TARGET = small_models.llama(0)
DRAFTER = small_models.related(TARGET, 1, noise=0.3)
PROMPTS = small_models.prompts(2, (3, 11, 6, 120))  # the last makes the buffers grow


def untouched(function):
    return function


@pytest.mark.parametrize("shape", ["chain:0", "chain:4", "kary:2@14"])
def test_blocks_decode_as_the_model_does(shape):
    ids, mask = next(in_batches(PROMPTS, 4))
    told = []
    ways = (lambda model: model, lambda model: CompiledBlocks(model, untouched), _roomy)
    for stand_in in ways:
        drafter = NoDrafter() if shape == "chain:0" else LanguageModelDrafter(stand_in(DRAFTER))
        done = generate(stand_in(TARGET), drafter, ids, attention_mask=mask, shape=shape, max_new_tokens=30)
        told.append([(found.row, found.position, found.accepted) for found in done.rounds] + done.new_tokens)
    assert told[0] == told[1] == told[2]


def _roomy(model):
    """Buffers of the whole window from the first block on."""
    return CompiledBlocks(model, untouched, slots=model.config.max_position_embeddings)


def test_hidden_states_come_from_the_model_itself():
    blocks = CompiledBlocks(TARGET, untouched)
    prompt, places = torch.ones(1, 3, dtype=torch.long), torch.arange(3)[None]
    out = blocks(prompt, places, past_key_values=TreeCache(), output_hidden_states=True, use_cache=True)
    assert len(out.hidden_states) == TARGET.config.num_hidden_layers + 1
    assert blocks.config is TARGET.config
