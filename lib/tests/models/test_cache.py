"""The cache and the registration, together: real models, random trees, ragged prompts, several rounds."""

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from lib.attention.registration import register, tree_forward
from lib.models.cache import TreeCache

SMALL = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, head_dim=8, max_position_embeddings=256, tie_word_embeddings=False,
             initializer_range=0.3)  # large enough for a wrong mask to show
MODELS = {"llama": (LlamaForCausalLM, LlamaConfig), "qwen3": (Qwen3ForCausalLM, Qwen3Config)}


def small_model(kind: str, attention: str):
    register()
    torch.manual_seed(0)
    model_class, config_class = MODELS[kind]
    config = config_class(**SMALL, attn_implementation=attention)
    return model_class._from_config(config, dtype=torch.float64).eval()


def random_tree(rng, nodes):
    """Parents, depths and ancestor mask of a random recursive tree."""
    parents = [-1] + [int(rng.integers(0, i)) for i in range(1, nodes)]
    depth, mask = np.zeros(nodes, int), np.eye(nodes, dtype=bool)
    for node in range(1, nodes):
        depth[node] = depth[parents[node]] + 1
        mask[node] |= mask[parents[node]]
    return parents, torch.from_numpy(depth), torch.from_numpy(mask)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("lengths", [[7], [5, 5], [9, 3, 6]])
@torch.no_grad()
def test_a_whole_tree_in_one_forward_equals_each_path_alone(kind, lengths):
    """Logits of every node equal the plain causal forward of its path, after each of several keep() rounds.

    The tolerance is that of eager attention and of the norms, which take their softmax and mean square in float32.
    """
    rng = np.random.default_rng(len(lengths))
    tree_model, plain = small_model(kind, "tree"), small_model(kind, "eager")
    rows = [rng.integers(0, 64, length).tolist() for length in lengths]
    prompts = torch.zeros(len(rows), max(lengths), dtype=torch.long)
    for row, tokens in enumerate(rows):
        prompts[row, : len(tokens)] = torch.tensor(tokens)
    cache = TreeCache()
    tree_forward(tree_model, prompts, torch.arange(max(lengths)), None, cache)
    cache.set_lengths(torch.tensor(lengths))
    for _ in range(4):
        trees = [random_tree(rng, 9) for _ in rows]
        depth, mask = (torch.stack(part) for part in list(zip(*trees))[1:])
        tokens = torch.from_numpy(rng.integers(0, 64, (len(rows), 9)))
        logits = tree_forward(tree_model, tokens, depth, mask, cache).logits
        kept = []
        for row in range(len(rows)):
            for node in range(9):
                path = mask[row, node].nonzero().flatten()
                alone = torch.tensor([rows[row] + tokens[row, path].tolist()])
                torch.testing.assert_close(logits[row, node], plain(alone).logits[0, -1], rtol=0, atol=1e-5)
            kept.append(mask[row, int(rng.integers(0, 9))].nonzero().flatten())
            rows[row] += tokens[row, kept[-1]].tolist()
        cache.commit([path.tolist() for path in kept])
        assert cache.lengths.tolist() == [len(tokens) for tokens in rows] and cache.pending == 0


@pytest.mark.parametrize("kind", MODELS)
@torch.no_grad()
def test_a_tree_grown_level_by_level_equals_the_tree_at_once(kind):
    """A drafter appends a level a forward; what it has drafted is pending, and is seen by its descendants alone."""
    model = small_model(kind, "tree")
    levels, mask = [[0], [1, 2], [3, 4, 5]], torch.eye(6, dtype=torch.bool)
    for node, parent in enumerate([None, 0, 0, 1, 1, 2]):
        if parent is not None:
            mask[node] |= mask[parent]
    depth, tokens, prompt = torch.tensor([0, 1, 1, 2, 2, 2]), torch.arange(10, 16)[None], torch.arange(5)[None]
    caches = TreeCache(), TreeCache()
    for cache in caches:
        tree_forward(model, prompt, torch.arange(5), None, cache)
        cache.set_lengths([5])
    at_once = tree_forward(model, tokens, depth, mask, caches[0]).logits
    by_level = [
        tree_forward(model, tokens[:, level], depth[level], mask[level, : level[-1] + 1], caches[1]).logits
        for level in levels
    ]
    torch.testing.assert_close(torch.cat(by_level, 1), at_once, rtol=0, atol=1e-12)
    assert caches[0].pending == caches[1].pending == 6


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("own_cache", [False, True])
@torch.no_grad()
def test_plain_generate_equals_sdpa(kind, own_cache):
    """Without a tree the registered name is an ordinary attention: left-padded batches and padding masks included."""
    tree_model, sdpa = small_model(kind, "tree"), small_model(kind, "sdpa")
    tokens = torch.randint(1, 64, (2, 6), generator=torch.Generator().manual_seed(1))
    padding = torch.ones_like(tokens)
    padding[1, :3] = 0
    settings = dict(attention_mask=padding, max_new_tokens=12, do_sample=False, pad_token_id=0)
    settings |= dict(output_logits=True, return_dict_in_generate=True)
    ours = tree_model.generate(tokens, **settings, **({"past_key_values": TreeCache()} if own_cache else {}))
    theirs = sdpa.generate(tokens, **settings)
    assert torch.equal(ours.sequences, theirs.sequences)
    torch.testing.assert_close(torch.stack(ours.logits), torch.stack(theirs.logits), rtol=0, atol=1e-10)


