// Query rows of onepass.cpp as vectors, and the results of vectors as rows.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>

#include "onepass_call.h"
#include "onepass_tiles.h"
#if defined(__AVX512BF16__)
#include "onepass_amx.h"
#else
#include "no_tiles.h"
#endif

namespace {

constexpr int64_t MOST_PANELS = 16;  // vectors of rows of an item
constexpr float NOTHING = -1e30f;  // top without scores: finite, so that differences are not NaN
constexpr float LN2 = 0.693147181f, LOG2_E = 1.44269504f;

// A unit of work: panels of a head's query rows by a range of keys.
struct Item { int64_t batch, head, first_panel, panels, first_key, end_key; };

// The rows of one item: their unnormalised output [panels][value_dim][16], tops and sums [panels][16].
struct Partial {
  float *output, *top, *sum;
  static int64_t size(int64_t panels, int64_t value_dim) { return panels * LANES * (value_dim + 2); }
  Partial(float* memory, int64_t panels, int64_t value_dim)
      : output(memory), top(memory + panels * LANES * value_dim), sum(top + panels * LANES) {}
};

// queries[panel][step][lane] from rows first_panel * 16 / W ...; lanes past the last row are zero. For the matrix units
// float32 becomes [part][panel][pair][lane].
template <class T, int W, bool M> void pack_queries(const Call& c, const Item& item, float* packed) {
  const int64_t units = c.dim / PER_UNIT<T>, rows = c.group * c.nodes, first = item.first_panel * LANES / W;
  const auto source = [&](int64_t row) {
    return static_cast<const T*>(c.query) + item.batch * c.query_stride[0] +
           (item.head * c.group + row / c.nodes) * c.query_stride[1] + row % c.nodes * c.query_stride[2];
  };
  if constexpr (W > 1) {
    std::fill_n(packed, item.panels * units * LANES, 0.f);
    for (int64_t own = 0; own < item.panels * LANES / W && first + own < rows; ++own) {
      float* column = packed + own * W / LANES * units / W * LANES + own * W % LANES;
      const T* from = source(first + own);
      for (int64_t u = 0; u < units; u += W) std::memcpy(column + u / W * LANES, from + u * PER_UNIT<T>, W * 4);
    }
  } else if constexpr (M && sizeof(T) == 4) {
    const int64_t part = item.panels * c.dim / 2 * LANES;
    for (int64_t panel = 0; panel < item.panels; ++panel)
      for (int64_t j = 0; j < c.dim; j += BLOCK) {
        Words columns[PARTS][LANES];
        for (int64_t i = 0; i < LANES; ++i) {
          const int64_t row = std::min(first + panel * LANES + i, rows - 1);
          const Mask mask = first + panel * LANES + i < rows ? ALL : 0;
          in_parts(read(source(row) + j, mask), read(source(row) + j + SIDE, mask),
                   [&](int p, Words numbers) { columns[p][i] = numbers; });
        }
        for (int p = 0; p < PARTS; ++p) {
          turn(columns[p]);
          std::memcpy(packed + p * part + (panel * c.dim + j) / 2 * LANES, columns[p], sizeof columns[p]);
        }
      }
  } else {
    for (int64_t panel = 0; panel < item.panels; ++panel)
      by_lanes(units, [&](int64_t u, Mask mask) {
        Words column[LANES] = {};
        for (int64_t i = 0; i < std::min(LANES, rows - first - panel * LANES); ++i)
          column[i] = read_words(source(first + panel * LANES + i) + u * PER_UNIT<T>, mask);
        turn(column);
        for (int64_t i = 0; i < std::min(LANES, units - u); ++i)
          store(packed + (panel * units + u + i) * LANES, column[i]);
      });
  }
}

// The rows of `splits` parts, which lie `apart` numbers from each other, as output and log-sum-exp.
template <class T, int W> void finish(const Call& c, const Item& item, float* memory, int64_t splits, int64_t apart) {
  const int64_t vectors = c.value_dim / W, rows = LANES / W, all_rows = c.group * c.nodes;  // of a panel; of the head
  const Partial whole(memory, item.panels, c.value_dim);
  for (int64_t panel = 0; panel < item.panels; ++panel) {
    const int64_t at = panel * LANES, out = at * vectors;
    Vec top = all(NOTHING), sum = zero();
    for (int64_t s = 0; s < splits; ++s)
      top = max(top, load(Partial(memory + s * apart, item.panels, c.value_dim).top + at));
    for (int64_t s = 0; s < splits; ++s) {
      const Partial part(memory + s * apart, item.panels, c.value_dim);
      const Vec share = power<float>(load(part.top + at) - top);
      sum = fma(share, load(part.sum + at), sum);
      for (int64_t j = 0; j < (splits > 1 ? vectors : 0); ++j) {
        float* own = whole.output + out + j * LANES;
        const Vec added = share * load(part.output + out + j * LANES);
        store(own, s ? load(own) + added : added);
      }
    }
    const int64_t first = (item.first_panel + panel) * rows, count = std::min(rows, all_rows - first);
    const int64_t place = (item.batch * c.kv_heads + item.head) * all_rows + first;  // heads before nodes
    alignas(64) float tops[LANES], sums[LANES], inverses[LANES];
    const Vec inverse = select(equal(sum, zero()), zero(), all(1) / sum);
    store(tops, top), store(sums, sum), store(inverses, inverse);
    for (int64_t row = 0; row < count; ++row)
      c.lse[place + row] = sums[row * W] == 0 ? -INFINITY : tops[row * W] * LN2 + __builtin_logf(sums[row * W]);
    T* target = static_cast<T*>(c.output) + place * c.value_dim;
    const float* source = whole.output + out;
    if constexpr (W == 1)
      by_lanes(c.value_dim, [&](int64_t j, Mask mask) {
        Words column[LANES] = {};
        for (int64_t i = 0; i < std::min(LANES, c.value_dim - j); ++i)
          column[i] = words(inverse * load(source + (j + i) * LANES));
        turn(column);
        for (int64_t row = 0; row < count; ++row) write(target + row * c.value_dim + j, mask, floats(column[row]));
      });
    else
      for (int64_t row = 0; row < count; ++row)
        for (int64_t j = 0; j < vectors; ++j) {
          const Mask mask = first_lanes(W);
          write(target + row * c.value_dim + j * W, mask,
                all(inverses[row * W]) * read(source + j * LANES + row * W, mask));
        }
  }
}

// seen[batch][panel][tree key]: the lanes of the panel that see the key.
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

}  // namespace
