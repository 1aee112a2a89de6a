/* Loads a library and ends in the way that the argument says. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int count, char **arguments) {
    const char *end = count > 1 ? arguments[1] : "";
    if (!dlopen("libm.so.6", RTLD_NOW)) return 99;
    if (strcmp(end, "exit(3)") == 0) exit(3);
    if (strcmp(end, "_exit(3)") == 0) _exit(3);
    if (strcmp(end, "_Exit(3)") == 0) _Exit(3);
    if (strcmp(end, "quick_exit(3)") == 0) quick_exit(3);
    if (strcmp(end, "fork") == 0 && fork() == 0) _exit(0);
    if (strcmp(end, "vfork") == 0 && vfork() == 0) _exit(0);
    int status = 0;
    while (wait(&status) > 0) continue;
    return status;
}
