// Compares the kernels with plain loops in double (`plain.h`), without Python. It prints a line for each group of
// checks and ends with 1 at the first difference.
//
// `test_native.py` runs it for this processor. In this folder, these commands run it for ARM on any processor (add
// -march=armv8.2-a+bf16 for ARM's bfloat16 products), and with sanitizers (or with -fsanitize=thread):
//
//   sources="program.cpp ../../kernels/blocks.cpp ../../kernels/onepass.cpp"
//   aarch64-linux-gnu-g++ -std=c++20 -O3 -pthread -w -o program $sources
//   qemu-aarch64 -L /usr/aarch64-linux-gnu ./program
//   g++ -std=c++20 -O1 -g -pthread -w -mavx2 -mfma -mf16c -fsanitize=address,undefined \
//     -fno-sanitize-recover=undefined -o program $sources && ./program
#include <cstdio>
#include <cstdlib>
#include <list>

#include "plain.h"

extern "C" {
void linear_float32(const Matrix*, const float*, float*, int64_t rows, int64_t threads);
void linear_bfloat16(const Matrix*, const bf16*, bf16*, int64_t rows, int64_t threads);
int forward_float32(const Forward*);
int forward_bfloat16(const Forward*);
int fill_float32(const Forward*, const Level*, int64_t count, int64_t size, int64_t choices, int64_t* tokens);
int fill_bfloat16(const Forward*, const Level*, int64_t count, int64_t size, int64_t choices, int64_t* tokens);
int onepass_float32(const Call*);
int onepass_bfloat16(const Call*);
}

