// Static trees filled level by level.
#pragma once
#include <vector>

#include "forward.h"

// One level of a tree: the nodes of its forward pass, and their children.
struct Level {
  const int64_t *slots, *offsets;  // [nodes]: slots of their tokens; their positions, as in Forward
  const uint8_t* mask;             // as in Forward
  const int64_t (*below)[3];       // [children]: node's place in the level, child's rank, child's slot, in this order
  int64_t nodes, children, offset_stride, mask_stride;
};

namespace {

// The next of `count` numbers, in descending order with equal ones in place order, after the one at `last` (-1: the
// first).
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

// Writes the children of a level's nodes into tokens [batch, size]: the best of the first `choices` logits after each.
template <class T> void choose(const Forward& f, const Level& level, int64_t size, int64_t choices, int64_t* tokens) {
  for (int64_t b = 0; b < f.batch; ++b) {
    int64_t place = -1, rank = 0, best = 0;
    for (int64_t child = 0; child < level.children; ++child) {
      const auto [parent, wanted, slot] = level.below[child];
      const T* logits = static_cast<const T*>(f.logits) + (b * level.nodes + parent) * f.vocabulary.out;
      if (parent != place) place = parent, rank = -1, best = -1;
      for (; rank < wanted; ++rank) best = next_best(logits, choices, best);
      tokens[b * size + slot] = f.names ? f.names[best] : best;
    }
  }
}

// The forward pass of a level's nodes, after all pending ones.
inline void turn_to(const Level& level, Forward& f) {
  f.nodes = level.nodes, f.kept_rows = f.batch * f.nodes, f.kept = nullptr, f.states = nullptr;
  f.offsets = level.offsets, f.offset_stride = level.offset_stride;
  f.mask = level.mask, f.mask_stride = level.mask_stride;
}

// Fills tokens[batch, size] after the last node of a block, level by level. The first level is the block's last node
// alone. Returns -1, or a row of the block whose token is unknown.
template <class T>
int fill(Forward f, const Level* levels, int64_t count, int64_t size, int64_t choices, int64_t* tokens) {
  if (const int unknown = Run<T>(f).all(); unknown >= 0) return unknown;
  std::vector<int64_t> own;
  for (const Level* level = levels; level < levels + count; ++level) {
    if (level != levels) {
      own.clear();
      for (int64_t b = 0; b < f.batch; ++b)
        for (int64_t i = 0; i < level->nodes; ++i) own.push_back(tokens[b * size + level->slots[i]]);
      f.pending += f.nodes, f.tokens = own.data();
      turn_to(*level, f);
      Run<T>(f).all();
    }
    choose<T>(f, *level, size, choices, tokens);
  }
  return -1;
}

}  // namespace
