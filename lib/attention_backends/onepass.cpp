// Tree attention in one pass over keys and values, for processors with AVX-512 (onepass.py compiles and calls it).
//
// Everything is held transposed: a vector's 16 lanes are query rows (of the G * m that share a key head), 16 or, where
// there are few, 4; keys and values are read in their own layout and broadcast, 1 or 4 numbers at a time (W). Where the
// processor has matrix units for bfloat16 (onepass_amx.h), they do both products of what fills them (M).
// A work item is (batch row, key head, at most 256 query rows, a range of keys). It walks its keys in tiles: scores
// from the resident queries, online softmax in base 2, product with the values (FlashAttention-2, Dao 2023, Alg. 1).
// Items that share rows but not keys are merged by their maxima and sums (Flash-Decoding).
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "onepass_amx.h"
#include "onepass_call.h"
#include "onepass_tiles.h"

namespace {

constexpr int64_t MOST_PANELS = 16, LEAST_KEYS = 256;  // of an item: vectors of rows; keys worth a split
constexpr int64_t FEW = 12;  // rows that are better served four to a vector
constexpr float NOTHING = -1e30f;  // maximum of no scores: finite, so that differences with it are no NaN
using Floats = std::unique_ptr<float, decltype(&std::free)>;

Floats floats(int64_t count) {
  return {static_cast<float*>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64)), &std::free};
}

// What a thread works with: scores and weights of up to three panels by one tile, and a tile of paired values.
struct Scratch {
  Floats scores = floats(3 * MOST_KEYS * LANES), pairs, queries;
  Scratch(int64_t dim, int64_t value_dim) : pairs(floats(MOST_KEYS / 2 * value_dim)),
                                            queries(floats(MOST_PANELS * dim * LANES)) {}
};

// The rows of one item: their unnormalised output [panels][value_dim][16], maxima and sums [panels][16].
struct Partial {
  float *output, *top, *sum;
  static int64_t size(int64_t value_dim) { return MOST_PANELS * LANES * (value_dim + 2); }
  Partial(float* memory, int64_t value_dim)
      : output(memory), top(memory + MOST_PANELS * LANES * value_dim), sum(top + MOST_PANELS * LANES) {}
};

struct Nothing {};
struct Item { int64_t batch, head, first_panel, panels, first_key, end_key; };

// queries[panel][step][lane] from rows first_panel * 16 / W ...; lanes past the last row are zero.
template <class T, int W> void pack_queries(const Call& c, const Item& item, float* packed) {
  const int64_t units = c.dim / PER_UNIT<T>, rows = c.group * c.nodes;
  std::fill_n(packed, item.panels * units * LANES, 0.f);
  for (int64_t own = 0; own < item.panels * LANES / W && item.first_panel * LANES / W + own < rows; ++own) {
    const int64_t row = item.first_panel * LANES / W + own, lane = own * W;
    float* column = packed + lane / LANES * units / W * LANES + lane % LANES;
    const T* source = static_cast<const T*>(c.query) + item.batch * c.query_stride[0] +
                      (item.head * c.group + row / c.nodes) * c.query_stride[1] + row % c.nodes * c.query_stride[2];
    for (int64_t u = 0; u < units; ++u) std::memcpy(column + u / W * LANES + u % W, source + u * PER_UNIT<T>, 4);
  }
}

// One tile for R panels, the first of them `panel` of the item; M: on the matrix units.
template <class T, int W, int R, bool M>
void attend(const Call& c, const Item& item, int64_t panel, const Tile<T>& tile, const uint16_t* seen,
            Scratch& scratch, Partial& part) {
  const int64_t first = tile.first, count = tile.count, steps = c.dim / PER_UNIT<T> / W;
  const int64_t step = c.key_stride[2] / PER_UNIT<T>, out_panel = c.value_dim / W * LANES;
  const float* queries = scratch.queries.get() + panel * steps * LANES;
  const uint32_t* keys = reinterpret_cast<const uint32_t*>(tile.keys);
  const __m512 one = _mm512_set1_ps(1), factor = _mm512_set1_ps(c.scale * 1.44269504f);  // to base 2
  float* scores = scratch.scores.get();
  constexpr int64_t apart = KEYS<M> * LANES;  // from a panel's scores to the next one's
  int64_t n = 0;
  if constexpr (M) n = scores_by_tiles<R>(c, tile, queries, scores, panel, item.panels);
  for (int64_t taken; n < count; n += taken) {
    taken = n + 8 <= count ? 8 : 1;
    if (!M && panel == 0 && taken == 8) {
      fetch(tile.keys + (n + KEYS<M>) * c.key_stride[2], c.key_stride[2], c.dim);
      fetch(tile.values + (n + KEYS<M>) * c.value_stride[2], c.value_stride[2], c.value_dim);
    }
    const auto dots = taken == 8 ? product<T, W, 8, R> : product<T, W, 1, R>;
    dots(keys + n * step, step, W, steps, queries, steps * LANES, scores + n * LANES, apart, nullptr, M ? one : factor);
  }
  const int64_t prefix = c.prefix[item.batch];
  for (n = std::max<int64_t>(0, prefix - first); n < count; ++n)  // the tree's own keys
    for (int r = 0; r < R; ++r) {
      const __mmask16 visible = seen[(item.first_panel + panel + r) * c.tree_keys + first + n - prefix];
      float* own = scores + r * apart + n * LANES;
      _mm512_store_ps(own, _mm512_mask_mov_ps(_mm512_set1_ps(-INFINITY), visible, _mm512_load_ps(own)));
    }
  __m512 shrink[R];
  softmax<T, R>(scores, apart, count, M ? factor : one, part.top + panel * LANES, part.sum + panel * LANES, shrink);
  float* output = part.output + panel * out_panel;
  if constexpr (M) return add_by_tiles<R>(c, tile, scores, output, shrink);
  const int64_t key_units = (count + PER_UNIT<T> - 1) / PER_UNIT<T>;
  for (int64_t j = 0; j < c.value_dim / W; j += 8)
    product<T, W, 8, R>(tile.units + j * W, W, tile.unit_step, key_units, scores, apart, output + j * LANES,
                        out_panel, shrink, factor);
}

