"""The instruction sets that a processor's flags stand for, and the compiler's options for them."""

import platform

import pytest

from lib.kernels import build
from lib.lab import processor


@pytest.mark.parametrize("flags, options", [
    ({"avx2", "fma", "f16c", "sse2"}, ("-mavx2", "-mf16c", "-mfma")),
    ({"fp", "asimd"}, ()),
    ({"fp", "asimd", "bf16"}, ("-march=armv8.2-a+bf16",)),
    ({"sse2"}, None),
    (set(), None),
])
def test_the_best_instruction_set_may_need_no_options(flags, options):
    assert build.instructions(frozenset(flags)) == options


@pytest.mark.parametrize("system, lines, flags", [
    ("x86_64", ("processor: 0", "flags\t\t: fpu avx2"), {"avx2"}),
    ("aarch64", ("processor: 0", "Features\t: fp asimd bf16"), {"asimd", "bf16"}),
    ("arm64", (), {"asimd"}),
    ("x86_64", (), set()),
])
def test_a_processor_s_flags_are_linux_s_or_those_of_macos_on_arm(system, lines, flags, monkeypatch):
    monkeypatch.setattr(processor, "info", lambda: lines)
    monkeypatch.setattr(platform, "machine", lambda: system)
    processor.flags.cache_clear()
    try:
        assert flags <= processor.flags()
        assert flags or not processor.flags()
    finally:
        processor.flags.cache_clear()
