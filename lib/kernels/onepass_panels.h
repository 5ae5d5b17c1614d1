// The computation of onepass.cpp on one tile of keys for up to three vectors of query rows: scores, weights, values.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <memory>
#include <new>

#include "onepass_rows.h"

namespace {

constexpr float LEAST = 1.2e-38f;  // in place of a scale of zero: all scores become zero, masked ones stay infinite
constexpr float LARGE = 1e12f;     // sum of a tile's weights: far from the end of float32's range
using Floats = std::unique_ptr<float, decltype(&std::free)>;

inline Floats floats(int64_t count) {
  float* memory = static_cast<float*>(std::aligned_alloc(64, (count * 4 + 63) / 64 * 64));
  if (!memory) throw std::bad_alloc();
  return {memory, &std::free};
}

// A thread's buffers: scores of two panels by a block of keys; weights of three panels by a tile (of two in parts);
// values in pairs or turned; keys and values that fill no block, or in parts; packed queries.
template <class T, bool M> struct Scratch {
  static constexpr int64_t P = M ? PARTS_OF<T> : 1;
  Floats scores = floats(2 * BLOCK * LANES), weights = floats(3 * KEYS * LANES), turned, keys, values, queries;
  Scratch(int64_t dim, int64_t value_dim)
      : turned(floats(P * KEYS / 2 * value_dim)),
        keys(floats(P > 1 ? P * KEYS / 2 * dim : BLOCK * dim)),
        values(floats(P > 1 ? P * BLOCK / 2 * whole_blocks(value_dim) : BLOCK * value_dim)),
        queries(floats(MOST_PANELS * P * dim * LANES)) {}
};

// A tile of keys and values: its first key, as they are stored; keys in parts; the values as units or turned.
template <class T, int64_t B> struct Tile {
  int64_t first;
  Rows<T, B> keys, values;
  Left parts;
  const uint32_t* units;
};

// One tile for R panels, the first of them `panel` of the item; M: on the matrix units.
template <class T, int W, int R, bool M> struct Panels {
  static constexpr int64_t B = M ? BLOCK : FEW_KEYS;
  const Call& c;
  const Item& item;
  const int64_t panel;
  const Tile<T, B>& tile;
  const uint16_t* seen;
  Scratch<T, M>& scratch;
  const Partial& part;
  Ahead& ahead;
  const int64_t steps = c.dim / (M ? 2 : PER_UNIT<T> * W), apart = c.value_dim / W * LANES;  // of a panel's outputs
  const int64_t prefix = c.prefix[item.batch], count = tile.keys.count;
  const float* const queries = scratch.queries.get() + panel * steps * LANES;
  float *const output = part.output + panel * apart, *const weights = scratch.weights.get();

  void attend() {
    Weighing<T, R> own{all(c.scale ? c.scale * LOG2_E : LEAST), {}, {}};  // to base 2
    bool fresh = false;
    for (int r = 0; r < R; ++r) {
      own.top[r] = load(part.top + (panel + r) * LANES);
      fresh |= equal(own.top[r], all(NOTHING)) != 0;
    }
    if (fresh) raise(own, 1);
    weigh(own);
    if (too_large(own)) raise(own, count), weigh(own);
    for (int r = 0; r < R; ++r) {
      float* sum = part.sum + (panel + r) * LANES;
      store(sum, load(sum) + own.total[r]);
      store(part.top + (panel + r) * LANES, own.top[r]);
    }
    add_values();
  }

 private:
  // done(n, score(a, r)) for each FEW_KEYS of the keys before `end`, and perhaps some more.
  template <class Done> inline void score(int64_t end, Done done) {
    if constexpr (M) {
      float* scores = scratch.scores.get();
      for (int64_t n = 0; n < end; n += BLOCK) {
        score_by_tiles<T, R>(keys(n), c.dim, queries, item.panels * steps * LANES, scores);
        if (capped())
          for (int64_t i = 0; i < BLOCK * R; ++i) store(scores + i * LANES, cap(load(scores + i * LANES)));
        if (n + BLOCK > plain())
          for (int64_t i = 0; i < BLOCK * R; ++i)
            store(scores + i * LANES, shown(n + i % BLOCK, i / BLOCK, load(scores + i * LANES)));
        for (int64_t a = 0; a < BLOCK; a += FEW_KEYS)
          done(n + a, [&](int i, int r) { return load(scores + (r * BLOCK + a + i) * LANES); });
      }
    } else {
      for (int64_t n = 0; n < end; n += FEW_KEYS) {
        const uint32_t* keys = reinterpret_cast<const uint32_t*>(tile.keys.from(n));
        const auto found = [&](Vec(&sum)[FEW_KEYS][R]) {
#pragma GCC unroll 24
          for (int i = 0; i < FEW_KEYS * R; ++i) sum[i / R][i % R] = row_sum<W>(sum[i / R][i % R]);
          if (capped())
            for (int i = 0; i < FEW_KEYS * R; ++i) sum[i / R][i % R] = cap(sum[i / R][i % R]);
          if (n + FEW_KEYS > plain())
#pragma GCC unroll 24
            for (int i = 0; i < FEW_KEYS * R; ++i) sum[i / R][i % R] = shown(n + i / R, i % R, sum[i / R][i % R]);
          done(n, [&](int a, int r) { return sum[a][r]; });
        };
        product<T, W, FEW_KEYS, R>(keys, tile.keys.apart(n) / PER_UNIT<T>, W, steps, queries, steps * LANES, ahead,
                                   found);
      }
    }
  }

  Left keys(int64_t n) const {
    if constexpr (sizeof(T) == 4) return {tile.parts.at + n * tile.parts.apart, tile.parts.apart, tile.parts.part};
    else return {tile.keys.from(n), tile.keys.apart(n), 0};
  }

  bool capped() const { return c.softcap && c.scale; }

  // A score, not scaled yet, of which softcap * tanh(score * scale / softcap) is left when it is.
  // tanh x = 1 - 2 / (1 + e^2x).
  Vec cap(Vec score) const {
    const Vec power_of_e = power<float>(all(2 * LOG2_E * c.scale / c.softcap) * score);
    return all(c.softcap / c.scale) * (all(1) - all(2) / (all(1) + power_of_e));
  }

  // The number of keys, from the tile's first on, that all rows see.
  int64_t plain() const { return std::min(prefix - tile.first, count); }

  // A score of key n, in lanes that see the key.
  Vec shown(int64_t n, int r, Vec score) const {
    const int64_t node = tile.first + n - prefix;
    const uint16_t* own = seen + (item.first_panel + panel + r) * c.tree_keys;
    const Mask visible = n >= count ? 0 : node < 0 ? ALL : own[node];
    return select(visible, score, all(c.scale < 0 ? INFINITY : -INFINITY));
  }

  // Raises the tops to the scores of the keys before `end`, and rescales the sums that are relative to the old tops.
  void raise(Weighing<T, R>& own, int64_t end) {
    Vec most[R];
    std::copy_n(own.top, R, most);
    score(end, [&](int64_t, auto score) {
#pragma GCC unroll 24
      for (int i = 0; i < FEW_KEYS * R; ++i)
        most[i % R] = max(own.factor * score(i / R, i % R), most[i % R]);
    });
    for (int r = 0; r < R; ++r) {
      const Vec shrink = power<float>(own.top[r] - most[r]);
      const auto scale = [&](float* at) { store(at, shrink * load(at)); };
      own.top[r] = most[r];
      scale(part.sum + (panel + r) * LANES);
      for (int64_t j = 0; j < apart; j += LANES) scale(output + r * apart + j);
    }
  }

  void weigh(Weighing<T, R>& own) {
    std::fill_n(own.total, R, zero());
    score(count, [&](int64_t n, auto score) {
      if constexpr (M) ahead();
      own.weigh(score, [&](int a, int r, Vec even, Vec odd) {
        float* at = weights + r * WEIGHTS<bf16> + (n + a) / 2 * LANES;
        if constexpr (sizeof(T) == 2) {
          store(at, in_pairs(even, odd));
        } else if constexpr (M) {
          in_parts(even, odd, [&](int part, Words both) {
            store(at + part * R * WEIGHTS<bf16>, interleaved(both));
          });
        } else {
          at = weights + r * WEIGHTS<float> + (n + a) * LANES;
          store(at, even), store(at + LANES, odd);
        }
      });
    });
  }

  static bool too_large(const Weighing<T, R>& own) {
    bool any = false;
    for (const Vec total : own.total) any |= at_most(total, all(LARGE)) != ALL;
    return any;
  }

  void add_values() {
    if constexpr (M) {
      const auto add = [&](auto run, int64_t j) {
        const bf16* turned = reinterpret_cast<const bf16*>(tile.units) + j * KEYS;
        run(turned, KEYS * c.value_dim, count, weights, output + j * LANES, apart);
        ahead();
      };
      int64_t j = 0;
      for (; j + 2 * SIDE <= c.value_dim; j += 2 * SIDE) add(add_by_tiles<T, 2, R>, j);
      if (j < c.value_dim) add(add_by_tiles<T, 1, R>, j);
    } else {
      int64_t j = 0;
      for (; j + FEW_KEYS <= c.value_dim / W; j += FEW_KEYS) add_by_vectors<FEW_KEYS>(j);
      if (j < c.value_dim / W) add_by_vectors<4>(j);
    }
  }

  // A vectors of values from the one at j on.
  template <int A> void add_by_vectors(int64_t j) {
    const int64_t units = (count + PER_UNIT<T> - 1) / PER_UNIT<T>;
    const int64_t step = sizeof(T) == 2 ? c.value_dim : tile.values.stride;
    product<T, W, A, R>(tile.units + j * W, W, step, units, weights, WEIGHTS<T>, ahead, [&](Vec(&sum)[A][R]) {
#pragma GCC unroll 24
      for (int i = 0; i < A * R; ++i) {  // earlier sums are added last: blocked sums round less
        float* place = output + i % R * apart + (j + i / R) * LANES;
        store(place, load(place) + sum[i / R][i % R]);
      }
    });
  }
};

}  // namespace
