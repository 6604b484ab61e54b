#!/usr/bin/env python3
"""Records what a Hopper GPU computes, for the emulator to be compared with.

    python3 record_matrix.py [output]        (default: hopper_numerics.bin beside this file)

Needs a driver, NVRTC 12.3 or newer and nothing else; takes a few seconds. Recorded are wgmma and mma.sync products
of small, wide, cancelling, subnormal and special inputs, unary approximations and conversions over shared lists of
inputs, the layouts that wgmma descriptors give, and what tensor copies write.

The file: the line "attune numerics 1\\n", then records of a name (16-bit length, bytes) and data (32-bit length,
bytes), little endian. tests/emu/recorded_test.cpp reads it.
"""

import ctypes
import glob
import os
import pathlib
import struct
import sys
import traceback

SOURCE = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

__device__ u32 shared_address(const void* p) { return static_cast<u32>(__cvta_generic_to_shared(p)); }

__device__ u64 descriptor(u32 start, u32 leading, u32 stride, u32 mode, u32 base_offset) {
  return u64(start >> 4) | u64(leading >> 4) << 16 | u64(stride >> 4) << 32 | u64(base_offset) << 49 | u64(mode) << 62;
}

// -- wgmma m64n8: A and B as rows of 32 bytes along K -------------------------------------------------

__device__ void load_operands(const u8* a, const u8* b, u8* shared) {
  for (u32 i = threadIdx.x; i < 64 * 32; i += 128) {
    u32 row = i / 32, byte = i % 32;
    shared[row / 8 * 256 + byte / 16 * 128 + row % 8 * 16 + byte % 16] = a[i];
  }
  for (u32 i = threadIdx.x; i < 8 * 32; i += 128) {
    u32 row = i / 32, byte = i % 32;
    shared[2048 + byte / 16 * 128 + row * 16 + byte % 16] = b[i];
  }
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
}

// Registers stand as operands of wgmma.fence, so that nothing that sets them moves below it.
#define WGMMA_END                                                                                          \
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");

#define WGMMA_F32(NAME, SHAPE, TAIL)                                                                       \
  extern "C" __global__ void __launch_bounds__(128) NAME(const u8* a, const u8* b, const float* c, float* d) { \
    __shared__ __align__(1024) u8 shared[4096];                                                            \
    load_operands(a, b, shared);                                                                           \
    u64 da = descriptor(shared_address(shared), 128, 256, 0, 0);                                           \
    u64 db = descriptor(shared_address(shared + 2048), 128, 256, 0, 0);                                    \
    u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;                  \
    float r0 = c[row * 8 + column], r1 = c[row * 8 + column + 1];                                          \
    float r2 = c[row * 8 + column + 64], r3 = c[row * 8 + column + 65];                                    \
    asm volatile("wgmma.fence.sync.aligned;" : "+f"(r0), "+f"(r1), "+f"(r2), "+f"(r3) :: "memory");        \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE " {%0, %1, %2, %3}, %4, %5, 1, 1, 1" TAIL ";"       \
                 : "+f"(r0), "+f"(r1), "+f"(r2), "+f"(r3) : "l"(da), "l"(db) : "memory");                  \
    WGMMA_END                                                                                              \
    d[row * 8 + column] = r0; d[row * 8 + column + 1] = r1;                                                \
    d[row * 8 + column + 64] = r2; d[row * 8 + column + 65] = r3;                                          \
  }
#define WGMMA_F16(NAME, SHAPE, TAIL)                                                                       \
  extern "C" __global__ void __launch_bounds__(128) NAME(const u8* a, const u8* b, const u32* c, u32* d) { \
    __shared__ __align__(1024) u8 shared[4096];                                                            \
    load_operands(a, b, shared);                                                                           \
    u64 da = descriptor(shared_address(shared), 128, 256, 0, 0);                                           \
    u64 db = descriptor(shared_address(shared + 2048), 128, 256, 0, 0);                                    \
    u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, word = threadIdx.x % 4;                        \
    u32 r0 = c[row * 4 + word], r1 = c[row * 4 + word + 32];                                               \
    asm volatile("wgmma.fence.sync.aligned;" : "+r"(r0), "+r"(r1) :: "memory");                            \
    asm volatile("wgmma.mma_async.sync.aligned." SHAPE " {%0, %1}, %2, %3, 1, 1, 1" TAIL ";"               \
                 : "+r"(r0), "+r"(r1) : "l"(da), "l"(db) : "memory");                                      \
    WGMMA_END                                                                                              \
    d[row * 4 + word] = r0; d[row * 4 + word + 32] = r1;                                                   \
  }
