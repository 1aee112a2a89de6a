/* callers.c - finds the module that makes a request. */
#include <dlfcn.h>
#include <link.h>

#include "recorder/host.h"

#ifdef DLFO_STRUCT_HAS_EH_DBASE
#pragma weak _dl_find_object
#endif

struct search {
    uintptr_t address;
    const char *name;
    uintptr_t base;
};

static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct search *search = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        uintptr_t start = info->dlpi_addr + info->dlpi_phdr[i].p_vaddr;
        if (info->dlpi_phdr[i].p_type != PT_LOAD || search->address - start >= info->dlpi_phdr[i].p_memsz) continue;
        search->name = info->dlpi_name;
        search->base = info->dlpi_addr;
        return 1;
    }
    return 0;
}

const char *rk_module(const void *address, uint64_t *offset) {
    struct search search = {.address = (uintptr_t)address, .name = "", .base = 0};
#ifdef DLFO_STRUCT_HAS_EH_DBASE /* glibc >= 2.35 offers the lookup that takes no lock */
    struct dl_find_object found;
    if (_dl_find_object && _dl_find_object((void *)address, &found) == 0) {
        *offset = (uintptr_t)address - found.dlfo_link_map->l_addr;
        return found.dlfo_link_map->l_name;
    }
#endif
    dl_iterate_phdr(visit, &search);
    *offset = search.address - search.base;
    return search.name;
}

/* The supervisor alone knows this of a program: its entropy passes by the shim. */
bool rk_is_go(void) { return false; }