@torch.no_grad()
def test_direct_calls_need_no_helper_and_ignore_what_lies_beyond():
    """The model's own keywords do; a prefill's padding and earlier rounds' rejected nodes matter to nothing."""
    model = small_model("llama", "tree")
    mask = torch.ones(3, 3, dtype=torch.bool).tril()
    answers = []
    for padding in (0, 33):
        prompts = torch.tensor([[1, 2, 3, 4, 5], [6, 7, padding, padding, padding]])
        cache = TreeCache()
        positions = torch.arange(5)[None].expand(2, -1)
        model(input_ids=prompts, position_ids=positions, past_key_values=cache, prefix_length=0)
        cache.set_lengths([5, 2])
        for keyword in ({}, {"tree_mask": mask}):  # a chain may also say so by leaving the mask out
            block = dict(input_ids=torch.tensor([[1, 2, 3], [4, 5, 6]]), prefix_length=cache.lengths)
            positions = cache.lengths[:, None] + torch.arange(3)
            answers.append(model(**block, position_ids=positions, past_key_values=cache, **keyword).logits)
            cache.forget()
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], rtol=0, atol=1e-12)


@pytest.mark.parametrize("commit", [False, True])
@torch.no_grad()
def test_causal_blocks_one_after_another_equal_one_prefill(commit):
    """Behind what is committed, and behind what is only pending."""
    model, tokens = small_model("llama", "tree"), torch.arange(18).reshape(2, 9)
    at_once = tree_forward(model, tokens, torch.arange(9), None, TreeCache()).logits
    cache, answers = TreeCache(), []
    for block in (slice(0, 4), slice(4, 6), slice(6, 9)):
        depth = torch.arange(9)[block] - (cache.lengths[0] if commit and block.start else 0)
        answers.append(tree_forward(model, tokens[:, block], depth, None, cache).logits)
        if commit:
            cache.set_lengths([block.stop, block.stop])
    torch.testing.assert_close(torch.cat(answers, 1), at_once, rtol=0, atol=1e-10)


def numbered(batch, nodes, start):
    """Keys that carry their own number, to follow them through the buffers."""
    return (start + torch.arange(nodes, dtype=torch.float64)).expand(batch, 1, nodes).unsqueeze(-1).contiguous()


def test_the_cache_holds_exactly_the_kept_tokens_through_growth_and_selection():
    """Against a plain list of lists: random appends, keeps and selections."""
    rng = np.random.default_rng(0)
    cache, rows, number = TreeCache(), [[], [], []], 0
    for _ in range(60):
        nodes = int(rng.integers(1, 20))
        states = numbered(len(rows), nodes, number)
        keys, values = cache.update(states, -states, 0)
        assert torch.equal(keys, -values) and keys.shape[2] == max(map(len, rows)) + nodes
        kept = [sorted(rng.choice(nodes, int(rng.integers(1, nodes + 1)), replace=False)) for _ in rows]
        for row, path in zip(rows, kept):
            row += [number + node for node in path]
        cache.commit(kept)
        number += nodes
        assert cache.lengths.tolist() == [len(row) for row in rows]
        for row, tokens in enumerate(rows):
            assert cache.layers[0].keys[row, 0, : len(tokens), 0].tolist() == tokens
    cache.select(torch.tensor([2, 0]))
    cache.set_lengths([4, 5])
    assert cache.layers[0].keys[:, 0, :4, 0].tolist() == [rows[2][:4], rows[0][:4]] and cache.lengths.tolist() == [4, 5]
    capacity = cache.layers[0].keys.shape[2]
    assert cache.bytes == 2 * 2 * capacity * 8
