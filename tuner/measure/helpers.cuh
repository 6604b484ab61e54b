// Device code of the measuring process: inputs, checks, delays. Compiled alone by NVRTC, no include.

typedef unsigned short u16;
typedef unsigned long long u64;
static_assert(sizeof(u16) == 2 && sizeof(u64) == 8, "");

__device__ u16 rounded(float value, int fp16) {
  u16 bits;
  if (fp16)
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}

__device__ double widened(u16 bits, int fp16) {
  float value;
  if (fp16)
    asm("cvt.f32.f16 %0, %1;" : "=f"(value) : "h"(bits));
  else
    value = __uint_as_float(static_cast<unsigned>(bits) << 16);
  return value;
}

__device__ u64 mixed(u64 z) {  // splitmix64
  z += 0x9e3779b97f4a7c15ull;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

__device__ u64 thread_index() { return static_cast<u64>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ u64 thread_count() { return static_cast<u64>(gridDim.x) * blockDim.x; }

// Normal numbers of standard deviation `amplitude`; a function of seed and place alone. Every row_length-th element,
// from the first on, is `leading` instead where replace_leading is set.
extern "C" __global__ void attune_fill_normal(u16* out, u64 count, u64 seed, float amplitude, int fp16, int row_length,
                                              float leading, int replace_leading) {
  for (u64 i = thread_index(); i < count; i += thread_count()) {
    const u64 random = mixed(mixed(seed) ^ i);
    const float a = (static_cast<unsigned>(random >> 40) + 1) * (1.f / 16777217.f);  // in (0, 1)
    const float b = static_cast<unsigned>(random & 0xffffff) * (1.f / 16777216.f);
    const float normal = sqrtf(-2.f * logf(a)) * cosf(6.28318531f * b);
    out[i] = rounded(replace_leading && i % row_length == 0 ? leading : amplitude * normal, fp16);
  }
}

// How many of the 16-bit halves of `words` equal `half`; with `whole`, only those of words that consist of it: the
// lower half of a float32 may be any pattern.
extern "C" __global__ void attune_count_halves(const unsigned* words, u64 count, unsigned half, int whole,
                                               u64* result) {
  u64 found = 0;
  for (u64 i = thread_index(); i < count; i += thread_count()) {
    const unsigned word = words[i];
    const bool low = (word & 0xffff) == half, high = (word >> 16) == half;
    found += whole ? 2 * (low && high) : low + high;
  }
  if (found != 0) atomicAdd(result, found);
}

struct CompareParams {
  const u16* o;
  const float* lse;
  const double* o_exact;   // [batch, heads, rows, head_dim_v]
  const float* lse_exact;  // [batch, heads, seqlen_q]
  double* result;          // [batch, heads, rows, 4]
  long long o_batch, o_head, o_row;
  int heads, seqlen_q, rows, head_dim_v, row_first, row_step, fp16, unused;
};
static_assert(sizeof(CompareParams) == 96, "the host passes 96 bytes");

constexpr int kCompareThreads = 64;

template <typename Combine>
__device__ double reduce_block(double value, double* scratch, Combine combine) {
  scratch[threadIdx.x] = value;
  __syncthreads();
  for (int half = kCompareThreads / 2; half > 0; half /= 2) {
    if (threadIdx.x < half) scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + half]);
    __syncthreads();
  }
  const double result = scratch[0];
  __syncthreads();
  return result;
}

struct Plus {
  __device__ double operator()(double a, double b) const { return a + b; }
};
struct Larger {
  __device__ double operator()(double a, double b) const { return a > b ? a : b; }
};

// A difference that counts: infinite where either side is not a number, so that NaN never passes.
__device__ double difference(double value, double exact) {
  const double d = fabs(value - exact);
  return d <= 1e300 ? d : 1e300;
}

