// What onepass.cpp does to one tile of keys where the processor has matrix units for bfloat16.
#pragma once
#include "../native/tiles.h"
#include "onepass_call.h"
#include "onepass_tiles.h"

namespace {

// Values [count][dim] as turned[blocks of 32 keys][dim][16 pairs of keys]; past the last key they are zero.
void turn_values(const bf16* values, int64_t stride, int64_t count, int64_t dim, uint32_t* turned) {
  for (int64_t first = 0; first < count; first += BLOCK)
    for (int64_t j = 0; j < dim; j += SIDE, turned += SIDE * LANES) {
      __m512i pairs[SIDE];
      const auto numbers = [&](int64_t key) {
        return _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(key < count ? 0xffff : 0, values + key * stride + j));
      };
#pragma GCC unroll 16
      for (int i = 0; i < SIDE; ++i)
        pairs[i] = _mm512_or_si512(numbers(first + 2 * i), _mm512_slli_epi32(numbers(first + 2 * i + 1), 16));
      turn(pairs);
#pragma GCC unroll 16
      for (int i = 0; i < SIDE; ++i) _mm512_store_si512(turned + i * LANES, pairs[i]);
    }
}

// Scores of a tile's first keys, not scaled, as far as there are sixteen together; of how many. Each of the `panels`
// asks for its share of the tile that comes next, since all at once would have to wait for the memory.
template <int R>
int64_t scores_by_tiles(const Call& c, const Tile<bf16>& tile, const float* queries, float* scores, int64_t panel,
                        int64_t panels) {
  const int64_t row = c.key_stride[2] * sizeof(bf16), steps = c.dim / BLOCK, apart = c.dim / 2 * LANES;
  int64_t n = 0;
  for (int64_t taken; n + SIDE <= tile.count; n += taken) {
    taken = n + 2 * SIDE <= tile.count ? 2 * SIDE : SIDE;
    const int64_t begin = n + taken * panel / panels, end = n + taken * (panel + R) / panels, soon = begin + KEYS<true>;
    fetch(tile.keys + soon * c.key_stride[2], c.key_stride[2], c.dim, end - begin);
    fetch(tile.values + soon * c.value_stride[2], c.value_stride[2], c.value_dim, end - begin);
    const auto run = taken == SIDE ? tile_products<1, R> : tile_products<2, R>;
    run(tile.keys + n * c.key_stride[2], row, SIDE * row, BLOCK * sizeof(bf16), queries, apart, steps,
        scores + n * LANES, KEYS<true> * LANES);
  }
  return n;
}

// Adds a tile's weighted values to the outputs so far, which it shrinks, on the matrix units.
template <int R>
void add_by_tiles(const Call& c, const Tile<bf16>& tile, float* weights, float* output, const __m512* shrink) {
  const int64_t blocks = (tile.count + BLOCK - 1) / BLOCK, out_panel = c.value_dim * LANES, row = 4 * LANES;
  for (int r = 0; r < R; ++r)  // pairs of keys past the last
    for (int64_t n = (tile.count + 1) / 2; n < blocks * SIDE; ++n)
      _mm512_store_si512(weights + r * KEYS<true> * LANES + n * LANES, _mm512_setzero_si512());
  for (int64_t j = 0, taken; j < c.value_dim; j += taken) {
    taken = j + 2 * SIDE <= c.value_dim ? 2 * SIDE : SIDE;
    alignas(64) float added[R][2 * SIDE * LANES];
    const auto run = taken == SIDE ? tile_products<1, R> : tile_products<2, R>;
    run(tile.units + j * LANES, row, SIDE * row, c.value_dim * row, weights, KEYS<true> * LANES, blocks, added[0],
        2 * SIDE * LANES);
    for (int r = 0; r < R; ++r)
      for (int64_t i = 0; i < taken; ++i) {
        float* at = output + r * out_panel + (j + i) * LANES;
        _mm512_store_ps(at, _mm512_fmadd_ps(shrink[r], _mm512_load_ps(at), _mm512_load_ps(added[r] + i * LANES)));
      }
  }
}

}  // namespace
