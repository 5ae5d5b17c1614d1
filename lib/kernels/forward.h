// The forward pass of decoder layers of Llama's kind, or Gemma's, over the few nodes of a draft tree.
//
// At this size, launching kernels takes as long as their work: here a layer is two parallel regions with attention in
// between. States are float32, inputs of products have the weights' type.
#pragma once
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "onepass_call.h"
#include "rows.h"

struct Layer {
  // Weights of norms, null where there is none; attended, widened: of what attention and the MLP add to the states.
  const float *input_norm, *query_norm, *key_norm, *middle_norm, *attended_norm, *widened_norm;
  Matrix query, key, value, output, gate, up, down;
  int64_t near;  // whether it sees a window of the text
};

// What layers attend to: the prefix from key `first` on, [batch] keys, and tree keys as the mask says.
struct View {
  const float *cosines, *sines;  // [positions, dim / 2]
  const uint8_t* mask;           // [1 or batch, nodes, tree_keys]
  const int64_t* prefix;
  int64_t first, tree_keys, mask_stride;
};

// A call's own; the layers are the same in all calls.
struct Forward {
  const Layer* layers;
  const void* inputs;       // states [rows, hidden], or null for an embedding's
  const float* final_norm;  // the last norm's weight, or null
  const int64_t* tokens;           // [rows]: outputs of `embedding`, whose weights are the states
  const float *cosines, *sines;    // as of a View
  const int64_t *offsets, *prefix, *kept;  // positions after the prefix, [1 or batch, nodes]; [batch]; the rows whose
                                           // logits are made, or null for all
  const int64_t* names;                    // [vocabulary.out]: the tokens of the logits, or null for 0, 1, ...
  const uint8_t* mask;                     // [1 or batch, nodes, tree_keys]
  const void* read;                        // [rows, query.in]: the inputs of the first layer's projections in place of
                                           // its normed states; or null
  void* const* stored;                     // of each layer keys and values, [2, batch, kv_heads, capacity, dim]
  void *states, *last, *logits;            // [layers + 1, rows, hidden]; [rows, hidden], the last layer's states before
                                           // the last norm; both or null; [kept, vocabulary]
  int (*attend)(const Call*);
  View near;                               // of layers that see a window, whose positions are those of the others
  Matrix vocabulary, embedding;
  int64_t depth, batch, nodes, pending, capacity, hidden, heads, kv_heads, dim;
  int64_t kept_rows, mask_stride, offset_stride, threads, tanh;  // tanh: GELU by it in place of SiLU
  float scale, epsilon, softcap, embedding_scale;                // softcap: of attention, 0 for none
};

