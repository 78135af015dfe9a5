#include "simd_avx512.h"
#define LAZYTRAIN_TABLE_DECODER
#include "unit.h"

const Kernels kAvx512VbmiKernels = kKernels;
