// Products of few rows with weights in panels of 16 outputs: numbers of 16 or 8 bits, or blocks of 4 or 8 bits.
//
// LANES outputs are summed side by side, one number of a row at a time: weights are read in their order in memory, and
// nothing is added across lanes. An output's sum is made in the same order for any number of rows and outputs.
#pragma once
#include <cstring>
#include <utility>
#include <vector>

#include "few_rows.h"

namespace {

constexpr int64_t PANEL = 16;  // outputs that lie side by side in memory, in each instruction set's order
constexpr int64_t LATER = 2048;  // bytes of a panel by which weights are prefetched

// How a panel holds the numbers of each of its outputs: SPAN of them in SIZE bytes for all outputs, from lane to lane
// EACH bytes. `word<i>` has LANES outputs' words for the i-th of WORDS products: a float32 number or two bfloat16 ones.
template <class T> struct Halves {  // two bfloat16 numbers per word
  static constexpr int64_t SPAN = 2, SIZE = 4 * PANEL, EACH = 4, WORDS = sizeof(T) / 2;
  template <int I> static Words word(const char* at) {
    const Words own = read_words(at);
    if constexpr (sizeof(T) == 2) return own;
    else return words(I ? upper(own) : lower(own));
  }
};
template <class T> struct Bytes {  // int8 numbers, each of which is also a bfloat16 number
  static constexpr int64_t SPAN = 2, SIZE = 2 * PANEL, EACH = 1, WORDS = sizeof(T) / 2;
  template <int I> static Words word(const char* at) {
    if constexpr (sizeof(T) == 2) return joined(from_int8(at), from_int8(at + PANEL));
    else return words(from_int8(at + I * PANEL));
  }
};
template <class T> struct Shorts {  // float16 numbers
  static constexpr int64_t SPAN = 2, SIZE = 4 * PANEL, EACH = 2, WORDS = 2;
  template <int I> static Words word(const char* at) {
    return words(read_factors(reinterpret_cast<const half*>(at + I * 2 * PANEL)));
  }
};
template <class T> struct Nibbles {  // eight numbers 0 to 15 per word
  static constexpr int64_t SPAN = 8, SIZE = 4 * PANEL, EACH = 4, WORDS = 8;
  template <int I> static Words word(const char* at) { return words(nibble<I % 2 * 4 + I / 2>(read_words(at))); }
};
// The type of the factors of weights that have none for a block.
struct None {};

// Vectors of outputs of one matrix: the panels of numbers, `panel` bytes from one to the next, and the scales and
// offsets of their blocks, `blocks` of each output.
template <class S> struct Outputs {
  const char* numbers;
  const S *scale, *offset;  // [panel][block][16]; offset: or null
  int64_t panel, blocks;
};

#define INLINE __attribute__((always_inline))  // a lambda that is called keeps the sums in memory

// Rows of an input as they are: x [.., in], and of each block the sum of x, for the offsets, or null.
template <class T> struct Whole {
  using Bias = T;
  static constexpr int FEWER = 3;                 // rows up to which four vectors of outputs at a time are faster than two
  static constexpr int SOME = REGISTERS * 3 / 8;  // rows at a time with two
  const T* x;
  const float* totals;
  int64_t in, blocks;
  Whole from(int64_t row) const { return {x + row * in, totals ? totals + row * blocks : nullptr, in, blocks}; }

  // sums [C][W][LANES]: the products of C rows with W vectors of outputs, in blocks of `group` numbers if they have
  // factors.
  template <class Code, class S, int C, int W>
  static void sum(const Outputs<S>& to_sum, const Whole& rows, int64_t group, float* sums);
};

template <class T> template <class Code, class S, int C, int W>
void Whole<T>::sum(const Outputs<S>& to_sum, const Whole& rows, int64_t group, float* sums) {
  const T* const x = rows.x;
  const int64_t in = rows.in;
  constexpr bool SCALED = !std::is_same_v<S, None>;
  Vec own[C][W];
  const auto each = [&](auto visit) INLINE {
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) visit(own[c][w], sums + (c * W + w) * LANES, c, w);
  };
  const auto clear = [](Vec& sum, float*, int, int) INLINE { sum = zero(); };
  // The products of a span's words; of the first number alone where `left` is 1.
  const auto add = [&](const char* line, const T* number, auto place, auto left) INLINE {
    constexpr int I = place, N = Code::SPAN / Code::WORDS;  // numbers of a product
    Words each_word[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w)
      each_word[w] = Code::template word<I>(line + w * LANES / PANEL * to_sum.panel + w * LANES % PANEL * Code::EACH);
#pragma GCC unroll 12
    for (int c = 0; c < C; ++c) {
      int bits = 0;
      std::memcpy(&bits, number + c * in + I * N, N == 2 && left == 1 ? 2 : 4);
      const Words same = all_words(bits);
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) own[c][w] = multiply_add<T>(each_word[w], same, own[c][w]);
    }
  };
  constexpr int64_t STREAMS = std::max<int64_t>(W * LANES / PANEL, 1);  // panels read at a time
  const auto span = [&]<size_t... I>(int64_t k, std::index_sequence<I...>) INLINE {
    const int64_t place = k / Code::SPAN * Code::SIZE;
    const char* line = to_sum.numbers + place;
    // At the panels' end, what is read next; harmless past the last ones.
    const char* soon = line + LATER + (place + LATER < to_sum.panel ? 0 : (STREAMS - 1) * to_sum.panel);
#pragma GCC unroll 4
    for (int64_t stream = 0; stream < STREAMS; ++stream) prefetch<1>(soon + stream * to_sum.panel);
    (add(line, x + k, std::integral_constant<int, I>(), std::integral_constant<int, Code::SPAN>()), ...);
  };
  if constexpr (SCALED) std::fill_n(sums, C * W * LANES, 0.f);
  for (int64_t block = 0; block < to_sum.blocks; ++block) {
    each(clear);
    int64_t k = block * group;
    for (; k + Code::SPAN <= (block + 1) * group; k += Code::SPAN) span(k, std::make_index_sequence<Code::WORDS>());
    if constexpr (SCALED) {
      const auto of = [&](const S* factors, int w) INLINE {
        return read_factors(factors + (w * LANES / PANEL * to_sum.blocks + block) * PANEL + w * LANES % PANEL);
      };
      each([&](Vec sum, float* at, int c, int w) INLINE {
        Vec next = fma(of(to_sum.scale, w), sum, load(at));
        if (to_sum.offset) next = fma(of(to_sum.offset, w), all(rows.totals[c * to_sum.blocks + block]), next);
        store(at, next);
      });
    } else {
      if (k < in)
        add(to_sum.numbers + k / Code::SPAN * Code::SIZE, x + k, std::integral_constant<int, 0>(),
            std::integral_constant<int, 1>());
      each([](Vec sum, float* at, int, int) INLINE { store(at, sum); });
    }
  }
}

