/* The threads of OpenMP, each of which draws twice in two teams; printed by number of thread. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>

enum { THREADS = 4 };

int main(void) {
    uint64_t drawn[2][THREADS] = {0};
    for (int team = 0; team < 2; team++) {
#pragma omp parallel for schedule(static, 1) num_threads(THREADS)
        for (int i = 0; i < THREADS; i++)
            if (getrandom(&drawn[team][i], 8, 0) != 8) exit(99);
    }
    for (int team = 0; team < 2; team++)
        for (int i = 0; i < THREADS; i++) printf("%016llx\n", (unsigned long long)drawn[team][i]);
}
