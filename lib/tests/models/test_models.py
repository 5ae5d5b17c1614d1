"""Pairs from folders that are made here: they load, padding is cut, and what cannot work says so in one message."""

import json
import os
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (AutoModelForCausalLM, AutoModelForMultimodalLM, CLIPVisionConfig, Gemma3Config,
                          Gemma3TextConfig, GPT2Config, InstructBlipConfig, Llama4TextConfig, LlamaConfig,
                          LlamaForCausalLM, LlavaConfig, OPTConfig, PreTrainedTokenizerFast, Qwen3Config,
                          SiglipVisionConfig, T5Config)

from lib import decoding, forward, models
from lib.drafters.language_model import LanguageModelDrafter
from lib.models import PairError, checks, load, registry

TEXT = ["the cat sat on the mat and the dog sat on the log", "a tree of tokens is drafted and then verified"] * 4
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
             max_position_embeddings=128, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True)


def make_tokenizer(texts=TEXT, size=300, extra=(), names=("<|end|>",)):
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(names), show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[0])
    fast.add_special_tokens({"additional_special_tokens": list(extra)})
    return fast


def make_folder(path, config, tokenizer, seed=0):
    torch.manual_seed(seed)
    model = load._loader(config).from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))  # else a random model repeats its last token for ever
    model.save_pretrained(path)
    tokenizer.save_pretrained(path)
    return str(path)


@pytest.fixture(scope="module")
def tokenizer():
    return make_tokenizer()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tokenizer):
    """A target whose vocabulary is padded beyond its tokens, and drafters with more, less and no padding."""
    home = tmp_path_factory.mktemp("models")
    return {name: make_folder(home / name, LlamaConfig(vocab_size=len(tokenizer) + padding, **SMALL), tokenizer, seed)
            for seed, (name, padding) in enumerate({"target": 8, "less": 3, "more": 20, "none": 0}.items())}


def copied(path, source, name="config.json", content=None, without=None, weights=None, **changes):
    """A copy of a folder with a file of this content, or a config.json that says something else, and with more weights,
    or those that a function makes of its own.
    """
    shutil.copytree(source, path, ignore=shutil.ignore_patterns(without or ""))
    config = json.loads((path / "config.json").read_text()) | changes
    (path / name).write_bytes(json.dumps(config).encode() if content is None else content)
    if weights:
        tensors = load_file(path / "model.safetensors")
        save_file(weights(tensors) if callable(weights) else tensors | weights, path / "model.safetensors")
    return str(path)


def in_fp8(weights):
    """Projections in 8 bits, each with the scale of a block of 128 x 128."""
    scales = {name: weight.abs().max().view(1, 1) / 448 for name, weight in weights.items() if "proj" in name}
    return weights | {name: (weights[name] / scale).to(torch.float8_e4m3fn) for name, scale in scales.items()} | {
        f"{name}_scale_inv": scale for name, scale in scales.items()}


def refusal(name, **settings):
    with pytest.raises(PairError) as caught:
        load.load_pair(name, **settings)
    return str(caught.value)


def refused(name):
    """The message of both: the check before anything runs, and loading."""
    with pytest.raises(PairError) as caught:
        load.check_pairs([name])
    assert refusal(name) == str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("config", [
    LlamaConfig(**SMALL), Qwen3Config(head_dim=8, **SMALL),
    GPT2Config(n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0),
], ids=lambda config: config.model_type)
@pytest.mark.parametrize("padding", [3, 8, 20])
def test_a_pair_decodes_as_its_target_in_the_vocabulary_that_both_have(tmp_path, tokenizer, config, padding):
    """The target's is padded by 8."""
    paths = []
    for seed, more in enumerate((8, padding)):
        config.vocab_size = len(tokenizer) + more
        paths.append(make_folder(tmp_path / str(seed), config, tokenizer, seed))
    pair = load.load_pair("|".join(paths), dtype="float64")
    expected = len(tokenizer) + min(8, padding)
    assert pair.vocabulary == pair.target.config.vocab_size == pair.draft_model.config.vocab_size == expected
    prompt = torch.tensor([pair.tokenizer("the cat sat")["input_ids"]])
    whole = AutoModelForCausalLM.from_pretrained(paths[0], dtype=torch.float64)
    torch.testing.assert_close(pair.target(prompt).logits, whole(prompt).logits[..., :expected])
    plain = pair.target.generate(prompt, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    done = decoding.generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6",
                             max_new_tokens=9)
    assert torch.equal(done.sequences, plain) and len(set(done.new_tokens[0])) > 2