// One block a row: sum of squared errors, sum of squares of the exact row, largest error, error of the LSE. A row that
// sees no key must be exactly 0 and its LSE exactly -inf.
extern "C" __global__ void attune_compare_rows(const CompareParams p) {
  __shared__ double scratch[kCompareThreads];
  const int row_index = blockIdx.x % p.rows;
  const int pair = blockIdx.x / p.rows;  // batch * heads + head
  const int row = p.row_first + row_index * p.row_step;
  const u16* o = p.o + (pair / p.heads) * p.o_batch + (pair % p.heads) * p.o_head + row * p.o_row;
  const double* exact = p.o_exact + static_cast<u64>(blockIdx.x) * p.head_dim_v;
  const u64 lse_at = static_cast<u64>(pair) * p.seqlen_q + row;
  const float lse = p.lse[lse_at], lse_exact = p.lse_exact[lse_at];
  const bool masked = lse_exact == __uint_as_float(0xff800000u);
  double squares = 0, exact_squares = 0, largest = 0;
  for (int d = threadIdx.x; d < p.head_dim_v; d += kCompareThreads) {
    const double value = widened(o[d], p.fp16);
    const double error = masked ? (value == 0 ? 0 : 1e300) : difference(value, exact[d]);
    squares += error < 1e150 ? error * error : 1e300;
    exact_squares += exact[d] * exact[d];
    largest = error > largest ? error : largest;
  }
  squares = reduce_block(squares, scratch, Plus{});
  exact_squares = reduce_block(exact_squares, scratch, Plus{});
  largest = reduce_block(largest, scratch, Larger{});
  if (threadIdx.x == 0) {
    double* result = p.result + static_cast<u64>(blockIdx.x) * 4;
    result[0] = squares;
    result[1] = exact_squares;
    result[2] = largest;
    result[3] = masked ? (lse == lse_exact ? 0 : 1e300) : difference(lse, lse_exact);
  }
}

struct CompareGradientParams {
  const u16* got;
  const double* exact;    // [batch, heads, rows, columns]: nothing rounded
  const double* kernels;  // likewise: rounded as no kernel can help, the result not yet
  double* result;         // [batch, heads, rows, 3]
  long long batch_stride, head_stride, row_stride;
  int heads, rows, columns, row_first, row_step, alone, fp16, unused;
};
static_assert(sizeof(CompareGradientParams) == 88, "the host passes 88 bytes");

// One block a row of a gradient: sums of squares of its error, of the exact row, and of the usual error. Rows below
// `alone` see nothing, or nothing sees them, and must be exactly 0.
extern "C" __global__ void attune_compare_gradient(const CompareGradientParams p) {
  __shared__ double scratch[kCompareThreads];
  const int row_index = blockIdx.x % p.rows;
  const int pair = blockIdx.x / p.rows;  // batch * heads + head
  const int row = p.row_first + row_index * p.row_step;
  const u16* got = p.got + (pair / p.heads) * p.batch_stride + (pair % p.heads) * p.head_stride + row * p.row_stride;
  const u64 at = static_cast<u64>(blockIdx.x) * p.columns;
  double squares = 0, exact_squares = 0, usual_squares = 0;
  for (int d = threadIdx.x; d < p.columns; d += kCompareThreads) {
    const double exact = p.exact[at + d], value = widened(got[d], p.fp16);
    const double error = row < p.alone ? (value == 0 ? 0 : 1e300) : difference(value, exact);
    const double usual = widened(rounded(static_cast<float>(p.kernels[at + d]), p.fp16), p.fp16) - exact;
    squares += error < 1e150 ? error * error : 1e300;
    exact_squares += exact * exact;
    usual_squares += usual * usual;
  }
  squares = reduce_block(squares, scratch, Plus{});
  exact_squares = reduce_block(exact_squares, scratch, Plus{});
  usual_squares = reduce_block(usual_squares, scratch, Plus{});
  if (threadIdx.x == 0) {
    double* result = p.result + static_cast<u64>(blockIdx.x) * 3;
    result[0] = squares;
    result[1] = exact_squares;
    result[2] = usual_squares;
  }
}

__device__ u64 nanoseconds() {
  u64 time;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(time));
  return time;
}

// Keeps the stream busy, so that the host can queue what follows before it starts.
extern "C" __global__ void attune_spin(u64 duration) {
  const u64 start = nanoseconds();
  while (nanoseconds() - start < duration) __nanosleep(500);
}

// The SM clock in GHz over some 40 us, from one step of the timer to another, whose steps may be as long as 1 us.
extern "C" __global__ void attune_clock_probe(double* ghz) {
  u64 start = nanoseconds(), now;
  do now = nanoseconds();
  while (now == start);
  start = now;
  const long long first = clock64();
  while (now - start < 40000) now = nanoseconds();
  const long long last = clock64();
  *ghz = static_cast<double>(last - first) / static_cast<double>(now - start);
}
