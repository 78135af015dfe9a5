// Vectors of one element: the meaning of every operation in simd_avx2.h and
// simd_avx512.h. Elementwise IEEE arithmetic makes all three give the same bits.
#pragma once

#include <cstdint>

namespace {

constexpr int W = 1;
using F = float;
using I = int32_t;
struct Table {
  float entry[8];
};

inline F splat(float x) { return x; }
inline F load(const float* p) { return *p; }
inline void store(float* p, F x) { *p = x; }
inline I as_i(F x) { I y; __builtin_memcpy(&y, &x, 4); return y; }
inline F as_f(I x) { F y; __builtin_memcpy(&y, &x, 4); return y; }
inline I splat_i(int32_t x) { return x; }
inline I shift_up(I x) { return static_cast<I>(static_cast<uint32_t>(x) << 16); }
inline I shift_down(I x, int n) { return static_cast<I>(static_cast<uint32_t>(x) >> n); }
inline I add_i(I a, I b) {
  return static_cast<I>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
}
inline I sub_i(I a, I b) {
  return static_cast<I>(static_cast<uint32_t>(a) - static_cast<uint32_t>(b));
}
inline I mul_i(I a, I b) {
  return static_cast<I>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
}
inline I lane_index() { return 0; }
inline I load_i16(const int16_t* p) { return *p; }
inline I load_u16(const uint16_t* p) { return *p; }
inline I load_u8(const uint8_t* p) { return *p; }
inline void store_16(void* p, I x) {
  const uint16_t low = static_cast<uint16_t>(x);
  __builtin_memcpy(p, &low, 2);
}
inline void store_8(uint8_t* p, I x) { *p = static_cast<uint8_t>(x); }
inline F to_f(I x) { return static_cast<F>(x); }
inline I truncate(F x) { return static_cast<I>(x); }
inline F fma(F a, F b, F c) { return __builtin_fmaf(a, b, c); }
inline F max(F a, F b) { return a > b ? a : b; }
inline F min(F a, F b) { return a < b ? a : b; }
inline I max_i(I a, I b) { return a > b ? a : b; }
inline F root(F x) { return __builtin_sqrtf(x); }
inline F magnitude(F x) { return as_f(as_i(x) & 0x7fffffff); }
inline F with_sign_of(F x, F sign) {
  return as_f(as_i(x) | (as_i(sign) & INT32_MIN));
}
// x where the sign bit of s is clear, -x elsewhere.
inline I negate_by(I x, F s) { return as_i(s) < 0 ? -x : x; }
inline F positive_or_zero(F test, F value) { return test > 0 ? value : 0.0f; }
inline float largest(F x) { return x; }
inline double total(F x) { return x; }
inline Table table(const float* entry) {
  Table t;
  for (int i = 0; i < 8; ++i) t.entry[i] = entry[i];
  return t;
}
inline F pick(const Table& t, I index) { return t.entry[index & 7]; }

}  // namespace