WGMMA_F32(wgmma_bf16_f32, "m64n8k16.f32.bf16.bf16", ", 0, 0")
WGMMA_F32(wgmma_f16_f32, "m64n8k16.f32.f16.f16", ", 0, 0")
WGMMA_F16(wgmma_f16_f16, "m64n8k16.f16.f16.f16", ", 0, 0")
WGMMA_F32(wgmma_tf32_f32, "m64n8k8.f32.tf32.tf32", "")
WGMMA_F32(wgmma_e4m3_f32, "m64n8k32.f32.e4m3.e4m3", "")
WGMMA_F32(wgmma_e5m2_f32, "m64n8k32.f32.e5m2.e5m2", "")
WGMMA_F16(wgmma_e4m3_f16, "m64n8k32.f16.e4m3.e4m3", "")

// -- mma.sync m16n8: A and B as rows of 32 bytes along K ----------------------------------------------

#define MMA_F32(NAME, SHAPE)                                                                               \
  extern "C" __global__ void __launch_bounds__(32) NAME(const u32* a, const u32* b, const float* c, float* d) { \
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;                                                          \
    float r0 = c[g * 8 + 2 * t], r1 = c[g * 8 + 2 * t + 1], r2 = c[g * 8 + 2 * t + 64], r3 = c[g * 8 + 2 * t + 65]; \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
                 : "+f"(r0), "+f"(r1), "+f"(r2), "+f"(r3)                                                  \
                 : "r"(a[g * 8 + t]), "r"(a[g * 8 + t + 64]), "r"(a[g * 8 + t + 4]), "r"(a[g * 8 + t + 68]), \
                   "r"(b[g * 8 + t]), "r"(b[g * 8 + t + 4]));                                              \
    d[g * 8 + 2 * t] = r0; d[g * 8 + 2 * t + 1] = r1; d[g * 8 + 2 * t + 64] = r2; d[g * 8 + 2 * t + 65] = r3; \
  }
#define MMA_F16(NAME, SHAPE)                                                                               \
  extern "C" __global__ void __launch_bounds__(32) NAME(const u32* a, const u32* b, const u32* c, u32* d) { \
    u32 g = threadIdx.x / 4, t = threadIdx.x % 4;                                                          \
    u32 r0 = c[g * 4 + t], r1 = c[g * 4 + t + 32];                                                         \
    asm volatile("mma.sync.aligned." SHAPE " {%0, %1}, {%2, %3, %4, %5}, {%6, %7}, {%0, %1};"              \
                 : "+r"(r0), "+r"(r1)                                                                      \
                 : "r"(a[g * 8 + t]), "r"(a[g * 8 + t + 64]), "r"(a[g * 8 + t + 4]), "r"(a[g * 8 + t + 68]), \
                   "r"(b[g * 8 + t]), "r"(b[g * 8 + t + 4]));                                              \
    d[g * 4 + t] = r0; d[g * 4 + t + 32] = r1;                                                             \
  }
