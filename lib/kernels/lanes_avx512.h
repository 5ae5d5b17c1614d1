// Vectors of sixteen numbers: AVX-512, with its bfloat16 products where it has some.
#pragma once
#include "lanes_x86.h"

namespace {

constexpr int64_t LANES = 16, REGISTERS = 32;
using Vec = __m512;
using Words = __m512i;
using Mask = __mmask16;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec all(float x) { return _mm512_set1_ps(x); }
inline Words all_words(int x) { return _mm512_set1_epi32(x); }
inline Vec floats(Words x) { return _mm512_castsi512_ps(x); }
inline Words words(Vec x) { return _mm512_castps_si512(x); }

// Aligned memory.
inline Vec load(const float* at) { return _mm512_load_ps(at); }
inline Words load_words(const void* at) { return _mm512_load_si512(at); }
inline void store(void* at, Vec x) { _mm512_store_ps(at, x); }
inline void store(void* at, Words x) { _mm512_store_si512(at, x); }

// Any memory: a whole vector of words, or those of the mask and zeros.
inline Words read_words(const void* at) { return _mm512_loadu_si512(at); }
inline Words read_words(const void* at, Mask mask) { return _mm512_maskz_loadu_epi32(mask, at); }

inline Vec fma(Vec x, Vec y, Vec z) { return _mm512_fmadd_ps(x, y, z); }
inline Vec fms(Vec x, Vec y, Vec z) { return _mm512_fmsub_ps(x, y, z); }
inline Vec max(Vec x, Vec y) { return _mm512_max_ps(x, y); }  // y where one of them is NaN
inline Vec absolute(Vec x) { return _mm512_abs_ps(x); }
inline Vec nearest(Vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec fraction(Vec x) { return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Vec times_power(Vec x, Vec exponent) { return _mm512_scalef_ps(x, exponent); }  // x 2^floor(exponent)
inline float sum_of(Vec x) { return _mm512_reduce_add_ps(x); }
inline float largest_of(Vec x) { return _mm512_reduce_max_ps(x); }

inline Vec select(Mask mask, Vec yes, Vec no) { return _mm512_mask_mov_ps(no, mask, yes); }
inline Mask less(Vec x, Vec y) { return _mm512_cmp_ps_mask(x, y, _CMP_LT_OQ); }
inline Mask equal(Vec x, Vec y) { return _mm512_cmp_ps_mask(x, y, _CMP_EQ_OQ); }
inline Mask at_most(Vec x, Vec y) { return _mm512_cmp_ps_mask(x, y, _CMP_LE_OQ); }

// Numbers as float32 from and to memory of either type, where the mask has bits; zeros elsewhere.
inline Vec read(const float* at, Mask mask) { return _mm512_maskz_loadu_ps(mask, at); }
inline Vec read(const bf16* at, Mask mask) {
  return floats(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at)), 16));
}
inline void write(float* at, Mask mask, Vec x) { _mm512_mask_storeu_ps(at, mask, x); }

// A word's two bfloat16 numbers as float32: the one in its lower half, and the one in its upper half.
inline Vec lower(Words x) { return floats(_mm512_slli_epi32(x, 16)); }
inline Vec upper(Words x) { return floats(_mm512_and_si512(x, _mm512_set1_epi32(0xffff0000))); }

#if defined(__AVX512BF16__)
inline Vec add_pairs(Words left, Words right, Vec sum) {
  return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
}
inline __m256i halves(Vec x) { return (__m256i)_mm512_cvtneps_pbh(x); }
// The nearest bfloat16 numbers of both, those of `even` in the lower halves of the words.
inline Words in_pairs(Vec even, Vec odd) {
  const Words low = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const Words order = _mm512_or_si512(low, _mm512_slli_epi32(_mm512_add_epi32(low, all_words(16)), 16));
  return _mm512_permutexvar_epi16(order, (Words)_mm512_cvtne2ps_pbh(odd, even));
}
#else
inline Vec add_pairs(Words left, Words right, Vec sum) {
  return fma(upper(left), upper(right), fma(lower(left), lower(right), sum));
}
// The nearest bfloat16 numbers, of two equally near ones the even one; NaN stays NaN.
inline __m256i halves(Vec x) {
  const Words bits = words(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), all_words(1));
  const Words near = _mm512_add_epi32(bits, _mm512_add_epi32(odd, all_words(0x7fff)));
  const Mask nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(near, nan, all_words(0x7fc00000)), 16));
}
inline Words in_pairs(Vec even, Vec odd) {
  return _mm512_or_si512(_mm512_cvtepu16_epi32(halves(even)),
                         _mm512_slli_epi32(_mm512_cvtepu16_epi32(halves(odd)), 16));
}
#endif
inline void write(bf16* at, Mask mask, Vec x) { _mm256_mask_storeu_epi16(at, mask, halves(x)); }

