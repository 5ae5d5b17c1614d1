// Vectors of sixteen float32 numbers and of the operands of their sums, with AVX-512.
#pragma once
#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int64_t LANES = 16;
using bf16 = uint16_t;

// left * right + sum; a 32-bit lane is one float, or two bfloat16 whose products are added to the same sum.
template <class T> inline __m512 multiply_add(__m512i left, __m512i right, __m512 sum) {
  if constexpr (sizeof(T) == 2) return _mm512_dpbf16_ps(sum, (__m512bh)left, (__m512bh)right);
  return _mm512_fmadd_ps(_mm512_castsi512_ps(left), _mm512_castsi512_ps(right), sum);
}

// 2^x for x <= 0; x below -100 gives 0, since products with subnormal numbers take a hundred times as long on some
// processors; NaN stays NaN.
inline __m512 exp2(__m512 x) {
  const __mmask16 counts = _mm512_cmp_ps_mask(x, _mm512_set1_ps(-100.0f), _CMP_NLT_UQ);
  const __m512 whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  const __m512 rest = _mm512_sub_ps(x, whole);  // in [-1/2, 1/2]
  static constexpr float taylor[] = {1.f, 0.693147181f, 0.240226507f, 0.0555041087f, 0.00961812911f, 0.00133335581f,
                                     0.000154035304f, 0.0000152527338f};  // ln2^k / k!
  __m512 sum = _mm512_set1_ps(taylor[7]);
#pragma GCC unroll 8
  for (int k = 6; k >= 0; --k) sum = _mm512_fmadd_ps(sum, rest, _mm512_set1_ps(taylor[k]));
  return _mm512_maskz_scalef_ps(counts, sum, whole);
}

// Loads and stores sixteen numbers as float32, from and to memory of either type, where the mask has bits.
inline __m512 read(const float* at, __mmask16 mask) { return _mm512_maskz_loadu_ps(mask, at); }
inline __m512 read(const bf16* at, __mmask16 mask) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, at));
  return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}
inline void write(float* at, __mmask16 mask, __m512 x) { _mm512_mask_storeu_ps(at, mask, x); }
inline void write(bf16* at, __mmask16 mask, __m512 x) {
  _mm256_mask_storeu_epi16(at, mask, (__m256i)_mm512_cvtneps_pbh(x));
}

// Sixteen vectors of words: lane j of vector i becomes lane i of vector j.
inline void turn(__m512i* x) {
  __m512i pairs[LANES], fours[LANES];
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
    const __m512i even = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0x88);  // groups 0, 2 of rows 0-3, 4-7
    const __m512i odd = _mm512_shuffle_i32x4(fours[k], fours[4 + k], 0xdd);
    const __m512i more_even = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0x88);
    const __m512i more_odd = _mm512_shuffle_i32x4(fours[8 + k], fours[12 + k], 0xdd);
    x[k] = _mm512_shuffle_i32x4(even, more_even, 0x88), x[8 + k] = _mm512_shuffle_i32x4(even, more_even, 0xdd);
    x[4 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0x88), x[12 + k] = _mm512_shuffle_i32x4(odd, more_odd, 0xdd);
  }
}

// visit(i, mask) for every sixteen of `count` numbers, and for the rest.
template <class F> inline void by_sixteen(int64_t count, F visit) {
  for (int64_t i = 0; i < count; i += 16) visit(i, count - i >= 16 ? 0xffff : (1 << (count - i)) - 1);
}

}  // namespace