template <class T, int W, bool M>
void work(const Call& c, const Item& item, const uint16_t* seen, Scratch& scratch, Partial part) {
  pack_queries<T, W>(c, item, scratch.queries.get());
  std::fill_n(part.output, item.panels * LANES * c.value_dim / W, 0.f);
  std::fill_n(part.top, item.panels * LANES, NOTHING);
  std::fill_n(part.sum, item.panels * LANES, 0.f);
  const T* keys = static_cast<const T*>(c.key) + item.batch * c.key_stride[0] + item.head * c.key_stride[1];
  const T* values = static_cast<const T*>(c.value) + item.batch * c.value_stride[0] + item.head * c.value_stride[1];
  for (int64_t first = item.first_key; first < item.end_key; first += KEYS<M>) {
    const int64_t count = std::min(KEYS<M>, item.end_key - first);
    Tile<T> tile{first, count, keys + first * c.key_stride[2], values + first * c.value_stride[2]};
    if constexpr (sizeof(T) == 2) {
      uint32_t* pairs = reinterpret_cast<uint32_t*>(scratch.pairs.get());
      (M ? turn_values : pair_values)(tile.values, c.value_stride[2], count, c.value_dim, pairs);
      tile.units = pairs, tile.unit_step = c.value_dim;
    } else {
      tile.units = reinterpret_cast<const uint32_t*>(tile.values), tile.unit_step = c.value_stride[2];
    }
    for (int64_t panel = 0; panel < item.panels;) {
      const int64_t left = item.panels - panel, taken = std::min<int64_t>(left, M || left == 4 ? 2 : 3);
      const auto run = taken == 3   ? attend<T, W, M ? 2 : 3, M>
                       : taken == 2 ? attend<T, W, 2, M>
                                    : attend<T, W, 1, M>;
      run(c, item, panel, tile, seen, scratch, part);
      panel += taken;
    }
  }
}

// The rows of `splits` parts, which lie `apart` numbers from each other, as output and log-sum-exp.
template <class T, int W> void finish(const Call& c, const Item& item, float* memory, int64_t splits, int64_t apart) {
  const int64_t vectors = c.value_dim / W, rows = LANES / W, all_rows = c.group * c.nodes;  // of a panel; of the head
  const Partial whole(memory, c.value_dim);
  for (int64_t panel = 0; panel < item.panels; ++panel) {
    const int64_t at = panel * LANES, out = at * vectors;
    __m512 top = _mm512_set1_ps(NOTHING), sum = _mm512_setzero_ps();
    for (int64_t s = 0; s < splits; ++s)
      top = _mm512_max_ps(top, _mm512_load_ps(Partial(memory + s * apart, c.value_dim).top + at));
    for (int64_t s = 0; s < splits; ++s) {
      const Partial part(memory + s * apart, c.value_dim);
      const __m512 share = exp2<float>(_mm512_sub_ps(_mm512_load_ps(part.top + at), top));
      sum = _mm512_fmadd_ps(share, _mm512_load_ps(part.sum + at), sum);
      for (int64_t j = 0; j < vectors; ++j) {
        float* own = whole.output + out + j * LANES;
        const __m512 added = _mm512_mul_ps(share, _mm512_load_ps(part.output + out + j * LANES));
        _mm512_store_ps(own, s ? _mm512_add_ps(_mm512_load_ps(own), added) : added);
      }
    }
    alignas(64) float tops[LANES], sums[LANES];
    _mm512_store_ps(tops, top), _mm512_store_ps(sums, sum);
    for (int64_t lane = 0; lane < LANES; lane += W) {
      const int64_t row = (item.first_panel + panel) * rows + lane / W;
      if (row >= all_rows) break;
      const int64_t place = (item.batch * c.kv_heads + item.head) * all_rows + row;  // heads before nodes
      c.lse[place] = sums[lane] == 0 ? -INFINITY : tops[lane] * 0.693147181f + __builtin_logf(sums[lane]);
      const float inverse = sums[lane] == 0 ? 0.f : 1.f / sums[lane], *source = whole.output + out + lane;
      T* target = static_cast<T*>(c.output) + place * c.value_dim;
      for (int64_t j = 0; j < c.value_dim; ++j) target[j] = rounded<T>(source[j / W * LANES + j % W] * inverse);
    }
  }
}