namespace {

template <class T> using Numbers = std::unique_ptr<T, decltype(&std::free)>;
template <class T> Numbers<T> numbers(int64_t count) {
  return {static_cast<T*>(std::aligned_alloc(64, (count * sizeof(T) + 63) / 64 * 64)), &std::free};
}

// x / sqrt(mean(x^2) + epsilon) * weight; without a weight, x itself.
template <class W, class Out>
void normed(const float* x, const W* weight, int64_t count, float epsilon, Out* to) {
  Vec squares = zero();
  by_lanes(count, [&](int64_t i, Mask mask) {
    squares = fma(read(x + i, mask), read(x + i, mask), squares);
  });
  const float factor = 1 / std::sqrt(sum_of(squares) / count + epsilon);
  by_lanes(count, [&](int64_t i, Mask mask) {
    const Vec numbers = read(x + i, mask);
    write(to + i, mask, weight ? numbers * all(factor) * read(weight + i, mask) : numbers);
  });
}

// gate / (1 + e^-z) * up: z is the gate for SiLU, and for GELU by tanh 2 sqrt(2 / pi) (gate + 0.044715 gate^3).
inline Vec gated(Vec gate, Vec up, bool tanh) {
  const Vec z = tanh ? gate * fma(gate * gate, all(0.0713548163f), all(1.59576912f)) : gate;
  const Vec one = all(1), size = absolute(z) * all(-1.44269504f);
  const Vec small = exp2(size);  // e^-|z|; for negative z the fraction is extended by it
  const Vec share = select(less(z, zero()), small, one) / (one + small);
  return gate * share * up;
}

template <class From, class To> void copied(const From* from, int64_t count, To* to) {
  by_lanes(count, [&](int64_t i, Mask mask) { write(to + i, mask, read(from + i, mask)); });
}

template <class T> class Run {
 public:
  explicit Run(const Forward& forward) : f(forward) {
    for (const Layer* layer = f.layers; layer < f.layers + f.depth; ++layer)
      inner = std::max(inner, layer->gate.out), widest = std::max({widest, layer->output.in, layer->gate.in});
    state = numbers<float>(rows * f.hidden), heads = numbers<float>(rows * all_heads * f.dim);
    input = numbers<T>(std::max(rows, f.kept_rows) * std::max(widest, f.hidden)), middle = numbers<T>(rows * inner);
    query = numbers<T>(rows * f.heads * f.dim), attended = numbers<T>(rows * f.heads * f.dim);
    lse = numbers<float>(rows * f.heads);
    if (f.layers->attended_norm) added = numbers<float>(rows * f.hidden);
    const int64_t longest = std::max({widest, f.hidden, inner, f.layers->query.in});
    packed = numbers<char>(Rows<T>::bytes(std::max(rows, f.kept_rows), longest));
  }

  // Returns -1, or a row whose token is unknown, without computing anything.
  int all() {
    for (int64_t row = 0; row < rows; ++row) {
      float* to = state.get() + row * f.hidden;
      if (f.inputs) {
        copied(static_cast<const T*>(f.inputs) + row * f.hidden, f.hidden, to);
        continue;
      }
      const int64_t token = f.tokens[row];
      if (token < 0 || token >= f.embedding.out) return row;
      if (f.embedding.weight) copied(static_cast<const T*>(f.embedding.weight) + token * f.hidden, f.hidden, to);
      else copy_weights(f.embedding, token, to);
      for (int64_t i = 0; i < f.hidden; ++i) to[i] *= f.embedding_scale;
    }
    for (int64_t layer = 0; layer < f.depth; ++layer) {
      if (f.states) copied(state.get(), rows * f.hidden, static_cast<T*>(f.states) + layer * rows * f.hidden);
      Threads::run(f.threads, [&] { project(layer); });
      attend(layer);
      Threads::run(f.threads, [&] { finish(f.layers[layer]); });
    }
    if (f.last) copied(state.get(), rows * f.hidden, static_cast<T*>(f.last));
    Threads::run(f.threads, [&] { speak(); });
    return -1;
  }

 private:
  const Forward& f;
  const int64_t rows = f.batch * f.nodes, all_heads = f.heads + 2 * f.kv_heads;
  int64_t inner = 0, widest = 0;
  Numbers<float> state{nullptr, &std::free}, heads = {nullptr, &std::free}, lse = {nullptr, &std::free},
      added = {nullptr, &std::free};
  Numbers<char> packed{nullptr, &std::free};
  Numbers<T> input{nullptr, &std::free}, middle = {nullptr, &std::free}, query = {nullptr, &std::free},
      attended = {nullptr, &std::free};

  T* stored(int64_t layer, int64_t which, int64_t row, int64_t head) const {
    return static_cast<T*>(f.stored[layer]) + ((which * f.batch + row) * f.kv_heads + head) * f.capacity * f.dim;
  }

  // Within a parallel region: the complete rows x [count, in], as products with a matrix take them.
  Rows<T> ready(const Matrix& matrix, const T* x, int64_t count) { return {x, count, matrix, packed.get()}; }

  void norm_all(const float* weight) {
    Threads::each(rows, [&](int64_t row) {
      normed(state.get() + row * f.hidden, weight, f.hidden, f.epsilon, input.get() + row * f.hidden);
    });
    Threads::barrier();
  }

  // Adds a product to the states, normed where it has a norm.
  void add(const Matrix& matrix, const Rows<T>& x, const float* norm) {
    if (!norm) return add_product(matrix, x, state.get());
    product(matrix, x, added.get(), f.hidden);
    Threads::barrier();
    Threads::each(rows, [&](int64_t row) {
      float *from = added.get() + row * f.hidden, *to = state.get() + row * f.hidden;
      normed(from, norm, f.hidden, f.epsilon, from);
      by_lanes(f.hidden, [&](int64_t i, Mask mask) { write(to + i, mask, read(to + i, mask) + read(from + i, mask)); });
    });
  }

  // Queries, keys and values of all rows; each head is normed, rotated and written where attention reads it.
  void project(int64_t index) {
    const Layer& layer = f.layers[index];
    const T* unnormed = index ? nullptr : static_cast<const T*>(f.read);
    if (!unnormed) norm_all(layer.input_norm);
    Rows<T> from = ready(layer.query, unnormed ? unnormed : input.get(), rows);
    const int64_t width = all_heads * f.dim;
    float* to = heads.get();
    for (const Matrix* matrix : {&layer.query, &layer.key, &layer.value}) {
      if (matrix->kind != layer.query.kind || matrix->group != layer.query.group) {  // as some files have them
        Threads::barrier();
        from = ready(*matrix, from.x, rows);
      }
      product(*matrix, from, to, width);
      to += matrix->out;
    }
    Threads::barrier();
    Threads::each(rows * all_heads, [&](int64_t i) { place_head(index, i / all_heads, i % all_heads); });
  }

  void place_head(int64_t index, int64_t row, int64_t head) {
    const Layer& layer = f.layers[index];
    float* x = heads.get() + (row * all_heads + head) * f.dim;
    const int64_t b = row / f.nodes, half = f.dim / 2, key_head = head - f.heads, value_head = key_head - f.kv_heads;
    const int64_t position = f.prefix[b] + f.offsets[b * f.offset_stride + row % f.nodes];
    const float* norm = key_head < 0 ? layer.query_norm : layer.key_norm;
    if (value_head < 0) {
      if (norm) normed(x, norm, f.dim, f.epsilon, x);
      const float *cosine = (layer.near ? f.near.cosines : f.cosines) + position * half;
      const float* sine = (layer.near ? f.near.sines : f.sines) + position * half;
      by_lanes(half, [&](int64_t i, Mask mask) {
        const Vec left = read(x + i, mask), right = read(x + half + i, mask);
        const Vec cos = read(cosine + i, mask), sin = read(sine + i, mask);
        write(x + i, mask, fms(left, cos, right * sin));
        write(x + half + i, mask, fma(right, cos, left * sin));
      });
    }
    const int64_t slot = f.prefix[b] + f.pending + row % f.nodes;
    T* to = key_head < 0     ? query.get() + (row * f.heads + head) * f.dim
            : value_head < 0 ? stored(index, 0, b, key_head) + slot * f.dim
                             : stored(index, 1, b, value_head) + slot * f.dim;
    copied(x, f.dim, to);
  }

  void attend(int64_t index) {
    const int64_t size = f.dim, apart = f.capacity * size;
    const View far{f.cosines, f.sines, f.mask, f.prefix, 0, f.pending + f.nodes, f.mask_stride};
    const View& view = f.layers[index].near ? f.near : far;
    const int64_t first = view.first * size;
    Call call{query.get(), stored(index, 0, 0, 0) + first, stored(index, 1, 0, 0) + first, view.mask, view.prefix,
              attended.get(), lse.get(), f.batch, f.kv_heads, f.heads / f.kv_heads, f.nodes, view.tree_keys, size, size,
              view.mask_stride, f.threads, {f.nodes * f.heads * size, size, f.heads * size},
              {f.kv_heads * apart, apart, size}, {f.kv_heads * apart, apart, size}, f.scale, f.softcap};
    f.attend(&call);
  }

  void finish(const Layer& layer) {
    const int64_t width = f.heads * f.dim;
    Threads::each(rows * f.heads, [&](int64_t i) {  // [batch, head, node] to [batch, node, head]
      const int64_t row = i / f.heads, head = i % f.heads, b = row / f.nodes;
      std::memcpy(input.get() + row * width + head * f.dim,
                  attended.get() + ((b * f.heads + head) * f.nodes + row % f.nodes) * f.dim, f.dim * sizeof(T));
    });
    Threads::barrier();
    add(layer.output, ready(layer.output, input.get(), rows), layer.attended_norm);
    Threads::barrier();
    norm_all(layer.middle_norm);
    widen(layer, ready(layer.gate, input.get(), rows));
    Threads::barrier();
    add(layer.down, ready(layer.down, middle.get(), rows), layer.widened_norm);
  }

  // middle [rows, inner] = the activation of gate(x), times up(x)
  void widen(const Layer& layer, const Rows<T>& x) {
    each_output({&layer.gate, &layer.up}, x, [&](int64_t row, int64_t at, Mask mask, const Vec* values) {
      write(middle.get() + row * layer.gate.out + at, mask, gated(values[0], values[1], f.tanh));
    });
  }

  // The last norm, and the logits of the wanted rows.
  void speak() {
    const float* weight = f.final_norm;
    const auto norm = [&](int64_t row, T* to) {
      normed(state.get() + row * f.hidden, weight, f.hidden, f.epsilon, to);
    };
    T* last = static_cast<T*>(f.states) + f.depth * rows * f.hidden;
    Threads::each(f.states ? rows : 0, [&](int64_t row) { norm(row, last + row * f.hidden); });
    Threads::each(f.kept_rows, [&](int64_t i) { norm(f.kept ? f.kept[i] : i, input.get() + i * f.hidden); });
    Threads::barrier();
    if (f.vocabulary.out)
      product(f.vocabulary, ready(f.vocabulary, input.get(), f.kept_rows), static_cast<T*>(f.logits), f.vocabulary.out);
  }
};

}  // namespace
