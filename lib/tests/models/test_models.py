"""Pairs from folders that are made here: they load, padding is cut, and what cannot work says so in one message."""

import json
import os
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import (AutoModelForCausalLM, GPT2Config, GPTNeoXConfig, LlamaConfig, LlamaForCausalLM,
                          PreTrainedTokenizerFast, Qwen3Config, T5Config)

from lib import decoding, models, replay
from lib.drafters.language_model import LanguageModelDrafter
from lib.drafters.text_drafters import LookupDrafter
from lib.models import PairError, checks, registry
from lib.trees import Tree

TEXT = ["the cat sat on the mat and the dog sat on the log", "a tree of tokens is drafted and then verified"] * 4
SMALL = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=48,
             max_position_embeddings=128, bos_token_id=0, eos_token_id=0, tie_word_embeddings=True)


def make_tokenizer(texts=TEXT, size=300, extra=(), names=("<|end|>",)):
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=size, special_tokens=list(names), initial_alphabet=alphabet,
                                  show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=names[0])
    fast.add_special_tokens({"additional_special_tokens": list(extra)})
    return fast


def make_folder(path, config, tokenizer, seed=0):
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
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
    size = len(tokenizer)
    return {name: make_folder(home / name, LlamaConfig(vocab_size=size + padding, **SMALL), tokenizer, seed)
            for seed, (name, padding) in enumerate({"target": 8, "less": 3, "more": 20, "none": 0}.items())}


def same_folder_with(path, source, **files):
    shutil.copytree(source, path)
    for name, content in files.items():
        (path / name.replace("__", ".")).write_bytes(content)
    return str(path)


def edited(path, source, **changes):
    """A copy of a folder whose config.json says something else."""
    content = json.loads((Path(source) / "config.json").read_text()) | changes
    return same_folder_with(path, source, config__json=json.dumps(content).encode())


def message(name, **keywords):
    with pytest.raises(PairError) as caught:
        models.load_pair(name, **keywords)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------ what works


@pytest.mark.parametrize("drafter", ["less", "more", "none", "target"])
def test_vocabularies_that_differ_by_padding_just_work(folders, tokenizer, drafter):
    pair = models.load_pair(f"{folders['target']}|{folders[drafter]}", dtype="float64")
    expected = len(tokenizer) + min(8, {"less": 3, "more": 20, "none": 0, "target": 8}[drafter])
    assert pair.vocabulary == pair.target.config.vocab_size == pair.draft_model.config.vocab_size == expected
    prompt = torch.tensor([pair.tokenizer("the cat sat")["input_ids"]])
    whole = AutoModelForCausalLM.from_pretrained(folders["target"], dtype=torch.float64)
    torch.testing.assert_close(pair.target(prompt).logits, whole(prompt).logits[..., :expected])
    for rule, temperature in (("greedy", 0.0), ("naive", 1.0)):
        done = decoding.generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6",
                                 rule=rule, temperature=temperature, max_new_tokens=12,
                                 generator=torch.Generator().manual_seed(0))
        assert len(done.new_tokens[0]) == 12 and max(done.new_tokens[0]) < expected
    own = pair.target.generate(prompt, max_new_tokens=9, do_sample=False, eos_token_id=None, pad_token_id=0)
    done = decoding.generate(pair.target, LanguageModelDrafter(pair.draft_model), prompt, shape="kary:2@6",
                             max_new_tokens=9)
    assert torch.equal(done.sequences, own)
    assert len(set(done.new_tokens[0])) > 2, "a text that only repeats itself shows little"
    rows = dict(names=["a"], kinds=["k"])
    assert replay.record(pair.target, {"d": pair.draft_model}, [prompt[0]], **rows, max_new_tokens=5).lengths.sum() == 5


def test_a_pair_says_what_results_depend_on(folders):
    pair = models.load_pair(f"{folders['target']} | {folders['none']}", dtype=torch.bfloat16)
    assert (pair.target_name, pair.drafter_name) == ("target", "none")
    assert pair.window == 128 and pair.eos_token_ids == (0,)
    assert pair.target.dtype == pair.draft_model.dtype == torch.bfloat16 and not pair.target.training
    assert pair.target.config._attn_implementation == "tree"


