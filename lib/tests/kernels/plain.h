// Random inputs of the kernels, and what they compute, in plain loops in double.
#pragma once
#include <numeric>
#include <random>
#include <string>

#include "../../kernels/fill.h"

namespace {

using std::to_string;
using std::vector;
using Doubles = vector<double>;

template <class T> T nearest_to(double x) { return static_cast<T>(x); }
template <> bf16 nearest_to(double x) {  // of two equally near ones the even one
  const float single = static_cast<float>(x);
  uint32_t bits;
  std::memcpy(&bits, &single, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

std::mt19937 source(1);
int64_t below(int64_t end) { return source() % end; }
template <class T> vector<T> uniform(int64_t count, double most) {
  vector<T> made(count);
  for (T& x : made) x = nearest_to<T>((source() / 2147483648.0 - 1) * most);
  return made;
}
template <class T> Doubles doubles(const vector<T>& numbers) {
  Doubles made;
  for (const T& x : numbers) made.push_back(number_at(&x));
  return made;
}

enum Kind { PLAIN, PAIRED, INT8, BLOCKS };
const char* const KINDS[] = {"plain", "paired", "int8", "4-bit"};

// Random weights [out, in] and a bias as a kernel reads them, in exactly their memory, and the same numbers.
template <class T> struct Weights {
  int64_t out, in;
  vector<T> plain, bias;
  vector<char> paired;
  vector<float> scale, block_scale, block_offset;  // of blocks of 32 numbers
  Doubles truth;

  Weights(int64_t out, int64_t in, Kind kind, bool biased, double most = 1) : out(out), in(in), truth(out * in) {
    const int64_t width = (in + 31) / 32 * 32, size = kind == INT8 ? 1 : 2;
    if (biased) bias = uniform<T>(out, 1);
    if (kind == PLAIN) plain = uniform<T>(out * in, most), truth = doubles(plain);
    if (kind == PLAIN) return;
    if (kind == BLOCKS) {
      fill_blocks(most);
      return;
    }
    if (kind == INT8) scale = uniform<float>(out, most / 127);
    paired.resize((out + 63) / 64 * 64 * width * size);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < in; ++k) {
        const bf16 half = kind == INT8 ? nearest_to<bf16>(below(255) - 127) : uniform<bf16>(1, most)[0];
        const int8_t whole = number_at(&half);
        truth[o * in + k] = kind == INT8 ? whole * double(scale[o]) : number_at(&half);
        char* panel = paired.data() + o / 16 * width * 16 * size;
        if (kind == INT8) panel[k * 16 + o % 16] = whole;
        else std::memcpy(panel + (k / 2 * 16 + o % 16) * 4 + k % 2 * 2, &half, 2);
      }
  }
  Matrix matrix() const {
    const bool blocks = !block_scale.empty();
    return {data(plain), data(bias), data(paired), data(scale), data(block_scale), data(block_offset), out, in,
            blocks ? 32 : 0, blocks ? NIBBLES : scale.empty() ? HALVES : BYTES, 0};
  }

 private:
  void fill_blocks(double most) {
    const int64_t rows = (out + 63) / 64 * 64;
    paired.resize(rows * in / 2);
    block_scale = uniform<float>(rows * in / 32, most / 8), block_offset = uniform<float>(rows * in / 32, most);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t k = 0; k < in; ++k) {
        const int number = below(16);
        const int64_t factor = (o / 16 * (in / 32) + k / 32) * 16 + o % 16;
        paired[((o / 16 * (in / 8) + k / 8) * 16 + o % 16) * 4 + k % 2 * 2 + k % 8 / 4] |= number << k / 2 % 2 * 4;
        truth[o * in + k] = number * double(block_scale[factor]) + block_offset[factor];
      }
  }
  template <class U> static const U* data(const vector<U>& x) { return x.empty() ? nullptr : x.data(); }
};

// x [rows, in] W^T + b
template <class T> Doubles product_of(const Doubles& x, const Weights<T>& weights) {
  const int64_t rows = x.size() / weights.in;
  Doubles to;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t o = 0; o < weights.out; ++o) {
      const double* own = weights.truth.data() + o * weights.in;
      to.push_back(std::inner_product(own, own + weights.in, x.data() + row * weights.in,
                                      weights.bias.empty() ? 0.0 : number_at(&weights.bias[o])));
    }
  return to;
}

// Nodes [batch, nodes] after a cache's rows and pending nodes, all with the same mask and offsets.
struct Block {
  int64_t nodes, pending;
  vector<int64_t> prefix, tokens, offsets;
  vector<uint8_t> mask;  // [nodes, pending + nodes]
  int64_t batch() const { return prefix.size(); }
  int64_t keys() const { return pending + nodes; }
  int64_t rows() const { return batch() * nodes; }
};

