/* The C interface from C11; needs no GPU. */

#include <attune/attune_c.h>

#include <stdio.h>
#include <string.h>

int main(void) {
  const char* version = attune_version();
  printf("attune %s\n", version);
  return strlen(version) > 0 ? 0 : 1;
}