namespace {

template <class T> struct Kernels {
  static constexpr auto linear = linear_float32;
  static constexpr auto forward = forward_float32;
  static constexpr auto fill = fill_float32;
  static constexpr auto onepass = onepass_float32;
  static constexpr const char* name = "float32";
  static constexpr double within = 2e-6, within_model = 2e-5;  // of the largest number: a product; a model's output
};
template <> struct Kernels<bf16> {
  static constexpr auto linear = linear_bfloat16;
  static constexpr auto forward = forward_bfloat16;
  static constexpr auto fill = fill_bfloat16;
  static constexpr auto onepass = onepass_bfloat16;
  static constexpr const char* name = "bfloat16";
  static constexpr double within = 1e-2, within_model = 5e-2;
};

void fail(const std::string& what) {
  std::printf("FAILED: %s\n", what.c_str());
  std::exit(1);
}
// Numbers may differ by `within` of the largest true one, or of `least` if that is larger.
template <class T>
void compare(const std::string& what, const vector<T>& said, const Doubles& truth, double within, double least = 1) {
  for (double x : truth)
    if (std::isfinite(x)) least = std::max(least, std::abs(x));
  for (size_t i = 0; i < truth.size(); ++i) {
    const double own = number_at(&said[i]);
    if (own != truth[i] && !(std::abs(own - truth[i]) <= within * least))
      fail(what + ": number " + to_string(i) + " is " + to_string(own) + ", not " + to_string(truth[i]));
  }
}
template <class T> void expect_same(const std::string& what, const T* said, const T* other, int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    if (std::memcmp(said + i, other + i, sizeof(T))) fail(what + ": the bits of number " + to_string(i) + " differ");
}

// Products with any sizes; a row gets the same bits among any other rows, with any number of threads.
template <class T> void check_products(Kind kind) {
  for (const int64_t out : {1, 16, 33, 135})
    for (const int64_t in : {1, 2, 31, 64, 130})
      for (const int64_t rows : {1, 2, 23, 512}) {
        if (kind == BLOCKS && in % 32) continue;
        if (rows == 512 && out * in != 33 * 130 && out * in != 135 * 31) continue;
        const Weights<T> weights(out, in, kind, out % 2);
        const Matrix matrix = weights.matrix();
        const auto sizes = [&](int64_t count) {
          return to_string(count) + " rows with " + KINDS[kind] + " weights " + to_string(out) + " x " + to_string(in);
        };
        const vector<T> x = uniform<T>(rows * in, 1.7);
        vector<T> whole(rows * out);
        Kernels<T>::linear(&matrix, x.data(), whole.data(), rows, 2);
        compare("the product of " + sizes(rows), whole, product_of(doubles(x), weights), Kernels<T>::within,
                std::sqrt(in));
        for (const int64_t count : {1, 2, 3, 4, 5, 7, 23})
          for (int64_t first = 0; first + count <= rows; first += rows / 5 + 1) {
            const vector<T> some(x.begin() + first * in, x.begin() + (first + count) * in);
            vector<T> to(count * out);
            Kernels<T>::linear(&matrix, some.data(), to.data(), count, 1 + count % 3);
            if (kind == BLOCKS && count <= 6 && rows > 6) continue;  // matrix units add in another order than vectors
            expect_same("the product of " + sizes(count) + " of " + to_string(rows), to.data(), &whole[first * out],
                        count * out);
          }
      }
  std::printf("products of %s with %s weights\n", Kernels<T>::name, KINDS[kind]);
}

// Attention for any sizes and masks, and for all prefixes up to 70; a row that sees no key gives zeros.
template <class T> void check_attention() {
  struct Sizes { int64_t kv_heads, group, nodes, pending, dim, value_dim, prefix; };
  vector<Sizes> each{{2, 3, 1, 0, 64, 64, 300}, {1, 4, 13, 0, 40, 24, 700}, {2, 1, 70, 5, 16, 40, 33},
                     {1, 1, 512, 0, 32, 32, 70}, {2, 2, 90, 3, 8, 48, 260}};
  for (int64_t prefix = 0; prefix <= 70; ++prefix)
    each.push_back({1 + prefix % 2, 1 + prefix % 4, 1 + prefix % 7, prefix % 3, 8 + prefix % 4 * 8, 8 + prefix % 6 * 8,
                    prefix});
  for (const auto& [kv_heads, group, nodes, pending, dim, value_dim, longest] : each) {
    const Block block = random_block(nodes, pending, {longest, longest / 2}, 1);
    const int64_t batch = block.batch(), heads = kv_heads * group, capacity = longest + block.keys();
    vector<uint8_t> mask = block.mask;
    if (nodes > 2) std::fill_n(mask.begin() + block.keys(), block.keys(), 0);
    const vector<T> query = uniform<T>(batch * heads * nodes * dim, 1.7);
    const vector<T> key = uniform<T>(batch * kv_heads * capacity * dim, 1.7);
    const vector<T> value = uniform<T>(batch * kv_heads * capacity * value_dim, 1.7);
    vector<T> output(batch * heads * nodes * value_dim);
    vector<float> lse(batch * heads * nodes);
    const float scale = 1 / std::sqrt(float(dim));
    const Call call{query.data(), key.data(), value.data(), mask.data(), block.prefix.data(), output.data(), lse.data(),
                    batch, kv_heads, group, nodes, block.keys(), dim, value_dim, 0, 1 + longest % 3,
                    {heads * nodes * dim, nodes * dim, dim}, {kv_heads * capacity * dim, capacity * dim, dim},
                    {kv_heads * capacity * value_dim, capacity * value_dim, value_dim}, scale};
    const std::string what = "attention of " + to_string(heads) + " heads, " + to_string(nodes) + " nodes, prefix " +
                             to_string(longest) + ", " + to_string(dim) + " and " + to_string(value_dim) + " numbers";
    if (!Kernels<T>::onepass(&call)) fail(what + ": no memory");
    const Doubles queries = doubles(query), keys = doubles(key), values = doubles(value);
    Doubles truth(output.size()), truths(lse.size());
    for (size_t row = 0; row < lse.size(); ++row) {
      const int64_t b = row / (heads * nodes), from = row / (group * nodes) * capacity, node = row % nodes;
      const int64_t prefix = block.prefix[b];
      const auto visible = [&](int64_t j) { return j < prefix || mask[node * block.keys() + j - prefix]; };
      truths[row] = attend(&queries[row * dim], &keys[from * dim], &values[from * value_dim], prefix + block.keys(),
                           dim, value_dim, scale, visible, &truth[row * value_dim]);
    }
    compare(what, output, truth, Kernels<T>::within);
    compare(what + ", log-sum-exp", lse, truths, Kernels<T>::within);
  }
  std::printf("attention of %s\n", Kernels<T>::name);
}

// The arguments of a forward pass, and the memory of its results.
template <class T> struct Arguments {
  vector<Layer> layers;
  std::list<vector<float>> norms;
  vector<void*> stored;
  vector<T> states, logits;
  Forward forward{};

  Arguments(const Model<T>& model, const Block& block, Cache<T>& cache, int64_t threads)
      : states((model.depth + 1) * block.rows() * model.hidden), logits(block.rows() * model.vocabulary) {
    for (int64_t layer = 0; layer < model.depth; ++layer) {
      const auto& own = model.layers[layer];
      layers.push_back({factors(own.input_norm), factors(own.query_norm), factors(own.key_norm),
                        factors(own.middle_norm), nullptr, nullptr,
                        own.query.matrix(), own.key.matrix(), own.value.matrix(), own.output.matrix(),
                        own.gate.matrix(), own.up.matrix(), own.down.matrix(), 0});
      stored.push_back(cache.layers[layer].data());
    }
    Forward& f = forward;
    f.embedding.weight = model.embedding.data(), f.embedding.out = model.vocabulary;
    f.layers = layers.data(), f.final_norm = factors(model.final_norm);
    f.tokens = block.tokens.data(), f.cosines = model.cosines.data(), f.sines = model.sines.data();
    f.offsets = block.offsets.data(), f.prefix = block.prefix.data(), f.mask = block.mask.data();
    f.states = states.data(), f.logits = logits.data(), f.attend = Kernels<T>::onepass;
    f.stored = stored.data(), f.capacity = cache.capacity, f.vocabulary = model.last.matrix(), f.depth = model.depth, f.batch = block.batch(), f.nodes = block.nodes;
    f.pending = block.pending, f.hidden = model.hidden, f.heads = model.heads, f.kv_heads = model.kv_heads;
    f.dim = model.dim, f.kept_rows = block.rows(), f.threads = threads;
    f.scale = 1 / std::sqrt(float(model.dim)), f.epsilon = model.epsilon, f.embedding_scale = 1;
  }

  // A norm's weights as the layers take them; null where there is none.
  const float* factors(const vector<T>& weight) {
    if (weight.empty()) return nullptr;
    norms.emplace_back();
    for (const T& number : weight) norms.back().push_back(number_at(&number));
    return norms.back().data();
  }
};

template <class T> vector<Doubles> doubles_of_layers(const Cache<T>& cache) {
  vector<Doubles> made;
  for (const auto& layer : cache.layers) made.push_back(doubles(layer));
  return made;
}
// Slots that a pass has not written hold NaN on both sides.
template <class T>
void compare_caches(const std::string& what, const Cache<T>& cache, vector<Doubles> truth) {
  for (size_t layer = 0; layer < truth.size(); ++layer) {
    vector<T> said = cache.layers[layer];
    for (size_t i = 0; i < said.size(); ++i)
      if (std::isnan(number_at(&said[i])) && std::isnan(truth[layer][i])) said[i] = truth[layer][i] = 0;
    compare(what + ", cache of layer " + to_string(layer), said, truth[layer], Kernels<T>::within_model);
  }
}

// Logits, states, keys and values of blocks of any size; a row of the batch gets the same bits alone.
template <class T> void check_forward(Kind kind, bool normed) {
  const Model<T> model(kind, normed);
  struct Sizes { int64_t nodes, pending; vector<int64_t> prefix; };
  for (const auto& [nodes, pending, prefix] : {Sizes{1, 0, {0}}, Sizes{1, 0, {70, 9}}, Sizes{4, 2, {0, 33}},
                                               Sizes{13, 1, {70, 0, 64}}, Sizes{256, 0, {0, 70}}}) {
    const Block block = random_block(nodes, pending, prefix, model.vocabulary);
    const std::string what = "a forward pass of " + to_string(block.rows()) + " rows of " + Kernels<T>::name +
                             ", weights " + KINDS[kind] + ", prefix " + to_string(prefix[0]);
    Cache<T> cache(model, block, 3);
    const Cache<T> before = cache;
    vector<Doubles> stored = doubles_of_layers(cache);
    Doubles states;
    const Doubles logits = passed(model, block, cache.capacity, stored, states);
    Arguments<T> whole(model, block, cache, 2);
    if (Kernels<T>::forward(&whole.forward) != -1) fail(what + ": a token is unknown");
    compare(what + ", logits", whole.logits, logits, Kernels<T>::within_model);
    compare(what + ", states", whole.states, states, Kernels<T>::within_model);
    compare_caches(what, cache, stored);

    Cache<T> again = before;
    Arguments<T> one(model, block, again, 1);
    Kernels<T>::forward(&one.forward);
    for (int64_t b = 0; b < block.batch(); ++b) {
      const auto first = block.tokens.begin() + b * nodes;
      const Block alone{nodes, pending, {prefix[b]}, {first, first + nodes}, block.offsets, block.mask};
      Cache<T> own(model, alone, 0);
      const int64_t size = model.kv_heads * model.dim;
      for (int64_t layer = 0; layer < model.depth; ++layer)
        for (int64_t head = 0; head < 2 * model.kv_heads; ++head) {
          const int64_t from = (head / model.kv_heads * block.batch() + b) * model.kv_heads + head % model.kv_heads;
          std::copy_n(before.layers[layer].begin() + from * cache.capacity * model.dim, own.capacity * model.dim,
                      own.layers[layer].begin() + head * own.capacity * model.dim);
        }
      Arguments<T> arguments(model, alone, own, 1);
      Kernels<T>::forward(&arguments.forward);
      expect_same(what + ", row " + to_string(b) + " alone", arguments.logits.data(),
                  &one.logits[b * nodes * model.vocabulary], nodes * model.vocabulary);
    }
  }
  std::printf("forward passes of %s with %s weights, %s norms of queries and keys\n", Kernels<T>::name, KINDS[kind],
              normed ? "with" : "without");
}

// The levels of a static tree after a block, as `fill` takes them: of each, the nodes with children.
struct Tree {
  struct Nodes {
    vector<int64_t> slots, offsets, below;  // [nodes], [nodes], [children, 3]
    vector<uint8_t> mask;                   // [nodes, all keys after the prefix]: the block, and the node's ancestors
  };
  vector<Nodes> each;
  vector<Level> levels;

