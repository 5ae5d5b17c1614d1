// The innermost loops of onepass.cpp for one tile of keys: two products and the exponentials between them.
//
// W is the width of what is broadcast: a vector's 16 lanes are 16 rows (W = 1), or 4 rows that each have 4 lanes for
// neighbouring numbers (W = 4), which fills the vectors where there are few rows.
#pragma once
#include <algorithm>

#include "lanes.h"
#include "onepass_ahead.h"

namespace {

constexpr int64_t KEYS = 128;    // of a tile
constexpr int64_t FEW_KEYS = 8;  // of them, that are scored together

// A unit is 32 bits: one float, or two bfloat16 whose products are added to the same sum.
template <class T> constexpr int64_t PER_UNIT = 4 / sizeof(T);

// Distance between two panels' weights by a tile, in floats; for bfloat16, pairs of keys share a vector.
template <class T> constexpr int64_t WEIGHTS = KEYS / PER_UNIT<T> * LANES;

// Rows of keys or values; those that fill no block of B are stored apart from the others, padded with zeros.
template <class T, int64_t B> struct Rows {
  const T *at, *rest;
  int64_t stride, count, dim;
  bool whole(int64_t n) const { return n + B <= count; }
  const T* from(int64_t n) const { return whole(n) ? at + n * stride : rest; }
  int64_t apart(int64_t n) const { return whole(n) ? stride : dim; }  // distance of the rows from n on
};

// Copies the rows that fill no block to `rest` [B][dim].
template <int64_t B, class T> Rows<T, B> rows(const T* at, int64_t stride, int64_t count, int64_t dim, T* rest) {
  if (const int64_t left = count % B) {
    std::fill_n(rest, B * dim, T(0));
    for (int64_t n = 0; n < left; ++n) std::copy_n(at + (count - left + n) * stride, dim, rest + n * dim);
  }
  return {at, rest, stride, count, dim};
}

// W neighbouring units, repeated over the lanes.
template <int W> inline __m512i broadcast(const uint32_t* from) {
  if constexpr (W == 4) return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from));
  return _mm512_set1_epi32(*from);
}

// In each lane the sum of the row's W lanes.
template <int W> inline __m512 row_sum(__m512 x) {
  if constexpr (W == 1) return x;
  x = _mm512_add_ps(x, _mm512_permute_ps(x, 0xb1));
  return _mm512_add_ps(x, _mm512_permute_ps(x, 0x4e));
}

// 2^x to the last bits of T: 2^whole times a polynomial for the fraction. Subnormal results may be zero.
template <class T> inline __m512 power(__m512 x) {
  static constexpr float fine[] = {0.99999994f,   0.693153083f,   0.240153611f,
                                   0.0558263175f, 0.00898933969f, 0.00187757669f};             // within 1.5e-7
  static constexpr float coarse[] = {0.999925196f, 0.695833564f, 0.226067156f, 0.0780245215f};  // within 7.5e-5
  const float* series = sizeof(T) == 2 ? coarse : fine;
  constexpr int degree = sizeof(T) == 2 ? 3 : 5;
  const __m512 fraction = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  __m512 sum = _mm512_set1_ps(series[degree]);
#pragma GCC unroll 8
  for (int k = degree - 1; k >= 0; --k) sum = _mm512_fmadd_ps(sum, fraction, _mm512_set1_ps(series[k]));
  return _mm512_scalef_ps(sum, x);
}

// During its lifetime the thread treats subnormal numbers as zero: on some processors they take a hundred times as
// long.
struct Flush {
  const unsigned before = _mm_getcsr();
  Flush() { _mm_setcsr(before | 0x8040); }
  ~Flush() { _mm_setcsr(before); }
};

constexpr int64_t STRETCH = 16;  // steps of a product between two calls of `ahead`

// sum[a][r] = sum over steps u of broadcast(left[a * step_a + u * step_u]) * right[r][u], for A broadcasts and R panels
// of vectors, which lie right_panel numbers apart; `done` receives the sums.
template <class T, int W, int A, int R, class Done>
inline void product(const uint32_t* left, int64_t step_a, int64_t step_u, int64_t steps, const float* right,
                    int64_t right_panel, Ahead& ahead, Done done) {
  __m512 sum[A][R];
#pragma GCC unroll 24
  for (int i = 0; i < A * R; ++i) sum[i / R][i % R] = _mm512_setzero_ps();
  for (int64_t u = 0, stop; u < steps; u = stop) {
    ahead();
    stop = std::min(u + STRETCH, steps);
    for (; u < stop; ++u) {
      __m512i lanes[R];
#pragma GCC unroll 3
      for (int r = 0; r < R; ++r) lanes[r] = _mm512_load_si512(right + r * right_panel + u * LANES);
#pragma GCC unroll 8
      for (int a = 0; a < A; ++a) {
        const __m512i one = broadcast<W>(left + a * step_a + u * step_u);
#pragma GCC unroll 3
        for (int r = 0; r < R; ++r) sum[a][r] = multiply_add<T>(one, lanes[r], sum[a][r]);
      }
    }
  }
  done(sum);
}

// Turns the scores of R panels into weights 2^(factor score - top), and sums them.
template <class T, int R> struct Weighing {
  __m512 factor, top[R], total[R];

  // Of FEW_KEYS scores; score(a, r) gives one. done(a, r, even, odd) receives the weights of two neighbouring keys.
  template <class Score, class Done> inline void weigh(Score score, Done done) {
#pragma GCC unroll 8
    for (int a = 0; a < FEW_KEYS; a += 2)
#pragma GCC unroll 3
      for (int r = 0; r < R; ++r) {
        const __m512 even = power<T>(_mm512_fmsub_ps(factor, score(a, r), top[r]));
        const __m512 odd = power<T>(_mm512_fmsub_ps(factor, score(a + 1, r), top[r]));
        total[r] = _mm512_add_ps(total[r], _mm512_add_ps(even, odd));
        done(a, r, even, odd);
      }
  }
};

// Two vectors of sixteen halves, the second in the upper half of `both`, as pairs.
inline __m512i in_pairs(__m512i both) {
  const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
  return _mm512_permutexvar_epi16(order, both);
}

// Values as pairs [count / 2][dim] of neighbouring keys.
inline void pair_values(const Rows<bf16, FEW_KEYS>& values, uint32_t* pairs) {
  for (int64_t n = 0; n < values.count; n += FEW_KEYS) {
    const bf16* at = values.from(n);
    const int64_t apart = values.apart(n);
    for (int64_t i = 0; i < FEW_KEYS; i += 2, pairs += values.dim)
      for (int64_t j = 0; j < values.dim; j += 8) {
        const __m256i even = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(at + i * apart + j)));
        const __m256i odd = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)(at + (i + 1) * apart + j)));
        _mm256_storeu_si256((__m256i*)(pairs + j), _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
      }
  }
}

}  // namespace
