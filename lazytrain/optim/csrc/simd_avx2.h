// Vectors of eight elements.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int W = 8;
using F = __m256;
using I = __m256i;
using Table = __m256;

inline F splat(float x) { return _mm256_set1_ps(x); }
inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline I as_i(F x) { return _mm256_castps_si256(x); }
inline F as_f(I x) { return _mm256_castsi256_ps(x); }
inline I splat_i(int32_t x) { return _mm256_set1_epi32(x); }
inline I shift_up(I x) { return _mm256_slli_epi32(x, 16); }
inline I shift_down(I x, int n) { return _mm256_srli_epi32(x, n); }
inline I add_i(I a, I b) { return _mm256_add_epi32(a, b); }
inline I sub_i(I a, I b) { return _mm256_sub_epi32(a, b); }
inline I mul_i(I a, I b) { return _mm256_mullo_epi32(a, b); }
inline I lane_index() { return _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7); }
inline __m128i half(const void* p) {
  return _mm_loadu_si128(static_cast<const __m128i*>(p));
}
inline I load_i16(const int16_t* p) { return _mm256_cvtepi16_epi32(half(p)); }
inline I load_u16(const uint16_t* p) { return _mm256_cvtepu16_epi32(half(p)); }
inline I load_u8(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline void store_16(void* p, I x) {
  // Bytes 0 and 1 of each element move to the low half of their lane.
  const I low = _mm256_setr_epi8(0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1, -1,
                                 -1, 0, 1, 4, 5, 8, 9, 12, 13, -1, -1, -1, -1, -1, -1,
                                 -1, -1);
  const I packed = _mm256_permute4x64_epi64(_mm256_shuffle_epi8(x, low), 0x08);
  _mm_storeu_si128(static_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}
inline void store_8(uint8_t* p, I x) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(x),
                                         _mm256_extracti128_si256(x, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(p), _mm_packus_epi16(words, words));
}
inline F to_f(I x) { return _mm256_cvtepi32_ps(x); }
inline I truncate(F x) { return _mm256_cvttps_epi32(x); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline I max_i(I a, I b) { return _mm256_max_epi32(a, b); }
inline F root(F x) { return _mm256_sqrt_ps(x); }
inline F magnitude(F x) { return _mm256_andnot_ps(splat(-0.0f), x); }
inline F with_sign_of(F x, F sign) {
  return _mm256_or_ps(x, _mm256_and_ps(sign, splat(-0.0f)));
}
inline I negate_by(I x, F s) {
  const I mask = _mm256_srai_epi32(as_i(s), 31);
  return sub_i(_mm256_xor_si256(x, mask), mask);
}
inline F positive_or_zero(F test, F value) {
  return _mm256_and_ps(_mm256_cmp_ps(test, _mm256_setzero_ps(), _CMP_GT_OQ), value);
}
inline float largest(F x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline Table table(const float* entry) { return load(entry); }
inline F pick(const Table& t, I index) { return _mm256_permutevar8x32_ps(t, index); }

}  // namespace
