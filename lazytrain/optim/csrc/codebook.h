// The dynamic map as arithmetic (see blockwise.py): seven lines up, eight lines down.
#pragma once

namespace {

constexpr double kTop[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
// Below it the slopes over the scale could overflow, so it counts as zero.
constexpr float kSmallestScale = 0x1p-100f;

// First cell of the lowest decade: the unsigned map has twice the cells.
template <bool Signed>
constexpr double kFirst = Signed ? 1.0 : 2.0;

// Unsigned codes count cells from the one below the lowest decade.
template <bool Signed>
constexpr double kCodeShift = Signed ? 0.0 : 1.0;

// The number that the block's maximum must reach.
template <bool Signed>
constexpr float kTopCode = Signed ? 128.0f : 255.0f;

template <bool Signed>
struct Lines {
  float encode_slope[7], encode_offset[7], decode_slope[8], decode_offset[8];

  constexpr Lines() : encode_slope(), encode_offset(), decode_slope(), decode_offset() {
    double cells = kFirst<Signed>;
    for (int i = 0; i < 7; ++i, cells *= 2) {
      encode_slope[i] = static_cast<float>(cells / (0.9 * kTop[i]));
      encode_offset[i] = static_cast<float>(cells * 0.8 / 0.9 - kCodeShift<Signed>);
      set_decode(i, 0.9 * kTop[i] / cells, -0.8 * kTop[i]);
    }
    // The cells of zero and of one share a line whose slope is cut to 17 bits.
    const int last = Signed ? 128 : 255;
    const double slope = static_cast<double>((1 << 24) / last) / (1 << 24);
    set_decode(7, slope, -slope * (kFirst<Signed> - 0.5));
  }

  // Entries are indexed by the low three bits of the biased exponent of cell + 0.5.
  constexpr void set_decode(int i, double slope, double offset) {
    const int index = (i + (Signed ? 7 : 0)) % 8;
    decode_slope[index] = static_cast<float>(slope);
    decode_offset[index] = static_cast<float>(offset);
  }
};

template <bool Signed>
constexpr Lines<Signed> kLines{};

template <bool Signed>
struct Decoder {
  Table slope, offset;

  Decoder()
      : slope(table(kLines<Signed>.decode_slope)),
        offset(table(kLines<Signed>.decode_offset)) {}

  // Four vectors in [-1, 1] or [0, 1], before the block's scale.
  void quad(const uint8_t* p, F out[4]) const {
    I code[4];
    load_codes(p, code);
    for (int k = 0; k < 4; ++k) out[k] = (*this)(code[k]);
  }

  F operator()(I code) const {
    if constexpr (Signed) {
      const F cell = to_f(code) - splat(127.0f);
      return with_sign_of(line(magnitude(cell) + splat(0.5f)), cell);
    } else {
      return line(to_f(code) + splat(1.5f));
    }
  }

  F line(F middle) const {
    const I exponent = shift_down(as_i(middle), 23);
    return fma(pick(slope, exponent), middle, pick(offset, exponent));
  }
};

// Encodes magnitudes of one block; `scale` is its maximum, or zero.
template <bool Signed>
struct Encoder {
  F slope[7];

  explicit Encoder(float scale) {
    const float inverse = inverse_of(scale);
    for (int i = 0; i < 7; ++i) {
      slope[i] = splat(kLines<Signed>.encode_slope[i] * inverse);
    }
  }

  F line(int i, F x) const {
    return fma(slope[i], x, splat(kLines<Signed>.encode_offset[i]));
  }

  // Signed: the cell number with the value's sign. Unsigned: the code.
  I operator()(F value) const {
    const F x = Signed ? magnitude(value) : value;
    F u = min(min(line(0, x), line(1, x)), min(line(2, x), line(3, x)));
    u = min(u, min(line(4, x), min(line(5, x), line(6, x))));
    if constexpr (Signed) return truncate(with_sign_of(u, value));
    return truncate(raise_where_positive(u, x, splat(1.0f)));
  }

  // The smallest inverse, from 1 / scale up, that takes the scale to the top code.
  static float inverse_of(float scale) {
    if (scale == 0.0f) return 0.0f;
    float inverse = 1.0f / scale;
    const float slope = kLines<Signed>.encode_slope[6];
    while (__builtin_fmaf(slope * inverse, scale, kLines<Signed>.encode_offset[6]) <
           kTopCode<Signed>) {
      uint32_t bits;
      __builtin_memcpy(&bits, &inverse, 4);
      ++bits;
      __builtin_memcpy(&inverse, &bits, 4);
    }
    return inverse;
  }
};

// What is added to an encoder's number to make a code; -1 has none, so it clamps.
template <bool Signed>
constexpr int kBias = Signed ? 127 : 0;

inline float usable_scale(float top) { return top >= kSmallestScale ? top : 0.0f; }

}  // namespace