  Tree(const vector<int64_t>& parents, const vector<int64_t>& ranks, const Block& block) {
    const int64_t size = parents.size();
    vector<int64_t> column(size);  // of a node's key
    int64_t keys = block.keys();
    for (vector<int64_t> slots{0}; !slots.empty();) {
      Nodes own{slots, vector<int64_t>(slots.size(), block.keys() - 1 + int64_t(each.size()))};
      if (!each.empty())
        for (const int64_t slot : slots) column[slot] = keys++;
      for (const int64_t slot : slots) {
        own.mask.insert(own.mask.end(), keys, 0);
        uint8_t* row = &*own.mask.end() - keys;
        std::fill_n(row, block.keys(), 1);
        for (int64_t node = slot; node > 0; node = parents[node]) row[column[node]] = 1;
      }
      vector<int64_t> next;
      for (size_t i = 0; i < slots.size(); ++i)
        for (int64_t child = 1; child < size; ++child)
          if (parents[child] == slots[i]) {
            own.below.insert(own.below.end(), {int64_t(i), ranks[child], child});
            if (std::count(parents.begin(), parents.end(), child)) next.push_back(child);
          }
      each.push_back(own), slots = next;
    }
    for (const Nodes& own : each)
      levels.push_back({own.slots.data(), own.offsets.data(), own.mask.data(),
                        reinterpret_cast<const int64_t(*)[3]>(own.below.data()), int64_t(own.slots.size()),
                        int64_t(own.below.size()) / 3, 0, 0});
  }
};

// The logits of a node's children are those of their ranks, but for rounding; of two equal ones the first comes first.
void check_children(const std::string& what, const double* logits, const vector<int64_t>& chosen, int64_t choices,
                    double within) {
  Doubles sorted(logits, logits + choices);
  std::sort(sorted.rbegin(), sorted.rend());
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    const auto before = chosen.begin() + rank;
    const int64_t own = chosen[rank], twin = own - 25;
    if (own < 0 || own >= choices || std::count(chosen.begin(), before, own) ||
        std::abs(logits[own] - sorted[rank]) > within * std::max(1.0, sorted[0]) ||
        (twin >= 0 && !std::count(chosen.begin(), before, twin)))
      fail(what + ": the child of rank " + to_string(rank) + " is choice " + to_string(own));
  }
}

