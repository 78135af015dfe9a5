// The dynamic map as arithmetic (see blockwise.py): seven lines up, eight lines down.
#pragma once

namespace {

constexpr double kTop[7] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
constexpr float kSmallestScale = 0x1p-126f;

// First cell of the lowest decade: the unsigned map has twice the cells.
template <bool Signed>
constexpr double kFirst = Signed ? 1.0 : 2.0;

template <bool Signed>
struct Lines {
  float encode_slope[7], encode_offset[7], decode_slope[8], decode_offset[8];

  constexpr Lines() : encode_slope(), encode_offset(), decode_slope(), decode_offset() {
    double cells = kFirst<Signed>;
    for (int i = 0; i < 7; ++i, cells *= 2) {
      encode_slope[i] = static_cast<float>(cells / (0.9 * kTop[i]));
      encode_offset[i] = static_cast<float>(cells * 0.8 / 0.9);
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

  // Values in [-1, 1] or [0, 1], before the block's scale.
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

template <bool Signed>
inline F cell_number(F normal) {
  F u = fma(splat(kLines<Signed>.encode_slope[0]), normal,
            splat(kLines<Signed>.encode_offset[0]));
  for (int i = 1; i < 7; ++i) {
    u = min(u, fma(splat(kLines<Signed>.encode_slope[i]), normal,
                   splat(kLines<Signed>.encode_offset[i])));
  }
  return u;
}

template <bool Signed>
inline I encode_one(F normal) {
  if constexpr (Signed) {
    const I cell = truncate(cell_number<true>(magnitude(normal)));
    // -1 has no code of its own: clamping keeps it from wrapping round to +1.
    return max_i(add_i(negate_by(cell, normal), splat_i(127)), splat_i(0));
  } else {
    const F u = max(cell_number<false>(normal), positive_or_zero(normal, splat(2.0f)));
    return sub_i(truncate(u), splat_i(1));
  }
}

// A maximum below the normal range counts as zero: its inverse may overflow.
inline float usable_scale(float top) { return top >= kSmallestScale ? top : 0.0f; }

// The factor that takes a scale to at least one, so its own code is that of one.
inline float inverse_of(float scale) {
  if (scale == 0.0f) return 0.0f;
  const float inverse = 1.0f / scale;
  if (scale * inverse >= 1.0f) return inverse;
  uint32_t bits;
  __builtin_memcpy(&bits, &inverse, 4);
  ++bits;
  float next;
  __builtin_memcpy(&next, &bits, 4);
  return next;
}

}  // namespace