def test_a_pair_says_what_results_depend_on(folders, monkeypatch):
    monkeypatch.chdir(Path(folders["target"]).parent)
    pair = load.load_pair("./target | none", dtype=torch.bfloat16)
    assert (pair.name, pair.target_name, pair.drafter_name) == ("target|none", "target", "none")
    assert pair.window == 128 and pair.eos_token_ids == (0,) and pair.dtype == "bfloat16"
    assert not pair.target.training and pair.target.config._attn_implementation == "tree"
    monkeypatch.chdir("/")
    twin = pickle.loads(pickle.dumps(pair))  # which is loaded again, wherever that is
    assert twin.name == pair.name and twin.dtype == "bfloat16" and pickle.loads(pickle.dumps(pair)) is twin
    assert torch.equal(twin.target.lm_head.weight, pair.target.lm_head.weight)


def test_models_that_pairs_share_are_loaded_once_and_agree_in_vocabulary(folders):
    names = ["target|more", "target|less", "more|none", "none"]
    pairs = load.load_pairs(["|".join(folders[part] for part in name.split("|")) for name in names])
    assert pairs[0].target is pairs[1].target and pairs[0].draft_model is pairs[2].target
    assert len({model.config.vocab_size for pair in pairs for model in pair.models}) == 1
    alone = pairs[3]
    assert (alone.name, alone.drafter_name, alone.draft_model) == ("none", "none", None)


def test_names_stand_for_sources(tmp_path, folders):
    pinned, plain = models.sources("me/big@v1.2|me/small")
    assert (pinned.where, pinned.revision, pinned.name, str(pinned)) == ("me/big", "v1.2", "big@v1.2", "me/big@v1.2")
    assert plain.revision is None and plain.kind == registry.HUB
    odd = copied(tmp_path / "kept@home", folders["none"])  # a folder keeps its at sign
    assert models.sources(f"{odd}|{folders['target']}")[0].where == odd


def test_a_published_size_has_its_makers_number_of_parameters():
    with torch.device("meta"):
        counts = {size.name: LlamaForCausalLM(LlamaConfig.from_pretrained(size)).num_parameters()
                  for size in (registry.SHIPPED / "sizes").iterdir()}
    assert {name: round(count / 1e9, 3) for name, count in counts.items()} == {
        "llama-3-70b": 70.554, "llama-3-8b": 8.03, "llama-3.2-1b": 1.236, "llama-68m": 0.068, "smollm2-1.7b": 1.711,
        "smollm2-135m": 0.135}


@pytest.mark.parametrize("name, reason", [
    ("base/tinny", "'base/tinny' is unknown; choose one of smollm2-135m"),
    ("qwen9000|", "or write 'TARGET' or 'TARGET|DRAFTER' with hub ids, folders or GGUF files"),
    ("qwen9000", "pair 'qwen9000' is unknown"), ("base|small|tiny", "'base|small|tiny' is unknown"),
    ("./nowhere|me/small", "no folder ./nowhere"), ("me/big@|me/small", "names no revision after its @"),
    (3, "pair 3 is unknown"), (None, "pair None is unknown")])
def test_a_name_that_means_nothing(name, reason):
    assert reason in refused(name)
    with pytest.raises(PairError, match=re.escape("give a list of names, such as ['base/small']")):
        load.check_pairs("base/small")