// A static tree: the plain passes take the kernel's tokens, and each must be one of its parent's best.
template <class T> void check_fill(Kind kind) {
  const Model<T> model(kind, true);
  const vector<int64_t> parents{-1, 0, 0, 0, 1, 1, 2, 4}, ranks{0, 0, 1, 2, 0, 1, 0, 0};
  const int64_t size = parents.size(), choices = 47;
  vector<int64_t> names(model.vocabulary);
  for (int64_t i = 0; i < model.vocabulary; ++i) names[i] = (7 * i + 3) % model.vocabulary;
  for (const vector<int64_t>& prefix : {vector<int64_t>{0, 70}, vector<int64_t>{31, 5}, vector<int64_t>{1}}) {
    Block block = random_block(3, 2, prefix, model.vocabulary);
    block.offsets = {2, 3, 4};
    const std::string what = std::string("a tree of ") + Kernels<T>::name + ", weights " + KINDS[kind] + ", prefix " +
                             to_string(prefix[0]);
    const Tree tree(parents, ranks, block);
    Cache<T> cache(model, block, size);
    vector<Doubles> stored = doubles_of_layers(cache);
    Arguments<T> arguments(model, block, cache, 2);
    vector<int64_t> tokens(block.batch() * size), last;
    for (int64_t b = 0; b < block.batch(); ++b) {
      last.push_back(b * block.nodes + block.nodes - 1);
      tokens[b * size] = block.tokens[last[b]];
    }
    Forward& f = arguments.forward;
    f.states = nullptr, f.kept = last.data(), f.kept_rows = last.size(), f.names = names.data();
    if (Kernels<T>::fill(&f, tree.levels.data(), tree.levels.size(), size, choices, tokens.data()) != -1)
      fail(what + ": a token is unknown");
    int64_t pending = block.keys();
    for (const auto& [slots, offsets, below, mask] : tree.each) {
      const bool root = slots[0] == 0;
      Block own{int64_t(slots.size()), pending, prefix, {}, offsets, mask};
      for (int64_t b = 0; b < block.batch(); ++b)
        for (const int64_t slot : slots) own.tokens.push_back(tokens[b * size + slot]);
      if (!root) pending += own.nodes;
      Doubles states;
      const Doubles logits = passed(model, root ? block : own, cache.capacity, stored, states);
      for (int64_t row = 0; row < own.rows(); ++row) {
        const int64_t b = row / own.nodes, node = row % own.nodes;
        vector<int64_t> chosen;
        for (size_t child = 0; child < below.size(); child += 3) {
          if (below[child] != node) continue;
          const int64_t token = tokens[b * size + below[child + 2]];
          chosen.push_back(std::find(names.begin(), names.end(), token) - names.begin());
        }
        check_children(what + ", node " + to_string(slots[node]), &logits[(root ? last[b] : row) * model.vocabulary],
                       chosen, choices, Kernels<T>::within_model);
      }
    }
    compare_caches(what, cache, stored);
    block.tokens[1] = model.vocabulary;
    if (Kernels<T>::forward(&f) != 1) fail(what + ": an unknown token is not named");
  }
  std::printf("filled trees of %s with %s weights\n", Kernels<T>::name, KINDS[kind]);
}

template <class T> void check() {
  for (const Kind kind : {PLAIN, PAIRED, INT8}) {
    check_products<T>(kind);
    check_forward<T>(kind, false);
    check_forward<T>(kind, true);
    check_fill<T>(kind);
  }
  if (sizeof(T) == 4) check_products<T>(BLOCKS);
  check_attention<T>();
}

}  // namespace

int main() {
  check<float>();
  check<bf16>();
}
