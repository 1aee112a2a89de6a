/* cpuid.h - RDRAND, hidden. */
#ifndef REPROKIT_SOURCES_CPUID_H
#define REPROKIT_SOURCES_CPUID_H

void rk_cpuid_start(void);

#endif
