// Static trees filled level by level, by a language model or by an EAGLE-3 head.
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

// What the layer reads of a node: the embedding of its token in `Forward`'s, and the state of its parent.
struct Fusion {
  const void *embedded_norm, *state_norm;  // attention reads both, normed, side by side
  int64_t normed_residual;                 // whether the layer's input is the normed state
};

namespace {

// The next of `count` numbers in descending order, equal ones in place order, after that at `last` (-1: the first).
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

// Fills tokens[batch, size] after the last node of a block, which alone is the first level. Returns -1, or a row of the
// block whose token is unknown.
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

// A node's input [hidden] and that of its attention [2 hidden], from its token and its parent's state.
template <class T>
void put_input(const Forward& f, const Fusion& fusion, int64_t token, const T* parent, T* state, T* attention) {
  std::vector<float> x(f.hidden);
  T* second = attention + f.hidden;
  if (const T* table = static_cast<const T*>(f.embedding.weight)) copied(table + token * f.hidden, f.hidden, x.data());
  else copy_weights(f.embedding, token, x.data());
  normed(x.data(), static_cast<const T*>(fusion.embedded_norm), f.hidden, f.epsilon, attention);
  copied(parent, f.hidden, x.data());
  normed(x.data(), static_cast<const T*>(fusion.state_norm), f.hidden, f.epsilon, second);
  copied(fusion.normed_residual ? second : parent, f.hidden, state);
}

// Fills tokens [batch, size] after `inputs`, the head's states at the roots. Returns -1, or a node of unknown token.
template <class T>
int fill_head(Forward f, const Fusion& fusion, const Level* levels, int64_t count, int64_t size, int64_t choices,
              int64_t* tokens) {
  Forward roots = f;
  roots.depth = 0, roots.nodes = 1, roots.kept_rows = f.batch;
  Run<T>(roots).all();
  Numbers<T> states = numbers<T>(f.batch * f.hidden);
  std::copy_n(static_cast<const T*>(f.inputs), f.batch * f.hidden, states.get());
  std::vector<int64_t> above(size);  // of each slot the place of its parent in the parent's level
  for (const Level* level = levels; level < levels + count; ++level) {
    if (level != levels) {
      const int64_t rows = f.batch * level->nodes, before = std::max<int64_t>(f.nodes, 1);
      const Numbers<T> inputs = numbers<T>(rows * f.hidden), attention = numbers<T>(2 * rows * f.hidden);
      for (int64_t b = 0; b < f.batch; ++b)
        for (int64_t i = 0; i < level->nodes; ++i) {
          const int64_t slot = level->slots[i], token = tokens[b * size + slot];
          if (token < 0 || token >= f.embedding.out) return b * size + slot;
          const int64_t row = b * level->nodes + i;
          put_input<T>(f, fusion, token, states.get() + (b * before + above[slot]) * f.hidden,
                       inputs.get() + row * f.hidden, attention.get() + 2 * row * f.hidden);
        }
      f.pending += f.nodes, f.inputs = inputs.get(), f.read = attention.get();
      turn_to(*level, f);
      Numbers<T> next = numbers<T>(rows * f.hidden);
      f.last = next.get();
      Run<T>(f).all();
      states = std::move(next);
    }
    choose<T>(f, *level, size, choices, tokens);
    for (int64_t child = 0; child < level->children; ++child) above[level->below[child][2]] = level->below[child][0];
  }
  return -1;
}

}  // namespace
