/* site.c - call sites: which modules' requests are withheld (fresh, not recorded), or are told the real time. */
#include <fcntl.h>
#include <limits.h>
#include <string.h>
#include <sys/syscall.h>

#include "recorder/calls.h"
#include "recorder/check.h"
#include "recorder/host.h"
#include "recorder/pool.h"
#include "recorder/site.h"

uint32_t rk_unloads;

const char *rk_executable = "/proc/self/exe";
static char forked_program[PATH_MAX];

static const char *look_up_program(char path[PATH_MAX]) {
    long length = rk_call(SYS_readlinkat, AT_FDCWD, (long)rk_executable, (long)path, PATH_MAX - 1, 0, 0);
    path[length > 0 ? length : 0] = 0;
    return path;
}

/* Looks the program up before the first fork: every forked process would find the same, and the kernel is slow. */
void rk_program_before_fork(void) {
    static uint32_t begun;
    if (!rk_is_forked && !__atomic_exchange_n(&begun, 1, __ATOMIC_ACQ_REL)) look_up_program(forked_program);
}

const char *rk_program(char path[PATH_MAX]) {
    return rk_is_forked && *forked_program ? forked_program : look_up_program(path);
}

static const char *base_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* Hashes the module's file name without its directory: the same library may be installed elsewhere. */
uint64_t rk_site_key(const char *module, size_t length, uint64_t offset) {
    size_t start = length;
    while (start > 0 && module[start - 1] != '/') start--;
    return rk_check(module + start, length - start, offset);
}

/* The tables that follow are also in docs/limitations.md, which says why each is there.
 *
 * Keys and nonces of these libraries must be fresh, and a replay of their entropy would not make them repeatable. */
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

/* Returns whether a program generates keys or passwords, by its file name: such programs call libc or the kernel
 * directly. */
static bool is_crypto_program(const char *name) {
    static const char *const programs[] = {
        "ssh", "sshd", "sshd-session", "sshd-auth", "ssh-keygen", "ssh-agent", "ssh-add", "ssh-keysign", "dropbear",
        "dropbearkey", "dropbearmulti", "dbclient", "puttygen", "plink", "pscp", "psftp", "pageant",
        /* others that make keys */
        "openssl", "certtool", "gpg", "gpg2", "gpgsm", "gpg-agent", "sq", "age", "age-keygen", "rage", "rage-keygen",
        "minisign", "signify", "signify-openbsd", "wg", "cryptsetup",
        /* passwords */
        "pwgen", "apg", "pwqgen", "makepasswd", "mkpasswd", "htpasswd", "diceware"};
    for (size_t i = 0; i < RK_LENGTH(programs); i++)
        if (strcmp(name, programs[i]) == 0) return true;
    return false;
}

/* Returns whether a program compares the times of files, or of what a server sends, with now. Those are real in a
 * replay too. */
static bool is_clock_program(const char *name) {
    static const char *const programs[] = {"make", "gmake", "ninja", "samu", "cmake", "ctest", "bazel", "buck2", "tar",
                                           "bsdtar", "cpio", "rsync",
                                           /* signatures and certificates */
                                           "apt", "apt-get", "aptitude", "dnf", "yum", "uv", "aws", "rclone", "s5cmd",
                                           "gsutil", "gcloud", "az", "azcopy", "kinit", "klist", "chronyc", "ntpdate"};
    for (size_t i = 0; i < RK_LENGTH(programs); i++)
        if (strcmp(name, programs[i]) == 0) return true;
    return is_crypto_program(name);
}

/* Returns whether a module, or its program, is told the real time in a replay: others would refuse what it signs by a
 * time that has passed, and it would take what others have made since for the future's. */
bool rk_keeps_real_time(const char *module) {
    /* Clients of object stores that sign requests or check certificates by themselves. */
    static const char *const libraries[] = {
        "_obstore.", "_mountpoint_s3_client.", "hf_xet.", "libarrow.", "libtensorflow_io", "libaws-", "libnss3",
        "libkrb5",   "libgssapi_krb5"};
    char path[PATH_MAX];
    const char *name = base_name(module);
    for (size_t i = 0; i < RK_LENGTH(libraries); i++)
        if (strncmp(name, libraries[i], strlen(libraries[i])) == 0) return true;
    return rk_is_crypto(module) || is_clock_program(base_name(rk_program(path)));
}

/* The same of a file of Python, by its path: `depth` is 0 where it calls the clock, 1 where it calls who does. */
bool rk_python_keeps_real_time(const char *path, int depth) {
    static const char *const packages[] = {
        "/botocore/",    "/aiobotocore/",  "/boto/",     "/minio/",    "/google/auth/",  "/google/oauth2/",
        "/azure/",       "/msal/",         "/msrest/",   "/oauthlib/", "/jwt/",          "/jose/",
        "/authlib/",     "/itsdangerous/", "/grpc/",     "/OpenSSL/",  "/cryptography/", "/securesystemslib/",
        "/sigstore/",    "/tuf/",          "/paramiko/", "/gssapi/",   "/kubernetes/",   "/http/cookiejar.py",
        "/cachecontrol/"};
    if (depth > 1) return false;
    for (size_t i = 0; i < RK_LENGTH(packages); i++)
        if (strstr(path, packages[i])) return true;
    return depth == 0 && strstr(path, "/reprokit/agent/");
}

static bool is_of_java(const char *module) {
    const char *name = base_name(module);
    return strcmp(name, "libjava.so") == 0 || strcmp(name, "libnio.so") == 0;
}

/* Returns whether the program's name makes a request withheld. The main module has the name "" here. Node uses one
 * generator for keys and Math.random(): its copy of OpenSSL. */
static bool withholds_program(const char *module, enum rk_runtime *runtime) {
    char path[PATH_MAX];
    const char *name = base_name(rk_program(path));
    if (is_crypto_program(name)) return true;
    bool is_main = !*module || strcmp(base_name(module), name) == 0;
    if (is_main && strcmp(name, "node") == 0) *runtime = RK_RUNTIME_NODE;
    return *runtime != RK_RUNTIME_NONE;
}

/* Returns whether a module's requests are withheld. In Go and Java only crypto/rand and SecureRandom use the system. */
bool rk_withholds(const char *module, enum rk_runtime *runtime) {
    *runtime = is_of_java(module) ? RK_RUNTIME_JAVA : rk_is_go() ? RK_RUNTIME_GO : RK_RUNTIME_NONE;
    return *runtime != RK_RUNTIME_NONE || rk_is_crypto(module) || withholds_program(module, runtime);
}
