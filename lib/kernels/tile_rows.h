// Products of float32 rows with weights that are bfloat16 numbers, on the processor's matrix units.
//
// The products of a float32 number's three parts (tiles.h) with bfloat16 weights are exact, and summed in float32. So
// three products of bfloat16 make one of float32, many times faster for more than a few rows, and an output is summed
// in the same order for any number of rows.
#pragma once
#include "few_rows.h"
#include "tiles.h"

namespace {

constexpr int64_t SOON = 8;  // steps by which weights are prefetched

inline int64_t packed_size(int64_t rows, int64_t in) {
  return (rows + SIDE - 1) / SIDE * ((in + BLOCK - 1) / BLOCK) * PARTS * ONE;
}

// Within a parallel region: x [rows, in] as packed[panel of 16 rows][step][part][16 rows][32 numbers]. All threads go
// on when it is complete.
inline void pack_rows(const float* x, int64_t rows, int64_t in, float* packed) {
  const int64_t steps = (in + BLOCK - 1) / BLOCK, padded = (rows + SIDE - 1) / SIDE * SIDE;
  Threads::each(padded, [&](int64_t row) {
    for (int64_t step = 0; step < steps; ++step) {
      const auto numbers = [&](int64_t k) {
        const int64_t left = row < rows ? in - k : 0;
        return read(x + row * in + k, left >= 16 ? 0xffff : left > 0 ? (1 << left) - 1 : 0);
      };
      float* to = packed + (row / SIDE * steps + step) * PARTS * ONE + row % SIDE * LANES;
      in_parts(numbers(step * BLOCK), numbers(step * BLOCK + 16),
               [&](int part, __m512i both) { _mm512_store_si512(to + part * ONE, both); });
    }
  });
  Threads::barrier();
}

// sums[a][16 rows][32] = the parts of A panels, added up, times 32 outputs' weights [2][steps][16 pairs][16].
template <int A>
inline void add_parts(const float* packed, int64_t panel, const uint32_t* weights, int64_t steps, float* sums) {
  clear_sums<2, 2>();
  for (int64_t u = 0; u < steps; ++u) {
    for (int64_t line = 0; line < 2 * SIDE; ++line) {  // of later tiles; addresses past the end are harmless
      const uint32_t* soon = weights + (line / SIDE * steps + u + SOON) * ONE + line % SIDE * LANES;
      prefetch<1>(soon);
    }
    _tile_loadd(6, weights + u * ONE, LINE);
    _tile_loadd(7, weights + (steps + u) * ONE, LINE);
#pragma GCC unroll 3
    for (int part = 0; part < PARTS; ++part) {
      const float* own = packed + (u * PARTS + part) * ONE;
      _tile_loadd(4, own, LINE);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      if constexpr (A > 1) {
        _tile_loadd(5, own + panel, LINE);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }
  _tile_stored(0, sums, 2 * LINE);
  _tile_stored(1, sums + LANES, 2 * LINE);
  if constexpr (A > 1) {
    _tile_stored(2, sums + 2 * ONE, 2 * LINE);
    _tile_stored(3, sums + 2 * ONE + LANES, 2 * LINE);
  }
}

// As `each_of_few`, for threads with tiles, matrices of bfloat16 numbers in panels, and packed rows.
template <int N, class F>
inline void each_tile(const Matrix* const (&matrices)[N], const float* packed, int64_t rows, F visit) {
  const int64_t steps = (matrices[0]->in + BLOCK - 1) / BLOCK, panels = (rows + SIDE - 1) / SIDE;
  const int64_t panel = steps * PARTS * ONE, out = matrices[0]->out;
  Threads::each((out + 2 * SIDE - 1) / (2 * SIDE), [&](int64_t strip) {
    const int64_t first = strip * 2 * SIDE;
    for (int64_t p = 0; p < panels; p += 2) {
      alignas(64) float sums[N][2 * SIDE][2 * LANES];
      const auto run = p + 1 < panels ? add_parts<2> : add_parts<1>;
      for (int n = 0; n < N; ++n)
        run(packed + p * panel, panel, static_cast<const uint32_t*>(matrices[n]->panels) + first * steps * SIDE, steps,
            sums[n][0]);
      for (int64_t at = first; at < std::min(out, first + 2 * SIDE); at += SIDE) {
        const __mmask16 mask = out - at >= SIDE ? 0xffff : (1 << (out - at)) - 1;
        for (int64_t i = 0; i < std::min(2 * SIDE, rows - p * SIDE); ++i) {
          __m512 values[N];
          for (int n = 0; n < N; ++n)
            values[n] = biased<float>(*matrices[n], at, mask, _mm512_load_ps(sums[n][i] + at - first));
          visit(p * SIDE + i, at, mask, values);
        }
      }
    }
  });
}

}  // namespace
