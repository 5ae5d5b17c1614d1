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
  const Vec least = all(-INFINITY);
  const Vec held = last < 0 ? least : all(number_at(x + last));
  const auto left = [&](int64_t i, Mask mask, Vec own) {
    if (last < 0) return mask;
    const Mask until = first_lanes(std::max<int64_t>(last + 1 - i, 0));  // lanes up to the last one
    return static_cast<Mask>(mask & (less(own, held) | (equal(own, held) & ~until)));
  };
  Vec best = least;
  by_lanes(count, [&](int64_t i, Mask mask) {
    const Vec own = read(x + i, mask);
    best = max(select(left(i, mask, own), own, least), best);
  });
  const Vec most = all(largest_of(best));
  for (int64_t i = 0; i < count; i += LANES) {
    const Mask mask = first_lanes(count - i);
    const Vec own = read(x + i, mask);
    if (const int found = left(i, mask, own) & equal(own, most))
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
