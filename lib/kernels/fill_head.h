// Static trees filled by an EAGLE-3 head, level by level, after its states at the roots.
#pragma once
#include <vector>

#include "fill.h"

// What the layer reads of a node: the embedding of its token and the state of its parent, in `Forward`'s.
struct Fusion {
  const void *embedded_norm, *state_norm;  // attention reads both, normed, side by side
  int64_t normed_residual;                 // whether the layer's input is the normed state
};

namespace {

// The inputs of nodes, [rows, hidden], and of their attention, [rows, 2 hidden].
template <class T> struct Inputs {
  Numbers<T> states, attention;

  Inputs(const Forward& f, const Fusion& fusion, int64_t rows)
      : states(numbers<T>(rows * f.hidden)), attention(numbers<T>(2 * rows * f.hidden)),
        embedded(f.hidden), above(f.hidden) {}

  void put(const Forward& f, const Fusion& fusion, int64_t row, int64_t token, const T* parent) {
    const T* table = static_cast<const T*>(f.embedding.weight);
    if (table) copied(table + token * f.hidden, f.hidden, embedded.data());
    else copy_weights(f.embedding, token, embedded.data());
    T *both = attention.get() + 2 * row * f.hidden, *second = both + f.hidden;
    copied(parent, f.hidden, above.data());
    normed(embedded.data(), static_cast<const T*>(fusion.embedded_norm), f.hidden, f.epsilon, both);
    normed(above.data(), static_cast<const T*>(fusion.state_norm), f.hidden, f.epsilon, second);
    copied(fusion.normed_residual ? second : parent, f.hidden, states.get() + row * f.hidden);
  }

 private:
  std::vector<float> embedded, above;
};

// Fills tokens [batch, size] after `inputs`, the head's states at the roots [batch, hidden]. Returns -1, or a node whose
// token the embedding does not have.
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
      Inputs<T> inputs(f, fusion, rows);
      for (int64_t b = 0; b < f.batch; ++b)
        for (int64_t i = 0; i < level->nodes; ++i) {
          const int64_t slot = level->slots[i], token = tokens[b * size + slot];
          if (token < 0 || token >= f.embedding.out) return b * size + slot;
          inputs.put(f, fusion, b * level->nodes + i, token, states.get() + (b * before + above[slot]) * f.hidden);
        }
      f.pending += f.nodes, f.inputs = inputs.states.get();
      f.read = inputs.attention.get();
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
