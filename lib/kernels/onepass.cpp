// Tree attention in one pass over keys and values (onepass.py compiles and calls it).
//
// All data is transposed: a vector's lanes are query rows (of the G * m that share a key head), or, where there are
// few, a quarter as many; keys and values are read in their own layout and broadcast, 1 or 4 numbers at a time (W).
// Matrix units for bfloat16 (onepass_amx.h), where the processor has some, compute both products for blocks that fill
// them (M), with float32 numbers in three parts. A work item is (batch row, key head, at most 256 query rows, a range
// of keys). It walks its keys in tiles: scores from the resident queries, softmax in base 2, product with the values
// (FlashAttention-2, Dao 2023, Alg. 1). Unlike there, a tile's maximum is not computed: weights may be relative to any
// number (`top`) that keeps them in float32's range. It starts as the maximum of the first few keys, and is raised when
// a tile's weights exceed LARGE. Items that share rows but not keys are merged by their tops and sums (Flash-Decoding).
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <type_traits>

#include "onepass_panels.h"
#include "threads.h"

namespace {

constexpr int64_t LEAST_KEYS = 256;  // that are worth a split
// Rows up to which W = 4 is faster. A vector of four numbers then holds a single row, whose exponentials it repeats.
constexpr int64_t FEW = LANES > 4 ? 12 : 3;
template <class T> constexpr int64_t TILED = sizeof(T) == 4 ? 97 : 1;  // rows from which the matrix units are faster

// The number of panels computed together: two on the matrix units, three in vectors.
template <bool M> int64_t together(int64_t left) { return std::min<int64_t>(left, M || left == 4 ? 2 : 3); }

// The least number of prefetching calls of a tile of `count` keys.
template <class T, int W, bool M> int64_t calls(const Call& c, const Item& item, int64_t count) {
  int64_t groups = 0;
  for (int64_t left = item.panels; left; left -= together<M>(left)) ++groups;
  const auto whole = [](int64_t steps, int64_t each) { return (steps + each - 1) / each; };
  const int64_t turning = whole(count, BLOCK) * (sizeof(T) == 4 ? 2 * BLOCK : 1);
  if (M) return groups * (whole(count, FEW_KEYS) + c.value_dim / BLOCK) + turning;
  return groups * (whole(count, FEW_KEYS) * whole(c.dim / PER_UNIT<T> / W, STRETCH) +
                   c.value_dim / W / FEW_KEYS * whole(whole(count, PER_UNIT<T>), STRETCH));
}

// Prefetches the keys and values KEYS keys after these `count`, of this item or at the start of the next; an item of
// one tile prefetches all of the next.
template <class T>
std::array<Region, 4> coming(const Call& c, const Item& item, const Item& next, int64_t first, int64_t count) {
  const int64_t from = first + KEYS, to = from + count, own = std::clamp(item.end_key, from, to);
  const auto rows = [&](const void* x, const int64_t* stride, int64_t dim, const Item& of, int64_t start, int64_t end) {
    const T* at = static_cast<const T*>(x) + of.batch * stride[0] + of.head * stride[1] + start * stride[2];
    constexpr int64_t size = sizeof(T);
    return Region{reinterpret_cast<const char*>(at), dim * size, stride[2] * size, end - start};
  };
  const auto keys_and_values = [&](const Item& of, int64_t start, int64_t end) {
    return std::array{rows(c.key, c.key_stride, c.dim, of, start, end),
                      rows(c.value, c.value_stride, c.value_dim, of, start, end)};
  };
  const int64_t past = next.first_key - item.end_key;  // from this item's stream of keys to the next item's
  const int64_t start = first == item.first_key ? item.end_key : std::max(from, item.end_key);
  const auto mine = keys_and_values(item, from, own);
  const auto others = keys_and_values(next, start + past, std::min(to + past, next.end_key));
  return {mine[0], mine[1], others[0], others[1]};
}

// The tile of an item's keys and values [count] from `first` on, as both products take it.
template <class T, bool M, int64_t B>
Tile<T, B> prepare(const Call& c, int64_t first, int64_t count, const T* key, const T* value, Scratch<T, M>& scratch,
                   Ahead& ahead) {
  uint32_t* units = reinterpret_cast<uint32_t*>(scratch.turned.get());
  bf16* turned = reinterpret_cast<bf16*>(units);
  if constexpr (M && sizeof(T) == 4) {
    const Rows<T, B> keys{key, nullptr, c.key_stride[2], count, c.dim};
    const Rows<T, B> values{value, nullptr, c.value_stride[2], count, c.value_dim};
    bf16 *parts = reinterpret_cast<bf16*>(scratch.keys.get()), *block = reinterpret_cast<bf16*>(scratch.values.get());
    const int64_t part = KEYS * c.dim, width = whole_blocks(c.value_dim);
    for (int64_t n = 0; n < count; n += BLOCK) {
      block_in_parts(key + n * keys.stride, keys.stride, count - n, c.dim, parts + n * c.dim, part, ahead);
      block_in_parts(value + n * values.stride, values.stride, count - n, c.value_dim, block, BLOCK * width, ahead);
      for (int p = 0; p < PARTS; ++p)
        turn_block(block + p * BLOCK * width, width, c.value_dim, turned + p * KEYS * c.value_dim + n * SIDE);
    }
    return {first, keys, values, {parts, c.dim, part}, units};
  } else {
    const auto keys = rows<B>(key, c.key_stride[2], count, c.dim, reinterpret_cast<T*>(scratch.keys.get()));
    if constexpr (sizeof(T) == 4)
      return {first, keys, {value, nullptr, c.value_stride[2], count, c.value_dim}, {},
              reinterpret_cast<const uint32_t*>(value)};
    else {
      T* rest = reinterpret_cast<T*>(scratch.values.get());
      const auto values = rows<B>(value, c.value_stride[2], count, c.value_dim, rest);
      if constexpr (!M) pair_values(values, units);
      else
        for (int64_t n = 0; n < count; n += BLOCK, ahead())
          turn_block(values.from(n), values.apart(n), c.value_dim, turned + n * SIDE);
      return {first, keys, values, {}, units};
    }
  }
}

template <class T, int W, bool M>
void work(const Call& c, const Item& item, const Item& next, const uint16_t* seen, Scratch<T, M>& scratch,
          Partial part) {
  constexpr int64_t B = M ? BLOCK : FEW_KEYS;
  pack_queries<T, W, M>(c, item, scratch.queries.get());
  std::fill_n(part.output, item.panels * LANES * c.value_dim / W, 0.f);
  std::fill_n(part.top, item.panels * LANES, NOTHING);
  std::fill_n(part.sum, item.panels * LANES, 0.f);
  const T* keys = static_cast<const T*>(c.key) + item.batch * c.key_stride[0] + item.head * c.key_stride[1];
  const T* values = static_cast<const T*>(c.value) + item.batch * c.value_stride[0] + item.head * c.value_stride[1];
  for (int64_t first = item.first_key; first < item.end_key; first += KEYS) {
    const int64_t count = std::min(KEYS, item.end_key - first);
    const T *key = keys + first * c.key_stride[2], *value = values + first * c.value_stride[2];
    Ahead ahead(coming<T>(c, item, next, first, count), calls<T, W, M>(c, item, count));
    const Tile<T, B> tile = prepare<T, M, B>(c, first, count, key, value, scratch, ahead);
    for (int64_t panel = 0, taken; panel < item.panels; panel += taken) {
      taken = together<M>(item.panels - panel);
      if (taken == 1) Panels<T, W, 1, M>{c, item, panel, tile, seen, scratch, part, ahead}.attend();
      if (taken == 2) Panels<T, W, 2, M>{c, item, panel, tile, seen, scratch, part, ahead}.attend();
      if constexpr (!M)
        if (taken == 3) Panels<T, W, 3, M>{c, item, panel, tile, seen, scratch, part, ahead}.attend();
    }
  }
}

template <class T, int W, bool M> void run(const Call& c) {
  const int64_t panels = (c.group * c.nodes * W + LANES - 1) / LANES, chunks = (panels + MOST_PANELS - 1) / MOST_PANELS;
  const int64_t each = (panels + chunks - 1) / chunks, blocks = c.batch * c.kv_heads * chunks;
  const int64_t longest = *std::max_element(c.prefix, c.prefix + c.batch) + c.tree_keys;
  // As many items as threads can share evenly, or four per thread.
  const int64_t fair = std::min(c.threads / std::gcd(blocks, c.threads), (4 * c.threads + blocks - 1) / blocks);
  const int64_t splits = std::max<int64_t>(1, std::min(fair, longest / LEAST_KEYS));
  const int64_t apart = Partial::size(each, c.value_dim);
  const int64_t masks = c.mask_stride ? c.batch : 1;
  std::unique_ptr<uint16_t[]> seen(new uint16_t[masks * panels * c.tree_keys]);
  pack_mask(c, masks, panels, W, seen.get());
  Floats parts = floats((splits > 1 ? blocks * splits : c.threads) * apart);
  const auto item = [&](int64_t block, int64_t split) {
    const int64_t head = block / chunks, first = block % chunks * each, b = head / c.kv_heads;
    const int64_t keys = c.prefix[b] + c.tree_keys, length = (keys + splits * KEYS - 1) / (splits * KEYS) * KEYS;
    return Item{b, head % c.kv_heads, first, std::min(each, panels - first), std::min(split * length, keys),
                split + 1 == splits ? keys : std::min((split + 1) * length, keys)};
  };
  std::atomic<int64_t> items{0}, merged{0};
  Threads::run(c.threads, [&] {
    const Flush flush;
    Scratch<T, M> scratch(c.dim, c.value_dim);
    [[maybe_unused]] std::conditional_t<M, Tiles, std::false_type> tiles;
    for (int64_t at; (at = items++) < blocks * splits;) {
      const Item own = item(at / splits, at % splits);
      const int64_t after = std::min(at + c.threads, blocks * splits - 1);  // most likely this thread's next
      Item next = item(after / splits, after % splits);
      if (after < at + c.threads) next.end_key = next.first_key;  // none is left
      float* place = parts.get() + (splits > 1 ? at : Threads::index()) * apart;
      const uint16_t* mask = seen.get() + (masks > 1 ? own.batch : 0) * panels * c.tree_keys;
      work<T, W, M>(c, own, next, mask, scratch, Partial(place, own.panels, c.value_dim));
      if (splits == 1) finish<T, W>(c, own, place, 1, apart);
    }
    if (splits == 1) return;
    Threads::barrier();
    for (int64_t block; (block = merged++) < blocks;)
      finish<T, W>(c, item(block, 0), parts.get() + block * splits * apart, splits, apart);
  });
}

template <class T> void serve(const Call& c) {
  if (c.group * c.nodes <= FEW && c.value_dim % 16 == 0) return run<T, 4, false>(c);  // four vectors of 4 numbers
  const bool whole = c.dim % BLOCK == 0 && c.value_dim % SIDE == 0;
  if constexpr (MATRIX)
    if (c.group * c.nodes >= TILED<T> && whole && matrix_units()) return run<T, 1, true>(c);
  run<T, 1, false>(c);
}

// Returns zero where there was no memory for the call.
template <class T> int served(const Call& c) try {
  serve<T>(c);
  return 1;
} catch (const std::bad_alloc&) {
  return 0;
}

}  // namespace

extern "C" int onepass_float32(const Call* call) { return served<float>(*call); }
extern "C" int onepass_bfloat16(const Call* call) { return served<bf16>(*call); }