// The sums of an input's LEAST, LEAST + 1, ... rows.
template <class Input, class Code, class S, int W, int LEAST, size_t... C>
constexpr auto strips_of(std::index_sequence<C...>) {
  using Strip = void (*)(const Outputs<S>&, const Input&, int64_t, float*);
  return std::array<Strip, sizeof...(C)>{Input::template sum<Code, S, LEAST + C, W>...};
}

// As `each_of_few`, for LEAST rows at least, MOST at a time, and matrices in panels of one kind. W: vectors of outputs
// at a time.
template <class Code, class S, int W, int LEAST, int MOST, class Input, int N, class F>
inline void each_strip(const Matrix* const (&matrices)[N], const Input& x, int64_t rows, F visit) {
  constexpr auto sum = strips_of<Input, Code, S, W, LEAST>(std::make_index_sequence<MOST + 1 - LEAST>());
  const int64_t out = matrices[0]->out, in = matrices[0]->in, group = matrices[0]->group ? matrices[0]->group : in;
  const int64_t panel = (in + 31) / 32 * 32 / Code::SPAN * Code::SIZE, blocks = in / group;
  const int64_t strips = (rows + MOST - 1) / MOST;
  Threads::each((out + W * LANES - 1) / (W * LANES), [&](int64_t place) {
    const int64_t first = place * W * LANES;
    Outputs<S> outputs[N];
    for (int n = 0; n < N; ++n) {
      const auto factors = [&](const void* all) {
        return all ? static_cast<const S*>(all) + first / PANEL * blocks * PANEL + first % PANEL : nullptr;
      };
      outputs[n] = {static_cast<const char*>(matrices[n]->panels) + first / PANEL * panel + first % PANEL * Code::EACH,
                    factors(matrices[n]->block_scale), factors(matrices[n]->block_offset), panel, blocks};
    }
    for (int64_t strip = 0; strip < strips; ++strip) {
      const int64_t row = rows * strip / strips, count = rows * (strip + 1) / strips - row;
      alignas(64) float sums[N][MOST][W][LANES];
      for (int n = 0; n < N; ++n)
        sum[count - LEAST](outputs[n], x.from(row), group, sums[n][0][0]);
      for (int w = 0; w < W && first + w * LANES < out; ++w) {
        const int64_t at = first + w * LANES;
        const Mask mask = first_lanes(out - at);
        for (int c = 0; c < count; ++c) {
          Vec values[N];
          for (int n = 0; n < N; ++n) values[n] = biased<typename Input::Bias>(*matrices[n], at, mask, load(sums[n][c][w]));
          visit(row + c, at, mask, values);
        }
      }
    }
  });
}