def test_a_target_alone_is_a_pair(folders):
    alone, member = models.load_pairs([folders["target"], "base"], dtype="float32")
    assert (alone.name, alone.drafter_name, alone.draft_model) == ("target", "none", None)
    assert alone.vocabulary == alone.target.config.vocab_size and member.target_name == "base"
    assert models.check_pairs([folders["none"], "random:llama-68m"]) is None


def test_models_that_pairs_share_are_loaded_once_and_agree_in_vocabulary(folders):
    names = ["target|more", "target|less", "more|none"]
    pairs = models.load_pairs(["|".join(folders[part] for part in name.split("|")) for name in names])
    assert pairs[0].target is pairs[1].target and pairs[0].draft_model is pairs[2].target
    assert len({model.config.vocab_size for pair in pairs for model in (pair.target, pair.draft_model)}) == 1


@pytest.mark.parametrize("config", [
    Qwen3Config(vocab_size=320, head_dim=8, **SMALL),
    GPT2Config(vocab_size=320, n_embd=32, n_layer=1, n_head=2, n_positions=64, bos_token_id=0, eos_token_id=0),
    GPTNeoXConfig(vocab_size=320, **{name: SMALL[name] for name in SMALL if name != "num_key_value_heads"})],
    ids=lambda config: config.model_type)
def test_other_architectures_decode_as_themselves(tmp_path, tokenizer, config):
    target = make_folder(tmp_path / "t", config, tokenizer, 1)
    config.vocab_size = 310
    drafter = make_folder(tmp_path / "d", config, tokenizer, 2)
    pair = models.load_pair(f"{target}|{drafter}", dtype="float64")
    assert pair.vocabulary == 310
    prompt = torch.tensor([pair.tokenizer("a tree of tokens")["input_ids"]])
    own = pair.target.generate(prompt, max_new_tokens=10, do_sample=False, eos_token_id=None, pad_token_id=0)
    rng = random.Random(7)
    for nodes in (1, 3, 6, 9, 12):
        tree = Tree([-1] + [rng.randrange(node) for node in range(1, nodes + 1)])
        for drafter in (LanguageModelDrafter(pair.draft_model), LookupDrafter()):
            done = decoding.generate(pair.target, drafter, prompt, shape=tree, max_new_tokens=10)
            assert torch.equal(done.sequences, own), tree


def test_names_stand_for_sources():
    assert {name for name, (_, drafter) in models.PAIRS.items() if drafter is None} == {"gemma3-270m", "smollm2-135m"}
    assert [str(s) for s in models.sources("qwen3")] == list(models.PRESETS["qwen3"])
    pinned, plain = models.sources("me/big@v1.2|me/small")
    assert (pinned.where, pinned.revision, pinned.short, str(pinned)) == ("me/big", "v1.2", "big@v1.2", "me/big@v1.2")
    assert plain.revision is None and not plain.is_folder


def test_a_folder_keeps_its_at_sign(tmp_path, folders):
    odd = same_folder_with(tmp_path / "kept@home", folders["none"])
    assert models.sources(f"{odd}|{folders['target']}")[0] == models.Source(odd)
    assert models.load_pair(f"{odd}|{folders['target']}").target_name == "kept@home"


@pytest.mark.parametrize("name", models.FAMILY)
def test_a_shipped_pair_loads_where_its_weights_are(name):
    pair = models.load_pair(name)
    text = "def add(a, b):\n    return"
    assert pair.tokenizer.decode(pair.tokenizer(text)["input_ids"]) == text
    assert pair.name == name and pair.vocabulary == len(pair.tokenizer)


# -------------------------------------------------------------------------------------------------- what does not


@pytest.mark.parametrize("name, says", [
    ("base/tinny", "'base/tinny' is unknown; did you mean base/tiny"),
    ("tiny/base", "did you mean base/tiny"),
    ("qwen9000|", "or write 'TARGET' or 'TARGET|DRAFTER' with hub ids, folders or GGUF files"),
    ("qwen9000", "pair 'qwen9000' is unknown"),
    ("base|small|tiny", "'base|small|tiny' is unknown"),
    ("./nowhere|me/small", "no folder ./nowhere"),
    ("me/big@|me/small", "names no revision after its @"),
    (3, "pair is 3; give a name as text"),
    (None, "pair is None; give a name as text"),
])
def test_a_name_that_means_nothing(name, says):
    assert says in message(name)


