// Vectors of four numbers: NEON of 64-bit ARM, with its bfloat16 products where the compiler may use them.
#pragma once
#include <arm_neon.h>

namespace {

constexpr int64_t LANES = 4, REGISTERS = 32;
using Vec = float32x4_t;
using Words = uint32x4_t;
using Mask = uint8_t;

inline Vec zero() { return vdupq_n_f32(0); }
inline Vec all(float x) { return vdupq_n_f32(x); }
inline Words all_words(int x) { return vdupq_n_u32(x); }
inline Vec floats(Words x) { return vreinterpretq_f32_u32(x); }
inline Words words(Vec x) { return vreinterpretq_u32_f32(x); }

// A mask as words of ones and zeros.
inline Words spread(Mask mask) {
  const Words bits = {1, 2, 4, 8};
  return vtstq_u32(all_words(mask), bits);
}
inline Mask gathered(Words comparison) {
  const Words bits = {1, 2, 4, 8};
  return static_cast<Mask>(vaddvq_u32(vandq_u32(comparison, bits)));
}

// The thread's control register for numbers, and its bits with which subnormal ones are zero.
constexpr uint64_t FLUSHED = 1 << 24;
inline uint64_t control() {
  uint64_t bits;
  asm volatile("mrs %0, fpcr" : "=r"(bits));
  return bits;
}
inline void set_control(uint64_t bits) { asm volatile("msr fpcr, %0" : : "r"(bits)); }

// Prefetches into the cache of this level.
template <int LEVEL> inline void prefetch(const void* at) {
  if constexpr (LEVEL == 1) asm volatile("prfm pldl1keep, [%0]" : : "r"(at));
  else asm volatile("prfm pldl2keep, [%0]" : : "r"(at));
}

// Tells the processor that the thread waits in a loop.
inline void relax() { asm volatile("yield"); }

// Aligned memory.
inline Vec load(const float* at) { return vld1q_f32(at); }
inline Words load_words(const void* at) { return vld1q_u32(static_cast<const uint32_t*>(at)); }
inline void store(void* at, Vec x) { vst1q_f32(static_cast<float*>(at), x); }
inline void store(void* at, Words x) { vst1q_u32(static_cast<uint32_t*>(at), x); }

// visit(lane) for each bit of the mask.
template <class F> inline void each_lane(Mask mask, F visit) {
  for (unsigned left = mask; left; left &= left - 1) visit(__builtin_ctz(left));
}

// Any memory: a whole vector of words, or those of the mask and zeros.
inline Words read_words(const void* at) { return vreinterpretq_u32_u8(vld1q_u8(static_cast<const uint8_t*>(at))); }
inline Words read_words(const void* at, Mask mask) {
  if (mask == 0xf) return read_words(at);
  uint32_t own[LANES] = {};
  each_lane(mask, [&](int lane) { std::memcpy(own + lane, static_cast<const char*>(at) + 4 * lane, 4); });
  return load_words(own);
}

inline Vec fma(Vec x, Vec y, Vec z) { return vfmaq_f32(z, x, y); }
inline Vec fms(Vec x, Vec y, Vec z) { return vfmaq_f32(vnegq_f32(z), x, y); }
inline Vec max(Vec x, Vec y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }  // y where one of them is NaN
inline Vec absolute(Vec x) { return vabsq_f32(x); }
inline Vec nearest(Vec x) { return vrndnq_f32(x); }
inline Vec fraction(Vec x) { return max(x - vrndmq_f32(x), zero()); }  // zero for infinite numbers
// x 2^floor(exponent), for x in [1/2, 2]; zero below the smallest normal number.
inline Vec times_power(Vec x, Vec exponent) {
  const int32x4_t whole = vcvtmq_s32_f32(exponent);  // of too large numbers the largest
  const int32x4_t held = vmaxq_s32(vminq_s32(whole, vdupq_n_s32(127)), vdupq_n_s32(-127));
  const Vec power = vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(held, vdupq_n_s32(127)), 23));
  return floats(vornq_u32(words(x * power), vceqq_f32(exponent, exponent)));  // NaN stays NaN
}
inline float largest_of(Vec x) { return vmaxvq_f32(x); }
inline float sum_of(Vec x) { return vaddvq_f32(x); }

inline Vec select(Mask mask, Vec yes, Vec no) { return vbslq_f32(spread(mask), yes, no); }
inline Mask less(Vec x, Vec y) { return gathered(vcltq_f32(x, y)); }
inline Mask equal(Vec x, Vec y) { return gathered(vceqq_f32(x, y)); }
inline Mask at_most(Vec x, Vec y) { return gathered(vcleq_f32(x, y)); }

// A word's two bfloat16 numbers as float32: the one in its lower half, and the one in its upper half.
inline Vec lower(Words x) { return floats(vshlq_n_u32(x, 16)); }
inline Vec upper(Words x) { return floats(vandq_u32(x, all_words(0xffff0000))); }