MMA_F32(mma_bf16_f32, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_F32(mma_f16_f32, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_F16(mma_f16_f16, "m16n8k16.row.col.f16.f16.f16.f16")
MMA_F32(mma_tf32_f32, "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_F32(mma_e4m3_f32, "m16n8k32.row.col.f32.e4m3.e4m3.f32")
MMA_F32(mma_e5m2_f32, "m16n8k32.row.col.f32.e5m2.e5m2.f32")

// -- one input, one output ------------------------------------------------------------------------------

#define UNARY(NAME, TEXT)                                                                                  \
  extern "C" __global__ void NAME(const u32* in, u32* out, int count) {                                    \
    int i = blockIdx.x * blockDim.x + threadIdx.x;                                                         \
    if (i >= count) return;                                                                                \
    u32 x = in[i], y;                                                                                      \
    asm volatile("{\n.reg .f32 f, g;\n.reg .b16 h, k;\nmov.b32 f, %1;\nmov.b32 {h, k}, %1;\n" TEXT "\n}"     \
                 : "=r"(y) : "r"(x));                                                                      \
    out[i] = y;                                                                                            \
  }
#define UNARY_F32(NAME, OP) UNARY(NAME, OP " f, f;\nmov.b32 %0, f;")
#define UNARY_TO_16(NAME, OP) UNARY(NAME, OP " h, f;\nmov.b16 k, 0;\nmov.b32 %0, {h, k};")
UNARY_F32(ex2_approx_ftz_f32, "ex2.approx.ftz.f32")
UNARY_F32(ex2_approx_f32, "ex2.approx.f32")
UNARY_F32(lg2_approx_ftz_f32, "lg2.approx.ftz.f32")
UNARY_F32(lg2_approx_f32, "lg2.approx.f32")
UNARY_F32(rcp_approx_ftz_f32, "rcp.approx.ftz.f32")
UNARY_F32(rsqrt_approx_ftz_f32, "rsqrt.approx.ftz.f32")
UNARY_F32(sqrt_approx_ftz_f32, "sqrt.approx.ftz.f32")
UNARY_F32(tanh_approx_f32, "tanh.approx.f32")
UNARY_F32(sin_approx_f32, "sin.approx.f32")
UNARY_F32(cos_approx_f32, "cos.approx.f32")
UNARY(ex2_approx_f16x2, "ex2.approx.f16x2 %0, %1;")
UNARY(ex2_approx_ftz_bf16x2, "ex2.approx.ftz.bf16x2 %0, %1;")
UNARY(tanh_approx_f16x2, "tanh.approx.f16x2 %0, %1;")
UNARY_TO_16(cvt_rn_f16_f32, "cvt.rn.f16.f32")
UNARY_TO_16(cvt_rz_f16_f32, "cvt.rz.f16.f32")
UNARY_TO_16(cvt_rn_bf16_f32, "cvt.rn.bf16.f32")
UNARY_TO_16(cvt_rz_bf16_f32, "cvt.rz.bf16.f32")
UNARY_TO_16(cvt_rn_relu_bf16_f32, "cvt.rn.relu.bf16.f32")
UNARY(cvt_rna_tf32_f32, "cvt.rna.tf32.f32 %0, f;")
UNARY(cvt_e4m3x2_f32, "neg.f32 g, f;\ncvt.rn.satfinite.e4m3x2.f32 h, g, f;\nmov.b16 k, 0;\nmov.b32 %0, {h, k};")
UNARY(cvt_e5m2x2_f32, "neg.f32 g, f;\ncvt.rn.satfinite.e5m2x2.f32 h, g, f;\nmov.b16 k, 0;\nmov.b32 %0, {h, k};")
UNARY(cvt_f16x2_e4m3x2, "cvt.rn.f16x2.e4m3x2 %0, h;")
UNARY(cvt_f16x2_e5m2x2, "cvt.rn.f16x2.e5m2x2 %0, h;")
UNARY(cvt_rni_s32_f32, "cvt.rni.s32.f32 %0, f;")
UNARY(cvt_rzi_u32_f32, "cvt.rzi.u32.f32 %0, f;")
UNARY(cvt_f32_f16, "cvt.f32.f16 f, h;\nmov.b32 %0, f;")

// -- what a descriptor addresses: A times the identity ------------------------------------------------

// Element i of shared memory holds the number of its 16-byte chunk, as fp16.
#define PROBE(NAME, TRANSPOSE)                                                                             \
  extern "C" __global__ void __launch_bounds__(128) NAME(u32 start, u32 leading, u32 stride, u32 mode,     \
                                                         u32 base_offset, u32* d) {                       \
    extern __shared__ __align__(1024) u16 elements[];                                                      \
    const u32 count = 16384 / 2;                                                                           \
    for (u32 i = threadIdx.x; i < count; i += 128) {                                                       \
      u16 h; asm("cvt.rn.f16.u32 %0, %1;" : "=h"(h) : "r"(i / 8)); elements[i] = h;                        \
    }                                                                                                      \
    for (u32 i = threadIdx.x; i < 256; i += 128) {                                                         \
      u32 row = i / 16, k = i % 16;                                                                        \
      elements[count + row / 8 * 128 + k / 8 * 64 + row % 8 * 8 + k % 8] = row == k ? 0x3C00 : 0;          \
    }                                                                                                      \
    asm volatile("fence.proxy.async;" ::: "memory");                                                       \
    __syncthreads();                                                                                       \
    u64 da = descriptor(shared_address(elements) + start, leading, stride, mode, base_offset);             \
    u64 db = descriptor(shared_address(elements + count), 128, 256, 0, 0);                                 \
    u32 r0 = 0, r1 = 0, r2 = 0, r3 = 0;                                                                    \
    asm volatile("wgmma.fence.sync.aligned;" : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3) :: "memory");        \
    asm volatile("wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16 {%0, %1, %2, %3}, %4, %5, 0, 1, 1, "  \
                 TRANSPOSE ", 0;" : "+r"(r0), "+r"(r1), "+r"(r2), "+r"(r3) : "l"(da), "l"(db) : "memory"); \
    WGMMA_END                                                                                              \
    u32 row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, word = threadIdx.x % 4;                        \
    d[row * 8 + word] = r0; d[(row + 8) * 8 + word] = r1;                                                  \
    d[row * 8 + word + 4] = r2; d[(row + 8) * 8 + word + 4] = r3;                                          \
  }
PROBE(probe_k_major, "0")
PROBE(probe_mn_major, "1")

// -- what a tensor copy writes --------------------------------------------------------------------------

struct __align__(64) Map { u64 opaque[16]; };

extern "C" __global__ void tensor_load(const __grid_constant__ Map map, int x, int y, u32 bytes, u8* out, u32 out_bytes,
                                       u32* completed) {
  extern __shared__ __align__(1024) u8 box[];
  __shared__ u64 barrier;
  for (u32 i = threadIdx.x; i < out_bytes; i += blockDim.x) box[i] = 0xEE;
  u32 b = shared_address(&barrier);
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared.b64 [%0], 1;" :: "r"(b) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" :: "r"(b), "r"(bytes) : "memory");
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];"
                 :: "r"(shared_address(box)), "l"(&map), "r"(x), "r"(y), "r"(b) : "memory");
    // Bounded, so that a wrong byte count is recorded rather than waited for.
    u32 done = 0;
    for (int i = 0; i < 1000 && !done; ++i) {
      asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
                   : "=r"(done) : "r"(b) : "memory");
      __nanosleep(1000);
    }
    *completed = done;
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < out_bytes; i += blockDim.x) out[i] = box[i];
}
"""


# -- the driver and NVRTC -----------------------------------------------------------------------------


def load_nvrtc():
    names = ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"]
    names += sorted(glob.glob("/usr/local/cuda*/lib64/libnvrtc.so*"), reverse=True)
    for folder in sys.path:
        names += sorted(glob.glob(os.path.join(folder, "nvidia", "**", "lib", "libnvrtc.so*"), recursive=True))
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise SystemExit("no NVRTC found")


def compile_source(source):
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    options = [b"--gpu-architecture=sm_90a", b"--std=c++17"]
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"record.cu", 0, None, None) == 0
    status = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    size = ctypes.c_size_t()
    if status:
        nvrtc.nvrtcGetProgramLogSize(program, ctypes.byref(size))
        log = ctypes.create_string_buffer(size.value)
        nvrtc.nvrtcGetProgramLog(program, log)
        raise SystemExit(log.value.decode())
    nvrtc.nvrtcGetCUBINSize(program, ctypes.byref(size))
    cubin = ctypes.create_string_buffer(size.value)
    nvrtc.nvrtcGetCUBIN(program, cubin)
    return cubin.raw


class Gpu:
    """One device, by the driver's C interface."""

    def __init__(self, cubin):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        self.device, self.context, self.module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(self.device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.device)
        self.call("cuCtxSetCurrent", self.context)
        self.call("cuModuleLoadData", ctypes.byref(self.module), cubin)

    def call(self, name, *arguments, after=""):
        status = getattr(self.cuda, name)(*arguments)
        if status:
            text = ctypes.c_char_p()
            self.cuda.cuGetErrorString(status, ctypes.byref(text))
            raise SystemExit(f"{name}{after and f' after {after}'}: {(text.value or b'?').decode()}")

    def name(self):
        text = ctypes.create_string_buffer(100)
        self.call("cuDeviceGetName", text, 100, self.device)
        return text.value.decode()

    def upload(self, data):
        memory = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(memory), ctypes.c_size_t(max(len(data), 16)))
        self.call("cuMemcpyHtoD_v2", memory, bytes(data), ctypes.c_size_t(len(data)))
        return memory

    def download(self, memory, size):
        data = ctypes.create_string_buffer(size)
        self.call("cuMemcpyDtoH_v2", data, memory, ctypes.c_size_t(size))
        return data.raw

    def launch(self, kernel, threads, arguments, blocks=1, shared=0):
        """Arguments: ctypes values."""
        function = ctypes.c_void_p()
        self.call("cuModuleGetFunction", ctypes.byref(function), self.module, kernel.encode())
        if shared:
            self.call("cuFuncSetAttribute", function, 8, shared)
        addresses = [ctypes.cast(ctypes.byref(a), ctypes.c_void_p) for a in arguments]
        pointers = (ctypes.c_void_p * len(addresses))(*addresses)
        self.call("cuLaunchKernel", function, blocks, 1, 1, threads, 1, 1, shared, None, pointers, None)
        self.call("cuCtxSynchronize", after=kernel)

    def run(self, kernel, threads, inputs, out_bytes, blocks=1):
        """inputs: byte strings in device memory; the output comes last."""
        memory = [self.upload(data) for data in inputs]
        out = self.upload(bytes(out_bytes))
        self.launch(kernel, threads, [*memory, out], blocks)
        result = self.download(out, out_bytes)
        for m in (*memory, out):
            self.call("cuMemFree_v2", m)
        return result

    def tensor_map(self, data_type, base, dims, strides, box, element_strides, swizzle, nan):
        storage = ctypes.create_string_buffer(128 + 64)
        address = (ctypes.addressof(storage) + 63) // 64 * 64
        u64s = lambda values: (ctypes.c_uint64 * len(values))(*values)
        u32s = lambda values: (ctypes.c_uint32 * len(values))(*values)
        self.call("cuTensorMapEncodeTiled", ctypes.c_void_p(address), data_type, len(dims), base, u64s(dims),
                  u64s(strides or [0]), u32s(box), u32s(element_strides), 0, swizzle, 0, int(nan))
        return (ctypes.c_uint64 * 16).from_buffer_copy(ctypes.string_at(address, 128))


