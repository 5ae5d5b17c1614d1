// Vectors of eight numbers: AVX2 with FMA.
#pragma once
#include <cmath>

#include "lanes_x86.h"

namespace {

constexpr int64_t LANES = 8, REGISTERS = 16;
using Vec = __m256;
using Words = __m256i;
using Mask = uint8_t;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec all(float x) { return _mm256_set1_ps(x); }
inline Words all_words(int x) { return _mm256_set1_epi32(x); }
inline Vec floats(Words x) { return _mm256_castsi256_ps(x); }
inline Words words(Vec x) { return _mm256_castps_si256(x); }

// A mask as words of ones and zeros.
inline Words spread(Mask mask) {
  const Words bits = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  return _mm256_cmpeq_epi32(_mm256_and_si256(all_words(mask), bits), bits);
}
inline Mask gathered(Vec comparison) { return static_cast<Mask>(_mm256_movemask_ps(comparison)); }

// Aligned memory.
inline Vec load(const float* at) { return _mm256_load_ps(at); }
inline Words load_words(const void* at) { return _mm256_load_si256(static_cast<const Words*>(at)); }
inline void store(void* at, Vec x) { _mm256_store_ps(static_cast<float*>(at), x); }
inline void store(void* at, Words x) { _mm256_store_si256(static_cast<Words*>(at), x); }

// Any memory: a whole vector of words, or those of the mask and zeros.
inline Words read_words(const void* at) { return _mm256_loadu_si256(static_cast<const Words*>(at)); }
inline Words read_words(const void* at, Mask mask) {
  return _mm256_maskload_epi32(static_cast<const int*>(at), spread(mask));
}

inline Vec fma(Vec x, Vec y, Vec z) { return _mm256_fmadd_ps(x, y, z); }
inline Vec fms(Vec x, Vec y, Vec z) { return _mm256_fmsub_ps(x, y, z); }
inline Vec max(Vec x, Vec y) { return _mm256_max_ps(x, y); }  // y where one of them is NaN
inline Vec absolute(Vec x) { return _mm256_andnot_ps(all(-0.0f), x); }
inline Vec nearest(Vec x) { return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline Vec fraction(Vec x) { return _mm256_max_ps(x - _mm256_floor_ps(x), zero()); }  // zero for infinite numbers
// x 2^floor(exponent), for x in [1/2, 2]; zero below the smallest normal number.
inline Vec times_power(Vec x, Vec exponent) {
  const Vec held = _mm256_max_ps(_mm256_min_ps(_mm256_floor_ps(exponent), all(127)), all(-127));
  const Words shifted = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(held), all_words(127)), 23);
  return _mm256_or_ps(x * floats(shifted), _mm256_cmp_ps(exponent, exponent, _CMP_UNORD_Q));  // NaN stays NaN
}
inline float largest_of(Vec x) {
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}
inline float sum_of(Vec x) {
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

inline Vec select(Mask mask, Vec yes, Vec no) { return _mm256_blendv_ps(no, yes, floats(spread(mask))); }
inline Mask less(Vec x, Vec y) { return gathered(_mm256_cmp_ps(x, y, _CMP_LT_OQ)); }
inline Mask equal(Vec x, Vec y) { return gathered(_mm256_cmp_ps(x, y, _CMP_EQ_OQ)); }
inline Mask at_most(Vec x, Vec y) { return gathered(_mm256_cmp_ps(x, y, _CMP_LE_OQ)); }

// A word's two bfloat16 numbers as float32: the one in its lower half, and the one in its upper half.
inline Vec lower(Words x) { return floats(_mm256_slli_epi32(x, 16)); }
inline Vec upper(Words x) { return floats(_mm256_and_si256(x, all_words(0xffff0000))); }

inline Vec add_pairs(Words left, Words right, Vec sum) {
  return fma(upper(left), upper(right), fma(lower(left), lower(right), sum));
}

// The nearest bfloat16 numbers, of two equally near ones the even one, in the upper halves of words; NaN stays NaN.
inline Words rounded(Vec x) {
  const Words bits = words(x), odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), all_words(1));
  const Words near = _mm256_add_epi32(bits, _mm256_add_epi32(odd, all_words(0x7fff)));
  const Words nan = words(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  return words(upper(_mm256_blendv_epi8(near, all_words(0x7fc00000), nan)));
}