Block random_block(int64_t nodes, int64_t pending, vector<int64_t> prefix, int64_t known) {
  Block block{nodes, pending, prefix, {}, {}, vector<uint8_t>(nodes * (pending + nodes))};
  for (int64_t i = 0; i < block.rows(); ++i) block.tokens.push_back(below(known));
  for (int64_t i = 0; i < nodes; ++i) {
    block.offsets.push_back(pending + below(i + 1));
    for (int64_t j = 0; j <= pending + i; ++j) block.mask[i * block.keys() + j] = j == pending + i || below(5) < 2;
  }
  return block;
}

// softmax(q K^T scale) V for a query [dim] and the keys and values that `visible` names; returns log-sum-exp, -infinity
// for none.
template <class Visible>
double attend(const double* query, const double* keys, const double* values, int64_t count, int64_t dim,
              int64_t value_dim, double scale, Visible visible, double* to) {
  Doubles scores(count, -INFINITY);
  for (int64_t j = 0; j < count; ++j)
    if (visible(j)) scores[j] = scale * std::inner_product(query, query + dim, keys + j * dim, 0.0);
  const double most = count ? *std::max_element(scores.begin(), scores.end()) : -INFINITY;
  double sum = 0;
  std::fill_n(to, value_dim, 0.0);
  for (int64_t j = 0; j < count; ++j) {
    if (scores[j] == -INFINITY) continue;
    const double weight = std::exp(scores[j] - most);
    sum += weight;
    for (int64_t k = 0; k < value_dim; ++k) to[k] += weight * values[j * value_dim + k];
  }
  for (int64_t k = 0; k < value_dim; ++k) to[k] /= sum ? sum : 1;
  return sum ? most + std::log(sum) : -INFINITY;
}

// A random model of Llama's kind. Its vocabulary's second half repeats the first.
template <class T> struct Model {
  static constexpr int64_t depth = 2, hidden = 40, heads = 6, kv_heads = 2, inner = 70, vocabulary = 50, longest = 600;
  static constexpr float epsilon = 1e-5f;
  struct Part {
    vector<T> input_norm, query_norm, key_norm, middle_norm;
    Weights<T> query, key, value, output, gate, up, down;
  };
  const int64_t dim;
  vector<Part> layers;
  vector<T> embedding = uniform<T>(vocabulary * hidden, 1), final_norm = norm(hidden);
  Weights<T> last;
  vector<float> cosines, sines;

  Model(Kind kind, bool normed) : dim(normed ? 24 : 16), last(vocabulary, hidden, PLAIN, false) {
    const auto weights = [&](int64_t out, int64_t in) { return Weights<T>(out, in, kind, normed, 0.3); };
    for (int64_t layer = 0; layer < depth; ++layer)
      layers.push_back({norm(hidden), norm(normed * dim), norm(normed * dim), norm(hidden),
                        weights(heads * dim, hidden), weights(kv_heads * dim, hidden), weights(kv_heads * dim, hidden),
                        weights(hidden, heads * dim), weights(inner, hidden), weights(inner, hidden),
                        weights(hidden, inner)});
    std::copy_n(last.plain.begin(), last.plain.size() / 2, last.plain.begin() + last.plain.size() / 2);
    last.truth = doubles(last.plain);
    for (int64_t position = 0; position < longest; ++position)
      for (int64_t i = 0; i < dim / 2; ++i) {
        cosines.push_back(std::cos(position * std::pow(1e4, -2.0 * i / dim)));
        sines.push_back(std::sin(position * std::pow(1e4, -2.0 * i / dim)));
      }
  }
  static vector<T> norm(int64_t count) {
    vector<T> weight = uniform<T>(count, 0.5);
    for (T& x : weight) x = nearest_to<T>(1 + number_at(&x));
    return weight;
  }
};

// Keys and values of each layer, [2, batch, kv_heads, capacity, dim]; NaN in slots without any.
template <class T> struct Cache {
  const int64_t capacity;
  vector<vector<T>> layers;
  Cache(const Model<T>& model, const Block& block, int64_t more) : capacity(at_least(block) + more) {
    const int64_t heads = 2 * block.batch() * model.kv_heads, dim = model.dim;
    for (int64_t layer = 0; layer < model.depth; ++layer) {
      layers.push_back(uniform<T>(heads * capacity * dim, 1.7));
      for (int64_t head = 0; head < heads; ++head) {
        const int64_t slots = block.prefix[head / model.kv_heads % block.batch()] + block.pending;
        std::fill_n(&layers[layer][(head * capacity + slots) * dim], (capacity - slots) * dim, nearest_to<T>(NAN));
      }
    }
  }
  static int64_t at_least(const Block& block) {
    return *std::max_element(block.prefix.begin(), block.prefix.end()) + block.keys();
  }
};

