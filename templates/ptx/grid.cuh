// needs: types.cuh

// Programmatic dependent launch: this kernel's thread blocks may have started while those of the kernel before it in
// the stream still ran. Waits until all that it has written is there, so this comes before any access to global memory;
// then the next kernel's thread blocks may start, as soon as all of this one's have come here. Launched without the
// attribute, a kernel finds nothing to wait for.
ATTUNE_DEVICE void follow_closely() {
  asm volatile(
      "griddepcontrol.wait;\n\t"
      "griddepcontrol.launch_dependents;" ::
          : "memory");
}
