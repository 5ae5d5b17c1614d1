// Products of rows rounded to bytes with weights in blocks of 4 or 8 bits, in whole numbers (AVX-512's VNNI): an
// instruction adds four products to each of sixteen outputs, where one in float32 adds one.
//
// Each 32 numbers of a row become whole numbers of -127 to 127 times their scale, the largest of them over 127. A block's
// sums are exact; then they are multiplied with the scales of both sides. An output's sum is made in the same order for
// any number of rows and outputs.
#pragma once
#include "panel_rows.h"

namespace {

constexpr bool BY_BYTES = true;
constexpr int64_t SHARE = 32, HALF = SHARE / 2;  // numbers of a row that share a scale, and a sum
constexpr float TINY = 1e-30f, MOST_BYTE = 127;  // numbers up to the first, all of a scale, become zeros

// How a panel holds numbers: as of `Halves`, but a word has four numbers of an output, without a sign: more by ADDED.
struct FourNibbles {
  static constexpr int64_t SPAN = 8, SIZE = 4 * PANEL, EACH = 4, WORDS = 2, ADDED = 0;
  template <int I> static Words word(const char* at) {
    const Words own = read_words(at);
    return _mm512_and_si512(I ? _mm512_srli_epi32(own, 4) : own, all_words(0x0f0f0f0f));
  }
};
struct FourBytes {
  static constexpr int64_t SPAN = 4, SIZE = 4 * PANEL, EACH = 4, WORDS = 1, ADDED = 128;
  template <int I> static Words word(const char* at) {
    return _mm512_xor_si512(turned(read_words(at)), all_words(0x80808080));
  }
};

// Rows of an input: numbers [count][whole], in the order of a word's weights; scale [count][whole / 32]; sums of the
// numbers [count][whole / 16].
template <class T> struct Rounded {
  using Bias = T;
  static constexpr int FEWER = 3, SOME = 6;  // as of `Whole`
  int64_t count = 0, whole = 0;
  int8_t* numbers = nullptr;
  float* scale = nullptr;
  int32_t* sums = nullptr;

  Rounded from(int64_t row) const {
    return {count - row, whole, numbers + row * whole, scale + row * whole / SHARE, sums + row * whole / HALF};
  }
  template <class Code, class S, int C, int W>
  static void sum(const Outputs<S>& to_sum, const Rounded& rows, int64_t group, float* sums);
};
inline int64_t rounded_bytes(int64_t count, int64_t in) {
  return count * (in + SHARE) * (1 + sizeof(float) / double(SHARE) + sizeof(int32_t) / double(HALF));
}

// Within a parallel region: the rows x [count, in], rounded for a matrix, in `memory`. All threads go on when they are
// complete.
template <class T> Rounded<T> rounded_for(const Matrix& matrix, const T* x, int64_t count, char* memory) {
  const int64_t in = matrix.in, whole = (in + SHARE - 1) / SHARE * SHARE;
  float* scale = reinterpret_cast<float*>(memory + count * whole);
  const Rounded<T> to{count, whole, reinterpret_cast<int8_t*>(memory), scale,
                      reinterpret_cast<int32_t*>(scale + count * whole / SHARE)};
  const Words order = _mm512_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15);  // of nibbles
  Threads::each(count, [&](int64_t row) {
    const Rounded<T> own = to.from(row);
    for (int64_t k = 0; k < whole; k += SHARE) {
      const T* from = x + row * in + k;
      const float largest = scale_of(from, std::min(SHARE, in - k), 1);
      const bool counts = !(largest <= TINY);
      own.scale[k / SHARE] = counts ? largest / MOST_BYTE : 0;
      const Vec over = all(counts ? MOST_BYTE / largest : 0);
      for (int64_t i = 0; i < SHARE; i += HALF) {
        Words codes = _mm512_cvtps_epi32(read(from + i, k + i < in ? first_lanes(in - k - i) : 0) * over);
        own.sums[(k + i) / HALF] = _mm512_reduce_add_epi32(codes);
        if (matrix.kind == NIBBLES) codes = _mm512_permutexvar_epi32(order, codes);
        _mm_storeu_si128(reinterpret_cast<__m128i*>(own.numbers + k + i), _mm512_cvtepi32_epi8(codes));
      }
    }
  });
  Threads::barrier();
  return to;
}

