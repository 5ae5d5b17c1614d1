// Products of few rows with a matrix whose weights lie as PyTorch keeps them, for processors with AVX-512.
//
// A draft tree has few nodes, so that reading the weights is what a product costs: each thread reads its own rows of
// them once, in order, and multiplies each with all rows of the input. An output is one dot product, summed in the same
// order however many rows there are: what a node gets does not depend on its neighbours.
#pragma once
#include <algorithm>
#include <array>
#include <type_traits>

#include "lanes.h"

namespace {

constexpr int SUMS = 16;     // dot products at a time, one accumulator each
constexpr int64_t BAND = 16, AHEAD = 8;  // rows of the matrix that a thread takes at a time, and asks for in advance
constexpr int64_t MOST_HALVED = 24;      // rows of an input: of more, taking halves apart costs more than reading less

struct Matrix {
  const void *weight, *bias;  // [out, in], and [out] or null
  const uint32_t* halved;     // [out, in / 32 rounded up, 16]: float32 weights that are bfloat16 numbers, as these; or
                              // null. Word i of a group holds number i in its lower half, 16 + i in its upper one.
                              // For the matrix units: [out / 16, in / 32, 16 pairs of neighbours, 16 outputs]
  int64_t out, in;
};

// The matrix as so many rows of an input read it: few ones from its halves.
inline Matrix read_by(const Matrix& matrix, int64_t rows) {
  Matrix own = matrix;
  if (rows > MOST_HALVED) own.halved = nullptr;
  return own;
}

// A vector of numbers, `left` of them where fewer are left.
template <class T> constexpr int64_t STEP = 64 / sizeof(T);
inline __m512i load(const float* at, int64_t left) {
  return left >= 16 ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi32((1u << left) - 1, at);
}
inline __m512i load(const bf16* at, int64_t left) {
  return left >= 32 ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi16((1u << left) - 1, at);
}

// The sum of each of 16 vectors: halves are added as they are interleaved, each vector's numbers in the same order.
inline __m512 sums_of(const __m512* parts) {
  __m512 pairs[8], quads[4];
  for (int i = 0; i < 8; ++i)
    pairs[i] = _mm512_add_ps(_mm512_unpacklo_ps(parts[2 * i], parts[2 * i + 1]),
                             _mm512_unpackhi_ps(parts[2 * i], parts[2 * i + 1]));
  for (int i = 0; i < 4; ++i) {
    const __m512d left = _mm512_castps_pd(pairs[2 * i]), right = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_add_ps(_mm512_castpd_ps(_mm512_unpacklo_pd(left, right)),
                             _mm512_castpd_ps(_mm512_unpackhi_pd(left, right)));
  }
  const auto joined = [](__m512 left, __m512 right) {
    return _mm512_add_ps(_mm512_shuffle_f32x4(left, right, 0x88), _mm512_shuffle_f32x4(left, right, 0xdd));
  };
  return joined(joined(quads[0], quads[1]), joined(quads[2], quads[3]));
}

// The products of C rows of x, of which there are `many`, with 16 / C rows of the matrix, from `first` on: lane
// c * (16 / C) + r. Rows past the last are the last one again. ahead: for which of them the rows behind are asked for,
// a bit each; addresses past the end do no harm.
template <class T, int C>
inline __m512 dots(const Matrix& matrix, int64_t first, const T* x, int64_t many, int ahead) {
  constexpr int R = SUMS / C;
  const int64_t in = matrix.in;
  const T* rows[R];
  for (int r = 0; r < R; ++r)
    rows[r] = static_cast<const T*>(matrix.weight) + std::min(first + r, matrix.out - 1) * in;
  __m512 parts[SUMS];
  for (auto& part : parts) part = _mm512_setzero_ps();
  const auto step = [&](int64_t k, int64_t left) {
    __m512i own[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) own[c] = load(x + std::min<int64_t>(c, many - 1) * in + k, left);
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i weights = load(rows[r] + k, left);
      if (ahead >> r & 1) _mm_prefetch(reinterpret_cast<const char*>(rows[r] + AHEAD * in + k), _MM_HINT_T1);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) parts[c * R + r] = multiply_add<T>(weights, own[c], parts[c * R + r]);
    }
  };
  int64_t k = 0;
  for (; k + STEP<T> <= in; k += STEP<T>) step(k, STEP<T>);
  if (k < in) step(k, in - k);
  return sums_of(parts);
}

// What `dots` gives, number by number, of weights that are read in halves.
template <int C>
inline __m512 halved_dots(const Matrix& matrix, int64_t first, const float* x, int64_t many, int ahead) {
  constexpr int R = SUMS / C;
  const int64_t in = matrix.in, stride = (in + 31) / 32 * 16;
  const uint32_t* rows[R];
  for (int r = 0; r < R; ++r) rows[r] = matrix.halved + std::min(first + r, matrix.out - 1) * stride;
  const __m512i upper = _mm512_set1_epi32(0xffff0000);
  __m512 parts[SUMS];
  for (auto& part : parts) part = _mm512_setzero_ps();
  for (int64_t k = 0; k < in; k += 32) {
    const int64_t left = std::min<int64_t>(in - k, 32);
    __m512i low[C], high[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) {
      const float* own = x + std::min<int64_t>(c, many - 1) * in + k;
      low[c] = load(own, left), high[c] = load(own + 16, std::max<int64_t>(left - 16, 0));
    }
#pragma GCC unroll 16
    for (int r = 0; r < R; ++r) {
      const __m512i pairs = _mm512_loadu_si512(rows[r] + k / 2);
      const __m512i even = _mm512_slli_epi32(pairs, 16), odd = _mm512_and_si512(pairs, upper);
      if (ahead >> r & 1) _mm_prefetch(reinterpret_cast<const char*>(rows[r] + AHEAD * stride + k / 2), _MM_HINT_T1);
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) {
        parts[c * R + r] = multiply_add<float>(even, low[c], parts[c * R + r]);
        parts[c * R + r] = multiply_add<float>(odd, high[c], parts[c * R + r]);
      }
    }
  }
  return sums_of(parts);
}