// Numbers as float32 from and to memory of either type, where the mask has bits; zeros elsewhere.
inline Vec read(const float* at, Mask mask) { return _mm256_maskload_ps(at, spread(mask)); }
inline void write(float* at, Mask mask, Vec x) { _mm256_maskstore_ps(at, spread(mask), x); }
inline Vec read(const bf16* at, Mask mask) {
  if (mask == 0xff)
    return lower(_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))));
  alignas(32) uint32_t own[LANES] = {};
  for (unsigned left = mask; left; left &= left - 1) own[__builtin_ctz(left)] = at[__builtin_ctz(left)];
  return lower(load_words(own));
}
inline void write(bf16* at, Mask mask, Vec x) {
  const Words low = _mm256_srli_epi32(rounded(x), 16);
  if (mask == 0xff) {
    const __m128i eight = _mm_packus_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    return _mm_storeu_si128(reinterpret_cast<__m128i*>(at), eight);
  }
  alignas(32) uint32_t own[LANES];
  store(own, low);
  for (unsigned left = mask; left; left &= left - 1) at[__builtin_ctz(left)] = own[__builtin_ctz(left)];
}

// The nearest bfloat16 numbers of both, those of `even` in the lower halves of the words.
inline Words in_pairs(Vec even, Vec odd) {
  return _mm256_or_si256(_mm256_srli_epi32(rounded(even), 16), rounded(odd));
}

// Int8 numbers, widened.
inline Vec from_int8(const char* at) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(at))));
}
// The I-th 4-bit number of each word.
template <int I> inline Vec nibble(Words x) {
  return _mm256_cvtepi32_ps(_mm256_and_si256(I ? _mm256_srli_epi32(x, 4 * I) : x, all_words(15)));
}
// LANES numbers of a block's scale or offset.
inline float float_of(half x) { return _cvtsh_ss(x.bits); }
inline Vec read_factors(const float* at) { return _mm256_loadu_ps(at); }
inline Vec read_factors(const half* at) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)at)); }
// Words of two bfloat16 numbers each, which both vectors' numbers are.
inline Words joined(Vec lower_ones, Vec upper_ones) {
  return _mm256_or_si256(_mm256_srli_epi32(words(lower_ones), 16), words(upper_ones));
}

// In each lane the sum of the four neighbouring lanes that it belongs to.
inline Vec sum_of_fours(Vec x) {
  x = x + _mm256_permute_ps(x, 0xb1);
  return x + _mm256_permute_ps(x, 0x4e);
}

// W neighbouring words, repeated over the lanes.
template <int W> inline Words broadcast(const uint32_t* from) {
  if constexpr (W == 4) return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)from));
  else return all_words(*from);
}

// The sums of LANES vectors, for each vector in the same order.
inline Vec sums_of(const Vec* parts) {
  const auto four = [&](int i) {
    return _mm256_hadd_ps(_mm256_hadd_ps(parts[i], parts[i + 1]), _mm256_hadd_ps(parts[i + 2], parts[i + 3]));
  };
  const Vec low = four(0), high = four(4);
  return _mm256_permute2f128_ps(low, high, 0x20) + _mm256_permute2f128_ps(low, high, 0x31);
}

// LANES vectors: lane j of vector i becomes lane i of vector j.
inline void turn(Words* x) {
  Words pairs[LANES], fours[LANES];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    pairs[2 * i] = _mm256_unpacklo_epi32(x[2 * i], x[2 * i + 1]);
    pairs[2 * i + 1] = _mm256_unpackhi_epi32(x[2 * i], x[2 * i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i)
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {  // lane group g of fours[4 i + k]: column 4 g + k of rows 4 i ..
      fours[4 * i + 2 * j] = _mm256_unpacklo_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
      fours[4 * i + 2 * j + 1] = _mm256_unpackhi_epi64(pairs[4 * i + j], pairs[4 * i + 2 + j]);
    }
#pragma GCC unroll 4
  for (int k = 0; k < 4; ++k) {
    x[k] = _mm256_permute2x128_si256(fours[k], fours[4 + k], 0x20);
    x[4 + k] = _mm256_permute2x128_si256(fours[k], fours[4 + k], 0x31);
  }
}

}  // namespace
