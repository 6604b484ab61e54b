/* Device memory for the examples, so that they need no CUDA toolkit to build. A program of yours has its own: from
 * cudaMalloc, from a framework. Valid C and C++. Needs a current context, which creating a runtime provides. */
#ifndef ATTUNE_EXAMPLES_DEVICE_MEMORY_H
#define ATTUNE_EXAMPLES_DEVICE_MEMORY_H

#include <dlfcn.h>
#include <stddef.h>

/* Zeroed; a null pointer if there is none to be had. Never freed: the examples end soon. */
static void* device_memory(size_t bytes) {
  int (*allocate)(void**, size_t) = NULL;
  int (*fill)(void*, unsigned char, size_t) = NULL;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  void* memory = NULL;
  if (driver == NULL) return NULL;
  *(void**)(&allocate) = dlsym(driver, "cuMemAlloc_v2");
  *(void**)(&fill) = dlsym(driver, "cuMemsetD8_v2");
  if (allocate(&memory, bytes) != 0) return NULL;
  fill(memory, 0, bytes);
  return memory;
}

/* Waits for everything that was launched; 0 if it went well. */
static int device_wait(void) {
  int (*wait)(void) = NULL;
  void* driver = dlopen("libcuda.so.1", RTLD_NOW);
  if (driver == NULL) return 1;
  *(void**)(&wait) = dlsym(driver, "cuCtxSynchronize");
  return wait();
}

#endif
