// Vectors of sixteen elements.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int W = 16;
using F = __m512;
using I = __m512i;
using Table = __m512;

inline F splat(float x) { return _mm512_set1_ps(x); }
inline F load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, F x) { _mm512_storeu_ps(p, x); }
inline I as_i(F x) { return _mm512_castps_si512(x); }
inline F as_f(I x) { return _mm512_castsi512_ps(x); }
inline I splat_i(int32_t x) { return _mm512_set1_epi32(x); }
inline I shift_up(I x) { return _mm512_slli_epi32(x, 16); }
inline I shift_down(I x, int n) { return _mm512_srli_epi32(x, n); }
inline I add_i(I a, I b) { return _mm512_add_epi32(a, b); }
inline I sub_i(I a, I b) { return _mm512_sub_epi32(a, b); }
inline I mul_i(I a, I b) { return _mm512_mullo_epi32(a, b); }
inline I lane_index() {
  return _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
}
inline I load_i16(const int16_t* p) {
  return _mm512_cvtepi16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline I load_u16(const uint16_t* p) {
  return _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline I load_u8(const uint8_t* p) {
  return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
inline void store_16(void* p, I x) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), _mm512_cvtepi32_epi16(x));
}
inline void store_8(uint8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(x));
}
inline F to_f(I x) { return _mm512_cvtepi32_ps(x); }
inline I truncate(F x) { return _mm512_cvttps_epi32(x); }
inline F fma(F a, F b, F c) { return _mm512_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm512_max_ps(a, b); }
inline F min(F a, F b) { return _mm512_min_ps(a, b); }
inline I max_i(I a, I b) { return _mm512_max_epi32(a, b); }
inline F root(F x) { return _mm512_sqrt_ps(x); }
inline F magnitude(F x) { return _mm512_abs_ps(x); }
inline F with_sign_of(F x, F sign) {
  // x | (sign & sign bit) in one instruction.
  return as_f(_mm512_ternarylogic_epi32(as_i(x), as_i(sign), splat_i(INT32_MIN), 0xf8));
}
inline I negate_by(I x, F s) {
  const __mmask16 negative = _mm512_movepi32_mask(as_i(s));
  return _mm512_mask_sub_epi32(x, negative, _mm512_setzero_si512(), x);
}
inline F positive_or_zero(F test, F value) {
  return _mm512_maskz_mov_ps(
      _mm512_cmp_ps_mask(test, _mm512_setzero_ps(), _CMP_GT_OQ), value);
}
inline float largest(F x) { return _mm512_reduce_max_ps(x); }
inline Table table(const float* entry) {
  return _mm512_broadcast_f32x8(_mm256_loadu_ps(entry));
}
// Sixteen entries hold the eight twice, so the fourth index bit does not matter.
inline F pick(const Table& t, I index) { return _mm512_permutexvar_ps(index, t); }

}  // namespace