// seen[batch][panel][tree key]: which of the panel's lanes see the key.
void pack_mask(const Call& c, int64_t masks, int64_t panels, int width, uint16_t* seen) {
  const int64_t rows = LANES / width;
  std::fill_n(seen, masks * panels * c.tree_keys, 0);
  for (int64_t b = 0; b < masks; ++b)
    for (int64_t row = 0; row < c.group * c.nodes; ++row) {
      const uint8_t* visible = c.mask + b * c.mask_stride + row % c.nodes * c.tree_keys;
      uint16_t* own = seen + (b * panels + row / rows) * c.tree_keys;
      const uint16_t lanes = ((1 << width) - 1) << row % rows * width;
      for (int64_t key = 0; key < c.tree_keys; ++key) own[key] |= visible[key] ? lanes : 0;
    }
}

template <class T, int W, bool M> void run(const Call& c) {
  const int64_t panels = (c.group * c.nodes * W + LANES - 1) / LANES, chunks = (panels + MOST_PANELS - 1) / MOST_PANELS;
  const int64_t each = (panels + chunks - 1) / chunks, blocks = c.batch * c.kv_heads * chunks;
  const int64_t longest = *std::max_element(c.prefix, c.prefix + c.batch) + c.tree_keys;
  const int64_t fair = blocks % c.threads && blocks < 4 * c.threads ? c.threads : 1;  // items that threads can share
  const int64_t splits = std::max<int64_t>(1, std::min(fair, longest / LEAST_KEYS)), apart = Partial::size(c.value_dim);
  const int64_t masks = c.mask_stride ? c.batch : 1;
  std::unique_ptr<uint16_t[]> seen(new uint16_t[masks * panels * c.tree_keys]);
  pack_mask(c, masks, panels, W, seen.get());
  Floats parts = floats((splits > 1 ? blocks * splits : c.threads) * apart);
  const auto item = [&](int64_t block, int64_t split) {
    const int64_t head = block / chunks, first = block % chunks * each, b = head / c.kv_heads;
    const int64_t keys = c.prefix[b] + c.tree_keys, length = (keys / splits + KEYS<M>) / KEYS<M> * KEYS<M>;
    return Item{b, head % c.kv_heads, first, std::min(each, panels - first), std::min(split * length, keys),
                split + 1 == splits ? keys : std::min((split + 1) * length, keys)};
  };
#pragma omp parallel num_threads(c.threads)
  {
    Scratch scratch(c.dim, c.value_dim);
    [[maybe_unused]] std::conditional_t<M, Tiles, Nothing> tiles;
#pragma omp for schedule(dynamic)
    for (int64_t at = 0; at < blocks * splits; ++at) {
      const Item own = item(at / splits, at % splits);
      float* place = parts.get() + (splits > 1 ? at : omp_get_thread_num()) * apart;
      const uint16_t* mask = seen.get() + (masks > 1 ? own.batch : 0) * panels * c.tree_keys;
      work<T, W, M>(c, own, mask, scratch, Partial(place, c.value_dim));
      if (splits == 1) finish<T, W>(c, own, place, 1, apart);
    }
#pragma omp for schedule(dynamic)
    for (int64_t block = 0; block < (splits > 1 ? blocks : 0); ++block)
      finish<T, W>(c, item(block, 0), parts.get() + block * splits * apart, splits, apart);
  }
}

template <class T> void serve(const Call& c) {
  if (c.group * c.nodes <= FEW && c.value_dim % 32 == 0) return run<T, 4, false>(c);
  if constexpr (sizeof(T) == 2)
    if (c.dim % BLOCK == 0 && c.value_dim % SIDE == 0 && c.scale > 0 && matrix_units()) return run<T, 1, true>(c);
  run<T, 1, false>(c);
}

}  // namespace

extern "C" void onepass_float32(const Call* call) { serve<float>(*call); }
extern "C" void onepass_bfloat16(const Call* call) { serve<bf16>(*call); }
