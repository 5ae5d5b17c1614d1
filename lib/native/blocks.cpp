// Decoder layers in one call, a static tree filled in one, and single products (blocks.py and products.py call them).
#include <vector>

#include "forward.h"

// One level of a tree: the nodes that are forwarded, and the children that they get.
struct Level {
  const int64_t *slots, *offsets;  // [nodes]: where their tokens stand; their positions, as in Forward
  const uint8_t* mask;             // as in Forward
  const int64_t (*below)[3];       // [children]: node's place in the level, child's rank, child's slot; in this order
  int64_t nodes, children, offset_stride, mask_stride;
};

namespace {

// Of `count` numbers the first of the largest that come, in this order, behind the one at `last`; or of all, at -1.
template <class T> int64_t next_best(const T* x, int64_t count, int64_t last) {
  const __m512i lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  const __m512i before = _mm512_set1_epi32(static_cast<int>(last));
  const __m512 least = _mm512_set1_ps(-INFINITY);
  const __m512 held = last < 0 ? least : _mm512_broadcastss_ps(_mm512_castps512_ps128(read(x + last, 1)));
  const auto left = [&](int64_t i, __mmask16 mask, __m512 own) {
    if (last < 0) return mask;
    const __mmask16 later = _mm512_cmpgt_epi32_mask(_mm512_add_epi32(lanes, _mm512_set1_epi32(i)), before);
    const __mmask16 same = _mm512_cmp_ps_mask(own, held, _CMP_EQ_OQ);
    return static_cast<__mmask16>(mask & (_mm512_cmp_ps_mask(own, held, _CMP_LT_OQ) | (same & later)));
  };
  __m512 best = least;
  by_sixteen(count, [&](int64_t i, __mmask16 mask) {
    const __m512 own = read(x + i, mask);
    best = _mm512_mask_max_ps(best, left(i, mask, own), best, own);
  });
  const __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(best));
  for (int64_t i = 0; i < count; i += LANES) {
    const __mmask16 mask = count - i >= LANES ? 0xffff : (1 << (count - i)) - 1;
    const __m512 own = read(x + i, mask);
    if (const int found = _mm512_mask_cmp_ps_mask(left(i, mask, own), own, most, _CMP_EQ_OQ))
      return i + __builtin_ctz(found);
  }
  return 0;
}

// Fills tokens[batch, size] behind the last node of a block, a level at a time: children are the best of the first
// `choices` tokens behind their parents. Levels: the block's last node alone, then those that follow it.
template <class T>
int fill(Forward f, const Level* levels, int64_t count, int64_t size, int64_t choices, int64_t* tokens) {
  if (const int unknown = Run<T>(f).all(); unknown >= 0) return unknown;
  std::vector<int64_t> own;
  f.pending += f.nodes, f.kept = nullptr, f.states = nullptr;
  for (const Level* level = levels; level < levels + count; ++level) {
    if (level != levels) {
      own.clear();
      for (int64_t b = 0; b < f.batch; ++b)
        for (int64_t i = 0; i < level->nodes; ++i) own.push_back(tokens[b * size + level->slots[i]]);
      f.tokens = own.data(), f.nodes = level->nodes, f.kept_rows = f.batch * f.nodes;
      f.offsets = level->offsets, f.offset_stride = level->offset_stride;
      f.mask = level->mask, f.mask_stride = level->mask_stride;
      Run<T>(f).all();
      f.pending += f.nodes;
    }
    for (int64_t b = 0; b < f.batch; ++b) {
      int64_t place = -1, rank = 0, best = 0;
      for (int64_t child = 0; child < level->children; ++child) {
        const auto [parent, wanted, slot] = level->below[child];
        const T* logits = static_cast<const T*>(f.logits) + (b * level->nodes + parent) * f.vocabulary.out;
        if (parent != place) place = parent, rank = -1, best = -1;
        for (; rank < wanted; ++rank) best = next_best(logits, choices, best);
        tokens[b * size + slot] = best;
      }
    }
  }
  return -1;
}

template <class T> void linear(const Matrix& matrix, const T* x, T* to, int64_t rows, int64_t threads) {
  const bool tiled = by_tiles<T>(matrix);
  Numbers<float> packed{nullptr, &std::free};
  if (tiled) packed = numbers<float>(packed_size(rows, matrix.in));
#pragma omp parallel num_threads(threads)
  {
    const Tiles tiles(tiled ? rows : 0);
    if constexpr (sizeof(T) == 4)
      if (tiled) pack_rows(x, rows, matrix.in, packed.get());
    product(matrix, Rows<T>{x, rows, packed.get()}, to, matrix.out);
  }
}

}  // namespace

extern "C" int matrix_units_here() { return matrix_units(); }
extern "C" int forward_float32(const Forward* forward) { return Run<float>(*forward).all(); }
extern "C" int forward_bfloat16(const Forward* forward) { return Run<bf16>(*forward).all(); }
extern "C" int fill_float32(const Forward* f, const Level* levels, int64_t count, int64_t size, int64_t choices,
                            int64_t* tokens) {
  return fill<float>(*f, levels, count, size, choices, tokens);
}
extern "C" int fill_bfloat16(const Forward* f, const Level* levels, int64_t count, int64_t size, int64_t choices,
                             int64_t* tokens) {
  return fill<bf16>(*f, levels, count, size, choices, tokens);
}
extern "C" void linear_float32(const Matrix* m, const float* x, float* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
extern "C" void linear_bfloat16(const Matrix* m, const bf16* x, bf16* y, int64_t rows, int64_t threads) {
  linear(*m, x, y, rows, threads);
}
