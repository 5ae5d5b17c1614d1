// What code on rounded rows names, for instruction sets without products of bytes: nothing here is ever called.
#pragma once
#include "few_rows.h"

namespace {

constexpr bool BY_BYTES = false;
template <class T> struct Rounded { int64_t count = 0; };
inline int64_t rounded_bytes(int64_t, int64_t) { return 0; }
template <class T> Rounded<T> rounded_for(const Matrix&, const T*, int64_t, char*) { return {}; }
template <class M, class T, class F> void each_rounded(const M&, const Rounded<T>&, F) {}

}  // namespace
