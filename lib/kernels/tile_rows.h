// Products of rows with weights in panels, on the processor's matrix units. These multiply narrow numbers alone, so that
// each row of the input becomes some rows of them:
// - for bfloat16 weights, a bfloat16 row is itself, and a float32 row the sum of three bfloat16 rows (`tiles.h`), whose
//   products are added in one tile. Numbers of 4 or 8 bits in blocks are bfloat16 numbers too; a block's sums are then
//   multiplied with its factors.
// - for int8 weights a row is whole numbers times the row's scale, and these are three digits to the base 256, an int8
//   row each. Sums of their products are exact; a number is rounded to 2^-24 of the row's largest. A product takes as
//   long for one row as for sixteen: the digits of a row are rows of one tile.
// A row's sums are made in the same order for any number of rows; those of blocks, for any above MANY.
#pragma once
#include "few_rows.h"
#include "tiles.h"

namespace {

constexpr int64_t PASS = 2;  // panels of rows that are multiplied with two panels of outputs at a time
constexpr int64_t SOON = 2048;  // bytes of a panel of weights by which they are prefetched

constexpr int64_t BASE = 256;  // of digits
constexpr int64_t MANY = 6;  // rows; blocks times more rows are faster here than in vectors

// How rows of T are multiplied with weights of a kind: BLOCK numbers a step in so many parts, or twice as many in digits.
template <class T, bool BYTE> struct Way {
  static constexpr int64_t DIGITS = BYTE ? 3 : 1, PARTS_EACH = !BYTE && sizeof(T) == 4 ? PARTS : 1;
  static constexpr int64_t STEP = BYTE ? 2 * BLOCK : BLOCK;
};

// Whether products of so many rows of T with a matrix run on the matrix units here.
template <class T> inline bool by_tiles(const Matrix& matrix, int64_t rows) {
  if (!rows || !matrix.panels || matrix.kind == SHORTS || !matrix_units()) return false;
  return !matrix.group || (sizeof(T) == 4 && matrix.group == BLOCK && rows > MANY);
}

// An input x [count, in] as tiles [panel][step][part][height][64 bytes], the digits of a row one below the other.
// factors: the scales of digits [count], or the sums of the steps [count][steps].
struct Packed {
  bool digits = false;
  int64_t count = 0, rows = 0, height = 0, panels = 0, steps = 0, part_size = 0, step_size = 0;
  char* numbers = nullptr;
  float* factors = nullptr;

  Packed() = default;
  template <class W> Packed(W, int64_t count, int64_t in, char* memory)
      : digits(W::DIGITS > 1), count(count), panels((count + SIDE / W::DIGITS - 1) / (SIDE / W::DIGITS)),
        steps((in + W::STEP - 1) / W::STEP), numbers(memory) {
    rows = (count + panels - 1) / panels, height = rows * W::DIGITS;  // of a panel
    part_size = height * LINE, step_size = part_size * W::PARTS_EACH;
    factors = reinterpret_cast<float*>(at(panels, 0));
  }
  char* at(int64_t panel, int64_t step) const { return numbers + (panel * steps + step) * step_size; }
  static int64_t bytes(int64_t count, int64_t in) {
    return (count + SIDE) * (in + 2 * BLOCK) * PARTS * sizeof(bf16) + count * (in / BLOCK + 2) * sizeof(float);
  }
};

// The int8 digits of sixteen whole numbers, the lowest first, to lines of a tile.
inline void write_digits(Words numbers, int64_t digits, char* to) {
  for (int64_t digit = 0; digit < digits; ++digit, to += LINE) {
    _mm_store_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(numbers));
    numbers = _mm512_srai_epi32(_mm512_add_epi32(numbers, all_words(BASE / 2)), 8);
  }
}

// Within a parallel region: x [count, in], packed. All threads go on when it is complete.
template <class T, bool BYTE> inline void pack_rows(const T* x, int64_t in, const Packed& to) {
  using W = Way<T, BYTE>;
  Threads::each(to.count, [&](int64_t row) {
    const T* own = x + row * in;
    if constexpr (BYTE) to.factors[row] = scale_of(own, in, (BASE / 2 - 1) * BASE * BASE);
    const Vec over = all(BYTE && to.factors[row] > 0 ? 1 / to.factors[row] : 0);
    for (int64_t step = 0; step < to.steps; ++step) {
      const int64_t first = step * W::STEP;
      const auto numbers = [&](int64_t k) { return read(own + k, k < in ? first_lanes(in - k) : 0); };
      char* line = to.at(row / to.rows, step) + row % to.rows * W::DIGITS * LINE;
      if constexpr (BYTE) {
        for (int64_t k = 0; k < W::STEP; k += LANES)
          write_digits(_mm512_cvtps_epi32(numbers(first + k) * over), W::DIGITS, line + k);
        continue;
      }
      const Vec left = numbers(first), right = numbers(first + LANES);
      if constexpr (sizeof(T) == 4) {
        to.factors[row * to.steps + step] = sum_of(left + right);
        in_parts(left, right, [&](int part, Words both) { store(line + part * to.part_size, both); });
      } else {
        store(line, (Words)_mm512_cvtne2ps_pbh(right, left));
      }
    }
  });
  Threads::barrier();
}

