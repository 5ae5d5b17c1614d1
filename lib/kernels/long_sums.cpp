// Sums over a long distribution in one pass (lib/verify/draws.py calls them).

#include <algorithm>
#include <cstdint>
#include <cstring>

constexpr int64_t BLOCK = 512;

namespace {

// sums [ceil(size / BLOCK)]: of mass(i) over i < size
template <class F> void block_sums(int64_t size, double* sums, F mass) {
  for (int64_t first = 0; first < size; first += BLOCK) {
    const int64_t end = std::min(size, first + BLOCK);
    float sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t i = first; i < end; ++i) sum += mass(i);
    sums[first / BLOCK] = sum;
  }
}

}  // namespace

// The sum of max(p - times q, share p) over p, q [size]; without a q, of p.
extern "C" void rest_sums(const float* p, const float* q, int64_t size, float times, float share, double* sums) {
  if (q) return block_sums(size, sums, [=](int64_t i) { return std::max(p[i] - times * q[i], share * p[i]); });
  block_sums(size, sums, [=](int64_t i) { return p[i]; });
}

// The sum of p times its bits, read as an integer.
extern "C" void bit_sums(const float* p, int64_t size, double* sums) {
  block_sums(size, sums, [=](int64_t i) {
    int32_t bits;
    std::memcpy(&bits, p + i, 4);
    return p[i] * static_cast<float>(bits);
  });
}