def test_a_shipped_model_that_is_not_there(monkeypatch, tmp_path):
    monkeypatch.setattr("lib.models.registry.SHIPPED", tmp_path)
    assert "the shipped model 'base' is not in" in message("base/tiny")


def test_different_tokenizers(tmp_path, folders):
    other = make_tokenizer(["quite other words were read here"] * 8)
    apart = make_folder(tmp_path / "other", LlamaConfig(vocab_size=310, **SMALL), other)
    said = message(f"{folders['target']}|{apart}")
    assert "target and other have different tokenizers" in said and "ids differ" in said and " is '" in said


def test_added_tokens_may_have_other_names_but_need_embeddings(tmp_path, folders, tokenizer):
    config = LlamaConfig(vocab_size=len(tokenizer) + 8, **SMALL)
    chat = make_folder(tmp_path / "chat", config, make_tokenizer(extra=["<|user|>", "<|bot|>"]), 5)
    other = make_folder(tmp_path / "chat2", config, make_tokenizer(extra=["<|human|>"]), 6)
    assert models.load_pair(f"{chat}|{other}").vocabulary == len(tokenizer) + 8
    assert models.load_pair(f"{folders['target']}|{chat}")
    said = message(f"{chat}|{folders['none']}")
    assert f"none has embeddings for {len(tokenizer)} tokens" in said
    assert "chat writes 2 more, such as '<|user|>'" in said


@pytest.mark.parametrize("config, says", [
    (LlamaConfig(vocab_size=310, **SMALL, layer_types=["full_attention", "indexed_attention"]), "indexed_attention"),
    (T5Config(vocab_size=310, d_model=8, num_layers=1, num_heads=1), "encoder-decoder"),
], ids=["indexed", "encoder-decoder"])
def test_attention_that_cannot_host_a_tree(tmp_path, folders, config, says):
    config.save_pretrained(tmp_path / "odd")
    said = message(f"{tmp_path / 'odd'}|{folders['none']}")
    assert says in said and f"({config.model_type})" in said and "choose another model" in said


def test_unknown_types_and_code_of_its_own(tmp_path, folders):
    unknown = edited(tmp_path / "new", folders["none"], model_type="tomorrow", architectures=["TomorrowLM"])
    assert "is of no type that this version of transformers supports" in message(f"{unknown}|{folders['none']}")
    own = edited(tmp_path / "own", folders["none"], model_type="mine",
                 auto_map={"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"})
    (Path(own) / "evil.py").write_text("raise SystemExit('ran')")
    assert "code of its own, which never runs here" in message(f"{own}|{folders['none']}")


def refused(name):
    """The message of both: the check before anything runs, and loading."""
    with pytest.raises(PairError) as caught:
        models.check_pairs([name])
    assert message(name) == str(caught.value)
    return str(caught.value)


def test_a_folder_without_whole_safetensors_is_refused_before_anything_runs(tmp_path, folders, monkeypatch):
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", lambda *a, **k: pytest.fail("weights were read"))

    def said(folder):
        return refused(f"{folder}|{folders['none']}")

    bare = same_folder_with(tmp_path / "bare", folders["none"])
    whole = (Path(bare) / "model.safetensors").read_bytes()
    (Path(bare) / "model.safetensors").unlink()
    assert said(bare).startswith(f"{bare} holds no weights (model.safetensors is missing); ")
    torch.save({"a": torch.ones(1)}, Path(bare) / "pytorch_model.bin")
    assert "holds pickled weights alone (pytorch_model.bin)" in said(bare) and "model.save_pretrained" in said(bare)
    for name, content, reason in [
        ("cut", whole[:-1000], "incomplete metadata, file not fully covered"),
        ("header", whole[:50], "invalid header length"),
        ("empty", b"", "header too small"),
        ("zeros", b"\0" * 40, "invalid JSON in header"),
        ("pointer", b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "header too large"),
    ]:
        folder = same_folder_with(tmp_path / name, folders["none"], model__safetensors=content)
        assert f"{folder}: model.safetensors is cut off, or no safetensors file (" in said(folder)
        assert reason in said(folder) and "fetch or save it again" in said(folder)


