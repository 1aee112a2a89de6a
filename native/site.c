/* site.c - which module asked: call sites, and the cryptographic libraries that are left alone. */
#include <dlfcn.h>
#include <link.h>
#include <string.h>

#include "internal.h"

#ifdef DLFO_STRUCT_HAS_EH_DBASE
#pragma weak _dl_find_object
#endif

uint32_t rk_unloads;

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

__attribute__((weak)) const char *rk_module(const void *address, uint64_t *offset) {
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

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* By the module's file name, not its path: the same library may be installed elsewhere. */
uint64_t rk_site_key(const char *module, size_t length, uint64_t offset) {
    size_t start = length;
    while (start > 0 && module[start - 1] != '/') start--;
    return rk_check(module + start, length - start, offset);
}

/* Their keys and nonces must be fresh, and replaying their entropy would not even make them
 * repeatable. docs/limitations.md has this list too. */
bool rk_is_crypto(const char *module) {
    static const char *const libraries[] = {
        /* C libraries, also under the names that wheels give to their copies (libcrypto-1a2b3c4d.so.3) */
        "libcrypto", "libssl", "libgnutls", "libgcrypt", "libsodium", "libnettle", "libhogweed", "libnss3",
        "libsoftokn3", "libfreebl", "libmbedcrypto", "libmbedtls", "libwolfssl", "libbotan", "libtomcrypt",
        "libk5crypto", "libs2n", "libaws-c-cal", "libbearssl",
        /* extension modules of Python that hold a copy: ssl where OpenSSL is linked in, cryptography, PyNaCl,
         * bcrypt, grpcio, awscrt */
        "_ssl.", "_hashlib.", "cryptography/hazmat/bindings/_rust.", "_openssl.", "_sodium.", "_bcrypt.", "cygrpc.",
        "_awscrt."};
    const char *name = base_name(module);
    for (size_t i = 0; i < RK_LENGTH(libraries); i++) {
        bool is_path = strchr(libraries[i], '/');
        if (is_path ? strstr(module, libraries[i]) != NULL : strncmp(name, libraries[i], strlen(libraries[i])) == 0)
            return true;
    }
    return false;
}
