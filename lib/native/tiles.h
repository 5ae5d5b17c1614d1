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

constexpr int64_t BLOCK = 32, SIDE = 16;  // numbers of a tile's row, which one step sums over; rows of a tile

// Whether the processor has such units, and the system lets this process use them.
inline bool matrix_units() {
  static const bool allowed = [] {
    unsigned a, b, c, d;
    const bool found = __get_cpuid_count(7, 0, &a, &b, &c, &d) && d >> 22 & 1 && d >> 24 & 1;  // AMX-BF16, AMX-TILE
    return found && syscall(SYS_arch_prctl, 0x1023, 18) == 0;  // ARCH_REQ_XCOMP_PERM for the tiles' state
  }();
  return allowed;
}

// A thread's eight tiles as long as this lives: six of so many rows, two of sixteen; of no rows, none.
struct Tiles {
  const int64_t rows;
  explicit Tiles(int64_t most = SIDE) : rows(std::min(most, SIDE)) {
    if (!rows) return;
    alignas(64) uint8_t shape[64] = {1};  // the palette; bytes of a tile's row from 16 on, rows from 48 on
    for (int tile = 0; tile < 8; ++tile) shape[16 + 2 * tile] = 64, shape[48 + tile] = tile < 6 ? rows : SIDE;
    _tile_loadconfig(shape);
  }
  ~Tiles() {
    if (rows) _tile_release();
  }
};

// out[r][a] = sum over steps u of left[a][u] * right[r][u]: for A tiles of 16 rows of numbers as they are stored, and
// R panels of pairs [16 pairs][16 lanes] a step. Strides: of left in bytes from row to row, tile to tile, step to step;
// of the others in floats. out[r][a] is [16][16].
template <int A, int R>
inline void tile_products(const void* left, int64_t row, int64_t tile, int64_t step, const float* right,
                          int64_t right_panel, int64_t steps, float* out, int64_t out_panel) {
  const char* from = static_cast<const char*>(left);
  constexpr int64_t ONE = SIDE * LANES, LINE = 4 * LANES;  // a tile of floats; bytes of its row
  _tile_zero(0);
  if constexpr (R > 1) _tile_zero(1);
  if constexpr (A > 1) _tile_zero(2);
  if constexpr (A > 1 && R > 1) _tile_zero(3);
  for (int64_t u = 0; u < steps; ++u) {
    _tile_loadd(4, from + u * step, row);
    _tile_loadd(6, right + u * ONE, LINE);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (A > 1) _tile_loadd(5, from + tile + u * step, row);
    if constexpr (A > 1) _tile_dpbf16ps(2, 5, 6);
    if constexpr (R > 1) _tile_loadd(7, right + right_panel + u * ONE, LINE);
    if constexpr (R > 1) _tile_dpbf16ps(1, 4, 7);
    if constexpr (A > 1 && R > 1) _tile_dpbf16ps(3, 5, 7);
  }
  _tile_stored(0, out, LINE);
  if constexpr (R > 1) _tile_stored(1, out + out_panel, LINE);
  if constexpr (A > 1) _tile_stored(2, out + ONE, LINE);
  if constexpr (A > 1 && R > 1) _tile_stored(3, out + out_panel + ONE, LINE);
}

// Sixteen vectors of words: lane j of vector i becomes lane i of vector j.
inline void turn(__m512i* x) {
  __m512i pairs[SIDE], fours[SIDE];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    pairs[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {  // lane group g of fours[4 i + k]: column 4 g + k of rows 4 i ..
      fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
      fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const __m512i even = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0x88);  // groups 0, 2 of rows 0-3, 4-7
    const __m512i odd = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0xdd);
    const __m512i more_even = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0x88);
    const __m512i more_odd = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0xdd);
    x[k] = _mm512_shuffle_i32x4(even, more_even, 0x88), x[8 + k] = _mm512_shuffle_i32x4(even, more_even, 0xdd);
    x[4 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0x88), x[12 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0xdd);
  }
}

}  // namespace
