// The C interface: cuts a part into units, hands them to threads, picks the kernels.
#include <xmmintrin.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <vector>

#include "interface.h"
#include "pool.h"

namespace {

constexpr int64_t kUnitBlocks = 32;
// Sums are cut the same way for any number of threads, so their bits never depend on it.
constexpr int64_t kSumBlocks = 16;

const Kernels& kernels(int32_t isa) {
  if (isa == 2) return kAvx512Kernels;
  return isa == 1 ? kAvx2Kernels : kScalarKernels;
}

int64_t blocks_of(const lt_slice& slice) { return (slice.numel + kBlock - 1) / kBlock; }

std::vector<Unit> cut(const lt_slice* slices, int64_t num_slices, int64_t unit_blocks) {
  std::vector<Unit> units;
  for (const lt_slice* slice = slices; slice != slices + num_slices; ++slice) {
    const int64_t blocks = blocks_of(*slice);
    for (int64_t first = 0; first < blocks; first += unit_blocks) {
      units.push_back({slice, first, std::min(unit_blocks, blocks - first)});
    }
  }
  return units;
}

template <typename Work>
struct Queue {
  const std::vector<Unit>& units;
  const Work& work;
  std::atomic<size_t> next{0};

  static void drain(void* self) {
    Queue& queue = *static_cast<Queue*>(self);
    for (size_t i; (i = queue.next.fetch_add(1)) < queue.units.size();) {
      queue.work(i, queue.units[i]);
    }
  }
};

template <typename Work>
void for_each(const std::vector<Unit>& units, int32_t threads, const Work& work) {
  Queue<Work> queue{units, work};
  const int64_t useful = std::min<int64_t>(threads, static_cast<int64_t>(units.size()));
  run_parallel(static_cast<int>(useful), Queue<Work>::drain, &queue);
}

}  // namespace

extern "C" {

int32_t lt_best_isa() {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (!avx2) return 0;
  return avx512 ? 2 : 1;
}

void lt_adamw(const lt_job* job) {
  int64_t blocks = 0;
  for (int64_t i = 0; i < job->num_slices; ++i) blocks += blocks_of(job->slices[i]);
  const int64_t share = blocks / (8 * std::max(job->threads, 1));
  const int64_t unit_blocks = std::clamp<int64_t>(share, 1, kUnitBlocks);
  const auto update = kernels(job->isa).update;
  for_each(cut(job->slices, job->num_slices, unit_blocks), job->threads,
           [&](size_t, const Unit& unit) { update(*job, unit); });
}

void lt_square_sums(const void* gradient, int32_t is_fp32, const lt_slice* slices,
                    int64_t num_slices, int32_t threads, int32_t isa, float* sums) {
  const std::vector<Unit> units = cut(slices, num_slices, kSumBlocks);
  std::vector<double> partial(units.size());
  const auto square_sum = kernels(isa).square_sum;
  for_each(units, threads, [&](size_t i, const Unit& unit) {
    const int64_t start = unit.first_block * kBlock;
    const int64_t count =
        std::min(unit.num_blocks * kBlock, unit.slice->numel - start);
    partial[i] =
        square_sum(gradient, is_fp32 != 0, unit.slice->offset + start, count);
  });
  std::vector<double> total(static_cast<size_t>(num_slices), 0.0);
  for (size_t i = 0; i < units.size(); ++i) {
    total[static_cast<size_t>(units[i].slice - slices)] += partial[i];
  }
  for (int64_t i = 0; i < num_slices; ++i) {
    sums[i] = static_cast<float>(total[static_cast<size_t>(i)]);
  }
}

void lt_encode(const float* values, int64_t count, int32_t is_signed, int32_t isa,
               uint8_t* codes, float* scale) {
  *scale = kernels(isa).encode(values, count, is_signed != 0, codes);
}

// STREAM's triad on the same threads: the yardstick for every rate of ours. Streaming
// stores skip the read of the target's cache lines, which STREAM does not count.
void lt_triad(float* a, const float* b, const float* c, int64_t count, int32_t threads,
              int32_t streaming) {
  const lt_slice slice = {0, count, 0, 0, 1.0f, 0};
  for_each(cut(&slice, 1, kUnitBlocks), threads, [&](size_t, const Unit& unit) {
    const int64_t first = unit.first_block * kBlock;
    const int64_t end = std::min(first + unit.num_blocks * kBlock, count);
    const __m128 factor = _mm_set1_ps(3.0f);
    for (int64_t i = first; i + 4 <= end; i += 4) {
      const __m128 sum =
          _mm_add_ps(_mm_loadu_ps(b + i), _mm_mul_ps(factor, _mm_loadu_ps(c + i)));
      if (streaming) {
        _mm_stream_ps(a + i, sum);
      } else {
        _mm_store_ps(a + i, sum);
      }
    }
  });
}

void lt_decode(const uint8_t* codes, int64_t count, float scale, int32_t is_signed,
               int32_t isa, float* values) {
  kernels(isa).decode(codes, count, scale, is_signed != 0, values);
}

}  // extern "C"
