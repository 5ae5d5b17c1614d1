"""Small random models and a plain drafter for tests: exactness does not need a trained model."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lib.attention import registration

VOCABULARY = 24


def llama(seed: int, *, hidden: int = 32, layers: int = 2, vocabulary: int = VOCABULARY, window: int = 256,
          dtype=torch.float64, gain: float = 4.0):
    """A random Llama with tree attention; `gain` spreads its logits so that its distributions are not flat."""
    registration.register()
    config = LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, num_hidden_layers=layers, intermediate_size=2 * hidden,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=window, bos_token_id=0, eos_token_id=0)
    torch.manual_seed(seed)
    model = LlamaForCausalLM._from_config(config, attn_implementation="tree", dtype=dtype).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(gain / model.lm_head.weight.std() / hidden**0.5)
    return model


def related(model, seed: int, noise: float):
    """A copy of a model with noise on its weights: a drafter that agrees with it in part."""
    torch.manual_seed(seed)
    config = model.config
    copy = type(model)._from_config(config, attn_implementation="tree", dtype=model.dtype).eval()
    copy.load_state_dict(model.state_dict())
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(noise * parameter.std() * torch.randn_like(parameter))
    return copy


def prompts(seed: int, lengths, vocabulary: int = VOCABULARY) -> list[torch.Tensor]:
    """Random prompts int64[T] without token 0."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(1, vocabulary, (length,), generator=generator) for length in lengths]
