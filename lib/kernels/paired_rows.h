// Products of few rows with weights in pairs, bfloat16's or int8's, for processors with AVX-512.
//
// Sixteen outputs are summed side by side, one number of a row at a time: weights are read in their order in memory,
// and nothing is added across lanes. An output's sum is the same for any number of rows and outputs.
#pragma once
#include <omp.h>

#include <cstring>

#include "few_rows.h"

namespace {

constexpr int64_t STRIP = 6;  // rows of an input at a time: with four vectors of outputs 24 sums, in 32 registers
constexpr int64_t LATER = 32;  // pairs by which weights are prefetched

// Two neighbouring weights of each of 16 outputs, as stored: bfloat16 numbers.
struct Halves {
  static constexpr int64_t SIZE = 64;  // bytes
  __m512i words;
  explicit Halves(const char* at) : words(_mm512_loadu_si512(at)) {}
  __m512i first() const { return _mm512_slli_epi32(words, 16); }
  __m512i second() const { return _mm512_and_si512(words, _mm512_set1_epi32(0xffff0000)); }
  __m512i both() const { return words; }
};

// The same for int8 numbers, each of which is also a bfloat16 number.
struct Bytes {
  static constexpr int64_t SIZE = 32;
  __m512i left, right;
  explicit Bytes(const char* at) : left(wide(at)), right(wide(at + LANES)) {}
  __m512i first() const { return left; }
  __m512i second() const { return right; }
  __m512i both() const { return _mm512_or_si512(_mm512_srli_epi32(left, 16), right); }

 private:
  static __m512i wide(const char* at) {
    const __m128i own = _mm_loadu_si128(reinterpret_cast<const __m128i*>(at));
    return _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(own)));
  }
};

// sums [C, W, 16] of C rows of x [.., in] with the weights of W times 16 outputs, which lie `panel` bytes apart.
template <class T, class Two, int C, int W>
void pair_sums(const char* weights, int64_t panel, const T* x, int64_t in, float* sums) {
  __m512 own[C][W];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) own[c][w] = _mm512_setzero_ps();
  const auto add = [&](const __m512i* each, auto number) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const __m512i same = _mm512_set1_epi32(number(x + c * in));
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) own[c][w] = multiply_add<T>(each[w], same, own[c][w]);
    }
  };
  const auto step = [&](int64_t k, int64_t left) {
    __m512i left_ones[W], right_ones[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
      const char* at = weights + w * panel + k / 2 * Two::SIZE;
      const Two two(at);
      left_ones[w] = sizeof(T) == 2 ? two.both() : two.first();
      if constexpr (sizeof(T) == 4) right_ones[w] = two.second();
      _mm_prefetch(at + LATER * Two::SIZE, _MM_HINT_T0);  // harmless past the end
    }
    const auto number = [&](int64_t i) {  // or two bfloat16 ones
      return [=](const T* row) {
        int bits = 0;
        std::memcpy(&bits, row + k + i, sizeof(T) == 2 && left == 1 ? 2 : 4);
        return bits;
      };
    };
    add(left_ones, number(0));
    if constexpr (sizeof(T) == 4)
      if (left > 1) add(right_ones, number(1));
  };
  int64_t k = 0;
  for (; k + 2 <= in; k += 2) step(k, 2);
  if (k < in) step(k, 1);
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) _mm512_store_ps(sums + (c * W + w) * LANES, own[c][w]);
}

// As `each_of_few`, for matrices with paired weights; W: vectors of outputs at a time.
template <class T, class Two, int W, int N, class F>
inline void each_strip(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  constexpr decltype(&pair_sums<T, Two, 1, W>) by_rows[] = {
      pair_sums<T, Two, 1, W>, pair_sums<T, Two, 2, W>, pair_sums<T, Two, 3, W>,
      pair_sums<T, Two, 4, W>, pair_sums<T, Two, 5, W>, pair_sums<T, Two, 6, W>};
  const int64_t out = matrices[0]->out, in = matrices[0]->in, panel = (in + 31) / 32 * 16 * Two::SIZE;
  const int64_t strips = (rows + STRIP - 1) / STRIP;
#pragma omp for schedule(static) nowait
  for (int64_t first = 0; first < out; first += W * LANES)
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t row = rows * strip / strips, count = rows * (strip + 1) / strips - row;
      alignas(64) float sums[N][STRIP][W][LANES];
      for (int n = 0; n < N; ++n)
        by_rows[count - 1](static_cast<const char*>(matrices[n]->paired) + first / LANES * panel, panel, x + row * in,
                           in, sums[n][0][0]);
      for (int w = 0; w < W && first + w * LANES < out; ++w) {
        const int64_t at = first + w * LANES;
        const __mmask16 mask = out - at >= LANES ? 0xffff : (1 << (out - at)) - 1;
        for (int c = 0; c < count; ++c) {
          __m512 values[N];
          for (int n = 0; n < N; ++n) values[n] = biased<T>(*matrices[n], at, mask, _mm512_load_ps(sums[n][c][w]));
          visit(row + c, at, mask, values);
        }
      }
    }
}

// The same, with as many outputs at a time as leave work for each thread.
template <class T, class Two, int N, class F>
inline void each_two(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  const int64_t share = matrices[0]->out / LANES / omp_get_num_threads();
  if (share >= 4) return each_strip<T, Two, 4>(matrices, x, rows, visit);
  if (share >= 2) return each_strip<T, Two, 2>(matrices, x, rows, visit);
  each_strip<T, Two, 1>(matrices, x, rows, visit);
}

// The same, for matrices of int8 numbers alone or of bfloat16 numbers alone.
template <class T, int N, class F>
inline void each_pair(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  if (matrices[0]->scale) return each_two<T, Bytes>(matrices, x, rows, visit);
  each_two<T, Halves>(matrices, x, rows, visit);
}

}  // namespace