template <class T, int C>
inline __m512 dots_of(const Matrix& matrix, int64_t first, const T* x, int64_t many, int ahead) {
  if constexpr (sizeof(T) == 4)
    if (matrix.halved) return halved_dots<C>(matrix, first, x, many, ahead);
  return dots<T, C>(matrix, first, x, many, ahead);
}

// What `dots` gives, with the matrix's bias.
template <class T, int C>
inline __m512 outputs(const Matrix& matrix, int64_t first, const T* x, int64_t many, int ahead) {
  const __m512 sums = dots_of<T, C>(matrix, first, x, many, ahead);
  if (!matrix.bias) return sums;
  const int64_t left = std::min<int64_t>(SUMS / C, matrix.out - first);
  alignas(64) float own[SUMS] = {};
  _mm512_store_ps(own, read(static_cast<const T*>(matrix.bias) + first, (1 << left) - 1));
  for (int i = SUMS / C; i < SUMS; ++i) own[i] = own[i - SUMS / C];
  return _mm512_add_ps(sums, _mm512_load_ps(own));
}

// Puts what `dots` gives to `many` rows of `width` numbers that begin at `to`; past the last column nothing is touched.
template <int C, class T>
inline void place(T* to, int64_t width, int64_t many, int64_t first, int64_t out, __m512 sums) {
  constexpr int R = SUMS / C;
  const int mask = (1 << std::min<int64_t>(R, out - first)) - 1;
  for (int c = 0; c < std::min<int64_t>(C, many); ++c) write(to + c * width + first - c * R, mask << c * R, sums);
}

// Adds it to them.
template <int C> inline void add(float* to, int64_t width, int64_t many, int64_t first, int64_t out, __m512 sums) {
  constexpr int R = SUMS / C;
  const int mask = (1 << std::min<int64_t>(R, out - first)) - 1;
  for (int c = 0; c < std::min<int64_t>(C, many); ++c) {
    float* at = to + c * width + first - c * R;
    write(at, mask << c * R, _mm512_add_ps(read(at, mask << c * R), sums));
  }
}

// Within a parallel region: this thread's share of the outputs of a matrix of `out` rows for `rows` rows of an input.
// make(C, row, first, ahead) does outputs first ... of rows row ... row + C - 1, as far as there are such rows. One row
// is done as two are: eight rows of weights at a time come faster from memory than sixteen. All rows of the input share
// the asking for weights, so that memory is busy all the time. No barrier at the end.
template <class F> inline void each_band(int64_t out, int64_t rows, F make) {
  const int64_t groups = std::min<int64_t>(4, (rows + 3) / 4);
#pragma omp for schedule(static) nowait
  for (int64_t band = 0; band < (out + BAND - 1) / BAND; ++band)
    for (int64_t first = band * BAND, end = std::min(out, first + BAND); first < end; first += AHEAD) {
      const auto strip = [&](auto count, int64_t row) {
        const int ahead = row / 4 < groups ? std::array{0xff, 0x55, 0x49, 0x11}[groups - 1] << row / 4 : 0;
        for (int64_t own = first; own < std::min(end, first + AHEAD); own += SUMS / count) make(count, row, own, ahead);
      };
      int64_t row = 0;
      for (; rows - row > 2; row += 4) strip(std::integral_constant<int, 4>(), row);
      if (row < rows) strip(std::integral_constant<int, 2>(), row);
    }
}

// Within a parallel region: this thread's share of to [rows, width] = x [rows, in] W^T + b.
template <class T, class Out>
inline void few_product(const Matrix& whole, const T* x, int64_t rows, Out* to, int64_t width) {
  const Matrix matrix = read_by(whole, rows);
  each_band(matrix.out, rows, [=](auto count, int64_t row, int64_t first, int ahead) {
    place<count>(to + row * width, width, rows - row, first, matrix.out,
                 outputs<T, count>(matrix, first, x + row * matrix.in, rows - row, ahead));
  });
}

// The same, added to what is there.
template <class T> inline void add_few_product(const Matrix& whole, const T* x, int64_t rows, float* to) {
  const Matrix matrix = read_by(whole, rows);
  each_band(matrix.out, rows, [=](auto count, int64_t row, int64_t first, int ahead) {
    add<count>(to + row * matrix.out, matrix.out, rows - row, first, matrix.out,
               outputs<T, count>(matrix, first, x + row * matrix.in, rows - row, ahead));
  });
}

}  // namespace
