"""Experts that a check touches, and the drafter of excerpts with which its cost is timed."""

import torch
from transformers import AutoModelForCausalLM, GptOssConfig, MixtralConfig

from lib.attention.registration import hosting_trees, register
from lib.cost import experts
from lib.drafters.controls import ExcerptDrafter
from lib.tests.small_models import llama, prompts
from lib.trees import named
from lib.verify.draft import GeneratorDraws

SIZES = dict(vocab_size=24, hidden_size=16, intermediate_size=16, num_hidden_layers=3, num_attention_heads=2,
             num_key_value_heads=2, head_dim=8, num_local_experts=8, num_experts_per_tok=2, max_position_embeddings=128)


def test_experts_of_a_check_are_counted_by_layer():
    register()
    for config in (MixtralConfig(**SIZES), GptOssConfig(**SIZES)):
        torch.manual_seed(0)
        model = hosting_trees(AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval())
        rows = experts.per_check(model, prompts(0, (30, 40)), [0, 8])
        one, many = (rows[rows["nodes"] == count].set_index("tokens") for count in (0, 8))
        assert (one["experts"] == 2).all() and one["layers"].eq(3).all(), "a token takes two experts in each layer"
        assert many["experts"].between(2, 8).all() and many.loc["random tokens", "experts"] > 2
        assert not any(module._forward_pre_hooks for module in model.modules())
    assert experts.per_check(llama(0), prompts(0, (30,)), [1]).empty


def test_excerpts_follow_the_text_and_siblings_differ():
    text = torch.arange(2, 24)
    drafter = ExcerptDrafter([text], 24, torch.Generator().manual_seed(0))
    drafter.start([torch.tensor([1])])
    for _ in range(20):
        chain, = drafter.propose(named("chain:5"), GeneratorDraws(None))
        after = chain.tokens[1:-1] + 1
        assert torch.equal(chain.tokens[2:], torch.where(after > 23, 2, after))
        tree, = drafter.propose(named("kary:3@12"), GeneratorDraws(None))
        for node in range(tree.tree.size):
            siblings = tree.tokens[list(tree.tree.children(node))].tolist()
            assert len(set(siblings)) == len(siblings)
