// What both instruction sets of x86 share.
#pragma once
#include <immintrin.h>

namespace {

// The thread's control register for numbers, and its bits with which subnormal ones are zero.
constexpr unsigned FLUSHED = 0x8040;
inline unsigned control() { return _mm_getcsr(); }
inline void set_control(unsigned bits) { _mm_setcsr(bits); }

// Prefetches into the cache of this level; not by an intrinsic, since GCC leaves out functions of nothing else.
template <int LEVEL> inline void prefetch(const void* at) {
  if constexpr (LEVEL == 1) asm volatile("prefetcht0 (%0)" : : "r"(at));
  else asm volatile("prefetcht1 (%0)" : : "r"(at));
}

// Tells the processor that the thread waits in a loop.
inline void relax() { _mm_pause(); }

}  // namespace
