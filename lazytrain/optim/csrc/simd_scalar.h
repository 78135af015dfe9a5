// Vectors of one element: the meaning of every operation in simd_avx2.h and
// simd_avx512.h. Elementwise IEEE arithmetic makes all of them give the same bits.
//
// Data move in quads of four vectors, made of two pairs. Inside a pair the elements may
// lie in any order that loads and stores agree on; `quad_index` tells which.
#pragma once

#include <cstdint>

namespace {

constexpr int W = 1;
using F = float;
using I = int32_t;
struct Words {
  uint16_t item[2];
};
struct Table {
  float entry[8];
};

inline F splat(float x) { return x; }
inline I as_i(F x) { I y; __builtin_memcpy(&y, &x, 4); return y; }
inline F as_f(I x) { F y; __builtin_memcpy(&y, &x, 4); return y; }
inline I splat_i(int32_t x) { return x; }
inline I shift_down(I x, int n) { return static_cast<I>(static_cast<uint32_t>(x) >> n); }
inline I add_i(I a, I b) {
  return static_cast<I>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline I mul_i(I a, I b) {
  return static_cast<I>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
inline I quad_index(int vector) { return vector; }

inline F load(const float* p) { return *p; }
inline void store(float* p, F x) { *p = x; }
inline void load_pair(const float* p, F& a, F& b) { a = p[0], b = p[1]; }
inline void store_pair(float* p, F a, F b) { p[0] = a, p[1] = b; }
inline Words load_words(const void* p) { Words w; __builtin_memcpy(&w, p, 4); return w; }
inline void store_words(void* p, Words w) { __builtin_memcpy(p, &w, 4); }

// bf16 to fp32.
inline void widen(Words w, F& a, F& b) {
  a = as_f(static_cast<I>(static_cast<uint32_t>(w.item[0]) << 16));
  b = as_f(static_cast<I>(static_cast<uint32_t>(w.item[1]) << 16));
}
// The split master (masters.py): bits = (high << 16) + signed low, and back.
inline F join_one(uint16_t high, uint16_t low) {
  const uint32_t borrow = low >> 15;
  return as_f(static_cast<I>(((high - borrow) << 16) + low));
}
inline void join(Words high, Words low, F& a, F& b) {
  a = join_one(high.item[0], low.item[0]);
  b = join_one(high.item[1], low.item[1]);
}
inline Words pack_high(I a, I b) {
  return {{static_cast<uint16_t>(static_cast<uint32_t>(a) >> 16),
           static_cast<uint16_t>(static_cast<uint32_t>(b) >> 16)}};
}
inline void split(F a, F b, Words& high, Words& low) {
  high = pack_high(add_i(as_i(a), 0x8000), add_i(as_i(b), 0x8000));
  low = {{static_cast<uint16_t>(as_i(a)), static_cast<uint16_t>(as_i(b))}};
}

inline void load_codes(const uint8_t* p, I out[4]) {
  for (int k = 0; k < 4; ++k) out[k] = p[k];
}
// Adds a bias to small numbers and stores them as bytes, clamped to 0..255.
inline void store_codes(uint8_t* p, const I in[4], int bias) {
  for (int k = 0; k < 4; ++k) {
    const I code = in[k] + bias;
    p[k] = static_cast<uint8_t>(code < 0 ? 0 : code > 255 ? 255 : code);
  }
}

inline F to_f(I x) { return static_cast<F>(x); }
inline I truncate(F x) { return static_cast<I>(x); }
inline F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }
inline F root(F x) { return __builtin_sqrtf(x); }
inline F magnitude(F x) { return as_f(as_i(x) & 0x7fffffff); }
inline F max_magnitude(F top, F x) { return max(top, magnitude(x)); }
inline F with_sign_of(F x, F sign) { return as_f(as_i(x) | (as_i(sign) & INT32_MIN)); }
// max(x, floor) where test is above zero, x elsewhere; x is above zero.
inline F raise_where_positive(F x, F test, F floor) {
  return test > 0 ? max(x, floor) : x;
}
inline float largest(F x) { return x; }
inline Table table(const float* entry) {
  Table t;
  for (int i = 0; i < 8; ++i) t.entry[i] = entry[i];
  return t;
}
inline F pick(const Table& t, I index) { return t.entry[index & 7]; }

}  // namespace