#if defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
inline Vec add_pairs(Words left, Words right, Vec sum) {
  return vbfdotq_f32(sum, vreinterpretq_bf16_u32(left), vreinterpretq_bf16_u32(right));
}
inline uint16x4_t halves(Vec x) { return vreinterpret_u16_bf16(vcvt_bf16_f32(x)); }
#else
inline Vec add_pairs(Words left, Words right, Vec sum) {
  return fma(upper(left), upper(right), fma(lower(left), lower(right), sum));
}
// The nearest bfloat16 numbers, of two equally near ones the even one; NaN stays NaN.
inline uint16x4_t halves(Vec x) {
  const Words bits = words(x), odd = vandq_u32(vshrq_n_u32(bits, 16), all_words(1));
  const Words near = vaddq_u32(bits, vaddq_u32(odd, all_words(0x7fff)));
  return vshrn_n_u32(vbslq_u32(vceqq_f32(x, x), near, all_words(0x7fc00000)), 16);
}
#endif

// Numbers as float32 from and to memory of either type, where the mask has bits; zeros elsewhere.
inline Vec read(const float* at, Mask mask) { return floats(read_words(at, mask)); }
inline void write(float* at, Mask mask, Vec x) {
  if (mask == 0xf) return vst1q_f32(at, x);
  float own[LANES];
  store(own, x);
  each_lane(mask, [&](int lane) { at[lane] = own[lane]; });
}
inline Vec read(const bf16* at, Mask mask) {
  if (mask == 0xf) return lower(vmovl_u16(vld1_u16(at)));
  bf16 own[LANES] = {};
  each_lane(mask, [&](int lane) { own[lane] = at[lane]; });
  return lower(vmovl_u16(vld1_u16(own)));
}
inline void write(bf16* at, Mask mask, Vec x) {
  if (mask == 0xf) return vst1_u16(at, halves(x));
  bf16 own[LANES];
  vst1_u16(own, halves(x));
  each_lane(mask, [&](int lane) { at[lane] = own[lane]; });
}

// The nearest bfloat16 numbers of both, those of `even` in the lower halves of the words.
inline Words in_pairs(Vec even, Vec odd) {
  return vsliq_n_u32(vmovl_u16(halves(even)), vmovl_u16(halves(odd)), 16);
}

// Int8 numbers, widened.
inline Vec from_int8(const char* at) {
  int four;
  std::memcpy(&four, at, 4);
  return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(four))))));
}
// The I-th 4-bit number of each word.
template <int I> inline Vec nibble(Words x) {
  if constexpr (I > 0) x = vshrq_n_u32(x, 4 * I);
  return vcvtq_f32_u32(vandq_u32(x, all_words(15)));
}
// LANES numbers of a block's scale or offset.
inline Vec read_factors(const float* at) { return vld1q_f32(at); }
inline Vec read_factors(const half* at) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(at))));
}
inline float float_of(half x) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(x.bits))), 0); }
// Words of two bfloat16 numbers each, which both vectors' numbers are.
inline Words joined(Vec lower_ones, Vec upper_ones) { return vsriq_n_u32(words(upper_ones), words(lower_ones), 16); }

// In each lane the sum of the four neighbouring lanes that it belongs to.
inline Vec sum_of_fours(Vec x) {
  x = vpaddq_f32(x, x);
  return vpaddq_f32(x, x);
}

// W neighbouring words, repeated over the lanes.
template <int W> inline Words broadcast(const uint32_t* from) {
  if constexpr (W == 4) return read_words(from);
  else return vld1q_dup_u32(from);
}

// The sums of LANES vectors, for each vector in the same order.
inline Vec sums_of(const Vec* parts) {
  return vpaddq_f32(vpaddq_f32(parts[0], parts[1]), vpaddq_f32(parts[2], parts[3]));
}

// LANES vectors: lane j of vector i becomes lane i of vector j.
inline void turn(Words* x) {
  uint64x2_t pairs[LANES];
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {  // columns 0 and 2, then 1 and 3, of rows 2 i and 2 i + 1
    pairs[2 * i] = vreinterpretq_u64_u32(vtrn1q_u32(x[2 * i], x[2 * i + 1]));
    pairs[2 * i + 1] = vreinterpretq_u64_u32(vtrn2q_u32(x[2 * i], x[2 * i + 1]));
  }
#pragma GCC unroll 2
  for (int i = 0; i < 2; ++i) {
    x[i] = vreinterpretq_u32_u64(vtrn1q_u64(pairs[i], pairs[2 + i]));
    x[2 + i] = vreinterpretq_u32_u64(vtrn2q_u64(pairs[i], pairs[2 + i]));
  }
}

}  // namespace