def test_every_shard_of_an_index_is_checked(tmp_path, folders):
    folder = Path(same_folder_with(tmp_path / "shards", folders["none"]))
    AutoModelForCausalLM.from_pretrained(folder).save_pretrained(folder, max_shard_size="20KB")
    (folder / "model.safetensors").unlink(missing_ok=True)
    shards = sorted(folder.glob("model-*.safetensors"))
    pair = f"{folder}|{folders['none']}"
    assert len(shards) > 1 and models.check_pairs([pair]) is None and models.load_pair(pair).name == "shards|none"
    content = shards[1].read_bytes()
    shards[1].write_bytes(content[:-10])
    assert f"{shards[1].name} is cut off" in refused(pair)
    shards[1].unlink()
    assert f"{shards[1].name} is missing, but model.safetensors.index.json names it" in refused(pair)
    (folder / "model.safetensors.index.json").write_text("[]")
    assert "model.safetensors.index.json is no index of weights" in refused(pair)


def test_weights_that_do_not_fit_their_config(tmp_path, folders):
    def said(folder):
        return message(f"{folder}|{folders['none']}")

    deeper = edited(tmp_path / "deeper", folders["none"], num_hidden_layers=3)
    assert "lacks weights for model.layers.2" in said(deeper)
    narrower = edited(tmp_path / "narrower", folders["none"], intermediate_size=24)
    assert "narrower has weights of other shapes than its config.json says" in said(narrower)
    silent = same_folder_with(tmp_path / "silent", folders["none"])
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (Path(silent) / file).unlink()
    assert "silent cannot be read as a model" in said(silent) or "tokenizer" in said(silent)
    garbled = same_folder_with(tmp_path / "garbled", folders["none"], config__json=b"{nonsense")
    assert "cannot be read as a model" in said(garbled)
    (tmp_path / "empty").mkdir()
    assert "config.json" in said(tmp_path / "empty")


def test_a_hub_id_that_is_not_on_this_machine_is_refused_offline_and_left_to_the_hub_online(monkeypatch, folders):
    from huggingface_hub import constants

    pair = f"me/never-fetched|{folders['none']}"
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")  # as the command sets it, perhaps after the hub's package was imported
    with pytest.raises(PairError, match="me/never-fetched is not on this machine and the hub cannot be reached"):
        models.check_pairs([pair])
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    models.check_pairs([pair])


def test_a_hub_id_in_the_cache_is_checked_like_a_folder(monkeypatch, tmp_path, folders):
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    snapshot = tmp_path / "models--me--kept" / "snapshots" / ("0" * 40)
    shutil.copytree(folders["none"], snapshot)
    (tmp_path / "models--me--kept" / "refs").mkdir()
    (tmp_path / "models--me--kept" / "refs" / "main").write_text("0" * 40)
    (snapshot / "model.safetensors").rename(snapshot / "pytorch_model.bin")
    with pytest.raises(PairError, match=r"me/kept holds pickled weights alone \(pytorch_model.bin\)"):
        models.check_pairs([f"me/kept|{folders['none']}"])


def test_messages_show_what_was_typed_and_names_show_folders(monkeypatch, folders):
    monkeypatch.chdir(Path(folders["target"]).parent)
    assert models.load_pair("./target | none").name == "target|none"
    monkeypatch.setattr(checks, "free_memory", lambda device: 50_000_000)
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", _out_of_memory)
    assert message("./target|none").startswith("./target did not fit into the memory of cpu")
    assert [str(source) for source in models.sources("base|small")] == ["base", "small"]


def test_one_name_in_place_of_a_list_is_refused():
    with pytest.raises(PairError, match=re.escape("give a list of names, such as ['base/small']")):
        models.check_pairs("base/small")


def _out_of_memory(*args, **kwargs):
    raise torch.OutOfMemoryError("CUDA out of memory")