def test_tokenizers_that_differ(tmp_path, folders, tokenizer):
    other = make_tokenizer(["quite other words were read here"] * 8)
    apart = make_folder(tmp_path / "other", LlamaConfig(vocab_size=310, **SMALL), other)
    assert "target and other have different tokenizers" in refused(f"{folders['target']}|{apart}")
    # Added tokens may have other names, but need embeddings.
    config = LlamaConfig(vocab_size=len(tokenizer) + 8, **SMALL)
    chat = make_folder(tmp_path / "chat", config, make_tokenizer(extra=["<|user|>", "<|bot|>"]), 5)
    twin = make_folder(tmp_path / "chat2", config, make_tokenizer(extra=["<|human|>"]), 6)
    assert load.load_pair(f"{chat}|{twin}").vocabulary == len(tokenizer) + 8
    reason = refused(f"{chat}|{folders['none']}")
    assert f"none has embeddings for {len(tokenizer)} tokens" in reason
    assert "chat writes 2 more, such as '<|user|>'" in reason


POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n"


def as_json(config) -> bytes:
    return config.to_json_string().encode()


@pytest.mark.parametrize("changes, reason", [
    (dict(content=as_json(LlamaConfig(**SMALL, layer_types=["full_attention", "indexed_attention"]))),
     r".llama. cannot verify.*indexed_attention.*choose another model"),
    (dict(content=as_json(T5Config(d_model=8))), r".t5. cannot verify.*encoder-decoder"),
    (dict(content=as_json(Llama4TextConfig(**SMALL))), r".llama4_text. cannot verify.*attends in chunks"),
    (dict(content=as_json(InstructBlipConfig(text_config=OPTConfig(hidden_size=24, num_hidden_layers=1)))),
     "whose text model cannot be taken out of it here; choose a model of text"),
    (dict(model_type="tomorrow", architectures=["TomorrowLM"]), "does not recognize this architecture"),
    (dict(model_type="mine", auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}),
     "brings code of its own, which never runs here"),
    (dict(content=b"{nonsense"), "cannot be read as a model"),
    (dict(num_hidden_layers=3), "lacks weights for model.layers.2"),
    (dict(num_hidden_layers=1), r"as model\.layers\.1\.input_layernorm.*9 in all"),
    (dict(weights=in_fp8), "has weights of fewer bits .* such as model.layers.0.mlp.down_proj.weight_scale_inv; take"),
    (dict(weights=in_fp8, quantization_config={"quant_method": "modelopt", "quant_algo": "FP8"}), "fewer bits by 'mod"),
    (dict(weights={"model.layers.0.self_attn.k_proj.k_scale": torch.ones(1)}), "of fewer bits .*k_proj.k_scale"),
    (dict(weights={"model.layers.1.self_attn.q_proj.bias": torch.ones(32)}), r"as .*q_proj\.bias \(1 in all"),
    (dict(weights={"score.weight": torch.ones(1, 32)}), "for which LlamaForCausalLM .* no place, such as score"),
    (dict(num_hidden_layers=10**30), f"has num_hidden_layers {10**30}; fetch it again"),
    (dict(intermediate_size=24), "has weights of other shapes than its config.json says"),
    (dict(name="tokenizer.json", content=b"{}"), "cannot be read as a model"),
    *((dict(name=name, content=POINTER), f"/{name} is a pointer of Git LFS, .*run `git lfs pull` in")
      for name in ("model.safetensors", "tokenizer.json", "chat_template.jinja")),
    (dict(name="adapter_config.json", content=b"{}", without="model.safetensors"),
     "is a PEFT adapter without the model that it changes; merge it"),
    *((dict(name="generation_config.json", content=content), f" cannot be read .*{reason}")
      for content, reason in ((b"{", "is not a valid JSON file"), (b"[]", "Error"),
                              (b'{"eos_token_id": "</s>"}', "eos_token_id '</s>' is no number of a token"))),
    (dict(quantization_config={"quant_method": "fp8"}), "needs a package that is not installed here .*accelerate"),
    (dict(name="model.safetensors.index.json", content=b"[]", without="model.safetensors"), "cannot be read as a model"),
    (dict(name="pytorch_model.bin", content=b"pickle", without="model.safetensors"), "no file named model.safetensors"),
], ids=lambda value: str(value)[:30])
def test_files_that_make_no_target(tmp_path, folders, changes, reason):
    folder = copied(tmp_path / "odd", folders["none"], **changes)
    (tmp_path / "odd" / "evil.py").write_text("raise SystemExit('ran')")
    assert re.search(f"{folder}.*{reason}", refusal(f"{folder}|{folders['none']}"))


