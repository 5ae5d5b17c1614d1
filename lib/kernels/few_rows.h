// Products of few rows with a matrix in PyTorch's own layout.
//
// A draft tree has few nodes, so that a product takes as long as reading its weights: each thread reads its own rows of
// the matrix once, in order, and multiplies each with all rows of the input. An output is one dot product, summed in
// the same order for any number of rows, so that a node's result does not depend on its neighbours.
#pragma once
#include <algorithm>
#include <array>
#include <type_traits>

#include "lanes.h"
#include "threads.h"

namespace {

constexpr int SUMS = REGISTERS / 2;  // simultaneous dot products, one accumulator each
constexpr int64_t BAND = 16, AHEAD = 8;  // rows of the matrix per step of a thread, and rows prefetched

struct Matrix {
  const void *weight, *bias;  // [out, in], and [out] or null
  const void* panels;         // or null: the weights in panels of 16 outputs, as `kind` says, padded with zeros to
                              // whole 64 outputs and 32 numbers; `weight` is then not read
  const float* scale;         // [out], times which int8 numbers are the weights; or null
  const void *block_scale, *block_offset;  // [out / 16, in / group, 16 outputs]: of blocks of `group` numbers, which
                                           // times their scale, plus their offset, are the weights; or null
  int64_t out, in, group, kind;
  int64_t short_factors, rounded;  // scales and offsets are float16; inputs are rounded (`byte_rows.h`)
};

// The kinds of panels.
enum : int64_t {
  HALVES,  // [out / 16, in / 2, 16]: bfloat16 numbers, two neighbours per word, the first in its lower half
  BYTES,   // [out / 16, in, 16]: int8 numbers
  NIBBLES, // [out / 16, in / 8, 16]: numbers 0 to 15, eight neighbours per word, even places in its lower half
  SHORTS   // [out / 16, in, 16]: float16 numbers
};

// Outputs of a matrix from `at` on, where the mask has bits, scaled and with the bias added.
template <class T> inline Vec biased(const Matrix& matrix, int64_t at, Mask mask, Vec sums) {
  if (matrix.scale) sums = sums * read(matrix.scale + at, mask);
  return matrix.bias ? sums + read(static_cast<const T*>(matrix.bias) + at, mask) : sums;
}

// A vector of numbers, or the last `left` of them.
template <class T> constexpr int64_t STEP = 4 * LANES / sizeof(T);
template <class T> inline Words numbers_at(const T* at, int64_t left) {
  if (left >= STEP<T>) return read_words(at);
  alignas(64) T own[STEP<T>] = {};
  std::memcpy(own, at, left * sizeof(T));
  return load_words(own);
}

// The products of C rows of x, of which there are `many`, with R = SUMS / C rows of the matrix, from `first` on: number
// c * R + r of the vectors `sums`. Rows past the last repeat the last one. ahead: one bit for each row whose later rows
// are prefetched; addresses past the end are harmless.
template <class T, int C>
inline void dots(const Matrix& matrix, int64_t first, const T* x, int64_t many, int ahead, Vec* sums) {
  constexpr int R = SUMS / C;
  const int64_t in = matrix.in;
  const T* rows[R];
  for (int r = 0; r < R; ++r)
    rows[r] = static_cast<const T*>(matrix.weight) + std::min(first + r, matrix.out - 1) * in;
  Vec parts[SUMS];
  for (auto& part : parts) part = zero();
  const auto step = [&](int64_t k, int64_t left) {
    Words own[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) own[c] = numbers_at(x + std::min<int64_t>(c, many - 1) * in + k, left);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const Words weights = numbers_at(rows[r] + k, left);
      if (ahead >> r & 1) prefetch<2>(rows[r] + AHEAD * in + k);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) parts[c * R + r] = multiply_add<T>(weights, own[c], parts[c * R + r]);
    }
  };
  int64_t k = 0;
  for (; k + STEP<T> <= in; k += STEP<T>) step(k, STEP<T>);
  if (k < in) step(k, in - k);
  for (int i = 0; i < SUMS; i += LANES) sums[i / LANES] = sums_of(parts + i);
}

// Within a parallel region: this thread's share of the outputs of N matrices of one size for the rows x [rows, in].
// visit(row, at, mask, values) receives, for each row, each matrix's outputs from `at` on, where the mask has bits,
// biases included. One row is computed like two, since eight rows of weights at a time arrive faster from memory than
// sixteen. The rows of the input share the prefetches, so that memory is always busy. There is no barrier at the end.
template <class T, int N, class F>
inline void each_of_few(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  const int64_t out = matrices[0]->out, in = matrices[0]->in, groups = std::min<int64_t>(4, (rows + 3) / 4);
  Threads::each((out + BAND - 1) / BAND, [&](int64_t band) {
    for (int64_t first = band * BAND, end = std::min(out, first + BAND); first < end; first += AHEAD) {
      const auto strip = [&](auto count, int64_t row) {
        constexpr int C = count, R = SUMS / C;
        const int ahead = row / 4 < groups ? std::array{0xff, 0x55, 0x49, 0x11}[groups - 1] << row / 4 : 0;
        for (int64_t own = first; own < std::min(end, first + AHEAD); own += R) {
          Vec sums[N][SUMS / LANES], values[N];
          for (int n = 0; n < N; ++n) dots<T, C>(*matrices[n], own, x + row * in, rows - row, ahead, sums[n]);
          for (int c = 0; c < std::min<int64_t>(C, rows - row); ++c)
            for (int r = 0; r < R && own + r < out; r += LANES) {
              const int lane = c * R % LANES;  // of output own + r
              const Mask mask = first_lanes(std::min<int64_t>(R, out - own) - r) << lane;
              const int64_t at = own + r - lane;
              for (int n = 0; n < N; ++n) values[n] = biased<T>(*matrices[n], at, mask, sums[n][(c * R + r) / LANES]);
              visit(row + c, at, mask, values);
            }
        }
      };
      int64_t row = 0;
      for (; rows - row > 2; row += 4) strip(std::integral_constant<int, 4>(), row);
      if (row < rows) strip(std::integral_constant<int, 2>(), row);
    }
  });
}

}  // namespace