// Int8 numbers, widened.
inline Vec from_int8(const char* at) {
  return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
}
// Four bytes each of sixteen outputs, [4][16], as [16][4].
inline Words turned(Words x) {
  const Words lanes = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  const Words bytes = _mm512_broadcast_i32x4(_mm_set_epi8(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0));
  return _mm512_shuffle_epi8(_mm512_permutexvar_epi32(lanes, x), bytes);
}

// The I-th 4-bit number of each word, which alone of the word chooses one of sixteen.
template <int I> inline Vec nibble(Words x) {
  const Vec numbers = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_permutexvar_ps(I ? _mm512_srli_epi32(x, 4 * I) : x, numbers);
}
// LANES numbers of a block's scale or offset.
inline float float_of(half x) { return _mm512_cvtss_f32(_mm512_cvtph_ps(_mm256_set1_epi16(x.bits))); }
inline Vec read_factors(const float* at) { return _mm512_loadu_ps(at); }
inline Vec read_factors(const half* at) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)at)); }
// Words of two bfloat16 numbers each, which both vectors' numbers are.
inline Words joined(Vec lower_ones, Vec upper_ones) {
  return _mm512_or_si512(_mm512_srli_epi32(words(lower_ones), 16), words(upper_ones));
}

// In each lane the sum of the four neighbouring lanes that it belongs to.
inline Vec sum_of_fours(Vec x) {
  x = x + _mm512_permute_ps(x, 0xb1);
  return x + _mm512_permute_ps(x, 0x4e);
}

// W neighbouring words, repeated over the lanes.
template <int W> inline Words broadcast(const uint32_t* from) {
  if constexpr (W == 4) return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)from));
  else return _mm512_set1_epi32(*from);
}

// The sums of LANES vectors: halves are interleaved and added, for each vector in the same order.
inline Vec sums_of(const Vec* parts) {
  Vec pairs[8], quads[4];
  for (int i = 0; i < 8; ++i)
    pairs[i] = _mm512_unpacklo_ps(parts[2 * i], parts[2 * i + 1]) + _mm512_unpackhi_ps(parts[2 * i], parts[2 * i + 1]);
  for (int i = 0; i < 4; ++i) {
    const __m512d left = _mm512_castps_pd(pairs[2 * i]), right = _mm512_castps_pd(pairs[2 * i + 1]);
    quads[i] = _mm512_castpd_ps(_mm512_unpacklo_pd(left, right)) + _mm512_castpd_ps(_mm512_unpackhi_pd(left, right));
  }
  const auto both = [](Vec left, Vec right) {
    return _mm512_shuffle_f32x4(left, right, 0x88) + _mm512_shuffle_f32x4(left, right, 0xdd);
  };
  return both(both(quads[0], quads[1]), both(quads[2], quads[3]));
}

// LANES vectors: lane j of vector i becomes lane i of vector j.
inline void turn(Words* x) {
  Words pairs[LANES], fours[LANES];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    pairs[2 * i] = _mm512_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    pairs[2 * i + 1] = _mm512_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {  // lane group g of fours[4 i + k]: column 4 g + k of rows 4 i ..
      fours[4 * i + 2 * j] = _mm512_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
      fours[4 * i + 2 * j + 1] = _mm512_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    const Words even = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0x88);  // groups 0, 2 of rows 0-3, 4-7
    const Words odd = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0xdd);
    const Words more_even = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0x88);
    const Words more_odd = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0xdd);
    x[k] = _mm512_shuffle_i32x4(even, more_even, 0x88), x[8 + k] = _mm512_shuffle_i32x4(even, more_even, 0xdd);
    x[4 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0x88), x[12 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0xdd);
  }
}

}  // namespace