# -- inputs --------------------------------------------------------------------------------------------


class Random:
    """splitmix64."""

    def __init__(self, seed):
        self.state = seed

    def next(self):
        mask = (1 << 64) - 1
        self.state = (self.state + 0x9E3779B97F4A7C15) & mask
        z = self.state
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ z >> 27) * 0x94D049BB133111EB & mask
        return z ^ z >> 31

    def pattern(self, exponent_bits, mantissa_bits, centre, spread, specials=False):
        """A number of a format with an exponent field of centre +- spread."""
        r = self.next()
        most = (1 << exponent_bits) - 1
        if r & 31 == 0:
            return 0
        field = centre - spread + (r >> 8) % (2 * spread + 1)
        field = most if specials and r & 31 == 1 else min(max(field, 0), most - 1)
        mantissa = (r >> 32) & ((1 << mantissa_bits) - 1)
        if specials and field == most and r >> 62 & 1:
            mantissa = 0
        return (r >> 63) << (exponent_bits + mantissa_bits) | field << mantissa_bits | mantissa


# type: (bits of an element in memory, exponent bits, mantissa bits, unused bits below)
TYPES = {
    "bf16": (16, 8, 7, 0),
    "f16": (16, 5, 10, 0),
    "tf32": (32, 8, 10, 13),
    "e4m3": (8, 4, 3, 0),
    "e5m2": (8, 5, 2, 0),
}
KINDS = ("narrow", "wide", "cancel", "tiny", "special")