// As `Whole::sum`, in blocks of U numbers.
template <int64_t U, class Code, class S, int C, int W, class T>
void sum_bytes(const Outputs<S>& to_sum, const Rounded<T>& rows, float* sums) {
  Vec own[C][W];
  for (auto& row : own)
    for (Vec& sum : row) sum = zero();
  for (int64_t block = 0; block < rows.whole / U; ++block) {
    const auto total = [&](int c) INLINE {  // of the block's whole numbers
      const int32_t* at = rows.sums + (c * rows.whole + block * U) / HALF;
      return U == HALF ? at[0] : at[0] + at[1];
    };
    Words dots[C][W];
#pragma GCC unroll 6
    for (int c = 0; c < C; ++c)
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w)
        dots[c][w] = Code::ADDED ? all_words(static_cast<uint32_t>(total(c)) * -Code::ADDED) : _mm512_setzero_si512();
    const auto add = [&](int64_t k, auto place) INLINE {
      constexpr int I = place;
      const char* line = to_sum.numbers + k / Code::SPAN * Code::SIZE;
      Words each_word[W];
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) {
        if (!I) prefetch<1>(line + w * to_sum.panel + LATER);
        each_word[w] = Code::template word<I>(line + w * to_sum.panel);
      }
#pragma GCC unroll 6
      for (int c = 0; c < C; ++c) {
        int bits;
        std::memcpy(&bits, rows.numbers + c * rows.whole + k + 4 * I, 4);
#pragma GCC unroll 4
        for (int w = 0; w < W; ++w) dots[c][w] = _mm512_dpbusd_epi32(dots[c][w], each_word[w], all_words(bits));
      }
    };
#pragma GCC unroll 8
    for (int64_t k = block * U; k < (block + 1) * U; k += Code::SPAN) {
      add(k, std::integral_constant<int, 0>());
      if constexpr (Code::WORDS > 1) add(k, std::integral_constant<int, 1>());
    }
    const auto of = [&](const S* factors, int w) INLINE {
      return read_factors(factors + (w * to_sum.blocks + block) * PANEL);
    };
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) {
      const Vec scale = of(to_sum.scale, w), offset = to_sum.offset ? of(to_sum.offset, w) : zero();
#pragma GCC unroll 6
      for (int c = 0; c < C; ++c) {
        const float size = rows.scale[(c * rows.whole + block * U) / SHARE];
        Vec& sum = own[c][w];
        sum = fma(scale * all(size), _mm512_cvtepi32_ps(dots[c][w]), sum);
        if (to_sum.offset) sum = fma(offset, all(size * total(c)), sum);
      }
    }
  }
  for (int c = 0; c < C; ++c)
    for (int w = 0; w < W; ++w) store(sums + (c * W + w) * LANES, own[c][w]);
}

template <class T> template <class Code, class S, int C, int W>
void Rounded<T>::sum(const Outputs<S>& to_sum, const Rounded& rows, int64_t group, float* sums) {
  if (group == HALF) return sum_bytes<HALF, Code, S, C, W>(to_sum, rows, sums);
  sum_bytes<SHARE, Code, S, C, W>(to_sum, rows, sums);
}

// As `each_panel`, for rows that are rounded.
template <class T, int N, class F>
inline void each_rounded(const Matrix* const (&matrices)[N], const Rounded<T>& x, F visit) {
  each_block<FourNibbles, FourBytes>(matrices, x, x.count, visit);
}

}  // namespace
