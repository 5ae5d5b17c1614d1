// The operations per second of the processor's units on numbers that are already in their registers.
#include "tiles.h"

namespace {

// `count` times 24 independent sums of products: enough to fill the units' pipelines. A word of each operand is read.
template <class T> float by_vectors(int64_t count, const uint32_t* numbers) {
  const __m512i left = _mm512_set1_epi32(numbers[0]), right = _mm512_set1_epi32(numbers[1]);
  __m512 sum[24];
#pragma GCC unroll 24
  for (int i = 0; i < 24; ++i) sum[i] = _mm512_set1_ps(i);
  for (int64_t n = 0; n < count; ++n)
#pragma GCC unroll 24
    for (int i = 0; i < 24; ++i) sum[i] = multiply_add<T>(left, right, sum[i]);
#pragma GCC unroll 24
  for (int i = 1; i < 24; ++i) sum[0] = _mm512_add_ps(sum[0], sum[i]);
  return _mm512_reduce_add_ps(sum[0]);
}

// `count` times four products of tiles; the operands are four tiles.
void by_matrices(int64_t count, const uint32_t* numbers) {
  const Tiles tiles;
  clear_sums<2, 2>();
  read_left<2>(numbers, LINE, SIDE * LINE);
  read_right<2>(reinterpret_cast<const float*>(numbers) + 2 * ONE, ONE);
  for (int64_t n = 0; n < count; ++n) add_products<2, 2>();
}

}  // namespace

// The number of operations of `threads` threads, each `count` rounds, on numbers [4][16][16] of any kind.
extern "C" int64_t run_float32(int64_t count, int threads, const uint32_t* numbers) {
  float sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
  sum += by_vectors<float>(count, numbers);
  return threads * count * 24 * LANES * 2 + (sum == 0.5f);
}
extern "C" int64_t run_bfloat16(int64_t count, int threads, const uint32_t* numbers) {
  if (!matrix_units()) {
    float sum = 0;
#pragma omp parallel num_threads(threads) reduction(+ : sum)
    sum += by_vectors<bf16>(count, numbers);
    return threads * count * 24 * LANES * 4 + (sum == 0.5f);
  }
#pragma omp parallel num_threads(threads)
  by_matrices(count, numbers);
  return threads * count * 4 * SIDE * SIDE * BLOCK * 2;
}
