// Decoder layers in one call, a greedy chain of such calls in one, and single products (blocks.py compiles and calls them).
#include <vector>

#include "forward.h"

namespace {

// The first of the largest of `count` numbers.
template <class T> int64_t favourite(const T* x, int64_t count) {
  __m512 best = _mm512_set1_ps(-INFINITY);
  by_sixteen(count, [&](int64_t i, __mmask16 mask) { best = _mm512_mask_max_ps(best, mask, best, read(x + i, mask)); });
  const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(best));
  for (int64_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = count - i >= LANES ? 0xffff : (1 << (count - i)) - 1;
    if (const int found = _mm512_mask_cmp_ps_mask(mask, read(x + i, mask), most, _CMP_EQ_OQ))
      return i + __builtin_ctz(found);
  }
  return 0;
}

// A chain behind the last node of a block: chosen[batch, steps], each the favourite, among the first `choices` tokens,
// of the node before it. The last one is not entered into the cache.
template <class T> int chain(Forward f, int64_t steps, int64_t choices, int64_t* chosen) {
  const Forward block = f;
  if (const int unknown = Run<T>(f).all(); unknown >= 0) return unknown;
  const int64_t keys = block.pending + block.nodes, longest = keys + steps - 1;
  std::vector<uint8_t> sees(block.batch * longest, 1);  // what the block's last node does, and all nodes since
  for (int64_t b = 0; b < block.batch; ++b)
    std::memcpy(&sees[b * longest], block.mask + b * block.mask_stride + (block.nodes - 1) * keys, keys);
  std::vector<int64_t> last(block.batch), offsets(block.batch);
  f.tokens = last.data(), f.offsets = offsets.data(), f.mask = sees.data(), f.kept = nullptr, f.states = nullptr;
  f.pending = keys, f.nodes = 1, f.mask_stride = longest, f.offset_stride = 1;
  for (int64_t step = 0;; ++step, ++f.pending) {
    for (int64_t b = 0; b < block.batch; ++b) {
      const T* logits = static_cast<const T*>(f.logits) + b * f.vocabulary.out;
      chosen[b * steps + step] = last[b] = favourite(logits, choices);
      offsets[b] = block.offsets[b * block.offset_stride + block.nodes - 1] + step + 1;
    }
    if (step + 1 == steps) return -1;
    Run<T>(f).all();
  }
}

template <class T> void linear(const Matrix& matrix, const T* x, T* to, int64_t rows, int64_t threads) {
#pragma omp parallel num_threads(threads)
  product(matrix, x, rows, to, matrix.out);
}

}  // namespace

extern "C" int forward_float32(const Forward* forward) { return Run<float>(*forward).all(); }
extern "C" int forward_bfloat16(const Forward* forward) { return Run<bf16>(*forward).all(); }
extern "C" int chain_float32(const Forward* f, int64_t steps, int64_t choices, int64_t* chosen) {
  return chain<float>(*f, steps, choices, chosen);
}
extern "C" int chain_bfloat16(const Forward* f, int64_t steps, int64_t choices, int64_t* chosen) {
  return chain<bf16>(*f, steps, choices, chosen);
}
extern "C" void linear_float32(const Matrix* m, const float* x, float* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
extern "C" void linear_bfloat16(const Matrix* m, const bf16* x, bf16* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
