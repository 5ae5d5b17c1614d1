// Vectors of float32 numbers of the processor's own width, of words of 32 bits, and what is computed with them.
//
// An instruction set is a file that defines LANES, REGISTERS, Vec, Words, Mask (a bit for each lane) and the functions
// below its line; everything else in this package is written on these. `+ - * /` work on Vec.
#pragma once
#include <cstdint>
#include <cstring>

namespace {
using bf16 = uint16_t;
struct half { uint16_t bits; };  // a float16 number
}

#if defined(__AVX512F__)
#include "lanes_avx512.h"
#elif defined(__aarch64__)
#include "lanes_neon.h"
#else
#include "lanes_avx2.h"
#endif

namespace {

constexpr Mask ALL = static_cast<Mask>((uint32_t{1} << LANES) - 1);

// The mask of the first lanes.
inline Mask first_lanes(int64_t count) { return count >= LANES ? ALL : static_cast<Mask>((uint32_t{1} << count) - 1); }

// A sum of LANES products; of bfloat16 numbers a word holds two, whose products are added to the same sum.
template <class T> inline Vec multiply_add(Words left, Words right, Vec sum) {
  if constexpr (sizeof(T) == 2) return add_pairs(left, right, sum);
  else return fma(floats(left), floats(right), sum);
}

// 2^x for x <= 0; x below -100 gives 0, since products with subnormal numbers take a hundred times as long on some
// processors; NaN stays NaN.
inline Vec exp2(Vec x) {
  const Mask counts = static_cast<Mask>(ALL & ~less(x, all(-100.0f)));
  const Vec whole = nearest(x), rest = x - whole;  // in [-1/2, 1/2]
  static constexpr float taylor[] = {1.f, 0.693147181f, 0.240226507f, 0.0555041087f, 0.00961812911f, 0.00133335581f,
                                     0.000154035304f, 0.0000152527338f};  // ln2^k / k!
  Vec sum = all(taylor[7]);
#pragma GCC unroll 8
  for (int k = 6; k >= 0; --k) sum = fma(sum, rest, all(taylor[k]));
  return select(counts, times_power(sum, whole), zero());
}

// A number of either type as float32.
inline float number_at(const float* x) { return *x; }
inline float number_at(const bf16* x) {
  const uint32_t bits = uint32_t(*x) << 16;
  float number;
  std::memcpy(&number, &bits, 4);
  return number;
}

// visit(i, mask) for all LANES of `count` numbers at a time, and for the rest.
template <class F> inline void by_lanes(int64_t count, F visit) {
  for (int64_t i = 0; i < count; i += LANES) visit(i, first_lanes(count - i));
}

// The largest size of `count` numbers, over `most`; NaN where one of them is no number.
template <class T> inline float scale_of(const T* x, int64_t count, float most) {
  Vec largest = zero(), odd = zero();
  by_lanes(count, [&](int64_t i, Mask mask) {
    const Vec own = read(x + i, mask);
    largest = max(absolute(own), largest), odd = fma(own, zero(), odd);
  });
  return largest_of(largest) / most + sum_of(odd);
}

}  // namespace
