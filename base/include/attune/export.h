/* ATTUNE_API marks what the shared library exports; everything else in it is hidden. Valid C and C++. */
#ifndef ATTUNE_EXPORT_H
#define ATTUNE_EXPORT_H

#define ATTUNE_API __attribute__((visibility("default")))

#endif
