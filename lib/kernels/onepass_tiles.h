// The innermost loops of onepass.cpp for one tile of keys: two products and the exponentials between them.
//
// W is the width of what is broadcast: a vector's lanes are as many rows (W = 1), or a quarter of the rows, each of
// which has 4 lanes for neighbouring numbers (W = 4), which fills the vectors where there are few rows.
#pragma once
#include <algorithm>
#include <array>

#include "lanes.h"

namespace {

// Rows of bytes in memory, `stride` bytes apart.
struct Region { const char* start; int64_t row, stride, rows; };

// Prefetches the lines of a few regions one after another, a few per call: many at once would delay other reads.
class Ahead {
 public:
  Ahead(const std::array<Region, 4>& regions, int64_t calls) {
    int64_t lines = 0;
    for (size_t i = regions.size(); i-- > 0;)
      if (regions[i].rows > 0) {
        left[some++] = joined(regions[i]);
        lines += regions[i].rows * ((regions[i].row + LINE - 1) / LINE);
      }
    each = (lines + calls - 1) / calls;
    turn_to_next();
  }
  inline void operator()() {
    for (int64_t i = 0; i < each; ++i) {
      prefetch<2>(at);
      at += LINE;
      if (__builtin_expect(at >= now.start + now.row, 0)) turn_to_next();
    }
  }

 private:
  static constexpr int64_t LINE = 64;
  Region now{}, left[4];
  int some = 0;  // regions left, the next one last
  const char* at = nullptr;
  int64_t each;  // lines per call; always the same number, so that the processor predicts the branch

  static Region joined(Region x) { return x.row == x.stride ? Region{x.start, x.row * x.rows, 0, 1} : x; }
  void turn_to_next() {
    now.start += now.stride;
    if (--now.rows <= 0) {
      if (some) now = left[--some];
      else each = 0;
    }
    at = now.start;
  }
};

constexpr int64_t KEYS = 128;    // of a tile
constexpr int64_t FEW_KEYS = REGISTERS / 4;  // of them, that are scored together: with three panels 24 sums, or 12

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

// In each lane the sum of the row's W lanes.
template <int W> inline Vec row_sum(Vec x) {
  if constexpr (W == 4) return sum_of_fours(x);
  else return x;
}

// 2^x to the last bits of T: 2^whole times a polynomial for the fraction. Subnormal results may be zero.
template <class T> inline Vec power(Vec x) {
  static constexpr float fine[] = {0.99999994f,   0.693153083f,   0.240153611f,
                                   0.0558263175f, 0.00898933969f, 0.00187757669f};             // within 1.5e-7
  static constexpr float coarse[] = {0.999925196f, 0.695833564f, 0.226067156f, 0.0780245215f};  // within 7.5e-5
  const float* series = sizeof(T) == 2 ? coarse : fine;
  constexpr int degree = sizeof(T) == 2 ? 3 : 5;
  const Vec rest = fraction(x);
  Vec sum = all(series[degree]);
#pragma GCC unroll 8
  for (int k = degree - 1; k >= 0; --k) sum = fma(sum, rest, all(series[k]));
  return times_power(sum, x);
}

// During its lifetime the thread treats subnormal numbers as zero: on some processors they take a hundred times as
// long.
struct Flush {
  const decltype(control()) before = control();
  Flush() { set_control(before | FLUSHED); }
  ~Flush() { set_control(before); }
};

constexpr int64_t STRETCH = 16;  // steps of a product between two calls of `ahead`

// sum[a][r] = sum over steps u of broadcast(left[a * step_a + u * step_u]) * right[r][u], for A broadcasts and R panels
// of vectors, which lie right_panel numbers apart; `done` receives the sums.
template <class T, int W, int A, int R, class Done>
inline void product(const uint32_t* left, int64_t step_a, int64_t step_u, int64_t steps, const float* right,
                    int64_t right_panel, Ahead& ahead, Done done) {
  Vec sum[A][R];
#pragma GCC unroll 24
  for (int i = 0; i < A * R; ++i) sum[i / R][i % R] = zero();
  for (int64_t u = 0, stop; u < steps; u = stop) {
    ahead();
    stop = std::min(u + STRETCH, steps);
    for (; u < stop; ++u) {
      Words lanes[R];
#pragma GCC unroll 3
      for (int r = 0; r < R; ++r) lanes[r] = load_words(right + r * right_panel + u * LANES);
#pragma GCC unroll 8
      for (int a = 0; a < A; ++a) {
        const Words one = broadcast<W>(left + a * step_a + u * step_u);
#pragma GCC unroll 3
        for (int r = 0; r < R; ++r) sum[a][r] = multiply_add<T>(one, lanes[r], sum[a][r]);
      }
    }
  }
  done(sum);
}

// Turns the scores of R panels into weights 2^(factor score - top), and sums them.
template <class T, int R> struct Weighing {
  Vec factor, top[R], total[R];

  // Of FEW_KEYS scores; score(a, r) gives one. done(a, r, even, odd) receives the weights of two neighbouring keys.
  template <class Score, class Done> inline void weigh(Score score, Done done) {
#pragma GCC unroll 8
    for (int a = 0; a < FEW_KEYS; a += 2)
#pragma GCC unroll 3
      for (int r = 0; r < R; ++r) {
        const Vec even = power<T>(fms(factor, score(a, r), top[r]));
        const Vec odd = power<T>(fms(factor, score(a + 1, r), top[r]));
        total[r] = total[r] + (even + odd);
        done(a, r, even, odd);
      }
  }
};

// Values as pairs [count / 2][dim] of neighbouring keys.
inline void pair_values(const Rows<bf16, FEW_KEYS>& values, uint32_t* pairs) {
  for (int64_t n = 0; n < values.count; n += FEW_KEYS) {
    const bf16* at = values.from(n);
    const int64_t apart = values.apart(n);
    for (int64_t i = 0; i < FEW_KEYS; i += 2, pairs += values.dim)
      for (int64_t j = 0; j < values.dim; j += LANES) {
        const Mask mask = first_lanes(values.dim - j);
        const Vec even = read(at + i * apart + j, mask), odd = read(at + (i + 1) * apart + j, mask);
        write(reinterpret_cast<float*>(pairs + j), mask, floats(joined(even, odd)));
      }
  }
}

}  // namespace
