// The computation of onepass.cpp on one tile of keys, on a processor with matrix units for bfloat16.
//
// They serve float32 as well: the six largest of the nine products of its parts (tiles.h) leave out 2^-25 of a product,
// and are many times faster than the one that vectors compute.
#pragma once
#include "tiles.h"
#include "onepass_tiles.h"

namespace {

template <class T> constexpr int PARTS_OF = sizeof(T) == 4 ? PARTS : 1;

constexpr int64_t whole_blocks(int64_t count) { return (count + BLOCK - 1) / BLOCK * BLOCK; }

// Rows of bfloat16 numbers; the next part of a float32 number lies `part` numbers later.
struct Left { const bf16* at; int64_t apart, part; };

// Adds to the sums the products of A tiles of 16 rows with R panels of pairs, `apart` floats from each other, part by
// part, over so many steps.
template <class T, int A, int R>
inline void add_steps(const bf16* left, int64_t row, int64_t tile, int64_t step, int64_t left_part, const float* right,
                      int64_t apart, int64_t right_part, int64_t steps) {
  for (int64_t u = 0; u < steps; ++u, left += step, right += ONE) {
    const auto rows = [&](int part) { read_left<A>(left + part * left_part, row, tile); };
    const auto panels = [&](int part) { read_right<R>(right + part * right_part, apart); };
    if constexpr (sizeof(T) == 2) {
      rows(0), panels(0), add_products<A, R>();
    } else {
      rows(2), panels(0), add_products<A, R>();  // in an order in which only one is read twice
      rows(0), add_products<A, R>();
      panels(2), add_products<A, R>();
      panels(1), add_products<A, R>();
      rows(1), add_products<A, R>();
      panels(0), add_products<A, R>();
    }
  }
}

// The parts of 32 rows of dim numbers, of which `count` exist, as [part][32][dim in whole blocks], `part` numbers from
// each other; zeros for the missing rows.
inline void block_in_parts(const float* rows, int64_t stride, int64_t count, int64_t dim, bf16* parts, int64_t part,
                           Ahead& ahead) {
  const int64_t width = whole_blocks(dim);
  for (int64_t n = 0; n < BLOCK; ++n, ahead())
    for (int64_t j = 0; j < width; j += BLOCK) {
      const auto sixteen = [&](int64_t at) { return read(rows + n * stride + at, n < count && at < dim ? 0xffff : 0); };
      in_parts(sixteen(j), sixteen(j + SIDE), [&](int p, __m512i numbers) {
        _mm512_store_si512(parts + p * part + n * width + j, numbers);
      });
    }
}

// Thirty-two rows of numbers as turned[dim / 16][KEYS / 32][16][32 rows], of which this is one block. Eight numbers
// of each at a time: the four parts of a vector belong to rows that are eight apart, and three rounds exchange numbers
// between the parts.
inline void turn_block(const bf16* from, int64_t apart, int64_t dim, bf16* turned) {
  for (int64_t j = 0; j < dim; j += 8) {
    __m512i rows[8], pairs[8], fours[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const auto eight = [&](int row) { return _mm_loadu_si128((const __m128i*)(from + row * apart + j)); };
      rows[i] = _mm512_zextsi128_si512(eight(i));
      rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x00f0, eight(i + 8));
      rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0x0f00, eight(i + 16));
      rows[i] = _mm512_mask_broadcast_i32x4(rows[i], 0xf000, eight(i + 24));
    }
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
      pairs[i] = _mm512_unpacklo_epi16(rows[i], rows[i + 1]);
      pairs[i + 1] = _mm512_unpackhi_epi16(rows[i], rows[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {  // rows 0 .. 3 in the first four, 4 .. 7 in the others
      const int at = i / 2 * 4 + i % 2;
      fours[i / 2 * 4 + i % 2 * 2] = _mm512_unpacklo_epi32(pairs[at], pairs[at + 2]);
      fours[i / 2 * 4 + i % 2 * 2 + 1] = _mm512_unpackhi_epi32(pairs[at], pairs[at + 2]);
    }
    bf16* out = turned + j / SIDE * SIDE * KEYS + j % SIDE * BLOCK;
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      _mm512_store_si512(out + 2 * i * BLOCK, _mm512_unpacklo_epi64(fours[i], fours[4 + i]));
      _mm512_store_si512(out + (2 * i + 1) * BLOCK, _mm512_unpackhi_epi64(fours[i], fours[4 + i]));
    }
  }
}

// Scores [R][32][16], not scaled, of 32 keys, from queries [part][panels][dim / 2][16].
template <class T, int R>
inline void score_by_tiles(Left keys, int64_t dim, const float* queries, int64_t query_part, float* scores) {
  const int64_t row = keys.apart * sizeof(bf16);
  clear_sums<2, R>();
  add_steps<T, 2, R>(keys.at, row, SIDE * row, BLOCK, keys.part, queries, dim / 2 * LANES, query_part, dim / BLOCK);
  write_sums<2, R>(scores, BLOCK * LANES);
}

// Adds values weighted by [part][R][KEYS / 2][16] to outputs [R][dim][16], A times 16 of them. Float32 sums of one
// tile are added to the sums of all earlier tiles: blocked sums round less.
template <class T, int A, int R>
inline void add_by_tiles(const bf16* turned, int64_t turned_part, int64_t count, const float* weights, float* output,
                         int64_t apart) {
  constexpr bool blocked = sizeof(T) == 4;
  alignas(64) float sums[blocked ? R : 1][A * ONE];
  if constexpr (blocked) clear_sums<A, R>();
  else read_sums<A, R>(output, apart);
  add_steps<T, A, R>(turned, LINE, SIDE * KEYS * sizeof(bf16), SIDE * BLOCK, turned_part, weights, WEIGHTS<bf16>,
                     R * WEIGHTS<bf16>, (count + BLOCK - 1) / BLOCK);
  if constexpr (blocked) {
    write_sums<A, R>(sums[0], A * ONE);
    for (int r = 0; r < R; ++r)
      for (int64_t i = 0; i < A * ONE; i += LANES) {
        float* at = output + r * apart + i;
        _mm512_store_ps(at, _mm512_add_ps(_mm512_load_ps(at), _mm512_load_ps(sums[r] + i)));
      }
  } else {
    write_sums<A, R>(output, apart);
  }
}

}  // namespace