// x, packed for products with a matrix in `memory` of Packed::bytes bytes.
template <class T> inline Packed packed_for(const Matrix& matrix, const T* x, int64_t count, char* memory) {
  const auto packed = [&]<bool BYTE>(Way<T, BYTE> way) {
    const Packed to(way, count, matrix.in, memory);
    pack_rows<T, BYTE>(x, matrix.in, to);
    return to;
  };
  return matrix.kind == BYTES && !matrix.group ? packed(Way<T, true>()) : packed(Way<T, false>());
}

// So many int8 weights of sixteen outputs, [numbers][16], as the matrix units take int8 numbers.
inline const void* tile_of_bytes(const char* from, int64_t numbers, char* space) {
  for (int64_t k = 0; k < numbers; k += 4) store(space + k * SIDE, turned(read_words(from + k * SIDE)));
  return space;
}

// 32 weights of sixteen outputs as the matrix units take bfloat16 numbers, from a panel of a kind.
inline const void* tile_of(const char* from, int64_t kind, char* space) {
  if (kind == HALVES) return from;
  if (kind == BYTES) {
    for (int64_t row = 0; row < SIDE; ++row, from += 2 * SIDE)
      store(space + row * LINE, joined(from_int8(from), from_int8(from + SIDE)));
    return space;
  }
  alignas(64) static constexpr auto bfloat16 = [] {  // of 0 to 15, twice: the upper bits of an index do not count
    std::array<bf16, 32> own{};
    for (int i = 1; i < 16; ++i) {
      const int power = i < 2 ? 0 : i < 4 ? 1 : i < 8 ? 2 : 3;
      own[i] = own[16 + i] = (127 + power) << 7 | (i << (7 - power) & 127);
    }
    return own;
  }();
  const Words numbers = load_words(bfloat16.data());
  for (int64_t word = 0; word < BLOCK / 8; ++word, from += LINE, space += 4 * LINE) {
    const Words own = read_words(from);
    store(space, _mm512_permutexvar_epi16(own, numbers));
    store(space + LINE, _mm512_permutexvar_epi16(_mm512_srli_epi32(own, 4), numbers));
    store(space + 2 * LINE, _mm512_permutexvar_epi16(_mm512_srli_epi32(own, 8), numbers));
    store(space + 3 * LINE, _mm512_permutexvar_epi16(_mm512_srli_epi32(own, 12), numbers));
  }
  return space - SIDE * LINE;
}

// Two panels of sixteen outputs each, of `bytes` bytes, from output `first` on.
struct Pair {
  const Matrix& matrix;
  int64_t first, bytes;

  const char* weights(int which, int64_t offset) const {
    return static_cast<const char*>(matrix.panels) + (first / SIDE + which) * bytes + offset;
  }
  Vec factors(const void* all, int which, int64_t steps, int64_t step) const {
    const int64_t place = ((first / SIDE + which) * steps + step) * SIDE;
    if (matrix.short_factors) return read_factors(static_cast<const half*>(all) + place);
    return read_factors(static_cast<const float*>(all) + place);
  }
  // Later weights of both panels, which those of another pair follow.
  void prefetch_after(int64_t offset, int64_t size) const {
    const char* soon = weights(0, offset + SOON + (offset + SOON < bytes ? 0 : bytes));
    for (int64_t line = 0; line < size; line += LINE) {
      prefetch<2>(soon + line);
      prefetch<2>(soon + bytes + line);
    }
  }
};

// The sums of A x 2 tiles, to [A height][32].
template <int A> inline void store_sums(float* to, int64_t height) {
  float *beside = to + LANES, *below = to + height * 2 * LANES, *last = below + LANES;
  _tile_stored(0, to, 2 * LINE);
  _tile_stored(1, beside, 2 * LINE);
  if constexpr (A > 1) {
    _tile_stored(2, below, 2 * LINE);
    _tile_stored(3, last, 2 * LINE);
  }
}

// Adds a block's sums [rows][32], of rows from `row` on, times its factors.
inline void add_block(const Packed& x, int64_t row, int64_t rows, int64_t step, const Pair& pair, const float* block,
                      float* sums) {
  for (int which = 0; which < 2; ++which) {
    const Vec scale = pair.factors(pair.matrix.block_scale, which, x.steps, step);
    const Vec offset = pair.matrix.block_offset ? pair.factors(pair.matrix.block_offset, which, x.steps, step) : zero();
    for (int64_t i = 0; i < std::min(rows, x.count - row); ++i) {
      const int64_t at = i * 2 * LANES + which * LANES;
      const Vec sum = fma(all(x.factors[(row + i) * x.steps + step]), offset, load(sums + at));
      store(sums + at, fma(load(block + at), scale, sum));
    }
  }
}

