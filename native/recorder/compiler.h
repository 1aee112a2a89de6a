/* compiler.h - what the compiler is told. */
#ifndef REPROKIT_RECORDER_COMPILER_H
#define REPROKIT_RECORDER_COMPILER_H

#define RK_EXPORT        __attribute__((visibility("default")))
#define RK_LIKELY(x)     __builtin_expect(!!(x), 1)
#define RK_UNLIKELY(x)   __builtin_expect(!!(x), 0)
#define RK_CALLER()      __builtin_return_address(0)
#define RK_LENGTH(array) (sizeof(array) / sizeof((array)[0]))

#endif
