// Products of bfloat16 numbers on the processor's matrix units (AMX), which work on tiles of 16 rows of 64 bytes.
#pragma once
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>

#include "lanes.h"

namespace {

constexpr bool MATRIX = true;
constexpr int64_t BLOCK = 32, SIDE = 16;  // numbers per row of a tile, the terms of one step's sum; rows of a tile
constexpr int64_t ONE = SIDE * LANES, LINE = 4 * LANES;  // numbers of a tile of floats; bytes of its row

// Whether the processor has such units and the system lets this process use them.
inline bool matrix_units() {
  static const bool allowed = [] {
    unsigned a, b, c, d;
    const bool found = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & d >> 24 & d >> 25 & 1;  // BF16, TILE, INT8
    return found && syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM for the tiles' state
  }();
  return allowed;
}

// A thread's eight tiles during its lifetime: six of so many rows, two of sixteen.
struct Tiles {
  explicit Tiles(int64_t rows = SIDE) {
    alignas(64) uint8_t shape[64] = {1};  // the palette; bytes of a tile's row from 16 on, rows from 48 on
    for (int tile = 0; tile < 8; ++tile) shape[16 + 2 * tile] = LINE, shape[48 + tile] = tile < 6 ? rows : SIDE;
    asm("" : "+m"(shape));  // the intrinsic declares that it reads eight bytes; the others must be written too
    _tile_loadconfig(shape);
  }
  ~Tiles() { _tile_release(); }
};

// The sums of A x R tiles of floats [16][16]: cleared, read from or written to out[r][a], a panel's `apart` numbers
// after those of the panel before.
template <int A, int R> inline void clear_sums() {
  _tile_zero(0);
  if constexpr (R > 1) _tile_zero(1);
  if constexpr (A > 1) _tile_zero(2);
  if constexpr (A > 1 && R > 1) _tile_zero(3);
}
template <int A, int R> inline void read_sums(const float* from, int64_t apart) {
  _tile_loadd(0, from, LINE);
  if constexpr (R > 1) _tile_loadd(1, from + apart, LINE);
  if constexpr (A > 1) _tile_loadd(2, from + ONE, LINE);
  if constexpr (A > 1 && R > 1) _tile_loadd(3, from + apart + ONE, LINE);
}
template <int A, int R> inline void write_sums(float* out, int64_t apart) {
  _tile_stored(0, out, LINE);
  if constexpr (R > 1) _tile_stored(1, out + apart, LINE);
  if constexpr (A > 1) _tile_stored(2, out + ONE, LINE);
  if constexpr (A > 1 && R > 1) _tile_stored(3, out + apart + ONE, LINE);
}

// Reads A tiles of 16 rows of numbers as they are stored, strides in bytes, and R panels of pairs [16 pairs][16 lanes],
// `apart` floats from each other; adds their products to the
// sums; BYTE: of int8 numbers.
template <int A> inline void read_left(const void* from, int64_t row, int64_t tile) {
  _tile_loadd(4, from, row);
  if constexpr (A > 1) _tile_loadd(5, static_cast<const char*>(from) + tile, row);
}
template <int R> inline void read_right(const float* from, int64_t apart) {
  _tile_loadd(6, from, LINE);
  if constexpr (R > 1) _tile_loadd(7, from + apart, LINE);
}
template <int A, int R, bool BYTE = false> inline void add_products() {
#define MULTIPLY(SUM, LEFT, RIGHT)    \
  if constexpr (BYTE) {               \
    _tile_dpbssd(SUM, LEFT, RIGHT);   \
  } else {                            \
    _tile_dpbf16ps(SUM, LEFT, RIGHT); \
  }
  MULTIPLY(0, 4, 6)
  if constexpr (A > 1) { MULTIPLY(2, 5, 6) }
  if constexpr (R > 1) { MULTIPLY(1, 4, 7) }
  if constexpr (A > 1 && R > 1) { MULTIPLY(3, 5, 7) }
#undef MULTIPLY
}

// A float32 number is the sum of three bfloat16 numbers, except for 2^-27 of it: visit(part, numbers) receives each
// part of sixteen numbers, and in the upper half of sixteen more.
constexpr int PARTS = 3;
template <class F> inline void in_parts(__m512 first, __m512 second, F visit) {
  const auto wide = [](__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  };
#pragma GCC unroll 3
  for (int part = 0; part < PARTS; ++part) {
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(second, first);
    visit(part, both);
    first = _mm512_sub_ps(first, wide(_mm512_castsi512_si256(both)));
    second = _mm512_sub_ps(second, wide(_mm512_extracti64x4_epi64(both, 1)));
  }
}

// Two vectors of sixteen halves, the second in the upper half of `both`, as pairs.
inline Words interleaved(Words both) {
  const Words low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const Words order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, all_words(16)), 16));
  return _mm512_permutexvar_epi16(order, both);
}

}  // namespace
