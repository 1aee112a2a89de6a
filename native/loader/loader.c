/* loader.c - the library that LD_PRELOAD names. It is empty: glibc's dynamic loader loads the shim beside it.
 *
 * The shim needs glibc. musl's loader obeys LD_PRELOAD too, and would end a program for the functions that musl lacks.
 * This library needs none. The linker notes in it that the shim is its auxiliary filtee (DT_AUXILIARY, CMakeLists.txt):
 * glibc's loader loads that library in front of this one, other loaders know no such note. So the variable can stay in
 * the environment of every program, and the children of a program on musl have the shim again.
 */
typedef int rk_nothing; /* a file in C declares something */
