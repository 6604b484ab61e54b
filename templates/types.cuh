// Fixed-width types and the tensor map, spelled out so that the source needs no header.
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long long int64_t;
typedef unsigned long long uint64_t;

// Opaque image of a CUtensorMap; passed by value as a __grid_constant__ parameter.
struct alignas(64) TensorMap {
  uint8_t bytes[128];
};

#define ATTUNE_DEVICE __device__ __forceinline__

ATTUNE_DEVICE float infinity() { return __int_as_float(0x7f800000); }
constexpr uint32_t kFullWarp = 0xffffffffu;