// sums [A height][32] = the products of A panels of rows, from `panel` on, with a pair of panels of outputs.
template <class T, bool BYTE, int A> void sum_tiles(const Packed& x, int64_t panel, const Pair& pair, float* sums) {
  alignas(64) char space[2][SIDE * LINE];
  alignas(64) float block[A * SIDE][2 * LANES];
  const int64_t kind = pair.matrix.kind, size = BYTE ? SIDE * LINE : pair.bytes / x.steps;
  const bool blocks = pair.matrix.group;
  const auto tile = [&](int which, int64_t step) {
    const char* from = pair.weights(which, step * size);
    if constexpr (BYTE) return tile_of_bytes(from, std::min(2 * BLOCK, (pair.bytes - step * size) / SIDE), space[which]);
    else return tile_of(from, kind, space[which]);
  };
  if (blocks) std::fill_n(sums, A * x.height * 2 * LANES, 0.f);
  clear_sums<A, 2>();
  for (int64_t step = 0; step < x.steps; ++step) {
    if (!panel) pair.prefetch_after(step * size, size);
    const void* right = tile(0, step);
    _tile_loadd(6, right, LINE);
    right = tile(1, step);
    _tile_loadd(7, right, LINE);
    const char *left = x.at(panel, step), *below = x.at(panel + A - 1, step);
#pragma GCC unroll 3
    for (int part = 0; part < Way<T, BYTE>::PARTS_EACH; ++part, left += x.part_size, below += x.part_size) {
      _tile_loadd(4, left, LINE);
      if constexpr (A > 1) _tile_loadd(5, below, LINE);
      add_products<A, 2, BYTE>();
    }
    if (blocks) {
      store_sums<A>(block[0], x.height);
      clear_sums<A, 2>();
      add_block(x, panel * x.height, A * x.height, step, pair, block[0], sums);
    }
  }
  if (!blocks) store_sums<A>(sums, x.height);
}

// The products of a row: the sums, or those of its digits, 32 numbers apart.
template <bool BYTE> inline Vec whole_of(const float* sums, const Packed& x, int64_t row) {
  if constexpr (!BYTE) return load(sums);
  const auto digit = [&](int i) { return _mm512_cvtepi32_ps(load_words(sums + i * 2 * LANES)); };
  return fma(fma(digit(2), all(BASE), digit(1)), all(BASE), digit(0)) * all(x.factors[row]);
}

// As `each_packed`, for rows in digits or in others.
template <class T, bool BYTE, int N, class F>
inline void each_tile(const Matrix* const (&matrices)[N], const Packed& x, F visit) {
  const int64_t out = matrices[0]->out, kind = matrices[0]->kind, whole = (matrices[0]->in + BLOCK - 1) / BLOCK * BLOCK;
  const int64_t bytes = whole * SIDE * (kind == HALVES ? 4 : kind == BYTES ? 2 : 1) / 2;
  const Tiles tiles(x.height);
  Threads::each((out + 2 * SIDE - 1) / (2 * SIDE), [&](int64_t pair) {
    const int64_t first = pair * 2 * SIDE;
    for (int64_t panel = 0; panel < x.panels; panel += PASS) {
      alignas(64) float sums[N][PASS * SIDE][2 * LANES];
      const int64_t row = panel * x.rows, rows = std::min(PASS * x.rows, x.count - row);
      const auto run = x.panels - panel < PASS ? sum_tiles<T, BYTE, 1> : sum_tiles<T, BYTE, PASS>;
      for (int n = 0; n < N; ++n) run(x, panel, Pair{*matrices[n], first, bytes}, sums[n][0]);
      for (int64_t at = first; at < std::min(out, first + 2 * SIDE); at += SIDE) {
        const Mask mask = first_lanes(out - at);
        for (int64_t i = 0; i < rows; ++i) {
          Vec values[N];
          for (int n = 0; n < N; ++n)
            values[n] = biased<T>(*matrices[n], at, mask,
                                  whole_of<BYTE>(sums[n][i * Way<T, BYTE>::DIGITS] + at - first, x, row + i));
          visit(row + i, at, mask, values);
        }
      }
    }
  });
}

// As `each_of_few`, for matrices of one kind whose products with T run on the matrix units, and rows packed for them.
template <class T, int N, class F>
inline void each_packed(const Matrix* const (&matrices)[N], const Packed& x, F visit) {
  if (x.digits) each_tile<T, true>(matrices, x, visit);
  else each_tile<T, false>(matrices, x, visit);
}

}  // namespace
