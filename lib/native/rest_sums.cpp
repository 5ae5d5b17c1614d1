// What is left of a long distribution, summed over blocks of tokens in one reading (lib/verify/masses.py calls it).

#include <algorithm>
#include <cstdint>

constexpr int64_t BLOCK = 512;

// sums [ceil(size / BLOCK)]: of max(p - times q, share p) over p, q [size]
extern "C" void rest_sums(const float* p, const float* q, int64_t size, float times, float share, double* sums) {
  for (int64_t first = 0; first < size; first += BLOCK) {
    const int64_t end = std::min(size, first + BLOCK);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; ++i) sum += std::max(p[i] - times * q[i], share * p[i]);
    sums[first / BLOCK] = sum;
  }
}