// x [rows, n] / sqrt(mean(x^2) + epsilon) * weight [n]
template <class T> Doubles norm_of(const Doubles& x, const vector<T>& weight, double epsilon) {
  if (weight.empty()) return x;
  const int64_t n = weight.size();
  Doubles to = x;
  for (size_t row = 0; row < x.size(); row += n) {
    const double mean = std::inner_product(&x[row], &x[row] + n, &x[row], 0.0) / n;
    for (int64_t i = 0; i < n; ++i) to[row + i] *= number_at(&weight[i]) / std::sqrt(mean + epsilon);
  }
  return to;
}

// Heads of dim numbers of a block's rows, rotated by their positions.
template <class T> Doubles rotated(const Doubles& x, const Model<T>& model, const Block& block) {
  const int64_t half = model.dim / 2, heads = x.size() / model.dim / block.rows();
  Doubles to = x;
  for (int64_t head = 0; head < heads * block.rows(); ++head)
    for (int64_t i = 0; i < half; ++i) {
      const int64_t row = head / heads, at = head * model.dim + i;
      const int64_t position = block.prefix[row / block.nodes] + block.offsets[row % block.nodes];
      const double cosine = model.cosines[position * half + i], sine = model.sines[position * half + i];
      to[at] = x[at] * cosine - x[at + half] * sine;
      to[at + half] = x[at + half] * cosine + x[at] * sine;
    }
  return to;
}

// A layer's attention: writes keys and values [rows, kv_heads, dim] to the cache, returns [rows, heads, dim].
template <class T>
Doubles attended(const Model<T>& model, const Block& block, const Doubles& query, const Doubles& key,
                 const Doubles& value, int64_t capacity, Doubles& stored) {
  const int64_t kv_heads = model.kv_heads, dim = model.dim, group = model.heads / kv_heads;
  const auto place = [&](int64_t which, int64_t b, int64_t head) {
    return stored.data() + ((which * block.batch() + b) * kv_heads + head) * capacity * dim;
  };
  for (int64_t row = 0; row < block.rows(); ++row)
    for (int64_t head = 0; head < kv_heads; ++head) {
      const int64_t b = row / block.nodes, slot = block.prefix[b] + block.pending + row % block.nodes;
      std::copy_n(&key[(row * kv_heads + head) * dim], dim, place(0, b, head) + slot * dim);
      std::copy_n(&value[(row * kv_heads + head) * dim], dim, place(1, b, head) + slot * dim);
    }
  Doubles to(query.size());
  for (int64_t each = 0; each < block.rows() * model.heads; ++each) {
    const int64_t row = each / model.heads, head = each % model.heads / group, b = row / block.nodes;
    const int64_t prefix = block.prefix[b];
    const auto visible = [&](int64_t j) {
      return j < prefix || block.mask[row % block.nodes * block.keys() + j - prefix];
    };
    attend(&query[each * dim], place(0, b, head), place(1, b, head), prefix + block.keys(), dim, dim,
           1 / std::sqrt(dim), visible, &to[each * dim]);
  }
  return to;
}

// A forward pass: logits [rows, vocabulary] and states [depth + 1, rows, hidden]. Writes to the cache's layers.
template <class T>
Doubles passed(const Model<T>& model, const Block& block, int64_t capacity, vector<Doubles>& stored, Doubles& states) {
  const auto norm = [&](const Doubles& x, const vector<T>& weight) { return norm_of(x, weight, model.epsilon); };
  const auto add = [](Doubles& x, const Doubles& more) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += more[i];
  };
  Doubles state;
  for (const int64_t token : block.tokens)
    for (int64_t i = 0; i < model.hidden; ++i) state.push_back(number_at(&model.embedding[token * model.hidden + i]));
  for (int64_t layer = 0; layer < model.depth; ++layer) {
    states.insert(states.end(), state.begin(), state.end());
    const auto& own = model.layers[layer];
    const Doubles input = norm(state, own.input_norm), value = product_of(input, own.value);
    const Doubles query = rotated(norm(product_of(input, own.query), own.query_norm), model, block);
    const Doubles key = rotated(norm(product_of(input, own.key), own.key_norm), model, block);
    add(state, product_of(attended(model, block, query, key, value, capacity, stored[layer]), own.output));
    const Doubles middle = norm(state, own.middle_norm), up = product_of(middle, own.up);
    Doubles gate = product_of(middle, own.gate);
    for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
    add(state, product_of(gate, own.down));
  }
  state = norm(state, model.final_norm);
  states.insert(states.end(), state.begin(), state.end());
  return product_of(state, model.last);
}

}  // namespace