// Each block's sum of the numbers of each row [rows][in / group], in this thread's memory until the next call.
inline const float* block_totals(const float* x, int64_t count, int64_t group) {
  static thread_local std::vector<float> totals;
  totals.resize(count / group);
  for (size_t block = 0; block < totals.size(); ++block) {
    Vec sum = zero();
    by_lanes(group, [&](int64_t i, Mask mask) { sum = sum + read(x + block * group + i, mask); });
    totals[block] = sum_of(sum);
  }
  return totals.data();
}

template <class Code, class S, class Input, int N, class F>
inline void each_code(const Matrix* const (&matrices)[N], const Input& x, int64_t rows, F visit) {
  constexpr int FEWER = Input::FEWER, SOME = Input::SOME;
  if (rows <= FEWER) return each_strip<Code, S, 4, 1, FEWER>(matrices, x, rows, visit);
  each_strip<Code, S, 2, std::min(FEWER + 1, SOME / 2), SOME>(matrices, x, rows, visit);
}

// The same for weights in blocks, of 4 or 8 bits.
template <class Four, class Eight, class Input, int N, class F>
inline void each_block(const Matrix* const (&matrices)[N], const Input& x, int64_t rows, F visit) {
  const Matrix& first = *matrices[0];
  if (first.kind == NIBBLES && first.short_factors) return each_code<Four, half>(matrices, x, rows, visit);
  if (first.kind == NIBBLES) return each_code<Four, float>(matrices, x, rows, visit);
  if (first.short_factors) return each_code<Eight, half>(matrices, x, rows, visit);
  each_code<Eight, float>(matrices, x, rows, visit);
}

// The weights of one output, as float32.
inline void copy_weights(const Matrix& matrix, int64_t output, float* to) {
  const int64_t whole = (matrix.in + 31) / 32 * 32, panel = output / PANEL, lane = output % PANEL;
  const int64_t first = panel * PANEL * whole;  // of the panel's numbers
  const auto factor = [&](const void* all, int64_t k) {
    const int64_t place = (panel * (matrix.in / matrix.group) + k / matrix.group) * PANEL + lane;
    if (matrix.short_factors) return float_of(static_cast<const half*>(all)[place]);
    return static_cast<const float*>(all)[place];
  };
  for (int64_t k = 0; k < matrix.in; ++k) {
    float number = 0;
    if (matrix.kind == BYTES) number = static_cast<const signed char*>(matrix.panels)[first + k * PANEL + lane];
    if (matrix.kind == SHORTS) number = float_of(static_cast<const half*>(matrix.panels)[first + k * PANEL + lane]);
    if (matrix.kind == HALVES)
      number = number_at(static_cast<const bf16*>(matrix.panels) + first + (k / 2 * PANEL + lane) * 2 + k % 2);
    if (matrix.kind == NIBBLES)
      number = static_cast<const uint32_t*>(matrix.panels)[first / 8 + k / 8 * PANEL + lane] >> (k % 2 * 16 + k % 8 / 2 * 4) & 15;
    if (matrix.scale) number *= matrix.scale[output];
    if (matrix.block_scale) number *= factor(matrix.block_scale, k);
    to[k] = matrix.block_offset ? number + factor(matrix.block_offset, k) : number;
  }
}

// As `each_of_few`, for matrices whose weights are in panels, all of one kind.
template <class T, int N, class F>
inline void each_panel(const Matrix* const (&matrices)[N], const T* x, int64_t rows, F visit) {
  const Matrix& first = *matrices[0];
  Whole<T> input{x, nullptr, first.in, first.group ? first.in / first.group : 1};
  if (first.kind == HALVES) return each_code<Halves<T>, None>(matrices, input, rows, visit);
  if constexpr (sizeof(T) == 4) {
    if (first.kind == SHORTS) return each_code<Shorts<T>, None>(matrices, input, rows, visit);
    if (first.block_offset) input.totals = block_totals(x, rows * first.in, first.group);
    if (first.group) return each_block<Nibbles<T>, Bytes<T>>(matrices, input, rows, visit);
  }
  each_code<Bytes<T>, None>(matrices, input, rows, visit);
}

}  // namespace
