// What onepass.cpp does to one tile of keys, in vectors of query rows: two products and the softmax between them.
//
// W is the width of what is broadcast: a vector's 16 lanes are 16 rows (W = 1), or 4 rows that each have 4 lanes for
// neighbouring numbers (W = 4), which wastes nothing where there are few rows.
#pragma once
#include "../native/lanes.h"

namespace {

// Keys of a tile; on the matrix units (M) more, since outputs so far are touched once a tile.
template <bool M> constexpr int64_t KEYS = M ? 256 : 128;
constexpr int64_t MOST_KEYS = KEYS<true>;

// A unit is 32 bits: one float, or two bfloat16 whose products are added to the same sum.
template <class T> constexpr int64_t PER_UNIT = 4 / sizeof(T);

// Keys first .. first + count - 1 of an item, as they are stored; and the values as units, of bfloat16 in pairs.
template <class T> struct Tile {
  int64_t first, count;
  const T *keys, *values;
  const uint32_t* units;
  int64_t unit_step;
};

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

template <class T> inline T rounded(float x) {
  if constexpr (sizeof(T) == 2) return _mm_extract_epi16((__m128i)_mm_cvtneps_pbh(_mm_set_ss(x)), 0);
  return x;
}

// out[r][a] = start[r] * out[r][a] + sum over steps u of broadcast(left[a * step_a + u * step_u]) * right[r][u],
// for A broadcasts and R panels, which lie out_panel and right_panel numbers apart. Without `start` it makes scores:
// factor * each row's sum.
template <class T, int W, int A, int R>
inline void product(const uint32_t* left, int64_t step_a, int64_t step_u, int64_t steps, const float* right,
                    int64_t right_panel, float* out, int64_t out_panel, const __m512* start, __m512 factor) {
  __m512 sum[A][R];
#pragma GCC unroll 24
  for (int i = 0; i < A * R; ++i) sum[i / R][i % R] = _mm512_setzero_ps();
  for (int64_t u = 0; u < steps; ++u) {
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
#pragma GCC unroll 24
  for (int i = 0; i < A * R; ++i) {  // what was there is added last: blocked sums round less
    float* place = out + i % R * out_panel + i / R * LANES;
    _mm512_store_ps(place, start ? _mm512_fmadd_ps(start[i % R], _mm512_load_ps(place), sum[i / R][i % R])
                                 : _mm512_mul_ps(factor, row_sum<W>(sum[i / R][i % R])));
  }
}

// Ask for some rows of the next tile; addresses past the end do no harm.
template <class T> inline void fetch(const T* rows, int64_t stride, int64_t dim, int64_t count = 8) {
  for (int64_t row = 0; row < count; ++row)
    for (int64_t i = 0; i < dim; i += 64 / sizeof(T)) _mm_prefetch((const char*)(rows + row * stride + i), _MM_HINT_T1);
}

// Two rows of bfloat16 values as one row of pairs; an odd last row is paired with zeros.
void pair_values(const bf16* values, int64_t stride, int64_t count, int64_t dim, uint32_t* pairs) {
  for (int64_t n = 0; n < count; n += 2)
    for (int64_t j = 0; j < dim; j += 8) {
      const bf16* at = values + n * stride + j;
      const __m256i even = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)at));
      const __m256i odd = _mm256_cvtepu16_epi32(_mm_maskz_loadu_epi16(n + 1 < count ? 0xff : 0, at + stride));
      _mm256_storeu_si256((__m256i*)(pairs + n / 2 * dim + j), _mm256_or_si256(even, _mm256_slli_epi32(odd, 16)));
    }
}

// The largest of `count` vectors in each lane; four at a time, since each comparison waits for the one before.
inline __m512 largest(const float* from, int64_t count) {
  __m512 most[4];
  for (auto& own : most) own = _mm512_set1_ps(-INFINITY);
  int64_t n = 0;
  for (; n + 4 <= count; n += 4)
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) most[i] = _mm512_max_ps(most[i], _mm512_load_ps(from + (n + i) * LANES));
  for (; n < count; ++n) most[0] = _mm512_max_ps(most[0], _mm512_load_ps(from + n * LANES));
  return _mm512_max_ps(_mm512_max_ps(most[0], most[1]), _mm512_max_ps(most[2], most[3]));
}

// Scores of `count` keys in R panels, which lie `apart` numbers from each other, become weights 2^(factor score - top),
// in pairs for bfloat16; returns what the sums and outputs so far must be multiplied by. The factor is above zero.
template <class T, int R>
inline void softmax(float* scores, int64_t apart, int64_t count, __m512 factor, float* top, float* sum,
                    __m512* shrink) {
#pragma GCC unroll 3
  for (int r = 0; r < R; ++r) {
    float* panel = scores + r * apart;
    const __m512 old = _mm512_load_ps(top + r * LANES);
    const __m512 most = _mm512_max_ps(old, _mm512_mul_ps(factor, largest(panel, count)));
    __m512 total = _mm512_setzero_ps();
    const auto weight = [&](int64_t n) {
      const __m512 one = exp2<T>(_mm512_fmsub_ps(factor, _mm512_load_ps(panel + n * LANES), most));
      total = _mm512_add_ps(total, one);
      return one;
    };
    if constexpr (sizeof(T) == 4) {
      for (int64_t n = 0; n < count; ++n) _mm512_store_ps(panel + n * LANES, weight(n));
    } else {
      const __m512i low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
      const __m512i pairs = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, _mm512_set1_epi32(16)), 16));
      for (int64_t n = 0; n < count; n += 2) {
        const __m512 even = weight(n), odd = n + 1 < count ? weight(n + 1) : _mm512_setzero_ps();
        const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(odd, even);  // the odd ones in its upper half
        _mm512_store_si512(panel + n / 2 * LANES, _mm512_permutexvar_epi16(pairs, both));
      }
    }
    shrink[r] = exp2<float>(_mm512_sub_ps(old, most));
    _mm512_store_ps(top + r * LANES, most);
    _mm512_store_ps(sum + r * LANES, _mm512_fmadd_ps(_mm512_load_ps(sum + r * LANES), shrink[r], total));
  }
}

}  // namespace
