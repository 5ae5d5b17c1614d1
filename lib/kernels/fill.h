// Static trees filled level by level, by a model of tokens or by one that continues features.
#pragma once
#include <vector>

#include "forward.h"

// One level of a tree: the nodes of its forward pass, and their children.
struct Level {
  const int64_t *slots, *offsets;  // [nodes]: slots of their tokens; their positions, as in Forward
  const uint8_t* mask;             // as in Forward
  const int64_t* above;            // [nodes]: places of their parents among the root and all forwarded nodes
  const int64_t (*below)[3];       // [children]: node's place in the level, child's rank, child's slot, in this order
  int64_t nodes, children, offset_stride, mask_stride;
};

// How a token and the feature before it enter a layer that continues features (EAGLE): fused, or without `fuse` as the
// feature, while attention reads both, normed.
struct Entry {
  const void *embedding, *token_norm, *feature_norm;  // [known, hidden]; weights of norms
  Matrix fuse;                                        // [hidden, 2 hidden]; without outputs where there is none
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

// The input of the layer and of its attention, from rows of [embedding, feature] side by side.
template <class T> void enter(const Entry& entry, const Forward& f, int64_t rows, float* both, T* side, T* given) {
  const int64_t hidden = f.hidden;
  if (entry.fuse.out) {
    copied(both, rows * 2 * hidden, side);
    const bool tiled = by_tiles<T>(entry.fuse);
    Numbers<float> packed{nullptr, &std::free};
    if (tiled) packed = numbers<float>(packed_size(rows, 2 * hidden));
#pragma omp parallel num_threads(f.threads)
    {
      const Tiles tiles(tiled ? rows : 0);
      if constexpr (sizeof(T) == 4)
        if (tiled) pack_rows(both, rows, 2 * hidden, packed.get());
      product(entry.fuse, Rows<T>{side, rows, packed.get()}, given, hidden);
    }
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    const float *token = both + row * 2 * hidden, *feature = token + hidden;
    copied(feature, hidden, given + row * hidden);
    normed(token, static_cast<const T*>(entry.token_norm), hidden, f.epsilon, side + row * 2 * hidden);
    normed(feature, static_cast<const T*>(entry.feature_norm), hidden, f.epsilon, side + row * 2 * hidden + hidden);
  }
}

// Fills tokens as `fill` does, with one layer whose outputs are the features that the next level continues.
template <class T>
void fill_features(Forward f, const Entry& entry, const Level* levels, int64_t count, int64_t size, int64_t choices,
                   int64_t* tokens) {
  Layer layer = *f.layers;
  f.layers = &layer;
  std::vector<std::vector<T>> features(f.batch);  // of each row: the root's, then by place
  const auto remember = [&](const float* from, int64_t first, int64_t nodes) {
    for (int64_t b = 0; b < f.batch; ++b, from += f.nodes * f.hidden) {
      const int64_t held = features[b].size();
      features[b].resize(held + nodes * f.hidden);
      copied(from + first * f.hidden, nodes * f.hidden, features[b].data() + held);
    }
  };
  Run<T> block(f);
  block.all();
  remember(block.features(), f.nodes - 1, 1);
  for (const Level* level = levels; level < levels + count; ++level) {
    if (level != levels) {
      f.pending += f.nodes;
      turn_to(*level, f);
      const int64_t rows = f.batch * f.nodes, hidden = f.hidden;
      const auto both = numbers<float>(rows * 2 * hidden);
      const auto side = numbers<T>(rows * 2 * hidden), given = numbers<T>(rows * hidden);
      for (int64_t row = 0; row < rows; ++row) {
        const int64_t b = row / f.nodes, i = row % f.nodes, token = tokens[b * size + level->slots[i]];
        copied(static_cast<const T*>(entry.embedding) + token * hidden, hidden, both.get() + row * 2 * hidden);
        copied(features[b].data() + level->above[i] * hidden, hidden, both.get() + (row * 2 + 1) * hidden);
      }
      enter(entry, f, rows, both.get(), side.get(), given.get());
      f.given = given.get(), layer.input = entry.fuse.out ? given.get() : side.get();
      Run<T> run(f);
      run.all();
      remember(run.features(), 0, f.nodes);
    }
    choose<T>(f, *level, size, choices, tokens);
  }
}

}  // namespace