def test_tensors_that_no_model_needs_change_nothing(tmp_path, folders):
    """Frequencies of positions, a head's tied duplicate, and modules for several tokens ahead in both layouts."""
    needless = {name: torch.ones(4) for name in (
        "model.layers.0.self_attn.rotary_emb.inv_freq", "model.layers.2.eh_proj.weight", "model.layers.2.norm.weight",
        "mtp.layers.0.norm.weight")}
    whole = copied(tmp_path / "whole", folders["none"], weights=lambda weights: weights | needless | {
        "lm_head.weight": weights["model.embed_tokens.weight"].clone()})
    torch.testing.assert_close(*(load.load_pair(name, "float32").target(torch.arange(9)[None]).logits
                                 for name in (whole, folders["none"])))


SEEING = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=14,
              patch_size=7)


@pytest.mark.parametrize("config", [
    LlavaConfig(text_config=LlamaConfig(vocab_size=300, **SMALL), vision_config=CLIPVisionConfig(**SEEING)),
    Gemma3Config(text_config=Gemma3TextConfig(vocab_size=300, head_dim=8, **SMALL), mm_tokens_per_image=1,
                 vision_config=SiglipVisionConfig(**SEEING))], ids=["LlamaForCausalLM", "Gemma3ForCausalLM"])
def test_the_text_model_of_several_modalities_is_loaded(tmp_path, tokenizer, config, request):
    """Its logits are those of the whole model, whichever way it decodes."""
    folder, tokens = make_folder(tmp_path / "both", config, tokenizer), torch.arange(1, 9)[None]
    load.check_pairs([folder])
    pair, whole = forward.load_pair(f"{folder}|{folder}", "float32"), AutoModelForMultimodalLM.from_pretrained(folder)
    torch.testing.assert_close(pair.target(tokens).logits, whole(tokens).logits)
    assert type(pair.target).__name__ == request.node.callspec.id
    expected = whole.generate(tokens, max_new_tokens=5, do_sample=False, eos_token_id=None, pad_token_id=0)
    done = decoding.generate(pair.target, LanguageModelDrafter(pair.draft_model), tokens, shape="kary:2@6",
                             max_new_tokens=5)
    assert torch.equal(done.sequences, expected) and forward.load_pair(folder, "int8").dtype == "int8"


def test_a_model_that_cannot_take_a_step_in_its_format_is_refused_where_it_is_loaded(folders, monkeypatch):
    """As one whose weights were dequantised in another format than its activations have, or one with NaN."""
    for broken, reason in ((lambda model: model.model.layers[0].mlp.bfloat16(), "cannot be used in float32: .*dtype"),
                           (lambda model: model.lm_head.weight.data.fill_(float("nan")), "gives NaN after the prompt")):
        monkeypatch.setattr(forward.load, "_quantise", lambda model, kind: broken(model))
        with pytest.raises(PairError, match=reason):
            forward.load_pair(folders["none"], "float32")


def test_a_file_that_may_not_be_read_is_named(monkeypatch, folders):
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/tokenizer.json"))
    assert f"permission denied: {folders['none']}/tokenizer.json may not be read" in refused(folders["none"])


def test_a_hub_id_is_looked_up_where_the_hub_must_not_be_asked(monkeypatch, folders):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(PairError, match="me/never-fetched cannot be read .*couldn't find them in the cached files"):
        load.check_pairs([f"me/never-fetched|{folders['none']}"])


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")])
def test_device_and_memory(monkeypatch, folders, error):
    pair = f"{folders['target']}|{folders['none']}"
    assert "device 'warp' with dtype 'float32' cannot be used here" in refusal(pair, device="warp", dtype="float32")
    monkeypatch.setattr(checks, "free_memory", lambda device: 50_000)
    assert "the weights of target in float32 and none in float32 need 0.0 GiB, 0.0 GiB are free on cpu" in refusal(
        pair, dtype="float32")
    with pytest.raises(PairError, match="m does not fit into the free memory; take a smaller dtype"):
        with checks.errors_of("m"):
            raise error