def operand(random, kind, name, rows):
    """rows x 32 bytes; of "cancel", neighbours along K are nearly equal."""
    bits, exponent_bits, mantissa_bits, unused = TYPES[name]
    middle = (1 << (exponent_bits - 1)) - 1
    spread = {"narrow": 2, "wide": min(middle // 2, 24), "cancel": 2, "tiny": 3, "special": 4}[kind]
    centre = 2 if kind == "tiny" and exponent_bits < 8 else middle - 60 if kind == "tiny" else middle
    out = bytearray()
    for _ in range(rows):
        previous = 0
        for i in range(256 // bits):
            pattern = random.pattern(exponent_bits, mantissa_bits, centre, spread, kind == "special")
            if kind == "cancel" and i % 2 == 1:
                pattern = previous ^ (random.next() & 1)
            previous = pattern
            word = pattern << unused | random.next() & ((1 << unused) - 1)
            out += word.to_bytes(bits // 8, "little")
    return bytes(out)


def negated_pairs(data, name):
    """Flips the sign of every second element along K, so that "cancel" products do."""
    bits = TYPES[name][0]
    step = bits // 8
    out = bytearray(data)
    for i in range(step, len(out), 2 * step):
        out[i + step - 1] ^= 0x80
    return bytes(out)


def accumulator(random, kind, half, rows):
    exponent_bits, mantissa_bits = (5, 10) if half else (8, 23)
    middle = (1 << (exponent_bits - 1)) - 1
    spread = {"narrow": 3, "wide": 12 if half else 40, "cancel": 14 if half else 20, "tiny": 3, "special": 4}[kind]
    centre = (2 if half else 127 - 110) if kind == "tiny" else middle
    out = bytearray()
    for _ in range(rows * 8):
        word = random.pattern(exponent_bits, mantissa_bits, centre, spread, kind == "special")
        out += word.to_bytes(2 if half else 4, "little")
    return bytes(out)


UNARY_INPUTS = 640


def unary_inputs():
    """Floats: special and boundary values, the range of softmax exponents, then all magnitudes."""
    random = Random(99)
    words = [
        0, 1, 0x7FFFFF, 0x800000, 0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x7F7FFFFF, 0x7F800000,
        0x7F800001, 0x7FC00000, 0x7FFFFFFF, 0x42FE0000, 0x43000000, 0x42FC0000, 0x4F000000,
        0x4EFFFFFF, 0x4F800000, 0x477FE000, 0x477FF000, 0x477FEFFF, 0x33000000, 0x33000001,
        0x43E00000, 0x43E80000, 0x43E7FFFF, 0x47600000, 0x47700000, 0x3F801000, 0x3F803000,
        0x3F808000, 0x3F818000, 0x3F000000, 0x3FC00000, 0x40200000,
    ]
    words += [w | 0x80000000 for w in words]
    while len(words) < UNARY_INPUTS // 2:
        words.append(random.pattern(8, 23, 127, 8))
    while len(words) < UNARY_INPUTS:
        words.append(random.next() & 0xFFFFFFFF)
    return struct.pack(f"<{UNARY_INPUTS}I", *words)


# -- recordings ------------------------------------------------------------------------------------------

KEPT_ROWS = 32  # of the 64 of a wgmma, to keep the file small


def record_device(gpu, write):
    write("device", gpu.name().encode())


def isolated(work):
    """work() -> bytes in a process of its own, since an instruction that the GPU refuses ends the context. None then.
    This process itself touches neither the driver nor NVRTC, after which a child could not use the GPU."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        status = 1
        try:
            with os.fdopen(writer, "wb") as out:
                out.write(work())
            status = 0
        except SystemExit as error:
            print(error, file=sys.stderr)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writer)
    with os.fdopen(reader, "rb") as data:
        result = data.read()
    return result if os.waitpid(child, 0)[1] == 0 else None


def record_products(gpu, write):
    random = Random(1)
    for name in ("bf16_f32", "f16_f32", "f16_f16", "tf32_f32", "e4m3_f32", "e5m2_f32", "e4m3_f16"):
        for unit, rows, kept, threads in (("wgmma", 64, KEPT_ROWS, 128), ("mma", 16, 16, 32)):
            kernel = f"{unit}_{name}"
            if f"({kernel}," not in SOURCE:
                continue
            type_name, result = name.split("_")
            row_bytes = 8 * (2 if result == "f16" else 4)
            for kind in KINDS:
                a, b = operand(random, kind, type_name, rows), operand(random, kind, type_name, 8)
                if kind == "cancel":
                    b = negated_pairs(b, type_name)
                c = accumulator(random, kind, result == "f16", rows)
                d = gpu.run(kernel, threads, [a, b, c], rows * row_bytes)
                write(f"{kernel}.{kind}", a[: kept * 32] + b + c[: kept * row_bytes] + d[: kept * row_bytes])


def record_unary(gpu, write):
    inputs = unary_inputs()
    write("unary.inputs", inputs)
    memory, out = gpu.upload(inputs), gpu.upload(bytes(len(inputs)))
    names = [line.split("(")[1].split(",")[0] for line in SOURCE.splitlines() if line.startswith("UNARY")]
    for name in names:
        gpu.launch(name, 128, [memory, out, ctypes.c_int(UNARY_INPUTS)], blocks=5)
        write(f"unary.{name}", gpu.download(out, len(inputs)))


def probes(kernel):
    for mode, span in ((0, 16), (1, 128), (2, 64), (3, 32)):
        for start in (0, 32, 128, 1024 + 256):
            for base_offset in (0, 1, 6) if mode else (0,):
                if mode == 0:
                    leading, stride = (2048, 256) if kernel == "probe_k_major" else (1024, 128)
                else:
                    leading, stride = 8 * span, 8 * span if kernel == "probe_k_major" else 1024
                yield start, leading, stride, mode, base_offset


def probe(gpu, kernel, parameters):
    out = gpu.upload(bytes(64 * 32))
    gpu.launch(kernel, 128, [*(ctypes.c_uint32(p) for p in parameters), out], shared=32768)
    halves = struct.unpack("<1024e", gpu.download(out, 2048))
    if kernel == "probe_k_major":
        chunks = [halves[row * 16 + 8 * half] for row in range(64) for half in range(2)]
    else:
        chunks = [halves[chunk * 128 + k] for k in range(16) for chunk in range(8)]
    return struct.pack("<5I128H", *parameters, *(int(c) for c in chunks))


def record_descriptors(cubin, write):
    """Of each probe five 32-bit parameters, then the chunk numbers of A: of [row][half], or of [k][chunk]. Probes that
    the GPU refuses are left out, and said aloud."""
    for kernel in ("probe_k_major", "probe_mn_major"):
        every = list(probes(kernel))

        def probe_all(parameters, kernel=kernel):
            gpu = Gpu(cubin)
            return b"".join(probe(gpu, kernel, p) for p in parameters)

        data = isolated(lambda: probe_all(every))
        if data is None:
            found = {p: isolated(lambda p=p: probe_all([p])) for p in every}
            for p in every:
                if found[p] is None:
                    print(f"{kernel}: refused: start, leading, stride, mode, base offset = {p}", file=sys.stderr)
            data = b"".join(part for part in found.values() if part is not None)
        write(kernel, data)


def tensor_copy(cubin, kind, element, data, dims, box, steps, swizzle, nan, x, y):
    """Completed (32 bits), then 2048 bytes of shared memory that held 0xEE."""
    gpu = Gpu(cubin)
    out, completed, source = gpu.upload(bytes(2048)), gpu.upload(bytes(4)), gpu.upload(data)
    tensor_map = gpu.tensor_map(kind, source, dims, (dims[0] * element,), box, steps, swizzle, nan)
    # What the copy is expected to be credited with; the record says whether that was right.
    rows = -(-box[1] // steps[1])
    size = box[0] * element * rows
    gpu.launch("tensor_load", 128, [tensor_map, ctypes.c_int(x), ctypes.c_int(y), ctypes.c_uint32(size), out,
                                    ctypes.c_uint32(2048), completed], shared=8192)
    return gpu.download(completed, 4) + gpu.download(out, 2048)


def record_tensor_copies(cubin, write):
    """What tensor_copy() gives; empty, and said aloud, where the driver refuses the map or the GPU the copy."""
    numbers = bytes(i // 16 % 251 for i in range(4096))
    half = struct.pack("<64H", *range(0x3C00, 0x3C40)) * 16
    random = Random(5)
    floats = struct.pack("<1024I", *(random.pattern(8, 23, (4, 127)[i % 2], 4) for i in range(1024)))
    ties = struct.pack("<64I", *(one + (i << 11) for one in (0x3F800000, 0xBF800000) for i in range(32)))
    u8, u16, f16, f32, bf16, ftz, tf32, tf32_ftz = 0, 1, 6, 7, 9, 10, 11, 12
    cases = {
        # name: (type, element bytes, data, dims, box, element strides, swizzle, nan, x, y)
        "pitch32_swizzle128": (u8, 1, numbers, (32, 16), (32, 16), (1, 1), 3, False, 0, 0),
        "pitch64_swizzle128": (u8, 1, numbers, (64, 16), (64, 16), (1, 1), 3, False, 0, 0),
        "pitch32_swizzle64": (u8, 1, numbers, (32, 16), (32, 16), (1, 1), 2, False, 0, 0),
        "pitch16_swizzle32": (u8, 1, numbers, (16, 16), (16, 16), (1, 1), 1, False, 0, 0),
        "swizzle128": (u8, 1, numbers, (128, 16), (128, 16), (1, 1), 3, False, 0, 0),
        "outside_swizzle128": (u8, 1, numbers, (112, 12), (128, 16), (1, 1), 3, False, -24, -3),
        "element_stride_row": (u8, 1, numbers, (32, 64), (32, 15), (1, 2), 0, False, 0, 1),
        "element_stride_inner": (u16, 2, numbers, (64, 16), (32, 8), (2, 1), 0, False, 0, 0),
        "nan_f16": (f16, 2, half, (64, 8), (64, 8), (1, 1), 0, True, -8, -1),
        "nan_bf16": (bf16, 2, half, (64, 8), (64, 8), (1, 1), 0, True, -8, -1),
        "nan_f32": (f32, 4, floats, (32, 8), (32, 8), (1, 1), 0, True, -8, -1),
        "nan_tf32": (tf32, 4, floats, (32, 8), (32, 8), (1, 1), 0, True, -8, -1),
        "f32": (f32, 4, floats, (32, 8), (32, 8), (1, 1), 0, False, 0, 0),
        "f32_ftz": (ftz, 4, floats, (32, 8), (32, 8), (1, 1), 0, False, 0, 0),
        "tf32": (tf32, 4, floats, (32, 8), (32, 8), (1, 1), 0, False, 0, 0),
        "tf32_ftz": (tf32_ftz, 4, floats, (32, 8), (32, 8), (1, 1), 0, False, 0, 0),
        "tf32_ties": (tf32, 4, ties, (32, 2), (32, 2), (1, 1), 0, False, 0, 0),
    }
    write("tensor.floats", floats)
    for name, case in cases.items():
        data = isolated(lambda case=case: tensor_copy(cubin, *case))
        if data is None:
            print(f"tensor copy {name}: refused", file=sys.stderr)
        write(f"tensor.{name}", data or b"")


def main():
    output = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).with_name("hopper_numerics.bin"))
    cubin = isolated(lambda: compile_source(SOURCE))
    if cubin is None:
        return 1
    records = bytearray(b"attune numerics 1\n")

    def write(name, data, out=records):
        out.extend(struct.pack("<H", len(name)) + name.encode() + struct.pack("<I", len(data)) + data)

    def part(record):
        """Adds what `record` writes, recorded in a process of its own; False if the GPU refuses it."""
        name = record.__name__

        def work():
            out = bytearray()
            record(Gpu(cubin), lambda name, data: write(name, data, out))
            return bytes(out)

        data = isolated(work)
        if data is None:
            print(f"{name}: failed", file=sys.stderr)
            return False
        records.extend(data)
        return True

    done = [part(record) for record in (record_device, record_products, record_unary)]
    record_descriptors(cubin, write)
    record_tensor_copies(cubin, write)
    output.write_bytes(records)
    print(f"{output}: {len(records)} bytes")
    return 0 if all(done) else 1


if __name__ == "__main__":
    sys.exit(main())
