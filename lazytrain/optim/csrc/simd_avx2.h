// Vectors of eight elements. A pair holds 0-3 and 8-11, then 4-7 and 12-15: the order
// in which the unpack and pack instructions work inside 128-bit lanes.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace {

constexpr int W = 8;
using F = __m256;
using I = __m256i;
using Words = __m256i;
using Table = __m256;

inline F splat(float x) { return _mm256_set1_ps(x); }
inline I as_i(F x) { return _mm256_castps_si256(x); }
inline F as_f(I x) { return _mm256_castsi256_ps(x); }
inline I splat_i(int32_t x) { return _mm256_set1_epi32(x); }
inline I shift_down(I x, int n) { return _mm256_srli_epi32(x, n); }
inline I add_i(I a, I b) { return _mm256_add_epi32(a, b); }
inline I mul_i(I a, I b) { return _mm256_mullo_epi32(a, b); }
inline I quad_index(int vector) {
  const I first = _mm256_setr_epi32(0, 1, 2, 3, 8, 9, 10, 11);
  return add_i(first, splat_i(16 * (vector / 2) + 4 * (vector % 2)));
}

inline F load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, F x) { _mm256_storeu_ps(p, x); }
inline void load_pair(const float* p, F& a, F& b) {
  const F first = load(p), second = load(p + 8);
  a = _mm256_permute2f128_ps(first, second, 0x20);
  b = _mm256_permute2f128_ps(first, second, 0x31);
}
inline void store_pair(float* p, F a, F b) {
  store(p, _mm256_permute2f128_ps(a, b, 0x20));
  store(p + 8, _mm256_permute2f128_ps(a, b, 0x31));
}
inline Words load_words(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline void store_words(void* p, Words w) {
  _mm256_storeu_si256(static_cast<__m256i*>(p), w);
}

inline void widen(Words w, F& a, F& b) {
  a = as_f(_mm256_unpacklo_epi16(_mm256_setzero_si256(), w));
  b = as_f(_mm256_unpackhi_epi16(_mm256_setzero_si256(), w));
}
inline void join(Words high, Words low, F& a, F& b) {
  const Words borrowed = _mm256_add_epi16(high, _mm256_srai_epi16(low, 15));
  a = as_f(_mm256_unpacklo_epi16(low, borrowed));
  b = as_f(_mm256_unpackhi_epi16(low, borrowed));
}
inline Words pack_high(I a, I b) {
  return _mm256_packus_epi32(shift_down(a, 16), shift_down(b, 16));
}
inline void split(F a, F b, Words& high, Words& low) {
  const I mask = splat_i(0xffff);
  low = _mm256_packus_epi32(_mm256_and_si256(as_i(a), mask),
                            _mm256_and_si256(as_i(b), mask));
  const Words cut = pack_high(as_i(a), as_i(b));
  high = _mm256_sub_epi16(cut, _mm256_srai_epi16(low, 15));
}

inline void load_codes(const uint8_t* p, I out[4]) {
  const I first = _mm256_setr_epi8(0, -1, -1, -1, 1, -1, -1, -1, 2, -1, -1, -1, 3, -1,
                                   -1, -1, 8, -1, -1, -1, 9, -1, -1, -1, 10, -1, -1, -1,
                                   11, -1, -1, -1);
  const I second = _mm256_add_epi8(first, _mm256_and_si256(splat_i(0xff), splat_i(4)));
  for (int half = 0; half < 2; ++half) {
    const __m128i codes =
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 16 * half));
    const I both = _mm256_broadcastsi128_si256(codes);
    out[2 * half] = _mm256_shuffle_epi8(both, first);
    out[2 * half + 1] = _mm256_shuffle_epi8(both, second);
  }
}
inline void store_codes(uint8_t* p, const I in[4], int bias) {
  const I words = _mm256_set1_epi16(static_cast<int16_t>(bias));
  const I low = _mm256_add_epi16(_mm256_packs_epi32(in[0], in[1]), words);
  const I high = _mm256_add_epi16(_mm256_packs_epi32(in[2], in[3]), words);
  store_words(p, _mm256_permute4x64_epi64(_mm256_packus_epi16(low, high), 0xd8));
}

inline F to_f(I x) { return _mm256_cvtepi32_ps(x); }
inline I truncate(F x) { return _mm256_cvttps_epi32(x); }
inline F fma(F a, F b, F c) { return _mm256_fmadd_ps(a, b, c); }
inline F max(F a, F b) { return _mm256_max_ps(a, b); }
inline F min(F a, F b) { return _mm256_min_ps(a, b); }
inline F root(F x) { return _mm256_sqrt_ps(x); }
inline F magnitude(F x) { return _mm256_andnot_ps(splat(-0.0f), x); }
inline F max_magnitude(F top, F x) { return max(top, magnitude(x)); }
inline F with_sign_of(F x, F sign) {
  return _mm256_or_ps(x, _mm256_and_ps(sign, splat(-0.0f)));
}
inline F raise_where_positive(F x, F test, F floor) {
  const F mask = _mm256_cmp_ps(test, _mm256_setzero_ps(), _CMP_GT_OQ);
  return max(x, _mm256_and_ps(mask, floor));
}
inline float largest(F x) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_shuffle_ps(m, m, 1)));
}
inline Table table(const float* entry) { return load(entry); }
inline F pick(const Table& t, I index) { return _mm256_permutevar8x32_ps(t, index); }

}  // namespace