def test_dtype_device_and_memory(monkeypatch, folders):
    pair = f"{folders['target']}|{folders['none']}"
    assert "dtype is 'int3'; give one of float32" in message(pair, dtype="int3")
    assert "device 'warp' with dtype 'float32'" in message(pair, device="warp", dtype="float32")
    assert "device 'warp' with dtype" in message(pair, device="warp")
    if not torch.cuda.is_available():
        said = message(pair, dtype="bfloat16", device="cuda")
        assert "device 'cuda' with dtype 'bfloat16' cannot be used here" in said
    monkeypatch.setattr(checks, "free_memory", lambda device: 50_000)
    assert "the weights of target in float32 and none in float32 need 0.0 GiB, 0.0 GiB are free on cpu" in message(
        pair, dtype="float32")
    monkeypatch.undo()
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", _out_of_memory)
    assert f"{folders['target']} did not fit into the memory of cpu" in message(pair)


HUB = """
import http.server, json, os, sys, threading

ANSWERS = {"gone": (401, "RepoNotFound"), "gated": (403, "GatedRepo"), "pinned": (404, "RevisionNotFound")}

class Hub(http.server.BaseHTTPRequestHandler):
    def answer(self):
        code, kind = next((ANSWERS[name] for name in ANSWERS if name in self.path), (404, "EntryNotFound"))
        self.send_response(code)
        self.send_header("X-Error-Code", kind)
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_GET = do_HEAD = do_POST = answer
    def log_message(self, *args): pass

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hub)
threading.Thread(target=server.serve_forever, daemon=True).start()
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_port}"
from lib import models
import huggingface_hub

def said(name):
    try:
        models.load_pair(f"{name}|me/small")
    except models.PairError as error:
        return str(error)

found = {name: said(name) for name in ("me/gone", "me/gated", "me/pinned@v9", "me/blank", "me/-.-/x")}
huggingface_hub.constants.HF_HUB_OFFLINE = True
found["offline"] = said("me/any")
print(json.dumps(found))
"""


def test_what_the_hub_says_becomes_one_message_each(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "HF_HUB_OFFLINE"} | {
        "HF_HOME": str(tmp_path), "PYTHONPATH": str(Path(models.__file__).parents[2]), "no_proxy": "*"}
    done = subprocess.run([sys.executable, "-c", HUB], capture_output=True, text=True, env=environment, timeout=240)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout.splitlines()[-1])
    assert "me/gone is neither a folder here nor a public model" in said["me/gone"]
    assert "me/gated is gated; accept its licence" in said["me/gated"]
    assert "me/pinned@v9 is no revision that the hub has" in said["me/pinned@v9"]
    assert "me/blank" in said["me/blank"] and "config.json" in said["me/blank"]
    assert "no folder me/-.-/x" in said["me/-.-/x"]
    assert "me/any is not on this machine and the hub cannot be reached" in said["offline"]


def test_a_published_size_has_its_makers_number_of_parameters_and_the_same_random_weights_each_time():
    with torch.device("meta"):
        counts = {name: sum(each.numel() for each in LlamaForCausalLM(registry.config_of_size(name)).parameters())
                  for name in registry.SIZES}
    billions = {name: round(count / 1e9, 3) for name, count in counts.items()}
    assert billions == {"llama-3-70b": 70.554, "llama-3-8b": 8.03, "llama-3.2-1b": 1.236, "llama-68m": 0.068,
                        "smollm2-1.7b": 1.711, "smollm2-135m": 0.135}
    state = torch.get_rng_state()
    one, other = (models.load_pair("random:llama-68m@1|random:llama-68m@1", dtype="bfloat16") for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(one.target.lm_head.weight, other.target.lm_head.weight)
    assert one.target_name == "random:llama-68m@1" and one.target is one.draft_model


@pytest.mark.parametrize("name, why", [
    ("random:llama-9b|base", "size 'llama-9b' is unknown; choose one of llama-3-70b"),
    ("random:llama-68m@3|random:llama-68m", "asks for '3' layers; give 1 to 2"),
    ("random:llama-68m|random:llama-68m@", "names no revision after its @")])
def test_a_size_that_there_is_not_is_refused_before_anything_is_made(name, why):
    with pytest.raises(models.PairError, match=re.escape(why)):
        models.check_pairs([name])
