// Products of few rows with weights in pairs, bfloat16's or int8's.
//
// LANES outputs are summed side by side, one number of a row at a time: weights are read in their order in memory,
// and nothing is added across lanes. An output's sum is the same for any number of rows and outputs.
#pragma once
#include <omp.h>

#include <cstring>
#include <utility>

#include "few_rows.h"

namespace {

constexpr int64_t PANEL = 16;  // outputs that lie side by side in memory, in each instruction set's order
constexpr int64_t ACCUMULATORS = REGISTERS * 3 / 4;  // sums at a time; the other registers are operands
constexpr int64_t strip_rows(int64_t W) { return std::min<int64_t>(6, ACCUMULATORS / W); }  // for W vectors of outputs
constexpr int64_t LATER = 32;  // pairs by which weights are prefetched

// Two neighbouring weights of each of LANES outputs, as stored in a panel: bfloat16 numbers.
struct Halves {
  static constexpr int64_t SIZE = 4 * PANEL, EACH = 4;  // bytes of a panel's two numbers, and from lane to lane
  Words own;
  explicit Halves(const char* at) : own(read_words(at)) {}
  Words first() const { return words(lower(own)); }
  Words second() const { return words(upper(own)); }
  Words both() const { return own; }
};

// The same for int8 numbers, each of which is also a bfloat16 number.
struct Bytes {
  static constexpr int64_t SIZE = 2 * PANEL, EACH = 1;
  Vec left, right;
  explicit Bytes(const char* at) : left(from_int8(at)), right(from_int8(at + PANEL)) {}
  Words first() const { return words(left); }
  Words second() const { return words(right); }
  Words both() const { return joined(left, right); }
};

// sums [C, W, LANES] of C rows of x [.., in] with the weights of W times LANES outputs, whose panels lie `panel` bytes
// apart.
template <class T, class Two, int C, int W>
void pair_sums(const char* weights, int64_t panel, const T* x, int64_t in, float* sums) {
  Vec own[C][W];
#pragma GCC unroll 8
  for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) own[c][w] = zero();
  const auto add = [&](const Words* each, auto number) {
#pragma GCC unroll 8
    for (int c = 0; c < C; ++c) {
      const Words same = all_words(number(x + c * in));
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) own[c][w] = multiply_add<T>(each[w], same, own[c][w]);
    }
  };
  const auto step = [&](int64_t k, int64_t left) {
    Words left_ones[W], right_ones[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
      const char* at = weights + w * LANES / PANEL * panel + k / 2 * Two::SIZE;
      const Two two(at + w * LANES % PANEL * Two::EACH);
      left_ones[w] = sizeof(T) == 2 ? two.both() : two.first();
      if constexpr (sizeof(T) == 4) right_ones[w] = two.second();
      if (w * LANES % PANEL == 0) _mm_prefetch(at + LATER * Two::SIZE, _MM_HINT_T0);  // harmless past the end
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
    for (int w = 0; w < W; ++w) store(sums + (c * W + w) * LANES, own[c][w]);
}

// As `each_of_few`, for matrices with paired weights; W: vectors of outputs at a time.
template <class T, class Two, int W, int N, class F, size_t... C>
inline void each_strip(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit,
                       std::index_sequence<C...>) {
  constexpr decltype(&pair_sums<T, Two, 1, W>) by_rows[] = {pair_sums<T, Two, C + 1, W>...};
  const int64_t out = matrices[0]->out, in = matrices[0]->in, panel = (in + 31) / 32 * 16 * Two::SIZE;
  const int64_t strips = (rows + sizeof...(C) - 1) / sizeof...(C);
#pragma omp for schedule(static) nowait
  for (int64_t first = 0; first < out; first += W * LANES)
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t row = rows * strip / strips, count = rows * (strip + 1) / strips - row;
      alignas(64) float sums[N][sizeof...(C)][W][LANES];
      for (int n = 0; n < N; ++n)
        by_rows[count - 1](static_cast<const char*>(matrices[n]->paired) + first / PANEL * panel +
                               first % PANEL * Two::EACH, panel, x + row * in, in, sums[n][0][0]);
      for (int w = 0; w < W && first + w * LANES < out; ++w) {
        const int64_t at = first + w * LANES;
        const Mask mask = first_lanes(out - at);
        for (int c = 0; c < count; ++c) {
          Vec values[N];
          for (int n = 0; n < N; ++n) values[n] = biased<T>(*matrices[n], at, mask, load(sums[n][c][w]));
          visit(row + c, at, mask, values);
        }
      }
    }
}

// The same, with as many outputs at a time as leave work for each thread and registers for the rows.
template <class T, class Two, int N, class F>
inline void each_two(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  const int64_t share = matrices[0]->out / LANES / omp_get_num_threads();
  const auto strips = [&](auto width) {
    each_strip<T, Two, width>(matrices, x, rows, visit, std::make_index_sequence<strip_rows(width)>());
  };
  if (share >= 4 && (strip_rows(4) == strip_rows(1) || rows <= strip_rows(4))) return strips(std::integral_constant<int, 4>());
  if (share >= 2) return strips(std::integral_constant<int, 2>());
  strips(std::integral_constant<int, 1>());
}

// The same, for matrices of int8 numbers alone or of bfloat16 numbers alone.
template <class T, int N, class F>
inline void each_pair(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  if (matrices[0]->scale) return each_two<T, Bytes>(matrices, x, rows, visit);
  each_two<T, Halves>(matrices, x, rows, visit);
}

}  // namespace
